"""Benchmarks of several ranks, on processes that go through Gloo."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import link_ranks
import pytest
import torch

from gpuguide.benchmarks.interconnect import all_reduce, ranks, tensor_parallel
from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.interconnect.processes import Team
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner

CPU, H200 = devices.cpu(), devices.several(devices.fake("h200"), 2)
TWO = replace(CPU, count=2)
ALL_REDUCE, LAYER = declarations.get("all-reduce"), declarations.get("tensor-parallel-layer")
KIB, GIB = 2**10, 2**30
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="module", autouse=True)
def _end_teams() -> Iterator[None]:
    yield
    ranks.end()


@pytest.fixture
def team() -> Team:
    """The team that runs, or a new one where an earlier test has ended it."""
    return ranks.team_with({}, TWO)


def test_messages_go_from_8_bytes_to_4_gib() -> None:
    sizes = [int(keys["size"]) for keys in ALL_REDUCE.cases(H200)]
    assert (sizes[0], sizes[-1]) == (8, 4 * GIB)
    assert {16 * KIB, 64 * KIB} < set(sizes)
    assert ALL_REDUCE.cases(CPU) == LAYER.cases(CPU) == []
    for name in ("gpuguide", "symm-mem"):
        skip_reason = ALL_REDUCE.contenders[name].skip_reason
        assert [size for size in sizes if not skip_reason(H200, {"size": size})] == [s for s in sizes if s <= 2**20]


def test_small_messages_are_timed_a_hundred_at_a_time() -> None:
    counts = {size: all_reduce.calls_in_graph(size) for size in all_reduce.SIZES}
    assert all(count == 100 for size, count in counts.items() if size <= 64 * KIB)
    assert counts[4 * GIB] == 1
    assert torch.finfo(torch.bfloat16).tiny < 2.0**all_reduce.SMALLEST_POWER


@pytest.mark.parametrize("world_size", range(2, 17))
def test_all_calls_in_place_and_every_partial_sum_stay_exact_in_bf16(world_size: int) -> None:
    calls = min(all_reduce.calls_in_graph(8), all_reduce.exact_calls(world_size))
    totals = range(world_size * all_reduce.largest_number(world_size) + 1)
    for before in (1, *(world_size**call for call in range(calls - 1))):
        partial = [total * before * ranks_added for total in totals for ranks_added in range(1, world_size + 1)]
        right = torch.tensor(partial[:: 1 + len(partial) // 999], dtype=torch.float64) * 2.0**all_reduce.SMALLEST_POWER
        assert torch.equal(right.bfloat16().double(), right)
    assert (calls, all_reduce.largest_number(world_size)) == (100, 15) or world_size not in (2, 4)


@pytest.mark.parametrize("world_size", [3, 4, 8])
def test_sums_are_checked_on_any_number_of_ranks(world_size: int) -> None:
    with Team(world_size, "cpu", start="fork") as team:
        right = {"nccl": all_reduce.nccl, "gpuguide": all_reduce.gpuguide}
        for name, prepare in right.items():
            assert team.run(ranks.set_up, name, prepare, (256,)) == [None] * world_size
        assert None not in team.run(ranks.set_up, "wrong", link_ranks.not_added_up, (256,))
        layer = tensor_parallel.one_after_the_other
        assert team.run(ranks.set_up, "layer", layer, link_ranks.SHAPE) == [None] * world_size


@pytest.mark.parametrize("count", [2, 4, 8])
def test_benchmarks_take_the_number_of_gpus_from_the_machine(count: int) -> None:
    machine = replace(H200, count=count)
    few = replace(ALL_REDUCE, cases=lambda device: [{"size": size} for size in (8, 2**20)])
    (record,) = runner.run([few], machine, None, commit="c0ffee").records
    assert record.device == f"{count}x-nvidia-h200-sxm"
    (large,) = (case for case in record.cases if case.contender == "gpuguide" and case.keys["size"] == 2**20)
    assert (large.status == "ok") == (count == 2)  # every rank sends the message to all others
    assert LAYER.cases(machine)
    assert not LAYER.cases(replace(H200, count=3))  # the layer cannot be divided by three


def test_numbers_are_exact_in_bf16_and_differ_between_ranks_and_places() -> None:
    device = torch.device("cpu")
    first, second = (all_reduce.whole_numbers(0, 1000, rank, device) for rank in range(2))
    assert torch.equal(
        all_reduce.message(1000, 1, 2, device).double() * 2.0**-all_reduce.SMALLEST_POWER, second.double()
    )
    assert not torch.equal(first, second)
    assert not any(torch.equal(first[shift:], first[:-shift]) for shift in range(1, 100))
    total = ((first + second).double() * 2.0 ** (4 + all_reduce.SMALLEST_POWER)).bfloat16()
    all_reduce.check_sums(total, 2, 5)
    total[-1] *= -3
    total[-2] = torch.nan
    with pytest.raises(AssertionError, match=r"[12] of 1000 sums are wrong"):
        all_reduce.check_sums(total, 2, 5)


@pytest.mark.parametrize("name", ["nccl", "nccl-unmixed", "gpuguide"])
@pytest.mark.parametrize("size", [8, 2 * KIB])
def test_sums_are_checked_and_timed_on_processes(team: Team, name: str, size: int) -> None:
    work = ALL_REDUCE.contenders[name].build(TWO, {"size": size})
    assert work.sample
    assert work.sample() > 0
    assert work.rates["bandwidth"].per_call == size
    assert ranks.team_with({}, TWO) is team


def test_settings_are_those_of_a_team_of_its_own(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_GRAPH_MIXING_SUPPORT", "1")
    unmixed = ranks.team_with(all_reduce.UNMIXED, TWO)
    assert unmixed is ranks.team_with(all_reduce.UNMIXED, TWO) is not team
    assert unmixed.run(link_ranks.graph_mixing) == ["0", "0"]
    assert os.environ["NCCL_GRAPH_MIXING_SUPPORT"] == "1"
    assert ranks.team_with({}, TWO) is team


def test_wrong_sums_are_told(team: Team) -> None:
    with pytest.raises(AssertionError, match=r"rank 0: \d+ of 1024 sums are wrong"):
        ranks.sampler(team, "wrong", link_ranks.not_added_up, (2 * KIB,))
    assert team.is_running


def test_inputs_are_put_back_and_another_case_drops_what_was_there(team: Team) -> None:
    sample = ranks.sampler(team, "counted", link_ranks.counted, (1,))
    done, tasks = team.run(link_ranks.what_was_done)[0]
    assert done[:5] == ["restore", "call", "call", "call", "check"]
    assert tasks == ["counted"]
    sample()
    after, _ = team.run(link_ranks.what_was_done)[0]
    assert after[len(done) :] == ["restore", "call", "call", "call"]  # it was this contender's turn before
    ranks.sampler(team, "nccl", all_reduce.nccl, (8,))
    assert team.run(link_ranks.what_was_done)[1] == ([], ["nccl"])


@pytest.mark.parametrize("name", list(LAYER.contenders))
def test_the_layer_is_checked_and_timed_on_processes(team: Team, name: str) -> None:
    tokens, hidden, inner = link_ranks.SHAPE
    work = LAYER.contenders[name].build(TWO, {"tokens": tokens, "hidden": hidden, "inner": inner})
    assert work.sample
    assert work.sample() > 0
    if name == "communicate-only":
        assert work.rates["bandwidth"].per_call == 2 * tokens * hidden
    else:
        assert work.rates["throughput"].per_call == 4 * tokens * hidden * inner


def test_a_layer_whose_parts_are_not_added_up_is_told(team: Team) -> None:
    with pytest.raises(AssertionError, match="the relative error is"):
        ranks.sampler(team, "wrong", link_ranks.part_alone, link_ranks.SHAPE)


def test_what_makes_no_sense_is_left_out() -> None:
    measured = {
        name: tuple(int(keys["tokens"]) for keys in LAYER.cases(H200) if not contender.skip_reason(H200, keys))
        for name, contender in LAYER.contenders.items()
    }
    assert measured.pop("one-shot") == (1, 16)
    assert measured.pop("overlapped") == (256, 1024, 4096, 16384)
    assert set(measured.values()) == {tensor_parallel.TOKENS}


def test_a_rank_that_dies_ends_its_case_and_the_next_one_has_new_ranks() -> None:
    running = ranks.team_with({}, TWO)
    good = ranks.sampler(running, "nccl", all_reduce.nccl, (8,))
    with pytest.raises(GpuguideError, match="Rank 1 of 2 died while running set_up"):
        ranks.sampler(running, "dies", link_ranks.dies, (8,))
    with pytest.raises(GpuguideError, match="has ended"):
        good()
    renewed = ranks.team_with({}, TWO)
    assert renewed is not running
    assert ranks.sampler(renewed, "nccl", all_reduce.nccl, (8,))() > 0
    ranks.end()
    assert not renewed.is_running


@pytest.mark.gpu
@two_gpus
def test_all_contenders_are_right_on_all_gpus() -> None:
    device = devices.several(devices.current(), "all")
    sizes = [{"size": size} for size in (8, 64 * KIB, 2**20, 2**22)]
    layers = [{"tokens": tokens, "hidden": 1024, "inner": 4096} for tokens in (16, 256)]
    try:
        for benchmark, cases in ((ALL_REDUCE, sizes), (LAYER, layers)):
            for keys in cases:
                for name, contender in benchmark.contenders.items():
                    if not contender.skip_reason(device, keys):
                        sample = contender.build(device, keys).sample
                        assert sample, name
                        assert 0 < sample() < 1, name
    finally:
        ranks.end()

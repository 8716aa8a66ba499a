"""Benchmarks of collectives, on processes that go through Gloo, with a model so small that a processor trains it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from gpuguide.benchmarks.collectives import gradient_sum, scaling, sizes
from gpuguide.benchmarks.interconnect import ranks
from gpuguide.collectives.cost import RING
from gpuguide.hardware import device as devices
from gpuguide.interconnect.processes import Member, Team
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.models.gpt2 import GPT2Config

CPU, H200 = devices.cpu(), devices.fake("h200")
COLLECTIVES, SUMS, SCALING = (declarations.get(name) for name in ("collectives", "gradient-sum", "gpu-scaling"))
TINY = GPT2Config(vocab_size=2048, context=32, layers=2, heads=2, hidden=32)
SMALL = (2, 16, False)
ELSEWHERE = ("ddp-bf16", "fsdp2")
"""A contender that goes through NCCL only, and one that has a test of its own"""
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    """Two copies of this process."""
    with Team(2, "cpu", start="fork") as found:
        yield found


@pytest.fixture(scope="module", params=[3, 4, pytest.param(8, marks=pytest.mark.thorough)])
def more(request: pytest.FixtureRequest) -> Iterator[Team]:
    """More copies of this process."""
    with Team(request.param, "cpu", start="fork") as found:
        yield found


@pytest.mark.parametrize("collective", list(RING))
@pytest.mark.parametrize("size", [8, 4096])
def test_every_number_of_a_collective_is_checked(team: Team, collective: str, size: int) -> None:
    sample = ranks.sampler(team, "nccl", sizes.nccl, (collective, size))
    assert sample() > 0


def test_collectives_gradients_and_steps_are_right_on_more_ranks(more: Team) -> None:
    for collective in RING:
        assert more.run(ranks.set_up, "nccl", sizes.nccl, (collective, 256)) == [None] * more.size, collective
        assert any(more.run(ranks.set_up, "idle", left_undone, (collective, 256))), collective
    assert more.run(sizes.set_up_uncaptured, "ring", sizes.by_hand, ("all-reduce", 256)) == [None] * more.size
    for name in ("none", "flat", "ddp-view", "gpuguide", "gpuguide-bf16", "gpuguide-rows"):
        found = more.run(gradient_sum.set_up, name, SMALL, TINY, False)
        assert [fault for fault, _, _ in found] == [None] * more.size, name
    for name in ("one-gpu", "ddp-static", "gpuguide-rows"):
        assert more.run(scaling.set_up, name, 2, 16, TINY, False) == [None] * more.size, name


def left_undone(member: Member, collective: str, size: int) -> ranks.Task:
    """Do nothing in place of a collective."""
    task = sizes.nccl(member, collective, size)
    return replace(task, call=lambda: None)


@pytest.mark.parametrize("collective", list(RING))
def test_a_collective_that_does_nothing_is_found_out(team: Team, collective: str) -> None:
    with pytest.raises(AssertionError, match=r"rank \d: \d+ of \d+ (numbers|sums) are wrong"):
        ranks.sampler(team, "idle", left_undone, (collective, 4096))


def test_the_ring_is_checked_and_timed_call_by_call(team: Team) -> None:
    sample = sizes.uncaptured_sampler(team, "ring-by-hand", sizes.by_hand, ("all-reduce", 4096))
    assert sample() > 0
    with pytest.raises(AssertionError, match="sums are wrong"):
        sizes.uncaptured_sampler(team, "idle", idle_ring, ("all-reduce", 4096))


def idle_ring(member: Member, collective: str, size: int) -> ranks.Task:
    return replace(sizes.by_hand(member, collective, size), call=lambda: None)


@pytest.mark.parametrize("name", [name for name in gradient_sum.NAMES if name not in ELSEWHERE])
def test_averages_are_compared_with_those_of_one_by_one(team: Team, name: str) -> None:
    team.run(forget)  # as where a contender is measured alone: what it is compared with is made for it
    found = team.run(gradient_sum.set_up, name, SMALL, TINY, False)
    assert [fault for fault, _, _ in found] == [None, None]
    assert team.slowest(gradient_sum.sample, name, 1) > 0


def forget(member: Member) -> None:
    member.kept.pop("case", None)


def test_parameters_are_counted_once() -> None:
    assert gradient_sum.parameter_count(gradient_sum.SHAPE) == 124_475_904


def test_shards_have_the_same_averages(team: Team) -> None:
    team.run(gradient_sum.set_up, "none", SMALL, TINY, False)
    found = team.run(gradient_sum.set_up, "fsdp2", SMALL, TINY, False)
    assert [fault for fault, _, _ in found] == [None, None]
    assert max(error for _, error, _ in found) > 0


def test_gradients_that_stay_on_their_rank_are_found_out(team: Team) -> None:
    team.run(gradient_sum.set_up, "none", SMALL, TINY, False)
    faults = [fault for fault, _, _ in team.run(not_averaged)]
    assert all(fault > 0.1 for fault in faults)


def not_averaged(member: Member) -> tuple[float, float, int]:
    passes = gradient_sum.make(member, "none", SMALL, TINY, False)
    passes()
    return gradient_sum.compare(member, "loop", passes), 0.0, 0


@pytest.mark.parametrize("name", scaling.NAMES)
def test_ranks_keep_equal_parameters(team: Team, name: str) -> None:
    assert team.run(scaling.set_up, name, 2, 16, TINY, False) == [None, None]
    assert team.slowest(scaling.sample, name, 1) > 0


def test_contenders_are_left_out_where_they_say_nothing_new() -> None:
    measured = [
        {name for name, each in SUMS.contenders.items() if not each.skip_reason(H200, keys)}
        for keys in SUMS.cases(H200)
    ]
    assert measured[0] == set(gradient_sum.NAMES)
    assert measured[1] == measured[0] - set(gradient_sum.ONLY_SMALL)
    assert measured[2:] == [set(gradient_sum.CAPTURED), set(gradient_sum.CAPTURED_LARGE)]
    rings = [keys for keys in COLLECTIVES.cases(H200) if not sizes.not_added_up(H200, keys)]
    assert {str(keys["collective"]) for keys in rings} == {"all-reduce"}
    assert not any(each.cases(CPU) for each in (COLLECTIVES, SUMS, SCALING))


@pytest.mark.parametrize("benchmark", [COLLECTIVES, SUMS, SCALING], ids=lambda benchmark: benchmark.name)
@pytest.mark.parametrize("count", [2, 4, 8])
def test_everything_runs_on_fake_gpus(benchmark: declarations.Benchmark, count: int) -> None:
    few = replace(benchmark, cases=lambda device: benchmark.cases(device)[:2])
    (record,) = runner.run([few], replace(H200, count=count), None, commit="c0ffee").records
    assert record.device == f"{count}x-nvidia-h200-sxm"
    assert {case.status for case in record.cases} <= {"ok", "skipped"}


@pytest.mark.gpu
@two_gpus
def test_all_contenders_are_right_on_all_gpus() -> None:
    device = devices.several(devices.current(), "all")
    try:
        for benchmark, cases in (
            (COLLECTIVES, [{"collective": name, "size": size} for name in RING for size in (4096, 2**24)]),
            (SUMS, [{"batch": 2, "seq_len": 128, "captured": captured} for captured in (False, True)]),
            (SCALING, [{"batch": 2, "seq_len": 128}]),
        ):
            for keys in cases:
                for name, contender in benchmark.contenders.items():
                    if not contender.skip_reason(device, keys):
                        made = contender.build(device, keys)
                        assert made.sample, name
                        assert 0 < made.sample() < 5, name
                        made.further()
    finally:
        ranks.end()

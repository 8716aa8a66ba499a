from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import rank_functions as ranks
import torch
from interpreted import needs_triton

from gpuguide.interconnect.allreduce import OneShotAllReduce, largest_message, sum_in_order
from gpuguide.interconnect.processes import Team

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    with Team(2, device="cpu") as team:
        yield team


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("elements", [0, 1, 2, 513, 4099])
def test_the_sum_is_that_of_one_process(team: Team, elements: int, dtype: str) -> None:
    assert team.run(ranks.one_shot_sum, elements, dtype, None) == [True, True]


def test_larger_messages_go_another_way_with_the_same_sum(team: Team) -> None:
    assert team.run(ranks.one_shot_sum, 1000, "float32", 256) == [True, True]


def test_every_rank_has_the_same_bits() -> None:
    with Team(3, device="cpu") as three:
        first, second, third = three.run(ranks.rounded_alike)
    assert first == second == third


def test_one_rank_has_its_own_sum() -> None:
    with Team(1, device="cpu") as alone:
        assert alone.run(ranks.one_shot_sum, 7, "bfloat16", None) == [True]


def test_sums_are_rounded_once() -> None:
    parts = [torch.tensor([value], dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0)]
    assert sum_in_order(parts).item() == 258.0  # in bf16 from step to step: 256
    with pytest.raises(RuntimeError, match="needs ranks that have joined"):
        OneShotAllReduce("cpu")


def test_the_more_ranks_the_smaller_is_what_is_sent_in_one_shot() -> None:
    sizes = [largest_message(world_size) for world_size in range(1, 17)]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size * max(1, world - 1) <= 2**20 for world, size in enumerate(sizes, 1))
    assert largest_message(8) >= 64 * 2**10


@needs_triton
@pytest.mark.parametrize(("world_size", "dtype"), [(2, "bfloat16"), (2, "float32"), (3, "float16")])
def test_the_kernel_by_itself(world_size: int, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of all sizes follow one another, so that programs count different numbers of calls."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    words = 2 * 512
    for rank in range(world_size):
        (tmp_path / str(rank)).write_bytes(bytes(8 * 2 * world_size * words))
    per_word = 1 if dtype == "float32" else 2
    sizes = [1, words * per_word, 3, 513 * per_word, words * per_word - 1, 2, 5, 5, 5]
    with Team(world_size, device="cpu", time_limit=300) as team:
        assert team.run(ranks.interpreted_kernel, str(tmp_path), sizes, dtype) == [True] * world_size


@pytest.mark.gpu
@two_gpus
@pytest.mark.parametrize("elements", [1, 3, 4096, 2**15, 2**19, 2**19 + 1])
def test_the_kernel_on_gpus(elements: int) -> None:
    with Team(2) as team:
        for dtype in ("float32", "bfloat16", "float16"):
            assert team.run(ranks.one_shot_sum, elements, dtype, None) == [True, True]


@pytest.mark.gpu
@two_gpus
def test_a_graph_of_a_hundred_calls() -> None:
    with Team(2) as team:
        assert team.run(ranks.captured, 2**15, 100) == [True, True]

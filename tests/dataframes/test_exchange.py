"""Group-bys over several ranks, on processes of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpuguide.errors import GpuguideError
from gpuguide.interconnect.processes import Team

sys.path.insert(0, str(Path(__file__).parent))

import exchange_ranks as ranks
import interpreted
from interpreted import needs_triton


def compare_partition(rows: int, owners: int, keys: str, values: str, device: str) -> None:
    """Compare the kernels' partition with that by a sort, as sets of an owner's rows."""
    from gpuguide.dataframes import exchange, partition_kernels

    random = torch.Generator().manual_seed(rows)
    given = torch.randint(-5, 1000, (rows,), generator=random).to(getattr(torch, keys)).to(device)
    marks = torch.arange(rows).to(getattr(torch, values)).to(device)  # tell rows apart
    places, written, counts = partition_kernels.partition_on_gpu(given, marks, owners)
    right_places, right_written, right_counts = exchange.plain_partition(given, marks, owners)
    assert torch.equal(counts, right_counts)
    for found, right in zip(written.split(counts.tolist()), right_written.split(counts.tolist()), strict=True):
        assert torch.equal(found.sort().values, right)  # a stable sort left them in the order of their marks
    order = marks.long().new_empty(rows).scatter_(0, written.long(), torch.arange(rows, device=device))
    assert torch.equal(places[order], given.div(owners, rounding_mode="floor"))
    assert torch.equal(right_places[right_written.argsort()], given.div(owners, rounding_mode="floor"))


PARTITIONS = [(0, 2, "int64", "float64"), (1, 3, "int32", "float32"), (5000, 2, "int32", "float64")]


@needs_triton
@pytest.mark.parametrize("case", [*PARTITIONS, (4096, 5, "int64", "int32")])
def test_partition_kernels_interpreted(case: tuple[int, int, str, str]) -> None:
    interpreted.run(__file__, f"compare_partition(*{case}, 'cpu')")


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*PARTITIONS, (10**7 + 1, 8, "int64", "float64")])
def test_partition_kernels_on_a_gpu(case: tuple[int, int, str, str]) -> None:
    compare_partition(*case, "cuda")


@pytest.fixture(scope="module", params=[1, 2, 3])
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    with Team(request.param, "cpu", start="fork") as team:
        yield team


@pytest.fixture
def two() -> Iterator[Team]:
    with Team(2, "cpu", start="fork", time_limit=60) as team:
        yield team


@pytest.mark.parametrize("rows", [0, 1, 3, 5000])
def test_ranks_together_find_what_one_process_finds(team: Team, rows: int) -> None:
    assert all(team.run(ranks.exchanged, rows))
    assert all(team.run(ranks.first, rows))


def test_more_ranks_than_groups(team: Team) -> None:
    assert all(team.run(ranks.one_group))


@pytest.mark.parametrize("how", ["group_first", "group_exchanged"])
def test_a_key_that_is_none_of_the_groups_is_refused_on_every_rank(two: Team, how: str) -> None:
    with pytest.raises(GpuguideError, match=r"1 keys of all ranks are not from 0 to 1"):
        two.run(ranks.other_key, how)


def test_a_skewed_key_is_named_with_its_share_before_rows_are_sent(two: Team) -> None:
    """Of 2000 rows, 1750 have odd keys, and each takes 16 bytes."""
    assert all(two.run(ranks.skewed, 16 * 1750))
    with pytest.raises(GpuguideError, match=r"Rank 1 would receive 1,750 of 2,000 rows \(88%\).*key 7 alone has 75%"):
        two.run(ranks.skewed, 16 * 1750 - 1)


def test_queries_that_differ_by_rank_are_told(two: Team) -> None:
    with pytest.raises(GpuguideError, match=r"Rank 0 runs group_first with 50 groups, and rank 1 .* 51 groups"):
        two.run(ranks.by_rank)

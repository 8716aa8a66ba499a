"""Group-bys over several ranks, on processes of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguide.errors import GpuguideError
from gpuguide.interconnect.processes import Team

sys.path.insert(0, str(Path(__file__).parent))

import exchange_ranks as ranks


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


def test_a_skewed_key_is_named_with_its_share_before_rows_are_sent(two: Team) -> None:
    """Of 2000 rows, 1750 have odd keys, and each takes 16 bytes."""
    assert all(two.run(ranks.skewed, 16 * 1750))
    with pytest.raises(GpuguideError, match=r"Rank 1 would receive 1,750 of 2,000 rows \(88%\).*key 7 alone has 75%"):
        two.run(ranks.skewed, 16 * 1750 - 1)


def test_queries_that_differ_by_rank_are_told(two: Team) -> None:
    with pytest.raises(GpuguideError, match=r"Rank 0 runs group_first with 50 groups, and rank 1 .* 51 groups"):
        two.run(ranks.by_rank)

"""The benchmark of group-bys over two GPUs, on processes that go through Gloo."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from gpuguide.benchmarks.collectives import sizes
from gpuguide.benchmarks.frames_over_gpus import exchange
from gpuguide.benchmarks.interconnect import ranks
from gpuguide.interconnect.processes import Member, Team

PREPARED = {
    "rows-exchanged": exchange.rows_exchanged,
    "group-first": exchange.group_first,
    "own-rows": exchange.own_rows,
}
every_contender = pytest.mark.parametrize("name", PREPARED)


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    with Team(2, "cpu", start="fork") as found:
        yield found


@every_contender
@pytest.mark.parametrize(("rows", "groups"), [(5000, 50), (20, 1000)])
def test_every_rank_checks_its_totals(team: Team, name: str, rows: int, groups: int) -> None:
    assert sizes.uncaptured_sampler(team, name, PREPARED[name], (rows, groups))() > 0


def of_other_rows(member: Member, name: str, rows: int, groups: int) -> ranks.Task:
    """Group other rows than those that are checked."""
    right = exchange.make_rows
    exchange.make_rows = lambda rank, *rest: right(rank + 7, *rest)
    try:
        task = PREPARED[name](member, rows, groups)
        task.call()
    finally:
        exchange.make_rows = right
    return replace(task, call=lambda: None)


@every_contender
def test_wrong_totals_are_found_out(team: Team, name: str) -> None:
    with pytest.raises(AssertionError, match=r"rank \d: "):
        sizes.uncaptured_sampler(team, "wrong", of_other_rows, (name, 5000, 50))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@every_contender
def test_every_rank_checks_its_totals_on_gpus(name: str) -> None:
    with Team(2) as found:
        assert sizes.uncaptured_sampler(found, name, PREPARED[name], (10**6, 1000))() > 0

"""A group-by whose rows lie on two GPUs: rows exchanged by key, or grouped first and added up.

``own-rows`` groups the rows of each GPU and moves nothing, which is what the exchange comes on top of, and
``own-rows-cudf`` does so by cuDF: an engine that uses cuDF's group-by takes at least that long, and then has the groups
of one GPU only. Every rank compares all of its sums and counts with those of one process that has the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gpuguide.benchmarks.collectives import sizes
from gpuguide.benchmarks.dataframes.frames import CUDF
from gpuguide.benchmarks.interconnect import ranks
from gpuguide.benchmarks.interconnect.ranks import Task
from gpuguide.dataframes import engines, exchange
from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.kernels import GroupTotals, dense_group_by, plain_group_by
from gpuguide.dataframes.libraries import library
from gpuguide.hardware.device import Device
from gpuguide.interconnect.processes import Member
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

ROWS = (10**6, 10**7, 10**8)
"""On each GPU"""
GROUPS = (1000, 10**6)
ROW_BYTES = 4 + 8
IN_MEMORY = 10
"""Times its rows that a GPU needs, for their order, sorted and received copies, and the other rank's rows to check"""
ACCEPTED = 1e-11
"""Relative error of a sum of up to a hundred thousand values, which are added in another order"""


# --- work of a rank --------------------------------------------------------------------------------------


def make_rows(rank: int, rows: int, groups: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of a rank."""
    random = torch.Generator(device).manual_seed(rank)
    keys = torch.randint(groups, (rows,), generator=random, device=device, dtype=torch.int32)
    return keys, torch.rand(rows, generator=random, device=device, dtype=torch.float64)


def right_totals(ranks_with_rows: range, rows: int, groups: int, device: torch.device) -> GroupTotals:
    """Return the totals of the rows of some ranks, by PyTorch."""
    parts = [plain_group_by(*make_rows(rank, rows, groups, device), groups) for rank in ranks_with_rows]
    first, *others = parts
    for other in others:
        first.sum.add_(other.sum)
        first.count.add_(other.count)
    return first


def compare(sums: torch.Tensor, counts: torch.Tensor, keys: torch.Tensor, right: GroupTotals) -> None:
    """Compare totals with the right ones of their keys."""
    assert torch.equal(counts, right.count[keys]), "counts of groups are wrong"
    assert torch.allclose(sums, right.sum[keys], rtol=ACCEPTED, atol=0), "sums of groups are wrong"


def rows_exchanged(member: Member, rows: int, groups: int) -> Task:
    """Exchange rows by key, and group what arrived."""
    own = make_rows(member.rank, rows, groups, member.device)
    found: list[exchange.OwnedTotals] = []

    def call() -> None:
        found[:] = [exchange.group_exchanged(*own, groups, check=False)]

    def check() -> None:
        right = right_totals(range(member.world_size), rows, groups, member.device)
        owned = torch.arange(groups, device=member.device)[member.rank :: member.world_size]
        assert torch.equal(found[0].keys, owned), "a rank has other keys than it owns"
        compare(found[0].sum, found[0].count, owned, right)

    return Task(call, lambda: None, check, 1)


def group_first(member: Member, rows: int, groups: int) -> Task:
    """Group the rows of each rank, and add up the totals."""

    def group(keys: torch.Tensor, values: torch.Tensor) -> GroupTotals:
        return exchange.group_first(keys, values, groups, check=False)

    return dense_task(member, rows, groups, group, range(member.world_size))


def own_rows(member: Member, rows: int, groups: int) -> Task:
    """Group the rows of each rank, and no more."""

    def group(keys: torch.Tensor, values: torch.Tensor) -> GroupTotals:
        return dense_group_by(keys, values, groups, check=False)

    return dense_task(member, rows, groups, group, range(member.rank, member.rank + 1))


def own_rows_cudf(member: Member, rows: int, groups: int) -> Task:
    """Group the rows of each rank by cuDF, whose frame lies where the tensors do."""
    keys, values = make_rows(member.rank, rows, groups, member.device)
    cudf_frames.use_pool()
    frame = library("cudf").DataFrame({"key": keys, "value": values})
    found: list[Any] = []

    def call() -> None:
        found[:] = [frame.groupby("key", sort=False)["value"].agg(["sum", "count"])]

    def check() -> None:
        totals = found[0].sort_index()
        right = right_totals(range(member.rank, member.rank + 1), rows, groups, member.device)
        places, sums, counts = (
            torch.as_tensor(column.values, device=member.device)
            for column in (totals.index, totals["sum"], totals["count"])
        )
        assert torch.equal(places.long(), right.count.nonzero().flatten()), "cuDF found other keys"
        compare(sums, counts.long(), places.long(), right)

    return Task(call, lambda: None, check, 1)


def dense_task(
    member: Member,
    rows: int,
    groups: int,
    group: Callable[[torch.Tensor, torch.Tensor], GroupTotals],
    ranks_with_rows: range,
) -> Task:
    """Return the task of a group-by that gives the totals of all groups, over the rows of some ranks."""
    own = make_rows(member.rank, rows, groups, member.device)
    found: list[GroupTotals] = []

    def call() -> None:
        found[:] = [group(*own)]

    def check() -> None:
        right = right_totals(ranks_with_rows, rows, groups, member.device)
        compare(found[0].sum, found[0].count, torch.arange(groups, device=member.device), right)

    return Task(call, lambda: None, check, 1)


# --- declaration -----------------------------------------------------------------------------------------


def work(name: str, prepare: ranks.Prepare, settings: Any, device: Device, keys: Keys) -> Work:
    """Group the rows of all ranks; the sampler checks each rank's result."""
    rows, groups = int(keys["rows"]), int(keys["groups"])
    sample = sizes.uncaptured_sampler(ranks.team_with(settings, device), name, prepare, (rows, groups))
    return Work([], lambda: None, {"throughput": Rate("row/s", device.count * rows)}, sample=sample)


def contender(name: str, prepare: ranks.Prepare) -> Contender:
    """Return a task as a contender. It waits for its split sizes, so that no graph can hold it."""
    return ranks.contender(work, name, prepare)


EXCHANGE = Benchmark(
    name="exchange",
    title="A group-by over two GPUs",
    question="How long does a group-by over two GPUs take if rows are exchanged, and if each groups its own first?",
    contenders={
        "rows-exchanged": contender("rows-exchanged", rows_exchanged),
        "group-first": contender("group-first", group_first),
        "own-rows": contender("own-rows", own_rows),
        "own-rows-cudf": replace(
            contender("own-rows-cudf", own_rows_cudf),
            libraries=CUDF,
            unavailable_reason=lambda: engines.why_not_here("cudf"),
        ),
    },
    cases=lambda device: (
        [{"rows": rows, "groups": groups} for rows in ROWS for groups in GROUPS] if device.is_gpu else []
    ),
    memory=lambda keys: IN_MEMORY * ROW_BYTES * int(keys["rows"]),
    budget=0.2,
    gpus=2,
    end=ranks.end,
)

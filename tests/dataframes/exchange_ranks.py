"""What ranks run in tests of the exchange."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from gpuguide.dataframes import exchange, kernels
from gpuguide.interconnect.processes import Member

GROUPS = 50


def rows_of(rank: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's rows: more on later ones, and none on rank 0 if there are few."""
    random = torch.Generator().manual_seed(rank)
    keys = torch.randint(GROUPS, (rows * rank,), generator=random)
    values = torch.rand(rows * rank, generator=random, dtype=torch.float64)
    return keys, torch.where(values < 0.1, math.nan, values)


def whole(ranks: int, rows: int) -> kernels.GroupTotals:
    """The totals of all rows, by one process."""
    keys, values = (torch.cat(column) for column in zip(*(rows_of(rank, rows) for rank in range(ranks)), strict=True))
    return kernels.plain_group_by(keys, values, GROUPS)


def exchanged(member: Member, rows: int, groups: int = GROUPS) -> bool:
    """Whether every rank has the right totals of the keys that it owns, and of no others."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found, right = exchange.group_exchanged(*rows_of(rank, rows), groups, memory=1e9), whole(ranks, rows)
    owned = torch.arange(rank, groups, ranks)
    return (
        torch.equal(found.keys, owned)
        and torch.allclose(found.sum, right.sum[owned], rtol=1e-12, atol=0)
        and torch.equal(found.count, right.count[owned])
    )


def one_group(member: Member) -> bool:
    """Whether ranks that own no key find nothing, and rank 0 everything."""
    found = exchange.group_exchanged(torch.zeros(5, dtype=torch.int32), torch.ones(5), 1)
    return found.count.tolist() == ([5 * dist.get_world_size()] if dist.get_rank() == 0 else [])


def other_key(member: Member, how: str) -> None:
    """Group rows of which one, on the last rank, has a key that is none of the groups."""
    keys = torch.tensor([0, -1 if dist.get_rank() == dist.get_world_size() - 1 else 1])
    getattr(exchange, how)(keys, torch.ones(2), 2)


def first(member: Member, rows: int) -> bool:
    """Whether every rank has the right totals of all keys."""
    found, right = exchange.group_first(*rows_of(dist.get_rank(), rows), GROUPS), whole(dist.get_world_size(), rows)
    return torch.allclose(found.sum, right.sum, rtol=1e-12, atol=0) and torch.equal(found.count, right.count)


def skewed(member: Member, memory: float) -> bool:
    """Exchange rows of which three of four have the key 7."""
    keys = torch.arange(1000)
    keys[:750] = 7
    exchange.group_exchanged(keys, keys.double(), 1000, memory=memory)
    return True


def by_rank(member: Member) -> None:
    """Run another query on each rank."""
    exchange.group_first(*rows_of(1, 10), GROUPS + dist.get_rank())

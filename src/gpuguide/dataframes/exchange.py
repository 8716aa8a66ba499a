"""A group-by whose rows lie on several GPUs, by hand: exchange the rows, or group first and add up.

::

    exchange (shuffle)                          group first
    1. owner of a row: key mod GPUs             1. each GPU adds up its own rows, for every key
    2. sort rows by owner                       2. all-reduce of the sums and counts
    3. all-to-all: each row to its owner
    4. each GPU adds up the keys that it owns

To group first moves 16 bytes a group, and to exchange moves every row, so that grouping first should be faster as long
as there are far fewer groups than rows. A join and a median need all rows of a key in one
place, and an exchange. An exchange is limited by the frequent keys: all rows of a key meet on one GPU.

All ranks of the group must call these functions, each with its own rows.

Source: Kitsuregawa et al., "Application of Hash to Data Base Machine and Its Architecture", 1983, for the exchange.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpuguide.dataframes.kernels import GroupTotals, dense_group_by
from gpuguide.errors import GpuguideError


@dataclass(frozen=True)
class OwnedTotals:
    """The totals of the keys that this rank owns."""

    keys: torch.Tensor
    """``(groups,)``, sorted"""
    sum: torch.Tensor
    """``(groups,)``, float64"""
    count: torch.Tensor
    """``(groups,)``, int64"""


def group_first(
    keys: torch.Tensor, values: torch.Tensor, groups: int, group: dist.ProcessGroup | None = None, *, check: bool = True
) -> GroupTotals:
    """Return the sum and count of every key over all ranks, on each of them.

    Parameters
    ----------
    keys, values : torch.Tensor
        This rank's rows, as for :func:`gpuguide.dataframes.kernels.dense_group_by`.
    groups : int
        How many keys there are, from 0 upwards. The same on all ranks.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.
    check : bool
        Whether to check that all ranks run the same query, for which they wait for each other.
    """
    if check:
        require_same_query(f"group_first with {groups} groups", group)
    totals = dense_group_by(keys, values, groups, check=False)
    for part in (totals.sum, totals.count, totals.outside):
        dist.all_reduce(part, group=group)
    return totals


def group_exchanged(
    keys: torch.Tensor,
    values: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    memory: float | None = None,
    *,
    check: bool = True,
) -> OwnedTotals:
    """Return the sum and count of the keys that this rank owns, over the rows of all ranks.

    Parameters
    ----------
    keys : torch.Tensor
        ``(rows,)``, integers of any size.
    values : torch.Tensor
        ``(rows,)``, on the same device. NaN is a missing value.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.
    memory : float, optional
        Bytes that each rank has for the rows that it receives.
    check : bool
        Whether to check that all ranks run the same query, for which they wait for each other.

    Raises
    ------
    GpuguideError
        On every rank, if a rank would receive more than its memory holds: the message names the share of the rows and
        the key that has most of them. Or if the ranks do not run the same query.
    """
    if check:
        require_same_query(f"group_exchanged of {keys.dtype} and {values.dtype}", group)
    keys, values, counts = partition(keys, dist.get_world_size(group), values)
    if memory is not None:
        check_shares(keys, counts, memory / (keys.itemsize + values.itemsize), group)
    return group_rows(*exchange(keys, values, counts, group))


def partition(keys: torch.Tensor, owners: int, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return keys and values sorted by owner, and how many rows each owner gets: ``(owners,)``, int64."""
    owner = keys.remainder(owners)
    order = owner.argsort(stable=True)
    return keys[order], values[order], torch.bincount(owner, minlength=owners)


def exchange(
    keys: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, group: dist.ProcessGroup | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Send each owner its rows, and return those that this rank owns. Arguments as :func:`partition` returns them."""
    incoming = torch.empty_like(counts)
    dist.all_to_all_single(incoming, counts, group=group)
    sizes, own_sizes = incoming.tolist(), counts.tolist()

    def send(column: torch.Tensor) -> torch.Tensor:
        received = column.new_empty(sum(sizes))
        dist.all_to_all_single(received, column, sizes, own_sizes, group=group)
        return received

    return send(keys), send(values)


def group_rows(keys: torch.Tensor, values: torch.Tensor) -> OwnedTotals:
    """Return the totals of rows that lie on one rank."""
    unique, places = keys.unique(return_inverse=True)
    present = ~values.isnan()
    added = values.to(torch.float64).where(present, 0.0)
    total = torch.zeros(len(unique), dtype=torch.float64, device=keys.device).index_add_(0, places, added)
    count = torch.zeros(len(unique), dtype=torch.int64, device=keys.device).index_add_(0, places, present.long())
    return OwnedTotals(unique, total, count)


def check_shares(
    keys: torch.Tensor, counts: torch.Tensor, rows_that_fit: float, group: dist.ProcessGroup | None = None
) -> None:
    """Refuse an exchange after which a rank would hold more rows than fit it, before a row is sent.

    Parameters
    ----------
    keys : torch.Tensor
        This rank's.
    counts : torch.Tensor
        How many of its rows each owner gets.
    rows_that_fit : float
        On each rank.
    group : torch.distributed.ProcessGroup, optional
        The ranks; all of them if none is given.
    """
    received = counts.clone()
    dist.all_reduce(received, group=group)
    if (largest := int(received.max())) <= rows_that_fit:
        return
    unique, own = keys.unique(return_counts=True)
    frequent = unique[own.argmax()].reshape(1) if len(unique) else keys.new_zeros(1)
    candidates = [torch.empty_like(frequent) for _ in range(dist.get_world_size(group))]
    dist.all_gather(candidates, frequent, group=group)
    rows_of = torch.stack([(keys == key).sum() for key in candidates])  # on this rank
    dist.all_reduce(rows_of, group=group)
    place, rows = int(rows_of.argmax()), int(received.sum())
    raise GpuguideError(
        f"Rank {int(received.argmax())} would receive {largest:,} of {rows:,} rows ({largest / rows:.0%}), and "
        f"{int(rows_that_fit):,} fit. The key {int(candidates[place])} alone has {int(rows_of[place]) / rows:.0%} of "
        "all rows, and the rows of a key meet on one rank. Group first and add up the totals, which moves a row a key."
    )


def require_same_query(query: str, group: dist.ProcessGroup | None = None) -> None:
    """Check that all ranks run the same query; ranks that do not would wait for each other or mix up their rows.

    Raises
    ------
    GpuguideError
        On every rank; the message names the first rank that differs, and both queries.
    """
    queries = [""] * dist.get_world_size(group)
    dist.all_gather_object(queries, query, group=group)
    for rank, other in enumerate(queries):
        if other != queries[0]:
            raise GpuguideError(
                f"Rank 0 runs {queries[0]}, and rank {rank} runs {other}. A query over several GPUs must be the same "
                "on all ranks: let no condition depend on the rank or on the rows of one rank."
            )

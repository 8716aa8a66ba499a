"""A group-by whose rows lie on several GPUs, by hand: exchange the rows, or group first and add up.

::

    exchange (shuffle)                               group first
    1. partition: a key's owner is key mod GPUs,     1. each GPU adds up its own rows, for every key
       its place there key div GPUs                  2. all-reduce of the sums and counts
    2. all-to-all: each row to its owner
    3. each GPU adds up the keys that it owns

To group first moves 16 bytes a group, and to exchange moves every row, so that grouping first should be faster as long
as there are far fewer groups than rows. A join and a median need all rows of a key in one
place, and an exchange. An exchange is limited by the frequent keys: all rows of a key meet on one GPU.

Keys count from 0, so that neither way needs a sort or a hash table. All ranks of the group must call these functions,
each with its own rows.

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
    """``(owned,)``, int64, sorted; those without rows too"""
    sum: torch.Tensor
    """``(owned,)``, float64; 0 for a key without values"""
    count: torch.Tensor
    """``(owned,)``, int64"""


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
        Whether to check that all ranks run the same query and that every key is one of the groups, for which they wait
        for each other. Without it, other keys belong to no group.

    Raises
    ------
    GpuguideError
        On every rank, if the ranks do not run the same query.
    ValueError
        On every rank, if a key is none of the groups.
    """
    if check:
        require_same_query(f"group_first with {groups} groups", group)
    totals = dense_group_by(keys, values, groups, check=False)
    for part in (totals.sum, totals.count, totals.outside):
        dist.all_reduce(part, group=group)
    if check:
        refuse_other_keys(totals.outside, groups)
    return totals


def group_exchanged(
    keys: torch.Tensor,
    values: torch.Tensor,
    groups: int,
    group: dist.ProcessGroup | None = None,
    memory: float | None = None,
    *,
    check: bool = True,
) -> OwnedTotals:
    """Return the sum and count of the keys that this rank owns, over the rows of all ranks.

    Parameters
    ----------
    keys, values, groups, group, check
        As for :func:`group_first`.
    memory : float, optional
        Bytes that each rank has for the rows that it receives.

    Raises
    ------
    GpuguideError
        On every rank, if a rank would receive more than its memory holds: the message names the share of the rows and
        the key that has most of them. Or if the ranks do not run the same query.
    ValueError
        On every rank, if a key is none of the groups.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if check:
        require_same_query(f"group_exchanged with {groups} groups of {keys.dtype} and {values.dtype}", group)
        outside = ((keys < 0) | (keys >= groups)).sum()
        dist.all_reduce(outside, group=group)
        refuse_other_keys(outside, groups)
    places, sent, counts = partition(keys, values, ranks)
    if memory is not None:
        check_shares(keys, counts, memory / (keys.itemsize + values.itemsize), group)
    owned = torch.arange(groups, device=keys.device)[rank::ranks]
    totals = dense_group_by(*exchange(places, sent, counts, group), max(1, len(owned)), check=False)
    return OwnedTotals(owned, totals.sum[: len(owned)], totals.count[: len(owned)])


def plain_partition(
    keys: torch.Tensor, values: torch.Tensor, owners: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what :func:`partition` does, with PyTorch's functions, on any device: by a sort."""
    owner = keys.remainder(owners)
    order = owner.argsort(stable=True)
    places = keys.div(owners, rounding_mode="floor")
    return places[order], values[order], torch.bincount(owner, minlength=owners)


def partition(keys: torch.Tensor, values: torch.Tensor, owners: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Put the rows of each owner together, those of the first owner first; on a GPU with our kernels, without a sort.

    Parameters
    ----------
    keys : torch.Tensor
        ``(rows,)``, int32 or int64. The owner of a row is its key mod ``owners``.
    values : torch.Tensor
        ``(rows,)``, on the same device.
    owners : int
        How many there are.

    Returns
    -------
    tuple of torch.Tensor
        For each row its key div ``owners``, and its value, both ``(rows,)``; and how many rows each owner gets,
        ``(owners,)``, int64. The order of an owner's rows differs from run to run on a GPU.
    """
    if not keys.is_cuda:
        return plain_partition(keys, values, owners)
    from gpuguide.dataframes.partition_kernels import partition_on_gpu

    return partition_on_gpu(keys, values, owners)


def exchange(
    keys: torch.Tensor, values: torch.Tensor, counts: torch.Tensor, group: dist.ProcessGroup | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Send each owner its rows, and return those that this rank owns. Arguments as :func:`partition` returns them."""
    incoming = torch.empty_like(counts)
    dist.all_to_all_single(incoming, counts, group=group)
    sizes, own_sizes = torch.stack([incoming, counts]).tolist()  # the host waits here, once

    def send(column: torch.Tensor) -> torch.Tensor:
        received = column.new_empty(sum(sizes))
        dist.all_to_all_single(received, column, sizes, own_sizes, group=group)
        return received

    return send(keys), send(values)


def refuse_other_keys(outside: torch.Tensor, groups: int) -> None:
    """Raise a ``ValueError`` if rows of any rank have keys that are none of the groups; ``outside`` says how many."""
    if strangers := int(outside):
        raise ValueError(
            f"{strangers:,} keys of all ranks are not from 0 to {groups - 1}. Raise groups, or leave such rows out."
        )


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

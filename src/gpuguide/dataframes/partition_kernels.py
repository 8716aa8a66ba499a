"""The rows of each owner put together in two passes, in Triton: count them, then write each behind those before it.

A sort by owner would order rows that need no order. Here a program takes a block of rows, finds how many of them each
owner gets, and reserves so many places behind those that other programs have reserved, with one atomic addition for
each owner. Within the block a row's place is the number of rows before it with the same owner.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpuguide.triton_support.context import device_of

BLOCK = 2048
"""Rows of a program"""
WARPS = 8


@triton.jit
def owners_and_places(keys, OWNERS: tl.constexpr):
    """Return key mod ``OWNERS``, never negative, and key div ``OWNERS``, rounded down."""
    owner = keys % OWNERS
    owner = tl.where(owner < 0, owner + OWNERS, owner)  # C's remainder has the sign of the key
    return owner, (keys - owner) // OWNERS


@triton.jit
def count_kernel(
    keys_ptr,  # (rows,)
    counts_ptr,  # (OWNERS,), int64, added to
    rows,
    OWNERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count the rows of each owner."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < rows
    owner, _ = owners_and_places(tl.load(keys_ptr + offsets, mask=inside, other=0), OWNERS)
    for each in tl.static_range(OWNERS):
        tl.atomic_add(counts_ptr + each, tl.sum((inside & (owner == each)).to(tl.int64)), sem="relaxed")


@triton.jit
def write_kernel(
    keys_ptr,  # (rows,)
    values_ptr,  # (rows,)
    places_ptr,  # (rows,), written
    written_ptr,  # (rows,), written
    next_ptr,  # (OWNERS,), int64: where an owner's next row goes; moved on
    rows,
    OWNERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write a block's rows to their owners' parts of the result."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < rows
    values = tl.load(values_ptr + offsets, mask=inside)
    owner, places = owners_and_places(tl.load(keys_ptr + offsets, mask=inside, other=0), OWNERS)
    for each in tl.static_range(OWNERS):
        mine = inside & (owner == each)
        before = tl.cumsum(mine.to(tl.int32), 0) - 1
        first = tl.atomic_add(next_ptr + each, tl.sum(mine.to(tl.int64)), sem="relaxed")
        tl.store(places_ptr + first + before, places, mask=mine)
        tl.store(written_ptr + first + before, values, mask=mine)


def partition_on_gpu(
    keys: torch.Tensor, values: torch.Tensor, owners: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what :func:`gpuguide.dataframes.exchange.partition` promises."""
    keys, values = keys.contiguous(), values.contiguous()
    places, written = torch.empty_like(keys), torch.empty_like(values)
    counts = torch.zeros(owners, dtype=torch.int64, device=keys.device)
    if len(keys):
        grid = (triton.cdiv(len(keys), BLOCK),)
        with device_of(keys):
            count_kernel[grid](keys, counts, len(keys), OWNERS=owners, BLOCK=BLOCK, num_warps=WARPS)
            following = counts.cumsum(0) - counts
            write_kernel[grid](
                keys, values, places, written, following, len(keys), OWNERS=owners, BLOCK=BLOCK, num_warps=WARPS
            )
    return places, written, counts

"""Attention of one query to the keys in a cache, which is cut into parts that are read side by side (split-K).

A query of a sequence needs all its keys and values, each once: there is nothing to gain but bandwidth. One program a
head would leave most of the GPU idle, so each head's keys are cut into parts, one program each. A program keeps a
running maximum, a sum and a weighted sum of values, as :mod:`gpuguide.attention.tiled` explains. The last program of a
head to finish, which a counter knows, adds the parts up.

All programs should run at once, since a few that come after the others take as long as those did: so there are two for
each multiprocessor, or fewer, and each takes as many keys at a time as it can hold. Where there are more heads than
that, programs come in many rounds and keep the memory busy together, each with fewer keys.

Source: T. Dao et al., "Flash-Decoding for long-context inference", 2023, https://pytorch.org/blog/flash-decoding/.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from gpuguide.inference.cache import PAGE
from gpuguide.inference.fused.parts import let_successor_start, wait_for_predecessor

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)
PROGRAMS_PER_PROCESSOR = 2
"""Programs that each of the GPU's multiprocessors holds at once, with as many keys as they can have"""
FEWEST_ROWS = 16
"""Of a product on tensor cores: heads that share keys and values are filled up to as many. The arithmetic is free."""
SMALLEST_PART = 2**14
"""Numbers in the keys that are worth a program of their own, and adding up with the others"""
MOST_PARTS = 64
"""That the last program of a head adds up"""
AT_ONCE, AT_ONCE_OF_FEW = 2**13, 2**14
"""Numbers in the keys that a program takes at a time: of many programs, and of so few that all run at once"""
LARGEST_BLOCK = 256
"""Keys that a program takes at a time at most, however small they are"""


@triton.jit
def attend_kernel(queries, keys, values, table, table_width, cache_rows, positions, out, partial, sums, arrived, scale,
                  KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, HEAD_DIM: tl.constexpr,
                  PAGE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, PARTS_PAD: tl.constexpr,
                  STAGES: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Read one part of the keys and values of one token's heads; the last program of them adds all parts up."""
    token, kv_head, part = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    length = tl.load(positions + token) + 1
    pages = tl.cdiv(length, PAGE)
    first = (pages * part // PARTS).to(tl.int32) * PAGE
    last = tl.minimum((pages * (part + 1) // PARTS).to(tl.int32) * PAGE, length.to(tl.int32))
    table += tl.load(cache_rows + token) * table_width
    head = tl.arange(0, GROUP_PAD)
    column = tl.arange(0, HEAD_DIM)
    slot = tl.arange(0, BLOCK)
    of_query = ((token * KV_HEADS + kv_head) * GROUP + head)[:, None] * HEAD_DIM + column[None, :]
    let_successor_start(OVERLAP)
    wait_for_predecessor(OVERLAP)
    q = tl.load(queries + of_query, mask=(head < GROUP)[:, None], other=0)
    maximum = tl.full((GROUP_PAD,), LOWEST, tl.float32)
    total = tl.zeros((GROUP_PAD,), tl.float32)
    mixed = tl.zeros((GROUP_PAD, HEAD_DIM), tl.float32)
    for start in tl.range(first, last, BLOCK, num_stages=STAGES):
        seen = start + slot < last
        if BLOCK == PAGE:  # its keys lie side by side: one number says where
            page = tl.load(table + start // PAGE).to(tl.int64)
            begin = ((page * KV_HEADS + kv_head) * PAGE + slot) * HEAD_DIM
        else:
            page = tl.load(table + (start + slot) // PAGE, mask=seen, other=0).to(tl.int64)
            begin = ((page * KV_HEADS + kv_head) * PAGE + slot % PAGE) * HEAD_DIM
        place = begin[:, None] + column[None, :]
        k = tl.load(keys + place, mask=seen[:, None], other=0)
        v = tl.load(values + place, mask=seen[:, None], other=0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = tl.where(seen[None, :], scores * (scale * LOG2_E), LOWEST)
        highest = tl.maximum(maximum, tl.max(scores, 1))
        shrink = tl.exp2(maximum - highest)
        weights = tl.exp2(scores - highest[:, None])
        total = total * shrink + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * shrink[:, None], input_precision="ieee")
        maximum = highest
    if PARTS == 1:
        tl.store(out + of_query, (mixed / total[:, None]).to(out.dtype.element_ty), mask=(head < GROUP)[:, None])
    else:
        kept = (head < GROUP)[:, None]
        index = (token * KV_HEADS + kv_head) * PARTS
        of_part = (index + part) * GROUP + head
        tl.store(partial + of_part[:, None] * HEAD_DIM + column[None, :], mixed, mask=kept)
        tl.store(sums + 2 * of_part, maximum, mask=head < GROUP)
        tl.store(sums + 2 * of_part + 1, total, mask=head < GROUP)
        tl.debug_barrier()
        if tl.atomic_add(arrived + token * KV_HEADS + kv_head, 1, sem="acq_rel") == PARTS - 1:
            tl.store(arrived + token * KV_HEADS + kv_head, 0)
            for number in range(GROUP):
                add_parts(partial, sums, out, index, number, GROUP, HEAD_DIM, PARTS, PARTS_PAD)


@triton.jit
def add_parts(partial, sums, out, index, head, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PARTS: tl.constexpr,
              PARTS_PAD: tl.constexpr):  # fmt: skip
    """Add the parts of one head up, each weighted by how far its maximum is below the highest of all."""
    part = tl.arange(0, PARTS_PAD)
    column = tl.arange(0, HEAD_DIM)
    of_part = (index + part) * GROUP + head
    there = part < PARTS
    maxima = tl.load(sums + 2 * of_part, mask=there, other=LOWEST, cache_modifier=".cg")
    totals = tl.load(sums + 2 * of_part + 1, mask=there, other=0.0, cache_modifier=".cg")
    places = of_part[:, None] * HEAD_DIM + column[None, :]
    values = tl.load(partial + places, mask=there[:, None], other=0.0, cache_modifier=".cg")
    weights = tl.exp2(maxima - tl.max(maxima, 0))
    result = tl.sum(values * weights[:, None], 0) / tl.sum(totals * weights, 0)
    tl.store(out + (index // PARTS * GROUP + head) * HEAD_DIM + column, result.to(out.dtype.element_ty))


@dataclass(frozen=True)
class Tiling:
    """How attention is shared out."""

    parts: int
    """Into which the keys of a head are cut"""
    block: int
    """Keys that a program takes at a time: one page, or several"""
    stages: int
    """Blocks that are under way"""


def tiling_for(count: int, kv_heads: int, head_dim: int, capacity: int, processors: int) -> Tiling:
    """Return how to share attention out so that the whole GPU has work.

    Parameters
    ----------
    count, kv_heads, head_dim : int
        Tokens and heads of keys: together so many programs there are for each part; and the size of a head.
    capacity : int
        Keys that there can be.
    processors : int
        Multiprocessors of the GPU.
    """
    at_once = PROGRAMS_PER_PROCESSOR * processors
    parts = max(1, min(at_once // (count * kv_heads), capacity * head_dim // SMALLEST_PART, MOST_PARTS))
    few = count * kv_heads * parts <= at_once
    block = max(PAGE, min(LARGEST_BLOCK, (AT_ONCE_OF_FEW if few else AT_ONCE) // head_dim))
    return Tiling(parts, block, 3 if block == PAGE else 2)


class Attention:
    """Attention of a fixed number of tokens to a cache: its memory between the two halves of the work.

    Parameters
    ----------
    count : int
        Tokens.
    heads, kv_heads, head_dim : int
        Of queries, of keys, and the size of one.
    capacity : int
        Keys that a sequence can have.
    like : torch.Tensor
        The keys of a cache: for their format and device.
    overlap : bool
        Whether the kernel is launched while its predecessor runs, which that one must allow for.
    """

    def __init__(self, count: int, heads: int, kv_heads: int, head_dim: int, capacity: int, like: torch.Tensor,
                 *, overlap: bool = False) -> None:  # fmt: skip
        self.group = heads // kv_heads
        processors = torch.cuda.get_device_properties(like.device).multi_processor_count if like.is_cuda else 4
        self.tiling = tiling_for(count, kv_heads, head_dim, capacity, processors)
        self.scale = head_dim**-0.5
        self.overlap = overlap
        room = (count, kv_heads, self.tiling.parts, self.group)
        self.partial = torch.empty(*room, head_dim, dtype=torch.float32, device=like.device)
        self.sums = torch.empty(*room, 2, dtype=torch.float32, device=like.device)
        self.arrived = torch.zeros(count, kv_heads, dtype=torch.int32, device=like.device)

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor,
                 rows: torch.Tensor, positions: torch.Tensor, out: torch.Tensor) -> torch.Tensor:  # fmt: skip
        """Attend.

        Parameters
        ----------
        queries : torch.Tensor
            ``(count, heads, head_dim)``
        keys, values : torch.Tensor
            One layer's pages, ``(pages, kv_heads, PAGE, head_dim)``.
        table : torch.Tensor
            ``(rows, pages of a row)``, int32.
        rows, positions : torch.Tensor
            ``(count,)``, int64: whose token it is, and its position: it sees the keys up to there.
        out : torch.Tensor
            As ``queries``; written.
        """
        count, _, head_dim = queries.shape
        kv_heads = keys.shape[1]
        launch = {"launch_pdl": True} if self.overlap else {}
        parts = self.tiling.parts
        attend_kernel[(parts, kv_heads, count)](
            queries, keys, values, table, table.shape[1], rows, positions, out, self.partial, self.sums, self.arrived,
            self.scale, KV_HEADS=kv_heads, GROUP=self.group,
            GROUP_PAD=max(FEWEST_ROWS, triton.next_power_of_2(self.group)), HEAD_DIM=head_dim,
            PAGE=PAGE, BLOCK=self.tiling.block, PARTS=parts, PARTS_PAD=triton.next_power_of_2(parts),
            STAGES=self.tiling.stages, OVERLAP=self.overlap, num_warps=4, **launch,
        )  # fmt: skip
        return out


def overlaps(device: torch.device) -> bool:
    """Return whether kernels on a device can be launched while their predecessors run: from compute capability 9."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)

"""Attention of one query to the KV cache, whose keys are split into parts that are read in parallel (split-K).

A query needs all keys and values of its sequence, each once, so attention is memory-bound here. One program a head
would leave most of the GPU idle, so the keys of each head are split into parts, one program each. A program keeps a
running maximum, a sum and a weighted sum of values, as :mod:`gpuguide.attention.tiled` explains. The last program of a
head to finish, according to a counter, adds the parts up.

All programs should run at once, because a few that start late would take as long again. Long sequences get one program
for each multiprocessor, which loads the next keys while it multiplies. Shorter ones get up to two, and each takes as
many keys at a time as it can hold. With more heads than that, programs run in many rounds and keep the memory busy
together, each with fewer keys.

Source: T. Dao et al., "Flash-Decoding for long-context inference", 2023, https://pytorch.org/blog/flash-decoding/.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from gpuguide.inference.cache import PAGE
from gpuguide.inference.fused.parts import griddep_wait, launch_dependents

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)
ADDED_AT_ONCE = tl.constexpr(2**14)
"""Numbers that a program holds while it adds parts up: all parts of as many heads as fit"""
PROGRAMS_PER_PROCESSOR = 2
"""Programs that each of the GPU's multiprocessors holds at once, with as many keys as they can have"""
LONG_PART = 2**17
"""Numbers in the keys of a part from which one program for each multiprocessor was measured to be faster than two"""
STAGES_ALONE = 4
"""Stages of the pipeline of one program for each multiprocessor: one less than this are blocks in flight"""
FEWEST_ROWS = 16
"""Rows of a matmul on tensor cores: query heads that share a KV head are padded to as many, which costs no time"""
SMALLEST_PART = 2**14
"""Numbers in the keys of the smallest part that is worth a program of its own"""
MOST_PARTS = 64
"""Parts that the last program of a head adds up at most"""
AT_ONCE, AT_ONCE_OF_FEW = 2**13, 2**14
"""Numbers in the keys that a program takes at a time: of many programs or one for each multiprocessor, and of so few
that all run at once"""
LARGEST_BLOCK = 256
"""Keys that a program takes at a time at most, however small they are"""


@triton.jit
def attend_kernel(
    queries,  # (tokens, KV_HEADS, GROUP, HEAD_DIM)
    # the KV cache of this layer
    keys,  # (pages, KV_HEADS, PAGE, HEAD_DIM)
    values,  # (pages, KV_HEADS, PAGE, HEAD_DIM)
    table,  # (rows, table_width), int32: pages of each row
    table_width,
    cache_rows,  # (tokens,), int64: row of each token
    positions,  # (tokens,), int64
    out,  # (tokens, KV_HEADS, GROUP, HEAD_DIM), written
    # split-K
    partial,  # (tokens, KV_HEADS, PARTS, GROUP, HEAD_DIM), fp32: acc of each part
    statistics,  # (tokens, KV_HEADS, PARTS, GROUP, 2), fp32: m_i and l_i of each part
    counters,  # (tokens, KV_HEADS), int32: parts that have finished; zero before and after
    scale,  # of the scores: HEAD_DIM ** -0.5
    # heads
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads that share a KV head
    GROUP_PAD: tl.constexpr,  # rows of the matmul, ``GROUP`` or more
    HEAD_DIM: tl.constexpr,
    # tiles
    PAGE: tl.constexpr,  # tokens of a page
    BLOCK: tl.constexpr,  # keys at a time
    PARTS: tl.constexpr,  # parts of the keys of a head
    PARTS_PAD: tl.constexpr,  # a power of two, ``PARTS`` or more
    STAGES: tl.constexpr,  # of the pipeline
    AHEAD: tl.constexpr,  # whether pages are looked up a block ahead
    PDL: tl.constexpr,
):
    """Attend with the query heads of one KV head to one part of its keys; the last program adds all parts up.

    Keys can only be loaded when their page is known. Triton loads several blocks of them ahead if each block hands the
    next one's page on, as it was loaded (``AHEAD``). If a block looks its own page up, shared memory holds one block.
    """
    token, kv_head, part = tl.program_id(2), tl.program_id(1), tl.program_id(0)
    length = tl.load(positions + token) + 1
    pages = tl.cdiv(length, PAGE)
    first = (pages * part // PARTS).to(tl.int32) * PAGE
    last = tl.minimum((pages * (part + 1) // PARTS).to(tl.int32) * PAGE, length.to(tl.int32))
    table += tl.load(cache_rows + token) * table_width
    head = tl.arange(0, GROUP_PAD)
    column = tl.arange(0, HEAD_DIM)
    slot = tl.arange(0, BLOCK)
    q_offset = ((token * KV_HEADS + kv_head) * GROUP + head)[:, None] * HEAD_DIM + column[None, :]
    launch_dependents(PDL)
    griddep_wait(PDL)
    q = tl.load(queries + q_offset, mask=(head < GROUP)[:, None], other=0)
    m_i = tl.full((GROUP_PAD,), LOWEST, tl.float32)
    l_i = tl.zeros((GROUP_PAD,), tl.float32)
    acc = tl.zeros((GROUP_PAD, HEAD_DIM), tl.float32)
    if AHEAD:
        page = look_up_pages(table, first, last, slot, BLOCK, PAGE)
    for start in tl.range(first, last, BLOCK, num_stages=STAGES):
        # -- look up the pages of these keys, or of the next ones
        mask = start + slot < last
        if not AHEAD:
            page = look_up_pages(table, start, last, slot, BLOCK, PAGE)
        if BLOCK == PAGE:
            row = ((page.to(tl.int64) * KV_HEADS + kv_head) * PAGE + slot) * HEAD_DIM
        else:
            row = ((page.to(tl.int64) * KV_HEADS + kv_head) * PAGE + slot % PAGE) * HEAD_DIM
        if AHEAD:
            following = tl.minimum(start + BLOCK, (table_width - 1) * PAGE)  # after the last page any, for nothing
            page = look_up_pages(table, following, last, slot, BLOCK, PAGE)
        kv_offset = row[:, None] + column[None, :]
        # -- load k and v
        k = tl.load(keys + kv_offset, mask=mask[:, None], other=0)
        v = tl.load(values + kv_offset, mask=mask[:, None], other=0)
        # -- compute qk
        qk = tl.dot(q, tl.trans(k), input_precision="ieee")
        qk = tl.where(mask[None, :], qk * (scale * LOG2_E), LOWEST)
        # -- update m_i, l_i and acc
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        alpha = tl.exp2(m_i - m_ij)
        p = tl.exp2(qk - m_ij[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
        m_i = m_ij
    if PARTS == 1:
        tl.store(out + q_offset, (acc / l_i[:, None]).to(out.dtype.element_ty), mask=(head < GROUP)[:, None])
    else:
        # -- store this part; the last program to do so adds all parts of its heads up
        is_head = (head < GROUP)[:, None]
        group = token * KV_HEADS + kv_head
        part_row = (group * PARTS + part) * GROUP + head
        tl.store(partial + part_row[:, None] * HEAD_DIM + column[None, :], acc, mask=is_head)
        tl.store(statistics + 2 * part_row, m_i, mask=head < GROUP)
        tl.store(statistics + 2 * part_row + 1, l_i, mask=head < GROUP)
        tl.debug_barrier()
        if tl.atomic_add(counters + group, 1, sem="acq_rel") == PARTS - 1:
            tl.store(counters + group, 0)
            add_parts(partial, statistics, out, group, GROUP, HEAD_DIM, PARTS, PARTS_PAD)


@triton.jit
def look_up_pages(
    table,  # pages of a sequence, int32
    start,  # first key of a block
    last,  # key to stop before
    slot,  # (BLOCK,): keys of a block
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Return the page of each key of a block, or of all where a block is a page."""
    if BLOCK == PAGE:
        return tl.load(table + start // PAGE)
    else:
        return tl.load(table + (start + slot) // PAGE, mask=start + slot < last, other=0)


@triton.jit
def add_parts(
    partial,  # (tokens, KV_HEADS, PARTS, GROUP, HEAD_DIM), fp32
    statistics,  # (tokens, KV_HEADS, PARTS, GROUP, 2), fp32
    out,  # (tokens, KV_HEADS, GROUP, HEAD_DIM), written
    group,  # token * KV_HEADS + kv_head
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_PAD: tl.constexpr,
):
    """Add up the parts of all query heads of a KV head, each rescaled to the highest m_i of its head.

    Memory's latency decides how long this takes, so everything is loaded before anything is waited for, and heads take
    turns only where the registers do not hold the parts of all of them.
    """
    HEADS: tl.constexpr = max(1, min(triton.next_power_of_2(GROUP), ADDED_AT_ONCE // (PARTS_PAD * HEAD_DIM)))
    part = tl.arange(0, PARTS_PAD)
    column = tl.arange(0, HEAD_DIM)
    for first in range(0, GROUP, HEADS):
        # -- load acc, m_i and l_i of all parts
        head = first + tl.arange(0, HEADS)
        mask = (part < PARTS)[:, None] & (head < GROUP)[None, :]
        part_row = (group * PARTS + part)[:, None] * GROUP + head[None, :]
        offset = part_row[:, :, None] * HEAD_DIM + column[None, None, :]
        acc = tl.load(partial + offset, mask=mask[:, :, None], other=0.0, cache_modifier=".cg")
        m_i = tl.load(statistics + 2 * part_row, mask=mask, other=LOWEST, cache_modifier=".cg")
        l_i = tl.load(statistics + 2 * part_row + 1, mask=mask, other=0.0, cache_modifier=".cg")
        # -- rescale and add up
        alpha = tl.exp2(m_i - tl.max(m_i, 0)[None, :])
        result = tl.sum(acc * alpha[:, :, None], 0) / tl.sum(l_i * alpha, 0)[:, None]
        row = group * GROUP + head
        result = result.to(out.dtype.element_ty)
        tl.store(out + row[:, None] * HEAD_DIM + column[None, :], result, mask=(head < GROUP)[:, None])


@dataclass(frozen=True)
class DecodeTiling:
    """Split of the keys among the programs of attention."""

    parts: int
    """Parts of the keys of a head (split-K)"""
    block: int
    """Keys that a program takes at a time: one page, or several"""
    stages: int
    """Stages of the pipeline"""
    ahead: bool
    """Whether pages are looked up a block ahead"""


def tiling_for(
    count: int, group: int, kv_heads: int, head_dim: int, capacity: int, processors: int, shared_numbers: int
) -> DecodeTiling:
    """Choose the tiling with which the whole GPU has work.

    Parameters
    ----------
    count, group, kv_heads, head_dim : int
        Tokens, query heads of a KV head, KV heads, and the size of a head. Each pair of a token and a KV head has a
        program for each part.
    capacity : int
        Keys that a sequence can have.
    processors : int
        Multiprocessors of the GPU.
    shared_numbers : int
        Numbers of the keys' type that the shared memory of a program can hold.
    """
    pairs = count * kv_heads
    is_long = pairs <= processors and capacity * head_dim >= processors // pairs * LONG_PART
    fits = shared_numbers >= 2 * STAGES_ALONE * block_for(AT_ONCE, head_dim) * head_dim
    alone = is_long and fits and group > 1  # with a head of keys for each of queries, two were faster for long parts
    at_once = processors if alone else PROGRAMS_PER_PROCESSOR * processors
    parts = max(1, min(at_once // pairs, capacity * head_dim // SMALLEST_PART, MOST_PARTS))
    power = 2 ** (parts.bit_length() - 1)
    if parts < power * 17 / 16:  # the last program holds a power of two of them: one more would double its work
        parts = power
    if alone:
        return DecodeTiling(parts, block_for(AT_ONCE, head_dim), STAGES_ALONE, ahead=True)
    block = block_for(AT_ONCE_OF_FEW if pairs * parts <= at_once else AT_ONCE, head_dim)
    return DecodeTiling(parts, block, 3 if block == PAGE else 2, ahead=False)


def block_for(numbers: int, head_dim: int) -> int:
    """Return how many keys of a head have about so many numbers: a page or more."""
    return max(PAGE, min(LARGEST_BLOCK, numbers // head_dim))


class CacheAttention:
    """Attention of a fixed number of tokens to a KV cache, with the buffers that split-K needs.

    Parameters
    ----------
    count : int
        Tokens.
    heads, kv_heads, head_dim : int
        Query heads, KV heads, and the size of a head.
    capacity : int
        Keys that a sequence can have.
    like : torch.Tensor
        Keys of a cache, whose type and device the buffers get.
    overlap : bool
        Whether the kernel is launched while its predecessor runs (PDL), which the predecessor must allow.
    """

    def __init__(self, count: int, heads: int, kv_heads: int, head_dim: int, capacity: int, like: torch.Tensor,
                 *, overlap: bool = False) -> None:  # fmt: skip
        self.group = heads // kv_heads
        processors, shared_memory = 4, 2**20
        if like.is_cuda:
            properties = torch.cuda.get_device_properties(like.device)
            processors = properties.multi_processor_count
            shared_memory = getattr(properties, "shared_memory_per_block_optin", 0)
        numbers = shared_memory // like.element_size()
        self.tiling = tiling_for(count, self.group, kv_heads, head_dim, capacity, processors, numbers)
        self.scale = head_dim**-0.5
        self.overlap = overlap
        shape = (count, kv_heads, self.tiling.parts, self.group)
        self.partial = torch.empty(*shape, head_dim, dtype=torch.float32, device=like.device)
        self.statistics = torch.empty(*shape, 2, dtype=torch.float32, device=like.device)
        self.counters = torch.zeros(count, kv_heads, dtype=torch.int32, device=like.device)

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor,
                 rows: torch.Tensor, positions: torch.Tensor, out: torch.Tensor) -> torch.Tensor:  # fmt: skip
        """Attend to the cache and return ``out``.

        Parameters
        ----------
        queries : torch.Tensor
            ``(count, heads, head_dim)``
        keys, values : torch.Tensor
            One layer's pages, ``(pages, kv_heads, PAGE, head_dim)``.
        table : torch.Tensor
            ``(rows, pages of a row)``, int32.
        rows, positions : torch.Tensor
            ``(count,)``, int64: cache row and position of each token; the causal mask ends at the position.
        out : torch.Tensor
            Buffer of the shape of ``queries``; written.
        """
        count, _, head_dim = queries.shape
        kv_heads = keys.shape[1]
        launch = {"launch_pdl": True} if self.overlap else {}
        parts = self.tiling.parts
        attend_kernel[(parts, kv_heads, count)](
            queries=queries,
            keys=keys,
            values=values,
            table=table,
            table_width=table.shape[1],
            cache_rows=rows,
            positions=positions,
            out=out,
            partial=self.partial,
            statistics=self.statistics,
            counters=self.counters,
            scale=self.scale,
            KV_HEADS=kv_heads,
            GROUP=self.group,
            GROUP_PAD=max(FEWEST_ROWS, triton.next_power_of_2(self.group)),
            HEAD_DIM=head_dim,
            PAGE=PAGE,
            BLOCK=self.tiling.block,
            PARTS=parts,
            PARTS_PAD=triton.next_power_of_2(parts),
            STAGES=self.tiling.stages,
            AHEAD=self.tiling.ahead,
            PDL=self.overlap,
            num_warps=4,
            **launch,
        )
        return out


def overlaps(device: torch.device) -> bool:
    """Return whether a device supports programmatic dependent launch: from compute capability 9.0."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)

"""The forward pass on Hopper with its schedule written by hand.

Triton decides what waits for what. In :mod:`gpuguide.attention.triton_flash` it makes every product of scores wait
until all products before it are done, and while a program computes weights, it has given the tensor cores nothing to
do. Gluon is the language below Triton: whoever writes the kernel places copies, products and waits. With it, three
kinds of work go on at the same time.

- Copies. One warp asks the copy engine (TMA) for tiles of keys and values, and waits until there is room for them. All
  others only wait for tiles to arrive.
- Weights beside products. The product of the scores of the next tile is started before that of the weights and values
  of this one. When the scores are there, their weights are computed, while the second product runs.
- Two groups of four warps, each with a tile of queries, beside each other: while one computes weights, products of the
  other run. They give the tensor cores their products in turn, so that it stays so. Three groups were tried with heads
  of 64, and were slower.

What is computed, the masks, and what a row sees are as in :mod:`gpuguide.attention.triton_flash`. Only the order
differs: keys come from the last to the first, so that the tiles with a mask stand at the beginning.

Source: J. Shah et al., "FlashAttention-3", 2024, https://arxiv.org/abs/2407.08608.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from gpuguide.attention import triton_flash
from gpuguide.attention.layout import addressable, room_like

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)


@dataclass(frozen=True)
class Schedule:
    """What goes on beside what."""

    rows: int = 64
    """Queries in the tile of a group: what one instruction of four warps multiplies"""
    columns: int = 128
    """Keys in a tile"""
    stages: int = 2
    """Tiles of keys and of values that have room at a time"""
    beside: bool = True
    """Whether weights are computed beside the second product, or the assembler may put its wait before them"""
    turns: bool = True
    """Whether the groups give the tensor cores their products in turn"""


AS_SHIPPED = Schedule()
REGISTERS = 168
"""Of a thread, on average: 65536 for 12 warps. Those that compute take 240, the one that loads leaves all but 24."""


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Return barriers whose phase changes after so many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(COUNT):
        mbarrier.init(made.index(each), count=ARRIVALS)
    return made


@gluon.jit
def place(number, STAGES: gl.constexpr):
    """Return in which room the tile with a number lies, and the phase of its barriers."""
    return number % STAGES, number // STAGES & 1


@gluon.jit
def load(descriptors, rooms, full, free, batch, head, kv_head, first_row, tiles, STAGES: gl.constexpr):
    """Bring the queries of both groups, then keys and values, from the last tile to the first."""
    queries, keys, values = descriptors
    q, k, v = rooms
    q_full, k_full, v_full = full
    k_free, v_free = free
    ROWS: gl.constexpr = queries.block_shape[2]
    COLUMNS: gl.constexpr = keys.block_shape[2]
    mbarrier.expect(q_full, 2 * queries.block_type.nbytes)
    for group in gl.static_range(2):
        tma.async_copy_global_to_shared(queries, [batch, head, first_row + group * ROWS, 0], q_full, q.index(group))
    for number in range(tiles):
        stage, phase = place(number, STAGES)
        first = (tiles - 1 - number) * COLUMNS
        mbarrier.wait(k_free.index(stage), phase ^ 1)  # passes the first time: nothing was there before
        mbarrier.expect(k_full.index(stage), keys.block_type.nbytes)
        tma.async_copy_global_to_shared(keys, [batch, kv_head, first, 0], k_full.index(stage), k.index(stage))
        mbarrier.wait(v_free.index(stage), phase ^ 1)
        mbarrier.expect(v_full.index(stage), values.block_type.nbytes)
        tma.async_copy_global_to_shared(values, [batch, kv_head, first, 0], v_full.index(stage), v.index(stage))


@gluon.jit
def weigh(scores, highest, total, row, first, key_length, reach, scale, MASKED: gl.constexpr):
    """Return the weights of a tile, the highest score and the total so far, and what earlier results shrink by."""
    if MASKED:
        column = first + gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))
        seen = (column[None, :] <= row[:, None] + reach) & (column[None, :] < key_length)
        scores = gl.where(seen, scores, -float("inf"))
    higher = gl.maximum(highest, gl.max(scores, 1) * scale)
    level = higher
    if MASKED:
        level = gl.where(higher == -float("inf"), 0.0, higher)  # a row that has seen nothing yet
    weights = gl.exp2(scores * scale - level[:, None])
    shrink = gl.exp2(highest - level)
    return weights, higher, total * shrink + gl.sum(weights, 1), shrink


@gluon.jit
def before_any_wait(numbers):
    """Return the numbers, computed before a wait that follows.

    The assembler moves the wait for the second product up, before the powers that are to be computed beside it. Over a
    store of what they add up to it does not, though the store never takes place: no number is greater than the largest.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred never; setp.gt.f32 never, $1, 0f7F7FFFFF; @never st.shared.f32 [$2], $1; mov.f32 $0, $1; }",
        "=f,f,r", [numbers, gl.zeros_like(numbers).to(gl.int32)], gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def absorb(
    state, rooms, full, free, turn, other_turn, row, begin, end, tiles, key_length, reach, scale,
    MASKED: gl.constexpr, FIRST: gl.constexpr, BESIDE: gl.constexpr, TURNS: gl.constexpr,
    COLUMNS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Take in the tiles with numbers from ``begin`` to ``end``. The weights of the one before are in the state."""
    weights, highest, total, out = state
    q, k, v = rooms
    _, k_full, v_full = full
    k_free, v_free = free
    SCORES: gl.constexpr = highest.type.layout.parent
    for number in range(begin, end):
        stage, phase = place(number, STAGES)
        stage_before, phase_before = place(number - 1, STAGES)
        if TURNS:
            mbarrier.wait(turn, (number - 1 & 1) ^ FIRST)
        mbarrier.wait(k_full.index(stage), phase)
        zeros = gl.zeros([row.shape[0], COLUMNS], gl.float32, SCORES)
        scores = warpgroup_mma(q, k.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(stage_before), phase_before)
        out = warpgroup_mma(weights, v.index(stage_before), out, is_async=True)
        if TURNS:
            mbarrier.arrive(other_turn)
        scores = warpgroup_mma_wait(1, deps=(scores,))  # all but the last one that was started
        mbarrier.arrive(k_free.index(stage))
        first = (tiles - 1 - number) * COLUMNS
        powers, highest, total, shrink = weigh(scores, highest, total, row, first, key_length, reach, scale, MASKED)
        if BESIDE:
            total = before_any_wait(total)
        out, weights = warpgroup_mma_wait(0, deps=(out, weights))
        mbarrier.arrive(v_free.index(stage_before))
        out *= gl.convert_layout(shrink, gl.SliceLayout(1, out.type.layout))[:, None]
        weights = gl.convert_layout(powers.to(k.dtype), weights.type.layout)
    return weights, highest, total, out


@gluon.jit
def compute(
    outputs, lse, rooms, full, free, turn, other_turn, batch, head, of_head, first_row, masked, tiles,
    query_length, key_length, reach, scale,
    FIRST: gl.constexpr, BESIDE: gl.constexpr, TURNS: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute the outputs of one tile of queries, as one of the two groups."""
    q, k, v = rooms
    q_full, k_full, v_full = full
    k_free, _ = free
    ROWS: gl.constexpr = outputs.block_shape[2]
    HEAD: gl.constexpr = outputs.block_shape[3]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD, 16])
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    highest = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, SCORES))
    mbarrier.wait(q_full, 0)
    mbarrier.wait(k_full.index(0), 0)
    zeros = gl.zeros([ROWS, COLUMNS], gl.float32, SCORES)
    scores = warpgroup_mma(q, k.index(0).permute((1, 0)), zeros, use_acc=False)
    mbarrier.arrive(k_free.index(0))
    first = (tiles - 1) * COLUMNS
    powers, highest, total, _ = weigh(scores, highest, total, row, first, key_length, reach, scale, True)
    weights = gl.convert_layout(powers.to(k.dtype), gl.DotOperandLayout(0, OUT, 2))
    state = weights, highest, total, gl.zeros([ROWS, HEAD], gl.float32, OUT)
    state = absorb(
        state, rooms, full, free, turn, other_turn, row, 1, masked, tiles, key_length, reach, scale,
        True, FIRST, BESIDE, TURNS, COLUMNS, STAGES,
    )  # fmt: skip
    weights, highest, total, out = absorb(
        state, rooms, full, free, turn, other_turn, row, masked, tiles, tiles, key_length, reach, scale,
        False, FIRST, BESIDE, TURNS, COLUMNS, STAGES,
    )  # fmt: skip
    stage, phase = place(tiles - 1, STAGES)
    mbarrier.wait(v_full.index(stage), phase)
    out = warpgroup_mma(weights, v.index(stage), out)
    divisor = gl.convert_layout(gl.where(total == 0, 1.0, total), gl.SliceLayout(1, OUT))
    q.store((out / divisor[:, None]).to(q.dtype))  # the room of the queries, which are needed no more
    fence_async_shared()
    tma.async_copy_shared_to_global(outputs, [batch, head, first_row, 0], q)
    gl.store(lse + of_head + row, highest * LN_2 + gl.log(total), mask=row < query_length)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["heads", "group", "query_length", "key_length"])  # a 1 would be no number to partitions
def forward_kernel(
    queries, keys, values, outputs,  # descriptors of (batch, heads, length, head_dim)
    lse,  # (batch, heads, query_length), fp32
    scale, heads, group, query_length, key_length,
    CAUSAL: gl.constexpr, BESIDE: gl.constexpr, TURNS: gl.constexpr,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, HEAD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute the outputs of two tiles of queries, for which the same tiles of keys and values are loaded."""
    blocks = gl.cdiv(query_length, 2 * ROWS)
    block, head = gl.program_id(0) % blocks, gl.program_id(0) // blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest rows first, so that the short ones fill the gaps at the end
    of_head = head.to(gl.int64) * query_length
    batch, head, first_row = head // heads, head % heads, block * 2 * ROWS
    end, unmasked, reach = key_length, key_length // COLUMNS, key_length
    if CAUSAL:
        reach -= query_length
        end = gl.minimum(end, gl.maximum(first_row + 2 * ROWS + reach, 1))
        unmasked = gl.minimum(key_length, gl.maximum(first_row + 1 + reach, 0)) // COLUMNS
    tiles = gl.cdiv(end, COLUMNS)
    masked = gl.maximum(tiles - unmasked, 1)

    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([COLUMNS, HEAD], queries.dtype)
    q = gl.allocate_shared_memory(queries.dtype, [2, ROWS, HEAD], LAYOUT)
    k = gl.allocate_shared_memory(queries.dtype, [STAGES, COLUMNS, HEAD], LAYOUT)
    v = gl.allocate_shared_memory(queries.dtype, [STAGES, COLUMNS, HEAD], LAYOUT)
    full = barriers(1, 1).index(0), barriers(STAGES, 1), barriers(STAGES, 1)
    free = barriers(STAGES, 2), barriers(STAGES, 2)  # both groups must be done with a tile
    turns = barriers(2, 1)
    in_units, kv_head = scale * LOG2_E, head // group
    gl.warp_specialize(
        [
            (compute, (
                outputs, lse, (q.index(0), k, v), full, free, turns.index(0), turns.index(1), batch, head, of_head,
                first_row, masked, tiles, query_length, key_length, reach, in_units, 1, BESIDE, TURNS, COLUMNS, STAGES,
            )),
            (compute, (
                outputs, lse, (q.index(1), k, v), full, free, turns.index(1), turns.index(0), batch, head, of_head,
                first_row + ROWS, masked, tiles, query_length, key_length, reach, in_units, 0, BESIDE, TURNS, COLUMNS,
                STAGES,
            )),
            (load, (
                (queries, keys, values), (q, k, v), full, free, batch, head, kv_head, first_row, tiles, STAGES,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, schedule: Schedule = AS_SHIPPED
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output, and the log-sum-exp of each query's scores, ``(batch, heads, queries)`` in fp32."""
    out = room_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    forward_kernel[(triton_flash.programs(q, 2 * schedule.rows),)](
        tiles(q, schedule.rows), tiles(k, schedule.columns), tiles(v, schedule.columns), tiles(out, schedule.rows), lse,
        **triton_flash.problem(q, k, causal, scale), ROWS=schedule.rows, COLUMNS=schedule.columns,
        STAGES=schedule.stages, BESIDE=schedule.beside, TURNS=schedule.turns, num_warps=4, maxnreg=REGISTERS,
    )  # fmt: skip
    return out, lse


def tiles(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """Return a descriptor that reads and writes ``rows`` rows of one head at a time, as Triton's does."""
    tensor, head_dim = addressable(tensor), tensor.shape[-1]
    layout = layout_of(head_dim, tensor.element_size())
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, rows, head_dim], layout)


@functools.cache
def layout_of(head_dim: int, element_size: int) -> gl.NVMMASharedLayout:
    """Return how a tile lies in shared memory: in the order in which the tensor cores read it."""
    return gl.NVMMASharedLayout(min(128, head_dim * element_size), 8 * element_size, rank=4)

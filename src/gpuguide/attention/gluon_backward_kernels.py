"""Warp-specialised backward pass on Hopper, in Gluon, with five matmuls for each pair of tiles.

The kernels in :mod:`gpuguide.attention.flash_backward_kernels` recompute scores twice, for dQ and for dK and dV, which
takes seven matmuls. Here, a program computes dK and dV of 128 keys, and adds its part of dQ to a sum in global memory.
Two groups of four warps have 64 of the keys each, and one warp loads.

- Scores are transposed, ``(keys, queries)``. So P and dS leave the tensor cores as the matmuls for dV and dK take them:
  in registers, as the left operand.
- dQ sums over the keys of both groups. They exchange dS in shared memory, and each computes half of a tile of dQ: one
  tile later, so that neither group waits for the other, and the exponentials of one overlap the matmuls of the other.
- The copy engine (TMA) adds that half to the sum, in fp32. Programs add in the order in which they get there, so the
  rounding of dQ differs from run to run.
- Each thread stores four of its numbers of dQ side by side, without bank conflicts. The sum keeps this order of
  registers; the kernel that converts it to 16 bits restores the order of rows.

Names are as in :mod:`gpuguide.attention.flash_backward_kernels`, barriers as in
:mod:`gpuguide.attention.gluon_kernels`.

Source: J. Shah et al., "FlashAttention-3", 2024, https://arxiv.org/abs/2407.08608, and the kernel published with it.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import _core
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from gpuguide.attention.gluon_kernels import LOG2_E, allocate_barriers, stage_and_phase

HALF_N = gl.constexpr(64)  # keys of a group of warps
HIDDEN = gl.constexpr(2**31 - 1)  # index of a key that no query sees


@_core.builtin
def async_add_shared_to_global(tensor_desc, coord, src, _semantic=None):
    """Start to add a tile in shared memory to global memory, which Gluon 3.6 and 3.7 can do and do not export."""
    from triton._C.libtriton import ir

    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


# --- the partition that loads --------------------------------------------------------------------------------


@gluon.jit
def load_partition(
    descriptors,  # of k, v, q, do: (batch, heads, length, head_dim); of lse, delta: (batch, heads, seqlen_q)
    smem,  # buffers of k, v (2, HALF_N, HEAD_DIM), q, do (STAGES, BLOCK_M, HEAD_DIM), lse, delta (STAGES, BLOCK_M)
    full_barriers,  # of k and v (one), of q with lse and do with delta (STAGES each): copies have arrived
    empty_barriers,  # of q with lse and do with delta (STAGES each): both groups are done with a tile
    work,  # as locate_work returns it
    group,  # query heads for each head of keys and values
    STAGES: gl.constexpr,
):
    """Copy keys and values, then the tiles of queries and of the gradient of the output, head by head."""
    desc_k, desc_v, desc_q, desc_do, desc_lse, desc_delta = descriptors
    k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem = smem
    kv_full, q_full, do_full = full_barriers
    q_empty, do_empty = empty_barriers
    batch, kv_head, start_n, start_m, tiles, _ = work
    BLOCK_M: gl.constexpr = desc_q.block_shape[2]
    # -- load k and v
    mbarrier.expect(kv_full, 4 * desc_k.block_type.nbytes)
    for half in gl.static_range(2):
        at = [batch, kv_head, start_n + half * HALF_N, 0]
        tma.async_copy_global_to_shared(desc_k, at, kv_full, k_smem.index(half))
        tma.async_copy_global_to_shared(desc_v, at, kv_full, v_smem.index(half))
    for index in range(group * tiles):
        stage, phase = stage_and_phase(index, STAGES)
        head, row = kv_head * group + index // tiles, start_m + index % tiles * BLOCK_M
        # -- load q and lse
        mbarrier.wait(q_empty.index(stage), phase ^ 1)  # passes the first time: the buffers start empty
        mbarrier.expect(q_full.index(stage), desc_q.block_type.nbytes + desc_lse.block_type.nbytes)
        tma.async_copy_global_to_shared(desc_q, [batch, head, row, 0], q_full.index(stage), q_smem.index(stage))
        tma.async_copy_global_to_shared(desc_lse, [batch, head, row], q_full.index(stage), lse_smem.index(stage))
        # -- load do and delta
        mbarrier.wait(do_empty.index(stage), phase ^ 1)
        mbarrier.expect(do_full.index(stage), desc_do.block_type.nbytes + desc_delta.block_type.nbytes)
        tma.async_copy_global_to_shared(desc_do, [batch, head, row, 0], do_full.index(stage), do_smem.index(stage))
        tma.async_copy_global_to_shared(desc_delta, [batch, head, row], do_full.index(stage), delta_smem.index(stage))


# --- the two partitions that compute -------------------------------------------------------------------------


@gluon.jit
def start_half_of_dq(
    ds_smem,  # buffers of dsT (2 STAGES, HALF_N, BLOCK_M), of one group and then of the other
    stage,
    k_smem,  # (2, HALF_N, HEAD_DIM)
    GROUP: gl.constexpr,
    BLOCK_M: gl.constexpr,
    HEAD_DIM: gl.constexpr,
):
    """Start ``ds @ k``, summed over all keys, for half of the rows of a tile of dq, or half of its columns."""
    ROWS: gl.constexpr = 64  # one instruction of four warps multiplies as many
    COLUMNS: gl.constexpr = BLOCK_M * HEAD_DIM // 2 // ROWS
    dq = gl.zeros([ROWS, COLUMNS], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16]))
    for half in gl.static_range(2):
        ds, k = ds_smem.index(2 * stage + half).permute((1, 0)), k_smem.index(half)
        if BLOCK_M > ROWS:
            ds = ds.slice(GROUP * ROWS, ROWS, 0)
        else:
            k = k.slice(GROUP * COLUMNS, COLUMNS, 1)
        dq = warpgroup_mma(ds, k, dq, use_acc=half > 0, is_async=True)
    return dq


@gluon.jit
def order_of_registers(dq):
    """Return a half of dq as one row, with four numbers of a thread side by side; no number moves between threads."""
    COLUMNS: gl.constexpr = dq.shape[1]
    warp_row_column = dq.reshape([4, 2, 8, COLUMNS // 8, 4, 2])  # warps, 2, 8 rows; columns / 8, 4, 2
    return warp_row_column.permute([0, 3, 2, 4, 1, 5]).reshape([64 * COLUMNS])


@gluon.jit
def add_half_of_dq(
    dq,
    dq_smem,  # buffer of one half, in the order of registers
    desc_dq,  # descriptor of the sum of dq: (halves of tiles, numbers of a half), fp32
    half_tile,  # index in the sum
    ACCUMULATE: gl.constexpr,  # whether to add; otherwise the half replaces what others added
):
    """Start to add a half of a tile of dq to the sum."""
    tma.store_wait(0)  # the half before has left the buffer
    dq_smem.store(order_of_registers(dq))
    fence_async_shared()
    if ACCUMULATE:
        async_add_shared_to_global(desc_dq, [half_tile, 0], dq_smem)
    else:
        tma.async_copy_shared_to_global(desc_dq, [half_tile, 0], dq_smem)


@gluon.jit
def attn_bwd_inner(
    dk,  # (HALF_N, HEAD_DIM), fp32: the gradient of the keys so far, before it is scaled
    dv,  # (HALF_N, HEAD_DIM), fp32: the gradient of the values so far
    half_tile,  # of the tile before, whose dq is still to be computed
    desc_dq,  # descriptor of the sum of dq, as in add_half_of_dq
    smem,  # as in load_partition
    exchange,  # buffers of dsT (2 STAGES, HALF_N, BLOCK_M) and of halves of dq (2, numbers of a half)
    full_barriers,  # as in load_partition, and of dsT (STAGES): both groups have stored it
    empty_barriers,  # as in load_partition
    offs_n,  # (HALF_N,): indices of the keys
    start_m,  # the first query of the first tile
    index,  # of the first tile among all tiles of the program
    dq_tile,  # the first tile's index in the sum of dq
    begin,  # the first tile; tiles count from start_m
    end,  # the end of the tiles
    causal_offset,  # seqlen_k - seqlen_q
    qk_scale,  # times log2(e)
    MASKED: gl.constexpr,
    ACCUMULATE: gl.constexpr,
    DELAY: gl.constexpr,  # whether dq is computed one tile later
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    HEAD_DIM: gl.constexpr,
):
    """Loop over the tiles of queries from ``begin`` to ``end``, and return the updated state."""
    k_smem, v_smem, q_smem, do_smem, lse_smem, delta_smem = smem
    ds_smem, dq_smem = exchange
    _, q_full, do_full, ds_full = full_barriers
    q_empty, do_empty = empty_barriers
    QK_LAYOUT: gl.constexpr = offs_n.type.layout.parent
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, dk.type.layout, 2)
    for tile in range(begin, end):
        stage, phase = stage_and_phase(index + tile, STAGES)
        last_stage, last_phase = stage_and_phase(
            index + tile + STAGES - 1, STAGES
        )  # of the tile before, and a round on
        q, do = q_smem.index(stage), do_smem.index(stage)
        # -- start the scores, transposed: (HALF_N, BLOCK_M)
        zeros = gl.zeros([HALF_N, BLOCK_M], gl.float32, QK_LAYOUT)
        mbarrier.wait(q_full.index(stage), phase)
        qkT = warpgroup_mma(k_smem.index(GROUP), q.permute((1, 0)), zeros, use_acc=False, is_async=True)
        # -- start dp
        mbarrier.wait(do_full.index(stage), phase)
        dpT = warpgroup_mma(v_smem.index(GROUP), do.permute((1, 0)), zeros, use_acc=False, is_async=True)
        # -- recompute p
        lse = lse_smem.index(stage).load(gl.SliceLayout(0, QK_LAYOUT))
        qkT = warpgroup_mma_wait(1, deps=(qkT,))
        pT = gl.exp2(qkT * qk_scale - lse[None, :])
        if MASKED:
            offs_m = start_m + tile * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(0, QK_LAYOUT))
            pT = gl.where(offs_n[:, None] <= offs_m[None, :] + causal_offset, pT, 0.0)
        pT_operand = gl.convert_layout(pT.to(q.dtype), OPERAND)
        # -- compute ds
        dpT = warpgroup_mma_wait(0, deps=(dpT,))
        delta = delta_smem.index(stage).load(gl.SliceLayout(0, QK_LAYOUT))
        dsT = (pT * (dpT - delta[None, :])).to(q.dtype)
        # -- store ds for the other group, which is done with the tile before, and so with the dq of two before
        if DELAY:
            mbarrier.wait(do_empty.index(last_stage), last_phase ^ 1)
        ds_smem.index(2 * stage + GROUP).store(dsT)
        dsT_operand = gl.convert_layout(dsT, OPERAND)
        # -- start to update dv
        dv = warpgroup_mma(pT_operand, do, dv, is_async=True)
        # -- start half of dq of the tile before; the first time, its result goes nowhere
        fence_async_shared()
        mbarrier.arrive(ds_full.index(stage))
        if DELAY:
            mbarrier.wait(ds_full.index(last_stage), last_phase ^ 1)
            dq = start_half_of_dq(ds_smem, last_stage, k_smem, GROUP, BLOCK_M, HEAD_DIM)
        else:
            half_tile = 2 * (dq_tile + tile) + GROUP
            mbarrier.wait(ds_full.index(stage), phase)
            dq = start_half_of_dq(ds_smem, stage, k_smem, GROUP, BLOCK_M, HEAD_DIM)
        # -- start to update dk
        dk = warpgroup_mma(dsT_operand, q, dk, is_async=True)
        # -- wait for dv and dq, and add dq
        dv, pT_operand, dq = warpgroup_mma_wait(1, deps=(dv, pT_operand, dq))
        mbarrier.arrive(do_empty.index(stage))
        add_half_of_dq(dq, dq_smem.index(GROUP), desc_dq, half_tile, ACCUMULATE)
        half_tile = 2 * (dq_tile + tile) + GROUP
        # -- wait for dk
        dk, dsT_operand = warpgroup_mma_wait(0, deps=(dk, dsT_operand))
        mbarrier.arrive(q_empty.index(stage))
    return dk, dv, half_tile


@gluon.jit
def compute_partition(
    descriptors,  # of the sum of dq, of dk and dv
    smem,  # as in load_partition
    exchange,  # as in attn_bwd_inner
    full_barriers,  # as in attn_bwd_inner
    empty_barriers,  # as in load_partition
    work,  # as locate_work returns it
    heads,  # of queries
    group,  # query heads for each head of keys and values
    seqlen_q,
    seqlen_k,
    causal_offset,  # seqlen_k - seqlen_q
    scale,
    ACCUMULATE: gl.constexpr,
    DELAY: gl.constexpr,
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    HEAD_DIM: gl.constexpr,
):
    """Compute the gradients of half of the program's keys and values, as one of the two groups, and half of dq."""
    desc_dq, desc_dk, desc_dv = descriptors
    batch, kv_head, start_n, start_m, tiles, masked = work
    QK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    ACC_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    start_n += GROUP * HALF_N
    offs_n = start_n + gl.arange(0, HALF_N, gl.SliceLayout(1, QK_LAYOUT))
    offs_n = gl.where(offs_n < seqlen_k, offs_n, HIDDEN)
    dk = gl.zeros([HALF_N, HEAD_DIM], gl.float32, ACC_LAYOUT)
    dv = gl.zeros([HALF_N, HEAD_DIM], gl.float32, ACC_LAYOUT)
    half_tile = group * 0 + HIDDEN  # beyond the sum, where the copy engine writes nothing
    mbarrier.wait(full_barriers[0], 0)
    for member in range(group):
        head = batch * heads + kv_head * group + member
        dq_tile = head * gl.cdiv(seqlen_q, BLOCK_M) + start_m // BLOCK_M
        # -- loop over the tiles that need a mask, then over those that see all keys
        dk, dv, half_tile = attn_bwd_inner(
            dk, dv, half_tile, desc_dq, smem, exchange, full_barriers, empty_barriers, offs_n, start_m,
            member * tiles, dq_tile, 0, masked, causal_offset, scale * LOG2_E, True, ACCUMULATE, DELAY,
            GROUP, STAGES, BLOCK_M, HEAD_DIM,
        )  # fmt: skip
        dk, dv, half_tile = attn_bwd_inner(
            dk, dv, half_tile, desc_dq, smem, exchange, full_barriers, empty_barriers, offs_n, start_m,
            member * tiles, dq_tile, masked, tiles, causal_offset, scale * LOG2_E, False, ACCUMULATE, DELAY,
            GROUP, STAGES, BLOCK_M, HEAD_DIM,
        )  # fmt: skip
    # -- add dq of the last tile
    if DELAY:
        stage, phase = stage_and_phase(group * tiles - 1, STAGES)
        mbarrier.wait(full_barriers[3].index(stage), phase)
        dq = start_half_of_dq(exchange[0], stage, smem[0], GROUP, BLOCK_M, HEAD_DIM)
        dq = warpgroup_mma_wait(0, deps=(dq,))
        add_half_of_dq(dq, exchange[1].index(GROUP), desc_dq, half_tile, ACCUMULATE)
    # -- store dv, then dk, through the buffer of this group's values
    buffer = smem[1].index(GROUP)
    buffer.store(dv.to(buffer.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(desc_dv, [batch, kv_head, start_n, 0], buffer)
    tma.store_wait(0)
    buffer.store((dk * scale).to(buffer.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(desc_dk, [batch, kv_head, start_n, 0], buffer)
    tma.store_wait(0)


# --- the kernel ----------------------------------------------------------------------------------------------


@gluon.jit
def locate_work(
    seqlen_q,
    seqlen_k,
    kv_heads,
    causal_offset,  # seqlen_k - seqlen_q
    CAUSAL: gl.constexpr,
    SECTION: gl.constexpr,
    BLOCK_M: gl.constexpr,
):
    """Return a program's batch, head of keys, first key, first query, tiles of queries, and those that need a mask.

    Sections of heads are computed one after another, so that the L2 cache holds their queries. Within a section, the
    first keys of all its heads come first: with a causal mask most queries see them, and shorter programs fill the gaps
    at the end.
    """
    blocks = gl.cdiv(seqlen_k, 2 * HALF_N)
    first_head = gl.program_id(0) // (SECTION * blocks) * SECTION
    heads = gl.minimum(SECTION, gl.num_programs(0) // blocks - first_head)
    index = gl.program_id(0) - first_head * blocks
    head, start_n = first_head + index % heads, index // heads * 2 * HALF_N
    start_m, masked = 0, 0
    if CAUSAL:
        start_m = gl.maximum(start_n - causal_offset, 0) // BLOCK_M * BLOCK_M
        masked = gl.cdiv(gl.maximum(start_n + 2 * HALF_N - 1 - causal_offset, 0) - start_m, BLOCK_M)
    tiles = gl.cdiv(seqlen_q - start_m, BLOCK_M)
    masked = gl.where(start_n + 2 * HALF_N > seqlen_k, tiles, gl.minimum(masked, tiles))
    return head // kv_heads, head % kv_heads, start_n, start_m, tiles, masked


@gluon.jit(do_not_specialize=["heads", "group", "seqlen_q", "seqlen_k"])  # partitions cannot take a constant 1
def attn_bwd_kernel(
    desc_q,  # descriptor of (batch, heads, seqlen_q, head_dim)
    desc_k,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_v,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_do,  # descriptor of (batch, heads, seqlen_q, head_dim)
    desc_lse,  # descriptor of (batch, heads, seqlen_q), fp32, to base 2; the length is padded with zeros
    desc_delta,  # the same for delta
    desc_dq,  # descriptor of (batch * heads * tiles * 2, BLOCK_M * HEAD_DIM // 2), fp32, added to
    desc_dk,  # descriptor of (batch, kv_heads, seqlen_k, head_dim), written
    desc_dv,  # descriptor of (batch, kv_heads, seqlen_k, head_dim), written
    scale,
    heads,
    group,  # query heads for each head of keys and values
    seqlen_q,
    seqlen_k,
    CAUSAL: gl.constexpr,
    ACCUMULATE: gl.constexpr,
    DELAY: gl.constexpr,
    SECTION: gl.constexpr,
    STAGES: gl.constexpr,
    BLOCK_M: gl.constexpr,
    HEAD_DIM: gl.constexpr,
):
    """Compute the gradients of 128 keys and values from all query heads that share them, and add to those of q."""
    causal_offset = seqlen_k  # without a causal mask, it hides nothing
    if CAUSAL:
        causal_offset -= seqlen_q
    work = locate_work(seqlen_q, seqlen_k, heads // group, causal_offset, CAUSAL, SECTION, BLOCK_M)
    # -- allocate buffers and barriers
    dtype: gl.constexpr = desc_q.dtype
    N_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HALF_N, HEAD_DIM], dtype)
    M_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, HEAD_DIM], dtype)
    DS_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HALF_N, BLOCK_M], dtype)
    ROW_LAYOUT: gl.constexpr = gl.NVMMASharedLayout(0, 32, rank=1)
    smem = (
        gl.allocate_shared_memory(dtype, [2, HALF_N, HEAD_DIM], N_LAYOUT),
        gl.allocate_shared_memory(dtype, [2, HALF_N, HEAD_DIM], N_LAYOUT),
        gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, HEAD_DIM], M_LAYOUT),
        gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, HEAD_DIM], M_LAYOUT),
        gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], ROW_LAYOUT),
        gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], ROW_LAYOUT),
    )
    exchange = (
        gl.allocate_shared_memory(dtype, [2 * STAGES, HALF_N, BLOCK_M], DS_LAYOUT),
        gl.allocate_shared_memory(gl.float32, [2, BLOCK_M * HEAD_DIM // 2], ROW_LAYOUT),
    )
    loaded = allocate_barriers(1, 1).index(0), allocate_barriers(STAGES, 1), allocate_barriers(STAGES, 1)
    full_barriers = loaded[0], loaded[1], loaded[2], allocate_barriers(STAGES, 2)  # both groups store ds
    empty_barriers = allocate_barriers(STAGES, 2), allocate_barriers(STAGES, 2)  # both groups must be done with a tile
    # -- compute with two groups of four warps, load with one warp
    gl.warp_specialize(
        [
            (compute_partition, (
                (desc_dq, desc_dk, desc_dv), smem, exchange, full_barriers, empty_barriers, work, heads, group,
                seqlen_q, seqlen_k, causal_offset, scale, ACCUMULATE, DELAY, 0, STAGES, BLOCK_M, HEAD_DIM,
            )),
            (compute_partition, (
                (desc_dq, desc_dk, desc_dv), smem, exchange, full_barriers, empty_barriers, work, heads, group,
                seqlen_q, seqlen_k, causal_offset, scale, ACCUMULATE, DELAY, 1, STAGES, BLOCK_M, HEAD_DIM,
            )),
            (load_partition, (
                (desc_k, desc_v, desc_q, desc_do, desc_lse, desc_delta), smem, loaded, empty_barriers,
                work, group, STAGES,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip

"""Warp-specialised forward pass on Hopper, in Gluon.

Triton decides what waits for what. In :mod:`gpuguide.attention.triton_flash` it makes every matmul of scores wait until
all matmuls before it are done, and while a program computes exponentials, the tensor cores are idle. Gluon is the
language below Triton: the author of a kernel places copies, matmuls and waits. Here, three kinds of work overlap.

- Copies. One warp asks the copy engine (TMA) for tiles of keys and values, and waits for empty buffers. All other warps
  only wait for full ones.
- Softmax and matmuls. The matmul of the next tile's scores starts before that of this tile's weights and values. When
  the scores are there, their exponentials are computed while the second matmul runs.
- Two groups of four warps, each with a tile of queries: while one computes exponentials, matmuls of the other run. They
  start their matmuls in turn (ping-pong), so that it stays so. Three groups were tried with heads of 64, and were
  slower.

The computation, the masks and the names are as in :mod:`gpuguide.attention.flash_kernels`. Only the order differs: keys
come from the last to the first, so that the masked tiles come first.

Source: J. Shah et al., "FlashAttention-3", 2024, https://arxiv.org/abs/2407.08608.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)


# --- barriers ------------------------------------------------------------------------------------------------


@gluon.jit
def allocate_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Return ``COUNT`` barriers in shared memory that enter their next phase after ``ARRIVALS`` arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(COUNT):
        mbarrier.init(barriers.index(index), count=ARRIVALS)
    return barriers


@gluon.jit
def stage_and_phase(index, STAGES: gl.constexpr):
    """Return the buffer that holds the tile with an index, and the phase of the buffer's barriers."""
    return index % STAGES, index // STAGES & 1


# --- the partition that loads --------------------------------------------------------------------------------


@gluon.jit
def load_partition(
    descriptors,  # of q, k and v: (batch, heads, length, head_dim)
    smem,  # buffers of q (2, BLOCK_M, HEAD_DIM), k and v (STAGES, BLOCK_N, HEAD_DIM)
    full_barriers,  # of q (one), k and v (STAGES each): a copy has arrived
    empty_barriers,  # of k and v (STAGES each): both groups are done with a tile
    batch,
    head,
    kv_head,
    start_m,  # the first query of the first group
    tiles,  # of keys
    STAGES: gl.constexpr,
):
    """Copy the queries of both groups, then keys and values, from the last tile to the first."""
    desc_q, desc_k, desc_v = descriptors
    q_smem, k_smem, v_smem = smem
    q_full, k_full, v_full = full_barriers
    k_empty, v_empty = empty_barriers
    BLOCK_M: gl.constexpr = desc_q.block_shape[2]
    BLOCK_N: gl.constexpr = desc_k.block_shape[2]
    # -- load q
    mbarrier.expect(q_full, 2 * desc_q.block_type.nbytes)
    for group in gl.static_range(2):
        tma.async_copy_global_to_shared(
            desc_q, [batch, head, start_m + group * BLOCK_M, 0], q_full, q_smem.index(group)
        )
    for index in range(tiles):
        stage, phase = stage_and_phase(index, STAGES)
        start_n = (tiles - 1 - index) * BLOCK_N
        # -- load k
        mbarrier.wait(k_empty.index(stage), phase ^ 1)  # passes the first time: the buffers start empty
        mbarrier.expect(k_full.index(stage), desc_k.block_type.nbytes)
        tma.async_copy_global_to_shared(desc_k, [batch, kv_head, start_n, 0], k_full.index(stage), k_smem.index(stage))
        # -- load v
        mbarrier.wait(v_empty.index(stage), phase ^ 1)
        mbarrier.expect(v_full.index(stage), desc_v.block_type.nbytes)
        tma.async_copy_global_to_shared(desc_v, [batch, kv_head, start_n, 0], v_full.index(stage), v_smem.index(stage))


# --- the two partitions that compute -------------------------------------------------------------------------


@gluon.jit
def online_softmax(
    qk,  # (BLOCK_M, BLOCK_N), fp32
    m_i,  # (BLOCK_M,), fp32: the maximum of the scaled scores so far
    l_i,  # (BLOCK_M,), fp32: the sum of exponentials so far
    offs_m,  # (BLOCK_M,): indices of the rows
    start_n,  # the first key
    seqlen_k,
    causal_offset,  # seqlen_k - seqlen_q
    qk_scale,  # times log2(e)
    MASKED: gl.constexpr,
):
    """Return ``p`` of a tile, the updated ``m_i`` and ``l_i``, and ``alpha``, which rescales earlier results."""
    if MASKED:
        offs_n = start_n + gl.arange(0, qk.shape[1], gl.SliceLayout(0, qk.type.layout))
        causal_mask = (offs_n[None, :] <= offs_m[:, None] + causal_offset) & (offs_n[None, :] < seqlen_k)
        qk = gl.where(causal_mask, qk, -float("inf"))
    m_ij = gl.maximum(m_i, gl.max(qk, 1) * qk_scale)
    finite_m_ij = m_ij
    if MASKED:
        finite_m_ij = gl.where(m_ij == -float("inf"), 0.0, m_ij)  # a row that has seen no key yet
    p = gl.exp2(qk * qk_scale - finite_m_ij[:, None])
    alpha = gl.exp2(m_i - finite_m_ij)
    return p, m_ij, l_i * alpha + gl.sum(p, 1), alpha


@gluon.jit
def keep_before_wait(values):
    """Return the values, computed before the wait that follows.

    The assembler moves the wait for the second matmul up, before the exponentials that should be computed during it. It
    does not move it across a store of their sum, though the store never takes place: no number is greater than the
    largest.
    """
    return gl.inline_asm_elementwise(
        "{ .reg .pred never; setp.gt.f32 never, $1, 0f7F7FFFFF; @never st.shared.f32 [$2], $1; mov.f32 $0, $1; }",
        "=f,f,r",
        [values, gl.zeros_like(values).to(gl.int32)],
        gl.float32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def attn_fwd_inner(
    state,  # p of the tile before (16-bit), m_i, l_i and acc
    smem,  # q (BLOCK_M, HEAD_DIM) of this group; buffers of k and v (STAGES, BLOCK_N, HEAD_DIM)
    full_barriers,  # of q, k and v
    empty_barriers,  # of k and v
    own_turn,  # ping-pong barrier that this group waits for
    other_turn,  # ping-pong barrier that the other group waits for
    offs_m,  # (BLOCK_M,): indices of the rows
    begin,  # the first tile; tiles count from the end of the keys
    end,  # the end of the tiles
    tiles,  # of keys
    seqlen_k,
    causal_offset,  # seqlen_k - seqlen_q
    qk_scale,  # times log2(e)
    MASKED: gl.constexpr,
    FIRST: gl.constexpr,  # whether this group takes the first turn
    OVERLAP_SOFTMAX: gl.constexpr,
    PING_PONG: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Loop over the tiles from ``begin`` to ``end``, each with the second matmul of the tile before."""
    p, m_i, l_i, acc = state
    q_smem, k_smem, v_smem = smem
    _, k_full, v_full = full_barriers
    k_empty, v_empty = empty_barriers
    QK_LAYOUT: gl.constexpr = m_i.type.layout.parent
    for index in range(begin, end):
        stage, phase = stage_and_phase(index, STAGES)
        previous_stage, previous_phase = stage_and_phase(index - 1, STAGES)
        # -- start qk of this tile
        if PING_PONG:
            mbarrier.wait(own_turn, (index - 1 & 1) ^ FIRST)
        mbarrier.wait(k_full.index(stage), phase)
        zeros = gl.zeros([offs_m.shape[0], BLOCK_N], gl.float32, QK_LAYOUT)
        qk = warpgroup_mma(q_smem, k_smem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        # -- start p @ v of the tile before
        mbarrier.wait(v_full.index(previous_stage), previous_phase)
        acc = warpgroup_mma(p, v_smem.index(previous_stage), acc, is_async=True)
        if PING_PONG:
            mbarrier.arrive(other_turn)
        # -- wait for qk: for all matmuls but the last one that was started
        qk = warpgroup_mma_wait(1, deps=(qk,))
        mbarrier.arrive(k_empty.index(stage))
        # -- compute the next p, update m_i and l_i
        start_n = (tiles - 1 - index) * BLOCK_N
        next_p, m_i, l_i, alpha = online_softmax(
            qk, m_i, l_i, offs_m, start_n, seqlen_k, causal_offset, qk_scale, MASKED
        )
        if OVERLAP_SOFTMAX:
            l_i = keep_before_wait(l_i)
        # -- wait for p @ v
        acc, p = warpgroup_mma_wait(0, deps=(acc, p))
        mbarrier.arrive(v_empty.index(previous_stage))
        # -- rescale acc
        acc *= gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]
        p = gl.convert_layout(next_p.to(k_smem.dtype), p.type.layout)
    return p, m_i, l_i, acc


@gluon.jit
def compute_partition(
    desc_o,  # descriptor of (batch, heads, seqlen_q, head_dim), written
    lse_ptr,  # (batch, heads, seqlen_q), fp32, written
    smem,  # q (BLOCK_M, HEAD_DIM) of this group; buffers of k and v (STAGES, BLOCK_N, HEAD_DIM)
    full_barriers,  # of q, k and v
    empty_barriers,  # of k and v
    own_turn,  # ping-pong barrier that this group waits for
    other_turn,  # ping-pong barrier that the other group waits for
    batch,
    head,
    lse_offset,  # the head's first number in lse
    start_m,  # the group's first query
    masked,  # tiles that need a mask
    tiles,  # of keys
    seqlen_q,
    seqlen_k,
    causal_offset,  # seqlen_k - seqlen_q
    qk_scale,  # times log2(e)
    FIRST: gl.constexpr,  # whether this group takes the first turn
    OVERLAP_SOFTMAX: gl.constexpr,
    PING_PONG: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Compute the output and the log-sum-exp of one tile of queries, as one of the two groups."""
    q_smem, k_smem, v_smem = smem
    q_full, k_full, v_full = full_barriers
    k_empty, _ = empty_barriers
    BLOCK_M: gl.constexpr = desc_o.block_shape[2]
    HEAD_DIM: gl.constexpr = desc_o.block_shape[3]
    QK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    ACC_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    # -- initialise m_i and l_i
    offs_m = start_m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, QK_LAYOUT))
    m_i = gl.full([BLOCK_M], -float("inf"), gl.float32, gl.SliceLayout(1, QK_LAYOUT))
    l_i = gl.zeros([BLOCK_M], gl.float32, gl.SliceLayout(1, QK_LAYOUT))
    # -- compute qk and p of the first tile
    mbarrier.wait(q_full, 0)
    mbarrier.wait(k_full.index(0), 0)
    zeros = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, QK_LAYOUT)
    qk = warpgroup_mma(q_smem, k_smem.index(0).permute((1, 0)), zeros, use_acc=False)
    mbarrier.arrive(k_empty.index(0))
    start_n = (tiles - 1) * BLOCK_N
    p, m_i, l_i, _ = online_softmax(qk, m_i, l_i, offs_m, start_n, seqlen_k, causal_offset, qk_scale, True)
    p = gl.convert_layout(p.to(k_smem.dtype), gl.DotOperandLayout(0, ACC_LAYOUT, 2))
    state = p, m_i, l_i, gl.zeros([BLOCK_M, HEAD_DIM], gl.float32, ACC_LAYOUT)
    # -- loop over the tiles that need a mask, then over those that all rows see
    state = attn_fwd_inner(
        state,
        smem,
        full_barriers,
        empty_barriers,
        own_turn,
        other_turn,
        offs_m,
        1,
        masked,
        tiles,
        seqlen_k,
        causal_offset,
        qk_scale,
        MASKED=True,
        FIRST=FIRST,
        OVERLAP_SOFTMAX=OVERLAP_SOFTMAX,
        PING_PONG=PING_PONG,
        BLOCK_N=BLOCK_N,
        STAGES=STAGES,
    )
    p, m_i, l_i, acc = attn_fwd_inner(
        state,
        smem,
        full_barriers,
        empty_barriers,
        own_turn,
        other_turn,
        offs_m,
        masked,
        tiles,
        tiles,
        seqlen_k,
        causal_offset,
        qk_scale,
        MASKED=False,
        FIRST=FIRST,
        OVERLAP_SOFTMAX=OVERLAP_SOFTMAX,
        PING_PONG=PING_PONG,
        BLOCK_N=BLOCK_N,
        STAGES=STAGES,
    )
    # -- compute p @ v of the last tile
    stage, phase = stage_and_phase(tiles - 1, STAGES)
    mbarrier.wait(v_full.index(stage), phase)
    acc = warpgroup_mma(p, v_smem.index(stage), acc)
    # -- normalise and store the output; a row that saw no key is zero
    divisor = gl.convert_layout(gl.where(l_i == 0, 1.0, l_i), gl.SliceLayout(1, ACC_LAYOUT))
    q_smem.store((acc / divisor[:, None]).to(q_smem.dtype))  # the queries are no longer needed
    fence_async_shared()
    tma.async_copy_shared_to_global(desc_o, [batch, head, start_m, 0], q_smem)
    # -- store the log-sum-exp
    gl.store(lse_ptr + lse_offset + offs_m, m_i * LN_2 + gl.log(l_i), mask=offs_m < seqlen_q)
    tma.store_wait(0)


# --- the kernel ----------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["heads", "group", "seqlen_q", "seqlen_k"])  # partitions cannot take a constant 1
def attn_fwd_kernel(
    desc_q,  # descriptor of (batch, heads, seqlen_q, head_dim)
    desc_k,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_v,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_o,  # descriptor of (batch, heads, seqlen_q, head_dim), written
    lse_ptr,  # (batch, heads, seqlen_q), fp32, written
    scale,
    heads,
    group,  # query heads for each head of keys and values
    seqlen_q,
    seqlen_k,
    CAUSAL: gl.constexpr,
    OVERLAP_SOFTMAX: gl.constexpr,
    PING_PONG: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Compute the outputs of two tiles of queries, which share the loaded tiles of keys and values."""
    blocks = gl.cdiv(seqlen_q, 2 * BLOCK_M)
    block, head = gl.program_id(0) % blocks, gl.program_id(0) // blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest rows first, so that the short ones fill the gaps at the end
    lse_offset = head.to(gl.int64) * seqlen_q
    batch, head, start_m = head // heads, head % heads, block * 2 * BLOCK_M
    # -- count the tiles of keys: all, and those that need a mask
    hi, unmasked, causal_offset = seqlen_k, seqlen_k // BLOCK_N, seqlen_k
    if CAUSAL:
        causal_offset -= seqlen_q
        hi = gl.minimum(hi, gl.maximum(start_m + 2 * BLOCK_M + causal_offset, 1))
        unmasked = gl.minimum(seqlen_k, gl.maximum(start_m + 1 + causal_offset, 0)) // BLOCK_N
    tiles = gl.cdiv(hi, BLOCK_N)
    masked = gl.maximum(tiles - unmasked, 1)
    # -- allocate buffers and barriers
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, HEAD_DIM], desc_q.dtype)
    q_smem = gl.allocate_shared_memory(desc_q.dtype, [2, BLOCK_M, HEAD_DIM], LAYOUT)
    k_smem = gl.allocate_shared_memory(desc_q.dtype, [STAGES, BLOCK_N, HEAD_DIM], LAYOUT)
    v_smem = gl.allocate_shared_memory(desc_q.dtype, [STAGES, BLOCK_N, HEAD_DIM], LAYOUT)
    full_barriers = allocate_barriers(1, 1).index(0), allocate_barriers(STAGES, 1), allocate_barriers(STAGES, 1)
    empty_barriers = allocate_barriers(STAGES, 2), allocate_barriers(STAGES, 2)  # both groups must be done with a tile
    turns = allocate_barriers(2, 1)
    qk_scale, kv_head = scale * LOG2_E, head // group
    # -- compute with two groups of four warps, load with one warp
    gl.warp_specialize(
        [
            (compute_partition, (
                desc_o, lse_ptr, (q_smem.index(0), k_smem, v_smem), full_barriers, empty_barriers,
                turns.index(0), turns.index(1), batch, head, lse_offset, start_m, masked, tiles,
                seqlen_q, seqlen_k, causal_offset, qk_scale, 1, OVERLAP_SOFTMAX, PING_PONG, BLOCK_N, STAGES,
            )),
            (compute_partition, (
                desc_o, lse_ptr, (q_smem.index(1), k_smem, v_smem), full_barriers, empty_barriers,
                turns.index(1), turns.index(0), batch, head, lse_offset, start_m + BLOCK_M, masked, tiles,
                seqlen_q, seqlen_k, causal_offset, qk_scale, 0, OVERLAP_SOFTMAX, PING_PONG, BLOCK_N, STAGES,
            )),
            (load_partition, (
                (desc_q, desc_k, desc_v), (q_smem, k_smem, v_smem), full_barriers, empty_barriers,
                batch, head, kv_head, start_m, tiles, STAGES,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip

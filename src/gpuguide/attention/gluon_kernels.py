"""Warp-specialised forward pass on Hopper, in Gluon.

Triton decides what waits for what. In :mod:`gpuguide.attention.triton_flash` it makes every matmul of scores wait until
all matmuls before it are done, and while a program computes exponentials, the tensor cores are idle. Gluon is the
language below Triton: the author of a kernel places copies, matmuls and waits. Here, four kinds of work overlap.

- Copies. One warp asks the copy engine (TMA) for tiles of keys and values, and waits for empty buffers. All other warps
  only wait for full ones.
- Softmax and matmuls. The matmul of the next tile's scores starts before that of this tile's weights and values. When
  the scores are there, their exponentials are computed while the second matmul runs.
- Two groups of four warps, each with a tile of queries: while one computes exponentials, matmuls of the other run. They
  start their matmuls in turn (ping-pong), so that it stays so. Three groups were tried with heads of 64, and were
  slower.
- The end of one pair of query tiles and the beginning of the next. Programs are persistent: each takes the next pair
  that no other has taken, and loads its queries, keys and values while it still computes the pair before.

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


# --- the order of work ---------------------------------------------------------------------------------------


@gluon.jit
def take_pair(tickets_ptr, pairs):
    """Return the first pair of query tiles that no program has taken, or a larger number than there are."""
    pair = pairs
    if pairs > gl.num_programs(0):  # each program has begun with a pair of its own
        pair = gl.num_programs(0) + gl.atomic_add(tickets_ptr, 1, sem="relaxed")
    return pair


@gluon.jit
def announce_pair(pair, buffer):
    """Store the index of a pair in shared memory, as the warp that loads."""
    buffer.store(gl.full([1], pair, gl.int32, gl.BlockedLayout([1], [32], [1], [0])))


@gluon.jit
def await_pair(index, pair_smem, q_full, Q_STAGES: gl.constexpr):
    """Return the pair that comes ``index``-th in this program, as one of the groups, when its queries are there."""
    stage, phase = stage_and_phase(index, Q_STAGES)
    mbarrier.wait(q_full.index(stage), phase)
    return gl.max(pair_smem.index(stage).load(gl.BlockedLayout([1], [32], [4], [0])), 0)


@gluon.jit
def locate_pair(
    pair,  # index of a pair of query tiles
    sizes,  # of the problem, as attn_fwd_kernel makes them
    CAUSAL: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
):
    """Return the head among those of all sequences, the first query, and how many tiles of keys are seen and masked.

    Pairs come in sections of heads. Within a section, the longest rows of all heads come first, so that short ones fill
    the gaps at the end.
    """
    _, all_heads, section, _, _, seqlen_q, seqlen_k = sizes
    # -- find head and block
    blocks = gl.cdiv(seqlen_q, 2 * BLOCK_M)
    first_head = pair // (section * blocks) * section
    heads_in_section = gl.minimum(section, all_heads - first_head)
    index = pair - first_head * blocks
    head, block = first_head + index % heads_in_section, index // heads_in_section
    if CAUSAL:
        block = blocks - 1 - block
    start_m = block * 2 * BLOCK_M
    # -- count the tiles of keys: all, and those that need a mask
    hi, unmasked = seqlen_k, seqlen_k // BLOCK_N
    if CAUSAL:
        causal_offset = seqlen_k - seqlen_q
        hi = gl.minimum(hi, gl.maximum(start_m + 2 * BLOCK_M + causal_offset, 1))
        unmasked = gl.minimum(seqlen_k, gl.maximum(start_m + 1 + causal_offset, 0)) // BLOCK_N
    tiles = gl.cdiv(hi, BLOCK_N)
    return head, start_m, tiles, gl.maximum(tiles - unmasked, 1)


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
    smem,  # buffers of q (2 * Q_STAGES, BLOCK_M, HEAD_DIM), k and v (STAGES, BLOCK_N, HEAD_DIM)
    full_barriers,  # of q (Q_STAGES), k and v (STAGES each)
    empty_barriers,  # of q (Q_STAGES), k and v (STAGES each)
    pair_smem,  # (Q_STAGES, 1), int32: the pair whose queries a buffer holds
    tickets_ptr,  # int32: how many pairs were taken, but for the first of each program
    sizes,  # of the problem, as attn_fwd_kernel makes them
    CAUSAL: gl.constexpr,
    Q_STAGES: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Copy the queries of both groups, then keys and values, from the last tile to the first, for each pair."""
    desc_q, desc_k, desc_v = descriptors
    q_smem, k_smem, v_smem = smem
    q_full, k_full, v_full = full_barriers
    q_empty, k_empty, v_empty = empty_barriers
    pairs, _, _, heads, group, _, _ = sizes
    BLOCK_M: gl.constexpr = desc_q.block_shape[2]
    BLOCK_N: gl.constexpr = desc_k.block_shape[2]
    pair, earlier_pairs, earlier_tiles = gl.program_id(0), 0, 0
    while pair < pairs:
        head, start_m, tiles, _masked = locate_pair(pair, sizes, CAUSAL, BLOCK_M, BLOCK_N)
        batch, head = head // heads, head % heads
        kv_head = head // group
        # -- load q
        q_stage, q_phase = stage_and_phase(earlier_pairs, Q_STAGES)
        mbarrier.wait(q_empty.index(q_stage), q_phase ^ 1)  # passes the first time: the buffers start empty
        announce_pair(pair, pair_smem.index(q_stage))
        mbarrier.arrive(q_full.index(q_stage))
        mbarrier.expect(q_full.index(q_stage), 2 * desc_q.block_type.nbytes)
        for member in gl.static_range(2):
            coordinates = [batch, head, start_m + member * BLOCK_M, 0]
            buffer = q_smem.index(2 * q_stage + member)
            tma.async_copy_global_to_shared(desc_q, coordinates, q_full.index(q_stage), buffer)
        for index in range(tiles):
            stage, phase = stage_and_phase(earlier_tiles + index, STAGES)
            coordinates = [batch, kv_head, (tiles - 1 - index) * BLOCK_N, 0]
            # -- load k
            mbarrier.wait(k_empty.index(stage), phase ^ 1)
            mbarrier.expect(k_full.index(stage), desc_k.block_type.nbytes)
            tma.async_copy_global_to_shared(desc_k, coordinates, k_full.index(stage), k_smem.index(stage))
            # -- load v
            mbarrier.wait(v_empty.index(stage), phase ^ 1)
            mbarrier.expect(v_full.index(stage), desc_v.block_type.nbytes)
            tma.async_copy_global_to_shared(desc_v, coordinates, v_full.index(stage), v_smem.index(stage))
        earlier_pairs, earlier_tiles = earlier_pairs + 1, earlier_tiles + tiles
        pair = take_pair(tickets_ptr, pairs)
    # -- announce the end: a pair that does not exist
    q_stage, q_phase = stage_and_phase(earlier_pairs, Q_STAGES)
    mbarrier.wait(q_empty.index(q_stage), q_phase ^ 1)
    announce_pair(pair, pair_smem.index(q_stage))
    mbarrier.arrive(q_full.index(q_stage), count=2)


# --- the two partitions that compute -------------------------------------------------------------------------


@gluon.jit
def online_softmax(
    qk,  # (BLOCK_M, BLOCK_N), fp32
    m_i,  # (BLOCK_M,), fp32: the maximum of the scaled scores so far
    l_i,  # (BLOCK_M,), fp32: the sum of exponentials so far
    last_key,  # (BLOCK_M,): the last key that each row sees
    start_n,  # the first key
    qk_scale,  # times log2(e)
    MASKED: gl.constexpr,
):
    """Return ``p`` of a tile, the updated ``m_i`` and ``l_i``, and ``alpha``, which rescales earlier results."""
    if MASKED:
        # each thread compares with constants, which are part of the instructions
        columns = gl.arange(0, qk.shape[1], gl.SliceLayout(0, qk.type.layout))
        qk = gl.where(columns[None, :] <= (last_key - start_n)[:, None], qk, -float("inf"))
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
    state,  # p of the tile before (fp32, or 16-bit without CARRY_FP32), m_i, l_i and acc
    smem,  # q (BLOCK_M, HEAD_DIM) of this group; buffers of k and v (STAGES, BLOCK_N, HEAD_DIM)
    full_barriers,  # of q, k and v
    empty_barriers,  # of q, k and v
    own_turn,  # ping-pong barrier that this group waits for
    other_turn,  # ping-pong barrier that the other group waits for
    last_key,  # (BLOCK_M,): the last key that each row sees
    begin,  # the first tile; tiles count from the end of the keys
    end,  # the end of the tiles
    tiles,  # of keys
    earlier_tiles,  # of keys, for the pairs before
    earlier_turns,  # taken for the pairs before
    qk_scale,  # times log2(e)
    MASKED: gl.constexpr,
    FIRST: gl.constexpr,  # whether this group takes the first turn
    OVERLAP_SOFTMAX: gl.constexpr,
    PING_PONG: gl.constexpr,
    CARRY_FP32: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Loop over the tiles from ``begin`` to ``end``, each with the second matmul of the tile before."""
    p, m_i, l_i, acc = state
    q_smem, k_smem, v_smem = smem
    _, k_full, v_full = full_barriers
    _, k_empty, v_empty = empty_barriers
    QK_LAYOUT: gl.constexpr = m_i.type.layout.parent
    for index in range(begin, end):
        stage, phase = stage_and_phase(earlier_tiles + index, STAGES)
        previous_stage, previous_phase = stage_and_phase(earlier_tiles + index - 1, STAGES)
        # -- start qk of this tile
        if PING_PONG:
            mbarrier.wait(own_turn, (earlier_turns + index - 1 & 1) ^ FIRST)
        mbarrier.wait(k_full.index(stage), phase)
        zeros = gl.zeros([m_i.shape[0], BLOCK_N], gl.float32, QK_LAYOUT)
        qk = warpgroup_mma(q_smem, k_smem.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        # -- start p @ v of the tile before
        mbarrier.wait(v_full.index(previous_stage), previous_phase)
        operand = p
        if CARRY_FP32:
            operand = to_operand(p, acc, v_smem.dtype)  # while qk is computed
        acc = warpgroup_mma(operand, v_smem.index(previous_stage), acc, is_async=True)
        if PING_PONG:
            mbarrier.arrive(other_turn)
        # -- wait for qk: for all matmuls but the last one that was started
        qk = warpgroup_mma_wait(1, deps=(qk,))
        mbarrier.arrive(k_empty.index(stage))
        # -- compute the next p, update m_i and l_i
        start_n = (tiles - 1 - index) * BLOCK_N
        p, m_i, l_i, alpha = online_softmax(qk, m_i, l_i, last_key, start_n, qk_scale, MASKED)
        if OVERLAP_SOFTMAX:
            l_i = keep_before_wait(l_i)
        # -- wait for p @ v
        acc, operand = warpgroup_mma_wait(0, deps=(acc, operand))
        mbarrier.arrive(v_empty.index(previous_stage))
        # -- rescale acc
        acc *= gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]
        if not CARRY_FP32:
            p = to_operand(p, acc, v_smem.dtype)
    return p, m_i, l_i, acc


@gluon.jit
def to_operand(p, acc, dtype: gl.constexpr):
    """Return the weights in 16 bits, in the registers that the matmul with ``acc`` reads."""
    return gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, acc.type.layout, 2))


@gluon.jit
def compute_partition(
    desc_o,  # descriptor of (batch, heads, seqlen_q, head_dim), written
    lse_ptr,  # (batch, heads, seqlen_q), fp32, written
    smem,  # buffers of q (2 * Q_STAGES, BLOCK_M, HEAD_DIM), k and v (STAGES, BLOCK_N, HEAD_DIM)
    full_barriers,  # of q, k and v
    empty_barriers,  # of q, k and v
    own_turn,  # ping-pong barrier that this group waits for
    other_turn,  # ping-pong barrier that the other group waits for
    pair_smem,  # (Q_STAGES, 1), int32: the pair whose queries a buffer holds
    sizes,  # of the problem, as attn_fwd_kernel makes them
    qk_scale,  # times log2(e)
    FIRST: gl.constexpr,  # whether this group has the first tile of a pair, and takes the first turn
    CAUSAL: gl.constexpr,
    OVERLAP_SOFTMAX: gl.constexpr,
    PING_PONG: gl.constexpr,
    CARRY_FP32: gl.constexpr,
    BLOCK_N: gl.constexpr,
    Q_STAGES: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Compute outputs and log-sum-exps of one query tile of each pair, as one of the two groups."""
    q_smem, k_smem, v_smem = smem
    q_full, k_full, v_full = full_barriers
    q_empty, k_empty, v_empty = empty_barriers
    pairs, _, _, heads, _, seqlen_q, seqlen_k = sizes
    BLOCK_M: gl.constexpr = desc_o.block_shape[2]
    HEAD_DIM: gl.constexpr = desc_o.block_shape[3]
    QK_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    ACC_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    earlier_pairs, earlier_tiles = 0, 0
    pair = await_pair(0, pair_smem, q_full, Q_STAGES)
    while pair < pairs:
        head, start_m, tiles, masked = locate_pair(pair, sizes, CAUSAL, BLOCK_M, BLOCK_N)
        start_m += (1 - FIRST) * BLOCK_M
        offs_m = start_m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, QK_LAYOUT))
        last_key = gl.full([BLOCK_M], 0, gl.int32, gl.SliceLayout(1, QK_LAYOUT)) + seqlen_k - 1
        if CAUSAL:
            last_key = gl.minimum(offs_m + seqlen_k - seqlen_q, last_key)
        # -- initialise m_i, l_i and acc
        m_i = gl.full([BLOCK_M], -float("inf"), gl.float32, gl.SliceLayout(1, QK_LAYOUT))
        l_i = gl.zeros([BLOCK_M], gl.float32, gl.SliceLayout(1, QK_LAYOUT))
        acc = gl.zeros([BLOCK_M, HEAD_DIM], gl.float32, ACC_LAYOUT)
        # -- compute qk and p of the first tile
        q_tile = q_smem.index(2 * (earlier_pairs % Q_STAGES) + 1 - FIRST)
        stage, phase = stage_and_phase(earlier_tiles, STAGES)
        mbarrier.wait(k_full.index(stage), phase)
        zeros = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, QK_LAYOUT)
        qk = warpgroup_mma(q_tile, k_smem.index(stage).permute((1, 0)), zeros, use_acc=False)
        mbarrier.arrive(k_empty.index(stage))
        if earlier_pairs > 0:
            # -- give back the buffer from which the output before was stored
            tma.store_wait(0)
            mbarrier.arrive(q_empty.index((earlier_pairs - 1) % Q_STAGES))
        start_n = (tiles - 1) * BLOCK_N
        p, m_i, l_i, _alpha = online_softmax(qk, m_i, l_i, last_key, start_n, qk_scale, True)
        if not CARRY_FP32:
            p = to_operand(p, acc, v_smem.dtype)
        # -- loop over the tiles that need a mask, then over those that all rows see
        state = attn_fwd_inner(
            (p, m_i, l_i, acc),
            (q_tile, k_smem, v_smem),
            full_barriers,
            empty_barriers,
            own_turn,
            other_turn,
            last_key,
            1,
            masked,
            tiles,
            earlier_tiles,
            earlier_tiles - earlier_pairs,  # every pair takes a turn less than it has tiles
            qk_scale,
            MASKED=True,
            FIRST=FIRST,
            OVERLAP_SOFTMAX=OVERLAP_SOFTMAX,
            PING_PONG=PING_PONG,
            CARRY_FP32=CARRY_FP32,
            BLOCK_N=BLOCK_N,
            STAGES=STAGES,
        )
        p, m_i, l_i, acc = attn_fwd_inner(
            state,
            (q_tile, k_smem, v_smem),
            full_barriers,
            empty_barriers,
            own_turn,
            other_turn,
            last_key,
            masked,
            tiles,
            tiles,
            earlier_tiles,
            earlier_tiles - earlier_pairs,
            qk_scale,
            MASKED=False,
            FIRST=FIRST,
            OVERLAP_SOFTMAX=OVERLAP_SOFTMAX,
            PING_PONG=PING_PONG,
            CARRY_FP32=CARRY_FP32,
            BLOCK_N=BLOCK_N,
            STAGES=STAGES,
        )
        earlier_pairs, earlier_tiles = earlier_pairs + 1, earlier_tiles + tiles
        # -- compute p @ v of the last tile
        stage, phase = stage_and_phase(earlier_tiles - 1, STAGES)
        mbarrier.wait(v_full.index(stage), phase)
        if CARRY_FP32:
            p = to_operand(p, acc, v_smem.dtype)
        acc = warpgroup_mma(p, v_smem.index(stage), acc)
        mbarrier.arrive(v_empty.index(stage))
        # -- normalise and store the output; a row that saw no key is zero
        divisor = gl.convert_layout(gl.where(l_i == 0, 1.0, l_i), gl.SliceLayout(1, ACC_LAYOUT))
        q_tile.store((acc * (1.0 / divisor)[:, None]).to(q_smem.dtype))  # the queries are no longer needed
        fence_async_shared()
        tma.async_copy_shared_to_global(desc_o, [head // heads, head % heads, start_m, 0], q_tile)
        # -- store the log-sum-exp
        lse_offset = head.to(gl.int64) * seqlen_q
        gl.store(lse_ptr + lse_offset + offs_m, m_i * LN_2 + gl.log(l_i), mask=offs_m < seqlen_q)
        pair = await_pair(earlier_pairs, pair_smem, q_full, Q_STAGES)
    tma.store_wait(0)


# --- the kernel ----------------------------------------------------------------------------------------------


# partitions cannot take a constant 1
@gluon.jit(do_not_specialize=["all_heads", "section", "heads", "group", "seqlen_q", "seqlen_k"])
def attn_fwd_kernel(
    desc_q,  # descriptor of (batch, heads, seqlen_q, head_dim)
    desc_k,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_v,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_o,  # descriptor of (batch, heads, seqlen_q, head_dim), written
    lse_ptr,  # (batch, heads, seqlen_q), fp32, written
    tickets_ptr,  # int32, zero: how many pairs were taken, but for the first of each program
    scale,
    all_heads,  # batch * heads
    section,  # heads that are computed together
    heads,
    group,  # query heads for each head of keys and values
    seqlen_q,
    seqlen_k,
    CAUSAL: gl.constexpr,
    OVERLAP_SOFTMAX: gl.constexpr,
    PING_PONG: gl.constexpr,
    CARRY_FP32: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    Q_STAGES: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Compute the outputs of pairs of query tiles, which share the loaded tiles of keys and values.

    There are as many programs as pairs, or fewer: then each computes one pair after another, and loads for the next
    pair while it computes.
    """
    pairs = all_heads * gl.cdiv(seqlen_q, 2 * BLOCK_M)
    sizes = pairs, all_heads, section, heads, group, seqlen_q, seqlen_k
    # -- allocate buffers and barriers
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, HEAD_DIM], desc_q.dtype)
    q_smem = gl.allocate_shared_memory(desc_q.dtype, [2 * Q_STAGES, BLOCK_M, HEAD_DIM], LAYOUT)
    k_smem = gl.allocate_shared_memory(desc_q.dtype, [STAGES, BLOCK_N, HEAD_DIM], LAYOUT)
    v_smem = gl.allocate_shared_memory(desc_q.dtype, [STAGES, BLOCK_N, HEAD_DIM], LAYOUT)
    pair_smem = gl.allocate_shared_memory(gl.int32, [Q_STAGES, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    # queries are full when the loader has announced their pair, and the copy has arrived
    full_barriers = allocate_barriers(Q_STAGES, 2), allocate_barriers(STAGES, 1), allocate_barriers(STAGES, 1)
    # a tile is empty when both groups are done with it
    empty_barriers = allocate_barriers(Q_STAGES, 2), allocate_barriers(STAGES, 2), allocate_barriers(STAGES, 2)
    turns = allocate_barriers(2, 1)
    smem, qk_scale = (q_smem, k_smem, v_smem), scale * LOG2_E
    # -- compute with two groups of four warps, load with one warp
    gl.warp_specialize(
        [
            (compute_partition, (
                desc_o, lse_ptr, smem, full_barriers, empty_barriers, turns.index(0), turns.index(1), pair_smem,
                sizes, qk_scale, 1, CAUSAL, OVERLAP_SOFTMAX, PING_PONG, CARRY_FP32, BLOCK_N, Q_STAGES, STAGES,
            )),
            (compute_partition, (
                desc_o, lse_ptr, smem, full_barriers, empty_barriers, turns.index(1), turns.index(0), pair_smem,
                sizes, qk_scale, 0, CAUSAL, OVERLAP_SOFTMAX, PING_PONG, CARRY_FP32, BLOCK_N, Q_STAGES, STAGES,
            )),
            (load_partition, (
                (desc_q, desc_k, desc_v), smem, full_barriers, empty_barriers, pair_smem, tickets_ptr, sizes,
                CAUSAL, Q_STAGES, STAGES,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip

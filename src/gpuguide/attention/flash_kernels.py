"""FlashAttention-2 as Triton kernels: the forward pass.

A program of the forward pass computes one tile of queries. It loops over the keys, a tile at a time, and keeps three
things of each query in registers: the running maximum of its scores ``m_i``, the sum of the exponentials below that
maximum ``l_i``, and the unnormalised output ``acc``. When a tile raises the maximum, ``l_i`` and ``acc`` are rescaled
by ``alpha``. Scores never leave the multiprocessor. The backward pass
(:mod:`gpuguide.attention.flash_backward_kernels`) needs one number for each query, the log-sum-exp.

With a causal mask, tiles are of three kinds. Those that no query sees are skipped, those that all queries see need no
mask, and only the tiles that the diagonal crosses are masked. The loop over the second kind has no mask in it.

Tensors are ``(batch, heads, length, head_dim)``. Tiles come through tensor descriptors: on GPUs that have one, the
bulk copy engine (TMA) moves them. It reads zeros beyond the end of a sequence, and writes nothing there.

Names are those of the papers and of Triton's tutorial 06: ``qk`` are scores, ``p`` their exponentials, and ``m_i``,
``l_i`` and ``acc`` the running state.

Sources: T. Dao et al., "FlashAttention", 2022, https://arxiv.org/abs/2205.14135; T. Dao, "FlashAttention-2", 2023,
https://arxiv.org/abs/2307.08691; Triton's tutorial 06,
https://triton-lang.org/main/getting-started/tutorials/06-fused-attention.html.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


# --- tiles and masks ---------------------------------------------------------------------------------------


@triton.jit
def locate_tile(seqlen, heads, BLOCK: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Return the batch, the head and the first row of this program's tile."""
    blocks = tl.cdiv(seqlen, BLOCK)
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    if LAST_FIRST:
        block = blocks - 1 - block  # the longest rows first, so that the short ones fill the gaps at the end
    return head // heads, head % heads, block * BLOCK


@triton.jit
def load_tile(desc, batch, head, start, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Load ``BLOCK`` rows of one head, ``(BLOCK, HEAD_DIM)``."""
    return desc.load([batch, head, start, 0]).reshape(BLOCK, HEAD_DIM)


@triton.jit
def store_tile(desc, batch, head, start, values, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Store ``BLOCK`` rows of one head."""
    desc.store([batch, head, start, 0], values.to(desc.dtype).reshape(1, 1, BLOCK, HEAD_DIM))


@triton.jit
def exponential(x, EXP2: tl.constexpr):
    """Return 2 to the power of ``x``, or e to the power of ``x``."""
    return tl.exp2(x) if EXP2 else tl.exp(x)


@triton.jit
def visible_keys(start_m, rows, seqlen_q, seqlen_k, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the end of the keys that all rows see, in whole tiles, and the end of those that any row sees."""
    hi = seqlen_k
    if CAUSAL:
        visible_to_first = start_m + 1 + seqlen_k - seqlen_q
        hi = tl.minimum(hi, tl.maximum(visible_to_first + rows - 1, 0))
        return tl.minimum(seqlen_k, tl.maximum(visible_to_first, 0)) // BLOCK_N * BLOCK_N, hi
    return seqlen_k // BLOCK_N * BLOCK_N, hi


@triton.jit
def causal_mask(offs_m, start_n, seqlen_k, causal_offset, BLOCK_N: tl.constexpr):
    """Return which keys from ``start_n`` each row sees: those up to its own index plus ``causal_offset``."""
    offs_n = start_n + tl.arange(0, BLOCK_N)
    return (offs_n[None, :] <= offs_m[:, None] + causal_offset) & (offs_n[None, :] < seqlen_k)


# --- forward -----------------------------------------------------------------------------------------------


@triton.jit
def attn_fwd_inner(
    m_i,  # (BLOCK_M,), fp32: the maximum of the scaled scores so far
    l_i,  # (BLOCK_M,), fp32: the sum of exponentials so far
    acc,  # (BLOCK_M, HEAD_DIM), fp32: the output so far, before it is divided by l_i
    q,  # (BLOCK_M, HEAD_DIM)
    desc_k,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_v,  # the same for the values
    batch,
    kv_head,
    offs_m,  # (BLOCK_M,): indices of the rows
    lo,  # the first key
    hi,  # the end of the keys
    seqlen_k,
    causal_offset,  # seqlen_k - seqlen_q
    qk_scale,  # times log2(e) with EXP2
    MASKED: tl.constexpr,
    EXP2: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Loop over the keys from ``lo`` to ``hi``, and return the updated ``m_i``, ``l_i`` and ``acc``."""
    for start_n in tl.range(lo, hi, BLOCK_N):
        # -- compute qk
        qk = tl.dot(q, load_tile(desc_k, batch, kv_head, start_n, BLOCK_N, HEAD_DIM).T)
        if MASKED:
            qk = tl.where(causal_mask(offs_m, start_n, seqlen_k, causal_offset, BLOCK_N), qk, -float("inf"))
        # -- compute p
        m_ij = tl.maximum(m_i, tl.max(qk, 1) * qk_scale)
        finite_m_ij = m_ij
        if MASKED:
            finite_m_ij = tl.where(m_ij == -float("inf"), 0.0, m_ij)  # a row that has seen no key yet
        p = exponential(qk * qk_scale - finite_m_ij[:, None], EXP2)
        # -- update l_i
        alpha = exponential(m_i - finite_m_ij, EXP2)
        l_i = l_i * alpha + tl.sum(p, 1)
        # -- update acc
        v = load_tile(desc_v, batch, kv_head, start_n, BLOCK_N, HEAD_DIM)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        # -- update m_i
        m_i = m_ij
    return m_i, l_i, acc


@triton.jit
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
    CAUSAL: tl.constexpr,
    SPLIT: tl.constexpr,  # whether tiles that need no mask have a loop of their own
    EXP2: tl.constexpr,  # whether exponentials are powers of 2
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Compute the output and the log-sum-exp of one tile of queries."""
    batch, head, start_m = locate_tile(seqlen_q, heads, BLOCK_M, CAUSAL)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    causal_offset = seqlen_k  # without a causal mask, it hides nothing
    if CAUSAL:
        causal_offset -= seqlen_q
    unmasked, hi = visible_keys(start_m, BLOCK_M, seqlen_q, seqlen_k, CAUSAL, BLOCK_N)
    qk_scale = scale
    if EXP2:
        qk_scale *= LOG2_E
    # -- load q, which stays in registers or shared memory throughout
    q = load_tile(desc_q, batch, head, start_m, BLOCK_M, HEAD_DIM)
    kv_head = head // group
    # -- initialise m_i, l_i and acc
    m_i = tl.full([BLOCK_M], -float("inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    # -- loop over the tiles that all rows see, then over those that need a mask
    if SPLIT:
        m_i, l_i, acc = attn_fwd_inner(
            m_i,
            l_i,
            acc,
            q,
            desc_k,
            desc_v,
            batch,
            kv_head,
            offs_m,
            0,
            unmasked,
            seqlen_k,
            causal_offset,
            qk_scale,
            MASKED=False,
            EXP2=EXP2,
            BLOCK_N=BLOCK_N,
            HEAD_DIM=HEAD_DIM,
        )
    else:
        unmasked = 0
    m_i, l_i, acc = attn_fwd_inner(
        m_i,
        l_i,
        acc,
        q,
        desc_k,
        desc_v,
        batch,
        kv_head,
        offs_m,
        unmasked,
        hi,
        seqlen_k,
        causal_offset,
        qk_scale,
        MASKED=True,
        EXP2=EXP2,
        BLOCK_N=BLOCK_N,
        HEAD_DIM=HEAD_DIM,
    )
    # -- normalise and store the output; a row that saw no key is zero
    store_tile(desc_o, batch, head, start_m, acc / tl.where(l_i == 0, 1.0, l_i)[:, None], BLOCK_M, HEAD_DIM)
    # -- store the log-sum-exp
    if EXP2:
        m_i *= LN_2
    lse_offset = (batch * heads + head).to(tl.int64) * seqlen_q
    tl.store(lse_ptr + lse_offset + offs_m, m_i + tl.log(l_i), mask=offs_m < seqlen_q)

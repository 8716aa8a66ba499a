"""FlashAttention-2 as Triton kernels: the backward pass.

The scores are recomputed. A program of :func:`attn_bwd_dkdv_kernel` computes one tile of dK and dV and loops over the
queries; a program of :func:`attn_bwd_dq_kernel` computes one tile of dQ and loops over the keys. Every gradient is
therefore written once, by one program, in a fixed order: the result is the same every time. The price is seven matmuls
of tiles instead of the five that programs need when they add to shared gradients.

Names are those of the papers and of Triton's tutorial 06: ``p`` are the weights, ``dq``, ``dk``, ``dv``, ``do``,
``dp`` and ``ds`` gradients (``pT`` and ``dsT`` transposed), and ``delta`` is the row sum of ``do * o``. Tiles, masks
and layouts are as in :mod:`gpuguide.attention.flash_kernels`.

Source: T. Dao, "FlashAttention-2", 2023, https://arxiv.org/abs/2307.08691.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpuguide.attention.flash_kernels import LOG2_E, causal_mask, load_tile, locate_tile, store_tile, visible_keys


@triton.jit
def attn_bwd_preprocess_kernel(
    desc_o,  # descriptor of (batch, heads, seqlen_q, head_dim)
    desc_do,  # the same for the gradient of the output
    delta_ptr,  # (batch, heads, seqlen_q), fp32, written
    heads,
    seqlen_q,
    BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Write delta, the row sum of ``do * o``: what the softmax subtracts from the gradient of P."""
    batch, head, start_m = locate_tile(seqlen_q, heads, BLOCK_M, False)
    o = load_tile(desc_o, batch, head, start_m, BLOCK_M, HEAD_DIM).to(tl.float32)
    do = load_tile(desc_do, batch, head, start_m, BLOCK_M, HEAD_DIM).to(tl.float32)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    lse_offset = (batch * heads + head).to(tl.int64) * seqlen_q
    tl.store(delta_ptr + lse_offset + offs_m, tl.sum(o * do, 1), mask=offs_m < seqlen_q)


@triton.jit
def load_lse_and_delta(lse_ptr, delta_ptr, lse_offset, offs_m, seqlen_q):
    """Return the log-sum-exp to base 2, and delta, of some queries. Those beyond the end get weights of zero."""
    inside = offs_m < seqlen_q
    lse = tl.load(lse_ptr + lse_offset + offs_m, mask=inside, other=float("inf")) * LOG2_E
    return lse, tl.load(delta_ptr + lse_offset + offs_m, mask=inside, other=0.0)


@triton.jit
def bwd_dkdv_inner(
    dk,  # (BLOCK_N, HEAD_DIM), fp32: the gradient of the keys so far, before it is scaled
    dv,  # (BLOCK_N, HEAD_DIM), fp32: the gradient of the values so far
    k,  # (BLOCK_N, HEAD_DIM)
    v,  # (BLOCK_N, HEAD_DIM)
    desc_q,  # descriptor of (batch, heads, seqlen_q, head_dim)
    desc_do,  # the same for the gradient of the output
    lse_ptr,  # (batch, heads, seqlen_q), fp32
    delta_ptr,  # (batch, heads, seqlen_q), fp32
    batch,
    head,
    lse_offset,  # the head's first number in lse and delta
    offs_n,  # (BLOCK_N,): indices of the keys
    lo,  # the first query
    hi,  # the end of the queries
    seqlen_q,
    causal_offset,  # seqlen_k - seqlen_q
    qk_scale,  # times log2(e)
    MASKED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Loop over the queries from ``lo`` to ``hi``, and return the updated ``dk`` and ``dv``."""
    for start_m in tl.range(lo, hi, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        q = load_tile(desc_q, batch, head, start_m, BLOCK_M, HEAD_DIM)
        lse, delta = load_lse_and_delta(lse_ptr, delta_ptr, lse_offset, offs_m, seqlen_q)
        # -- recompute p, transposed: (BLOCK_N, BLOCK_M)
        pT = tl.exp2(tl.dot(k, q.T) * qk_scale - lse[None, :])
        if MASKED:
            pT = tl.where(offs_n[:, None] <= offs_m[None, :] + causal_offset, pT, 0.0)
        # -- update dv
        do = load_tile(desc_do, batch, head, start_m, BLOCK_M, HEAD_DIM)
        dv = tl.dot(pT.to(do.dtype), do, dv)
        # -- compute dp and ds, transposed
        dsT = pT * (tl.dot(v, do.T) - delta[None, :])
        # -- update dk
        dk = tl.dot(dsT.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def attn_bwd_dkdv_kernel(
    desc_q,  # descriptor of (batch, heads, seqlen_q, head_dim)
    desc_k,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_v,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_do,  # descriptor of (batch, heads, seqlen_q, head_dim)
    desc_dk,  # descriptor of (batch, kv_heads, seqlen_k, head_dim), written
    desc_dv,  # descriptor of (batch, kv_heads, seqlen_k, head_dim), written
    lse_ptr,  # (batch, heads, seqlen_q), fp32
    delta_ptr,  # (batch, heads, seqlen_q), fp32
    scale,
    heads,
    group,  # query heads for each head of keys and values
    seqlen_q,
    seqlen_k,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Compute the gradients of one tile of keys and values, from all query heads that share them."""
    batch, kv_head, start_n = locate_tile(seqlen_k, heads // group, BLOCK_N, False)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    k = load_tile(desc_k, batch, kv_head, start_n, BLOCK_N, HEAD_DIM)
    v = load_tile(desc_v, batch, kv_head, start_n, BLOCK_N, HEAD_DIM)
    dk, dv = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32), tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    causal_offset, lo, unmasked = 0, 0, 0
    if CAUSAL:
        causal_offset = seqlen_k - seqlen_q
        lo = tl.maximum(start_n - causal_offset, 0) // BLOCK_M * BLOCK_M  # the first query that sees any key
        # -- the first query from which on all see the whole tile
        unmasked = tl.cdiv(tl.maximum(start_n + BLOCK_N - 1 - causal_offset, 0), BLOCK_M) * BLOCK_M
        unmasked = tl.minimum(unmasked, tl.cdiv(seqlen_q, BLOCK_M) * BLOCK_M)
    for head in range(kv_head * group, kv_head * group + group):
        lse_offset = (batch * heads + head).to(tl.int64) * seqlen_q
        # -- loop over the tiles that need a mask, then over those that see all keys
        if CAUSAL:
            dk, dv = bwd_dkdv_inner(
                dk,
                dv,
                k,
                v,
                desc_q,
                desc_do,
                lse_ptr,
                delta_ptr,
                batch,
                head,
                lse_offset,
                offs_n,
                lo,
                unmasked,
                seqlen_q,
                causal_offset,
                scale * LOG2_E,
                MASKED=True,
                BLOCK_M=BLOCK_M,
                HEAD_DIM=HEAD_DIM,
            )
        dk, dv = bwd_dkdv_inner(
            dk,
            dv,
            k,
            v,
            desc_q,
            desc_do,
            lse_ptr,
            delta_ptr,
            batch,
            head,
            lse_offset,
            offs_n,
            unmasked,
            seqlen_q,
            seqlen_q,
            causal_offset,
            scale * LOG2_E,
            MASKED=False,
            BLOCK_M=BLOCK_M,
            HEAD_DIM=HEAD_DIM,
        )
    store_tile(desc_dk, batch, kv_head, start_n, dk * scale, BLOCK_N, HEAD_DIM)
    store_tile(desc_dv, batch, kv_head, start_n, dv, BLOCK_N, HEAD_DIM)


@triton.jit
def bwd_dq_inner(
    dq,  # (BLOCK_M, HEAD_DIM), fp32: the gradient of the queries so far, before it is scaled
    q,  # (BLOCK_M, HEAD_DIM)
    do,  # (BLOCK_M, HEAD_DIM)
    lse,  # (BLOCK_M,), to base 2
    delta,  # (BLOCK_M,)
    desc_k,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_v,  # the same for the values
    batch,
    kv_head,
    offs_m,  # (BLOCK_M,): indices of the rows
    lo,  # the first key
    hi,  # the end of the keys
    seqlen_k,
    causal_offset,  # seqlen_k - seqlen_q
    qk_scale,  # times log2(e)
    MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Loop over the keys from ``lo`` to ``hi``, and return the updated ``dq``."""
    for start_n in tl.range(lo, hi, BLOCK_N):
        # -- recompute p
        k = load_tile(desc_k, batch, kv_head, start_n, BLOCK_N, HEAD_DIM)
        p = tl.exp2(tl.dot(q, k.T) * qk_scale - lse[:, None])
        if MASKED:
            p = tl.where(causal_mask(offs_m, start_n, seqlen_k, causal_offset, BLOCK_N), p, 0.0)
        # -- compute dp and ds
        dp = tl.dot(do, load_tile(desc_v, batch, kv_head, start_n, BLOCK_N, HEAD_DIM).T)
        ds = p * (dp - delta[:, None])
        # -- update dq
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@triton.jit
def attn_bwd_dq_kernel(
    desc_q,  # descriptor of (batch, heads, seqlen_q, head_dim)
    desc_k,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_v,  # descriptor of (batch, kv_heads, seqlen_k, head_dim)
    desc_do,  # descriptor of (batch, heads, seqlen_q, head_dim)
    desc_dq,  # descriptor of (batch, heads, seqlen_q, head_dim), written
    lse_ptr,  # (batch, heads, seqlen_q), fp32
    delta_ptr,  # (batch, heads, seqlen_q), fp32
    scale,
    heads,
    group,  # query heads for each head of keys and values
    seqlen_q,
    seqlen_k,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Compute the gradient of one tile of queries."""
    batch, head, start_m = locate_tile(seqlen_q, heads, BLOCK_M, CAUSAL)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    lse_offset = (batch * heads + head).to(tl.int64) * seqlen_q
    lse, delta = load_lse_and_delta(lse_ptr, delta_ptr, lse_offset, offs_m, seqlen_q)
    q = load_tile(desc_q, batch, head, start_m, BLOCK_M, HEAD_DIM)
    do = load_tile(desc_do, batch, head, start_m, BLOCK_M, HEAD_DIM)
    dq = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    causal_offset = seqlen_k  # without a causal mask, it hides nothing
    if CAUSAL:
        causal_offset -= seqlen_q
    unmasked, hi = visible_keys(start_m, BLOCK_M, seqlen_q, seqlen_k, CAUSAL, BLOCK_N)
    # -- loop over the tiles that all rows see, then over those that need a mask
    dq = bwd_dq_inner(
        dq,
        q,
        do,
        lse,
        delta,
        desc_k,
        desc_v,
        batch,
        head // group,
        offs_m,
        0,
        unmasked,
        seqlen_k,
        causal_offset,
        scale * LOG2_E,
        MASKED=False,
        BLOCK_N=BLOCK_N,
        HEAD_DIM=HEAD_DIM,
    )
    dq = bwd_dq_inner(
        dq,
        q,
        do,
        lse,
        delta,
        desc_k,
        desc_v,
        batch,
        head // group,
        offs_m,
        unmasked,
        hi,
        seqlen_k,
        causal_offset,
        scale * LOG2_E,
        MASKED=True,
        BLOCK_N=BLOCK_N,
        HEAD_DIM=HEAD_DIM,
    )
    store_tile(desc_dq, batch, head, start_m, dq * scale, BLOCK_M, HEAD_DIM)


# --- before and after the kernel in gpuguide.attention.gluon_backward_kernels --------------------------------


@triton.jit(do_not_specialize=["heads", "seqlen_q", "padded"])
def attn_bwd_prepare_kernel(
    desc_o,  # descriptor of (batch, heads, seqlen_q, head_dim)
    desc_do,  # the same for the gradient of the output
    lse_ptr,  # (batch, heads, seqlen_q), fp32
    d_lse_ptr,  # the same for the gradient of lse
    lse_base_2_ptr,  # (batch, heads, padded), fp32, written
    delta_ptr,  # (batch, heads, padded), fp32, written
    dq_ptr,  # (batch, heads, tiles, BLOCK_M * HEAD_DIM), fp32, written
    heads,
    seqlen_q,
    padded,
    HAS_D_LSE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Write delta less the gradient of lse, lse to base 2, and zeros for dq."""
    batch, head, start_m = locate_tile(seqlen_q, heads, BLOCK_M, False)
    offs_m, row = start_m + tl.arange(0, BLOCK_M), (batch * heads + head).to(tl.int64)
    inside = offs_m < seqlen_q
    # -- compute delta
    o = load_tile(desc_o, batch, head, start_m, BLOCK_M, HEAD_DIM).to(tl.float32)
    do = load_tile(desc_do, batch, head, start_m, BLOCK_M, HEAD_DIM).to(tl.float32)
    delta = tl.sum(o * do, 1)
    if HAS_D_LSE:
        delta -= tl.load(d_lse_ptr + row * seqlen_q + offs_m, mask=inside, other=0.0)
    # -- store delta and lse; the padding gets zeros
    lse = tl.load(lse_ptr + row * seqlen_q + offs_m, mask=inside, other=0.0)
    tl.store(delta_ptr + row * padded + offs_m, delta, mask=offs_m < padded)
    tl.store(lse_base_2_ptr + row * padded + offs_m, lse * LOG2_E, mask=offs_m < padded)
    # -- store zeros for dq
    offs = tl.arange(0, BLOCK_M * HEAD_DIM)
    tl.store(dq_ptr + tl.program_id(0).to(tl.int64) * BLOCK_M * HEAD_DIM + offs, tl.zeros_like(offs).to(tl.float32))


@triton.jit(do_not_specialize=["heads", "seqlen_q"])
def attn_bwd_convert_kernel(
    dq_ptr,  # (batch, heads, tiles, BLOCK_M * HEAD_DIM), fp32
    desc_dq,  # descriptor of (batch, heads, seqlen_q, head_dim), written
    heads,
    seqlen_q,
    scale,
    BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Scale a tile of dq and restore its order: of two halves, each in the order of registers."""
    batch, head, start_m = locate_tile(seqlen_q, heads, BLOCK_M, False)
    offs = tl.arange(0, BLOCK_M * HEAD_DIM)
    dq = tl.load(dq_ptr + tl.program_id(0).to(tl.int64) * BLOCK_M * HEAD_DIM + offs)
    dq = dq.reshape(2, 4, BLOCK_M * HEAD_DIM // 1024, 8, 4, 2, 2)  # halves, warps, columns / 8, 8 rows, 4 columns, 2, 2
    if BLOCK_M > 64:  # halves of 64 rows
        dq = dq.permute(0, 1, 5, 3, 2, 4, 6)
    else:  # halves of the columns
        dq = dq.permute(1, 5, 3, 0, 2, 4, 6)
    store_tile(desc_dq, batch, head, start_m, dq.reshape(BLOCK_M, HEAD_DIM) * scale, BLOCK_M, HEAD_DIM)

"""A decode step for several tokens: skinny matmuls (GEMM) on tensor cores.

A matrix that is read for one token serves the whole batch. As long as the batch is small, the step stays memory-bound,
and the tensor cores keep the arithmetic out of the way. Norms are kernels of their own here, because otherwise every
program would have to read all tokens to compute them. Two of the four matmuls of a layer have too few outputs to fill a
GPU, so they split their inputs into parts (split-K), which the norm that follows adds up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpuguide.inference.fused.packed_gemm import order_as_unpacked, unpack
from gpuguide.inference.fused.parts import (
    add_bias,
    apply_rope,
    argmax_key,
    griddep_wait,
    launch_dependents,
    load_cos_sin,
    load_rows,
    locate_in_cache,
    store_activation,
    store_query_key_value,
)

FEWEST_IN_ORDER = tl.constexpr(16)
"""Tokens from which 4-bit weights are unpacked in the inputs' order: with as many columns, and rows for four warps,
Triton uses Hopper's ``wgmma``, which reads the inputs in shared memory. Below, threads load them, reordered or not."""


@triton.jit
def add_and_norm_kernel(
    hidden,  # (count, width), fp32: the parts are added to it
    partial,  # (PARTS, count, width), fp32: split-K parts of the matmul before
    bias,  # (width,): of that matmul, read with BIAS
    norm_weight,  # (width,)
    norm_bias,  # (width,), read with LAYER_NORM
    epsilon,
    normed,  # (count, width), written
    count,  # tokens
    width,  # hidden size of the model
    PARTS: tl.constexpr,  # split-K parts; 0 before the first layer
    BIAS: tl.constexpr,
    LAYER_NORM: tl.constexpr,  # LayerNorm, otherwise RMSNorm
    BLOCK: tl.constexpr,  # a power of two, ``width`` or more
    PDL: tl.constexpr,
):
    """Add the split-K parts of a matmul to the hidden state of one token, and store its norm for the next matmul."""
    launch_dependents(PDL)
    column = tl.arange(0, BLOCK)
    inside = column < width
    weight = tl.load(norm_weight + column, mask=inside, other=0).to(tl.float32)
    griddep_wait(PDL)
    token = tl.program_id(0)
    address = hidden + token * width + column
    x = tl.load(address, mask=inside, other=0)
    for part in tl.static_range(PARTS):
        x += tl.load(partial + (part * count + token) * width + column, mask=inside, other=0)
    if BIAS:
        x += tl.load(bias + column, mask=inside, other=0).to(tl.float32)
    if PARTS > 0:
        tl.store(address, x, mask=inside)
    if LAYER_NORM:
        x = tl.where(inside, x - tl.sum(x, 0) / width, 0.0)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / width + epsilon) * weight
    if LAYER_NORM:
        x += tl.load(norm_bias + column, mask=inside, other=0).to(tl.float32)
    tl.store(normed + token * width + column, x.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def gemm(
    x,  # (count, inputs)
    weight,  # (outputs, stride): numbers, or words of packed ones
    scales,  # (outputs, groups), read for quantised weights
    m,  # (TOKENS,): tokens
    n,  # (ROWS,): outputs
    count,  # tokens there are
    inputs,
    outputs,
    stride,
    groups,  # scales of a row
    first,  # first block of inputs
    last,  # block to stop before
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,  # inputs at a time; with 4 bits those that share a scale
    BITS: tl.constexpr,
    EXACT: tl.constexpr,  # quantised weights: whether they are unpacked without a GPU's instructions
    STAGES: tl.constexpr,  # blocks in flight
    PDL: tl.constexpr,
):
    """Multiply tokens by rows of a matrix over blocks ``first`` to ``last`` of the inputs: ``(TOKENS, ROWS)`` in fp32.

    The matrix is the left operand. Tensor cores take the left operand from registers, so unpacked weights never pass
    through shared memory, and a scale belongs to a row, so it is one number for all tokens.
    """
    launch_dependents(PDL)
    griddep_wait(PDL)
    like = x.dtype.element_ty
    WORDS: tl.constexpr = BLOCK * BITS // 32 if BITS else BLOCK
    IN_ORDER: tl.constexpr = BITS == 4 and TOKENS >= FEWEST_IN_ORDER
    token = tl.minimum(m, count - 1)  # instead of a mask: what comes of a token that is not there is not stored
    acc = tl.zeros((ROWS, TOKENS), tl.float32)
    if BITS == 4:  # a block is a group, and a row has whole groups
        row = tl.minimum(n, outputs - 1)
        words = weight + row.to(tl.int64)[:, None] * stride + tl.arange(0, WORDS)[None, :]
        scale = load_scales(scales, row, groups, first)
    for block in tl.range(first, last, num_stages=STAGES):
        # -- load a block of weights and of the tokens' inputs
        if BITS == 4:
            w = tl.load(words + block * WORDS)
        else:
            w = load_rows(weight, n, outputs, stride, block * WORDS, stride, WORDS)
        k = block * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(x + token[:, None] * inputs + k[None, :], mask=(k < inputs)[None, :], other=0)
        # -- multiply; with 4 bits, load the next scales before the current ones are used
        if BITS:
            w = unpack(w, like, ROWS, WORDS, BITS, EXACT, IN_ORDER)
            if not IN_ORDER:
                values = order_as_unpacked(values, TOKENS, WORDS, BITS)
        if BITS == 4:
            next_scale = load_scales(scales, row, groups, block + 1)
            acc += tl.dot(w, tl.trans(values), input_precision="ieee") * scale[:, None]
            scale = next_scale
        else:
            acc = tl.dot(w, tl.trans(values), acc, input_precision="ieee")
    if BITS == 8:
        acc *= tl.load(scales + n, mask=n < outputs, other=0).to(tl.float32)[:, None]
    return tl.trans(acc)


@triton.jit
def load_scales(
    scales,  # (outputs, groups)
    row,  # (ROWS,): rows that there are
    groups,  # scales of a row
    group,  # group to load; of one that is not there, nothing is multiplied
):
    """Load one scale of each row in fp32, ``(ROWS,)``."""
    return tl.load(scales + row * groups + tl.minimum(group, groups - 1)).to(tl.float32)


@triton.jit
def project_matrix_kernel(
    x,  # (count, inputs): the normalised hidden state
    # the matrix
    weight,  # (outputs, stride): numbers, or words of packed ones
    scales,  # (outputs, groups), read for quantised weights
    bias,  # (outputs,), read with BIAS
    inputs,
    outputs,
    stride,
    groups,  # scales of a row
    count,  # tokens
    # queries, and the KV cache of this layer
    queries,  # (count, QUERIES), written
    keys,  # (pages, KV_HEADS, PAGE, HEAD_DIM), written
    values,  # (pages, KV_HEADS, PAGE, HEAD_DIM), written
    table,  # (rows, table_width), int32: pages of each row
    table_width,
    cache_rows,  # (count,), int64: row of each token
    positions,  # (count,), int64
    rope,  # (context, HEAD_DIM / 2, 2), fp32: cosines and sines, read with ROPE
    # heads
    QUERIES: tl.constexpr,  # numbers in the queries of a token: heads * HEAD_DIM
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,  # tokens of a page
    ROPE: tl.constexpr,  # whether queries and keys are rotated
    # variants
    BIAS: tl.constexpr,
    BITS: tl.constexpr,  # of a quantised weight: 8 or 4; 0 for weights in the model's format
    EXACT: tl.constexpr,  # quantised weights: whether they are unpacked without a GPU's instructions
    # tiles
    TOKENS: tl.constexpr,  # tokens of a program
    ROWS: tl.constexpr,  # outputs of a program
    BLOCK: tl.constexpr,  # inputs at a time; with 4 bits those that share a scale
    STAGES: tl.constexpr,  # blocks in flight
    PDL: tl.constexpr,
):
    """Compute queries, keys and values; rotate (RoPE) and put keys and values into the cache."""
    m = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y = gemm(x, weight, scales, m, n, count, inputs, outputs, stride, groups, 0, tl.cdiv(inputs, BLOCK),
             TOKENS, ROWS, BLOCK, BITS, EXACT, STAGES, PDL)  # fmt: skip
    y = add_bias(y, n, outputs, bias, BIAS)
    position, slot = locate_in_cache(m, count, table, table_width, cache_rows, positions, KV_HEADS, HEAD_DIM, PAGE)
    if ROPE:
        cos, sin = load_cos_sin(rope, position, n, QUERIES, KV_HEADS, HEAD_DIM, ROWS)
        y = apply_rope(y, cos, sin, TOKENS, ROWS)
    store_query_key_value(y, m, n, count, outputs, queries, keys, values, slot, QUERIES, KV_HEADS, HEAD_DIM, PAGE)


@triton.jit
def activate_matrix_kernel(
    x,  # (count, inputs): the normalised hidden state
    # the matrix
    weight,  # (outputs, stride): numbers, or words of packed ones
    scales,  # (outputs, groups), read for quantised weights
    bias,  # (outputs,), read with BIAS
    inputs,
    outputs,
    stride,
    groups,  # scales of a row
    count,  # tokens
    inner,  # (count, outputs), or (count, outputs / 2) with GATED; written
    # variants
    GATED: tl.constexpr,  # SwiGLU, otherwise GELU
    BIAS: tl.constexpr,
    BITS: tl.constexpr,  # of a quantised weight: 8 or 4; 0 for weights in the model's format
    EXACT: tl.constexpr,  # quantised weights: whether they are unpacked without a GPU's instructions
    # tiles
    TOKENS: tl.constexpr,  # tokens of a program
    ROWS: tl.constexpr,  # outputs of a program
    BLOCK: tl.constexpr,  # inputs at a time; with 4 bits those that share a scale
    STAGES: tl.constexpr,  # blocks in flight
    PDL: tl.constexpr,
):
    """Compute the first matmul of the feed-forward part and its activation: GELU or SwiGLU."""
    m = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y = gemm(x, weight, scales, m, n, count, inputs, outputs, stride, groups, 0, tl.cdiv(inputs, BLOCK),
             TOKENS, ROWS, BLOCK, BITS, EXACT, STAGES, PDL)  # fmt: skip
    y = add_bias(y, n, outputs, bias, BIAS)
    store_activation(y, m, n, count, outputs, inner, GATED, TOKENS, ROWS)


@triton.jit
def split_k_kernel(
    x,  # (count, inputs)
    # the matrix
    weight,  # (outputs, stride): numbers, or words of packed ones
    scales,  # (outputs, groups), read for quantised weights
    bias,  # (outputs,), read with BIAS
    inputs,
    outputs,
    stride,
    groups,  # scales of a row
    count,  # tokens
    # split-K
    partial,  # (parts, count, outputs), fp32, written
    blocks,  # blocks of inputs of a part
    BITS: tl.constexpr,  # of a quantised weight: 8 or 4; 0 for weights in the model's format
    EXACT: tl.constexpr,  # quantised weights: whether they are unpacked without a GPU's instructions
    # tiles
    TOKENS: tl.constexpr,  # tokens of a program
    ROWS: tl.constexpr,  # outputs of a program
    BLOCK: tl.constexpr,  # inputs at a time; with 4 bits those that share a scale
    STAGES: tl.constexpr,  # blocks in flight
    PDL: tl.constexpr,
):
    """Compute one split-K part of a matmul, ``blocks`` blocks of inputs; :func:`add_and_norm_kernel` adds them up."""
    m = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(2)
    y = gemm(x, weight, scales, m, n, count, inputs, outputs, stride, groups, part * blocks,
             tl.minimum(tl.cdiv(inputs, BLOCK), (part + 1) * blocks), TOKENS, ROWS, BLOCK, BITS, EXACT, STAGES,
             PDL)  # fmt: skip
    inside = (m < count)[:, None] & (n < outputs)[None, :]
    tl.store(partial + (part * count + m)[:, None] * outputs + n[None, :], y, mask=inside)


@triton.jit
def head_matrix_kernel(
    x,  # (count, inputs): the normalised hidden state
    weight,  # (outputs, inputs)
    count,  # tokens
    inputs,
    outputs,  # the vocabulary's size
    logits,  # (count, outputs), fp32, written
    best,  # (count,), int64: argmax_key of the highest logit, raised
    # tiles
    TOKENS: tl.constexpr,  # tokens of a program
    ROWS: tl.constexpr,  # outputs of a program
    BLOCK: tl.constexpr,  # inputs at a time; with 4 bits those that share a scale
    STAGES: tl.constexpr,  # blocks in flight
    PDL: tl.constexpr,
):
    """Compute the logits in fp32, and the maximum of each token by one atomic operation a program."""
    m = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y = gemm(x, weight, weight, m, n, count, inputs, outputs, inputs, 0, 0, tl.cdiv(inputs, BLOCK), TOKENS, ROWS, BLOCK,
             0, False, STAGES, PDL)  # fmt: skip
    inside = (m < count)[:, None] & (n < outputs)[None, :]
    tl.store(logits + m.to(tl.int64)[:, None] * outputs + n[None, :], y, mask=inside)
    keys = tl.where(inside, argmax_key(y, n[None, :]), -9223372036854775808)
    tl.atomic_max(best + m, tl.max(keys, 1), mask=m < count, sem="relaxed")

"""A decode step for several tokens: products of a matrix with as many vectors, on tensor cores.

A matrix that is read for one token serves all of a batch. So long as there are few, bandwidth still is the limit, and
the tensor cores are there to keep arithmetic out of the way. Norms are kernels of their own here: every program would
have to read all tokens to compute them. Two of the four products of a layer have too few outputs to fill a GPU, and
cut their inputs into parts (split-K), whose sums the norm that follows adds up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpuguide.inference.fused.parts import (
    add_bias,
    let_successor_start,
    load_rows,
    load_turns,
    order_of,
    place_in_cache,
    rotated,
    store_activated,
    store_projected,
    wait_for_predecessor,
)


@triton.jit
def add_and_norm_kernel(hidden, partial, bias, norm_weight, norm_bias, epsilon, normed, count, width,
                        PARTS: tl.constexpr, BIAS: tl.constexpr, LAYER_NORM: tl.constexpr, BLOCK: tl.constexpr,
                        OVERLAP: tl.constexpr):  # fmt: skip
    """Add the parts of a product to the hidden state of one token, and write what the next product reads: its norm."""
    let_successor_start(OVERLAP)
    column = tl.arange(0, BLOCK)
    inside = column < width
    weight = tl.load(norm_weight + column, mask=inside, other=0).to(tl.float32)
    wait_for_predecessor(OVERLAP)
    token = tl.program_id(0)
    where = hidden + token * width + column
    x = tl.load(where, mask=inside, other=0)
    for part in tl.static_range(PARTS):
        x += tl.load(partial + (part * count + token) * width + column, mask=inside, other=0)
    if BIAS:
        x += tl.load(bias + column, mask=inside, other=0).to(tl.float32)
    if PARTS > 0:
        tl.store(where, x, mask=inside)
    if LAYER_NORM:
        x = tl.where(inside, x - tl.sum(x, 0) / width, 0.0)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / width + epsilon) * weight
    if LAYER_NORM:
        x += tl.load(norm_bias + column, mask=inside, other=0).to(tl.float32)
    tl.store(normed + token * width + column, x.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def unpacked(words, like, ROWS: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr):
    """Return a tile's numbers, without their scales, in the format of the tokens."""
    if BITS == 4:
        place = tl.arange(0, 8)
        shift = place // 2 * 4 + place % 2 * 16
        nibbles = (words[:, :, None] >> shift[None, None, :]) & 0xF
        # 2²³ + n is a float whose last bits are n, which is faster than a conversion
        numbers = (nibbles | 0x4B000000).to(tl.float32, bitcast=True) - 8388616.0
        return numbers.reshape(ROWS, BLOCK).to(like)
    elif BITS == 8:
        shift = tl.arange(0, 4) * 8
        signed = ((words[:, :, None] >> shift[None, None, :]) & 0xFF) ^ 0x4B000080
        return (signed.to(tl.float32, bitcast=True) - 8388736.0).reshape(ROWS, BLOCK).to(like)
    else:
        return words.to(like)


@triton.jit
def product(x, weight, scales, m, n, count, inputs, outputs, stride, groups, start, stop, TOKENS: tl.constexpr,
            ROWS: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr, STAGES: tl.constexpr,
            OVERLAP: tl.constexpr):  # fmt: skip
    """Multiply some tokens by some rows of a matrix, over inputs ``start`` to ``stop``: ``(tokens, rows)`` in fp32."""
    let_successor_start(OVERLAP)
    wait_for_predecessor(OVERLAP)
    like = x.dtype.element_ty
    WORD: tl.constexpr = 1 if BITS == 0 else 32 // BITS
    total = tl.zeros((TOKENS, ROWS), tl.float32)
    for at in tl.range(start, stop, BLOCK, num_stages=STAGES):
        tile = load_rows(weight, n, outputs, stride, at // WORD, stride, BLOCK // WORD)
        column = at + tl.arange(0, BLOCK)
        inside = (m < count)[:, None] & (column < inputs)[None, :]
        values = tl.load(x + m[:, None] * inputs + column[None, :], mask=inside, other=0)
        numbers = tl.trans(unpacked(tile, like, ROWS, BLOCK, BITS))
        if BITS == 4:  # a block is a group
            by = tl.load(scales + n * groups + at // BLOCK, mask=n < outputs, other=0).to(tl.float32)
            total += tl.dot(values, numbers, input_precision="ieee") * by[None, :]
        else:
            total = tl.dot(values, numbers, total, input_precision="ieee")
    if BITS == 8:
        total *= tl.load(scales + n, mask=n < outputs, other=0).to(tl.float32)[None, :]
    return total


@triton.jit
def project_matrix_kernel(x, weight, scales, bias, inputs, outputs, stride, groups, count, queries, keys,
                          values, table, table_width, cache_rows, positions, rotations, QUERIES: tl.constexpr,
                          KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, ROTATE: tl.constexpr,
                          BIAS: tl.constexpr, BITS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
                          BLOCK: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Compute queries, keys and values: rotated, and the latter two put into the cache."""
    m = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y = product(x, weight, scales, m, n, count, inputs, outputs, stride, groups, 0, inputs, TOKENS, ROWS, BLOCK, BITS,
                STAGES, OVERLAP)  # fmt: skip
    y = add_bias(y, n, outputs, bias, BIAS)
    position, slot = place_in_cache(m, count, table, table_width, cache_rows, positions, KV_HEADS, HEAD_DIM, PAGE)
    if ROTATE:
        cosine, sine = load_turns(rotations, position, n, QUERIES, KV_HEADS, HEAD_DIM, ROWS)
        y = rotated(y, cosine, sine, TOKENS, ROWS)
    store_projected(y, m, n, count, outputs, queries, keys, values, slot, QUERIES, KV_HEADS, HEAD_DIM, PAGE)


@triton.jit
def activate_matrix_kernel(x, weight, scales, bias, inputs, outputs, stride, groups, count, inner,
                           GATED: tl.constexpr, BIAS: tl.constexpr, BITS: tl.constexpr, TOKENS: tl.constexpr,
                           ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
                           OVERLAP: tl.constexpr):  # fmt: skip
    """Compute the first product of the feed-forward part and what follows it: GELU or the gate."""
    m = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y = product(x, weight, scales, m, n, count, inputs, outputs, stride, groups, 0, inputs, TOKENS, ROWS, BLOCK, BITS,
                STAGES, OVERLAP)  # fmt: skip
    y = add_bias(y, n, outputs, bias, BIAS)
    store_activated(y, m, n, count, outputs, inner, GATED, TOKENS, ROWS)


@triton.jit
def part_kernel(x, weight, scales, bias, inputs, outputs, stride, groups, count, partial, length,
                BITS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
                OVERLAP: tl.constexpr):  # fmt: skip
    """One part of a product, over ``length`` inputs: the sum is left to the norm that follows."""
    m = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(2)
    y = product(x, weight, scales, m, n, count, inputs, outputs, stride, groups, part * length,
                tl.minimum(inputs, (part + 1) * length), TOKENS, ROWS, BLOCK, BITS, STAGES, OVERLAP)  # fmt: skip
    inside = (m < count)[:, None] & (n < outputs)[None, :]
    tl.store(partial + (part * count + m)[:, None] * outputs + n[None, :], y, mask=inside)


@triton.jit
def head_matrix_kernel(x, weight, count, inputs, outputs, logits, best, TOKENS: tl.constexpr, ROWS: tl.constexpr,
                       BLOCK: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Compute the logits, in fp32, and the best of each token."""
    m = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    y = product(x, weight, weight, m, n, count, inputs, outputs, inputs, 0, 0, inputs, TOKENS, ROWS, BLOCK, 0, STAGES,
                OVERLAP)  # fmt: skip
    inside = (m < count)[:, None] & (n < outputs)[None, :]
    tl.store(logits + m.to(tl.int64)[:, None] * outputs + n[None, :], y, mask=inside)
    order = tl.where(inside, order_of(y, n[None, :]), -9223372036854775808)
    tl.atomic_max(best + m, tl.max(order, 1), mask=m < count, sem="relaxed")

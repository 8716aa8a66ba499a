"""Device functions that the kernels of a decode step share: norm, activation, RoPE and writes to the cache.

A kernel waits for the one before it as late as it can. Hopper can launch a kernel while its predecessor still runs
(programmatic dependent launch, PDL): the kernel loads its first weights, which no earlier kernel writes, and only then
waits.

Weights are in the model's format, or integers of 8 or 4 bits, several to an int32 word
(:mod:`~gpuguide.inference.fused.packed_gemv`).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    """Let the next kernel launch now; it calls :func:`griddep_wait` before it reads this one's results."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def griddep_wait(PDL: tl.constexpr):
    """Wait until all writes of the kernels before this one are visible."""
    if PDL:
        gdc_wait()


# --- vectors and matrices -----------------------------------------------------------------------------------


@triton.jit
def load_rows(
    weight,  # (outputs, stride): numbers, or words of packed ones
    rows,  # (ROWS,): rows to load
    outputs,
    stride,
    first,  # first column, in elements of ``weight``
    stop,  # column to stop before
    WORDS: tl.constexpr,  # a power of two, ``stop - first`` or more
):
    """Load part of some rows of a matrix as it is stored, ``(ROWS, WORDS)``; zeros beyond rows and columns."""
    column = first + tl.arange(0, WORDS)
    inside = (rows < outputs)[:, None] & (column < stop)[None, :]
    return tl.load(weight + rows.to(tl.int64)[:, None] * stride + column[None, :], mask=inside, other=0)


@triton.jit
def embed(
    token,
    position,
    embedding,  # (vocab, WIDTH)
    position_embedding,  # (context, WIDTH), read with POSITIONS
    hidden,  # (WIDTH,), fp32, written: the token's hidden state
    column,  # (BLOCK,): columns to write
    WIDTH: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Write some columns of the first hidden state of a token."""
    inside = column < WIDTH
    x = tl.load(embedding + token * WIDTH + column, mask=inside).to(tl.float32)
    if POSITIONS:
        x += tl.load(position_embedding + position * WIDTH + column, mask=inside).to(tl.float32)
    tl.store(hidden + column, x, mask=inside)


@triton.jit
def load_normalized(
    hidden,  # (inputs,), fp32
    inputs,
    weight,  # (INPUTS,), fp32, loaded before the wait
    bias,  # (INPUTS,), fp32, loaded before the wait; used with LAYER_NORM
    epsilon,
    INPUTS: tl.constexpr,  # a power of two, ``inputs`` or more
    LAYER_NORM: tl.constexpr,
):
    """Load a hidden state and normalise it with LayerNorm, or with RMSNorm, which keeps the mean and has no bias."""
    place = tl.arange(0, INPUTS)
    inside = place < inputs
    x = tl.load(hidden + place, mask=inside, other=0)
    if LAYER_NORM:
        x = tl.where(inside, x - tl.sum(x, 0) / inputs, 0.0)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / inputs + epsilon) * weight
    if LAYER_NORM:
        x += bias
    return x


@triton.jit
def load_vector(vector, inputs, INPUTS: tl.constexpr):
    """Load a vector and convert it to fp32, with zeros from ``inputs`` up to ``INPUTS``."""
    place = tl.arange(0, INPUTS)
    return tl.load(vector + place, mask=place < inputs, other=0).to(tl.float32)


# --- activation, RoPE and stores --------------------------------------------------------------------------


@triton.jit
def gelu(x):
    """Return GELU in its tanh approximation, written with a sigmoid: ``tanh(z) = 2 * sigmoid(2 * z) - 1``."""
    inner = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    return x * tl.sigmoid(inner)


@triton.jit
def add_bias(y, n, outputs, bias, BIAS: tl.constexpr):
    """Add the bias of outputs ``n`` to ``y``, ``(TOKENS, ROWS)``."""
    if BIAS:
        y += tl.load(bias + n, mask=n < outputs, other=0).to(tl.float32)[None, :]
    return y


@triton.jit
def store_activation(
    y,  # (TOKENS, ROWS), fp32
    m,  # (TOKENS,): tokens
    n,  # (ROWS,): outputs
    count,  # tokens there are
    outputs,
    out,  # (count, outputs), or (count, outputs / 2) with GATED; written
    GATED: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Store GELU of the outputs, or with ``GATED`` SwiGLU: SiLU of each pair's gate times its value."""
    if GATED:
        gate, value = tl.split(y.reshape(TOKENS, ROWS // 2, 2))
        pair, _ = tl.split(n.reshape(ROWS // 2, 2))
        inside = (m < count)[:, None] & (pair < outputs)[None, :]
        where = out + m[:, None] * (outputs // 2) + (pair // 2)[None, :]
        tl.store(where, (gate * tl.sigmoid(gate) * value).to(out.dtype.element_ty), mask=inside)
    else:
        inside = (m < count)[:, None] & (n < outputs)[None, :]
        tl.store(out + m[:, None] * outputs + n[None, :], gelu(y).to(out.dtype.element_ty), mask=inside)


@triton.jit
def locate_in_cache(
    m,  # (TOKENS,): tokens
    count,  # tokens there are
    table,  # (rows, table_width), int32: pages of each row
    table_width,
    cache_rows,  # (count,), int64: row of each token
    positions,  # (count,), int64
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Return the position of each token, and the offset of its first KV head in the cache."""
    position = tl.load(positions + m, mask=m < count, other=0)
    row = tl.load(cache_rows + m, mask=m < count, other=0)
    page = tl.load(table + row * table_width + position // PAGE, mask=m < count, other=0).to(tl.int64)
    return position, (page * (KV_HEADS * PAGE) + position % PAGE) * HEAD_DIM


@triton.jit
def load_cos_sin(
    rope,  # (context, HEAD_DIM / 2, 2), fp32: cosines and sines
    position,  # (TOKENS,)
    n,  # (ROWS,): outputs
    QUERIES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Return the cosine and sine for each pair of outputs, ``(TOKENS, ROWS / 2)``; 1 and 0 for values."""
    pair, _ = tl.split(n.reshape(ROWS // 2, 2))
    source = rope + position[:, None] * HEAD_DIM + (pair % HEAD_DIM)[None, :]
    has_angle = (position >= 0)[:, None] & (pair < QUERIES + KV_HEADS * HEAD_DIM)[None, :]
    return tl.load(source, mask=has_angle, other=1.0), tl.load(source + 1, mask=has_angle, other=0.0)


@triton.jit
def apply_rope(y, cos, sin, TOKENS: tl.constexpr, ROWS: tl.constexpr):
    """Rotate each pair of outputs by its angle: ``(TOKENS, ROWS)``."""
    first, second = tl.split(y.reshape(TOKENS, ROWS // 2, 2))
    return tl.join(first * cos - second * sin, second * cos + first * sin).reshape(TOKENS, ROWS)


@triton.jit
def store_query_key_value(
    y,  # (TOKENS, ROWS), fp32
    m,  # (TOKENS,): tokens
    n,  # (ROWS,): outputs: all queries, then all keys, then all values
    count,  # tokens there are
    outputs,
    queries,  # (count, QUERIES), written
    keys,  # (pages, KV_HEADS, PAGE, HEAD_DIM), written
    values,  # (pages, KV_HEADS, PAGE, HEAD_DIM), written
    slot,  # (TOKENS,): offset of each token's first KV head in the cache
    QUERIES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Store queries, and put keys and values into the cache."""
    keys_size: tl.constexpr = KV_HEADS * HEAD_DIM
    inside_m = (m < count)[:, None]
    is_query = inside_m & (n < QUERIES)[None, :]
    tl.store(queries + m[:, None] * QUERIES + n[None, :], y.to(queries.dtype.element_ty), mask=is_query)
    index = n - QUERIES
    is_key = (index >= 0) & (index < keys_size)
    is_value = (index >= keys_size) & (n < outputs)
    inner = tl.where(is_key, index, index - keys_size)
    offset = slot[:, None] + ((inner // HEAD_DIM) * (PAGE * HEAD_DIM) + inner % HEAD_DIM)[None, :]
    rounded = y.to(keys.dtype.element_ty)
    tl.store(keys + offset, rounded, mask=inside_m & is_key[None, :])
    tl.store(values + offset, rounded, mask=inside_m & is_value[None, :])


@triton.jit
def argmax_key(logits, n):
    """Return an int64 for each logit whose maximum is the argmax: the larger logit, or the first of equal ones."""
    bits = logits.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (2147483647 - n).to(tl.int64)

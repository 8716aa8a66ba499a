"""A decode step for one token: matrix-vector products (GEMV), with everything around them in the same kernel.

A GEMV does one multiply-add for each weight, so it is memory-bound: only the rate at which weights arrive matters. A
program keeps the whole vector in registers in the form that the GEMV needs. Each program normalises the vector itself,
because rereading a few kilobytes from the L2 cache takes less time than another launch. Then the program loops over
rows of the matrix, and loads the next rows before it uses the current ones.

The programs of a kernel divide the rows among themselves: program ``p`` of ``P`` takes row block ``p``, then the block
``P`` further on, so that all programs together read the matrix from one end to the other. Whatever depends on no
earlier kernel, the first rows and the norm's weights, is loaded before the kernel waits for its predecessor.

All programs of a kernel are on the GPU at once, so it lets its successor launch at once too (programmatic dependent
launch, PDL): a program of the successor can only take the place of one that has ended, loads its first rows, and waits.
So memory stays busy while the slowest programs end.

Shapes: ``tokens`` is the number of tokens, and a token is one entry of the grid's second dimension. A matrix has
``outputs`` rows of ``inputs`` numbers. Quantised weights are packed, 4 or 8 to an int32 word, and ``stride`` counts
words; otherwise it equals ``inputs``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpuguide.inference.fused.packed_gemv import gemv, interleave_for_packed_weights
from gpuguide.inference.fused.parts import (
    add_bias,
    apply_rope,
    argmax_key,
    embed,
    griddep_wait,
    launch_dependents,
    load_cos_sin,
    load_normalized,
    load_rows,
    load_vector,
    locate_in_cache,
    store_activation,
    store_query_key_value,
)


@triton.jit
def embed_kernel(
    tokens,  # (tokens,), int64
    positions,  # (tokens,), int64
    embedding,  # (vocab, WIDTH)
    position_embedding,  # (context, WIDTH), read with POSITIONS
    hidden,  # (tokens, WIDTH), fp32, written
    WIDTH: tl.constexpr,  # hidden size of the model
    BLOCK: tl.constexpr,  # columns of a program
    POSITIONS: tl.constexpr,  # whether positions have vectors of their own, as in GPT-2
    PDL: tl.constexpr,
):
    """Write the first hidden state of each token: its embedding, plus that of its position in GPT-2.

    Later kernels read positions before they wait, so none may begin before what wrote them has ended.
    """
    griddep_wait(PDL)
    launch_dependents(PDL)
    m = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token, position = tl.load(tokens + m), tl.load(positions + m)
    embed(token, position, embedding, position_embedding, hidden + m * WIDTH, column, WIDTH, POSITIONS)


@triton.jit
def project_kernel(
    # the hidden state and its norm
    hidden,  # (tokens, inputs), fp32
    norm_weight,  # (inputs,)
    norm_bias,  # (inputs,), read with LAYER_NORM
    epsilon,
    # the matrix of queries, keys and values
    weight,  # (outputs, stride)
    scales,  # (outputs, groups), read for quantised weights
    bias,  # (outputs,), read with BIAS
    inputs,
    outputs,
    stride,
    groups,  # scales of a row
    # queries, and the KV cache of this layer
    queries,  # (tokens, QUERIES), written
    keys,  # (pages, KV_HEADS, PAGE, HEAD_DIM), written
    values,  # (pages, KV_HEADS, PAGE, HEAD_DIM), written
    table,  # (rows, table_width), int32: pages of each row
    table_width,
    cache_rows,  # (tokens,), int64: row of each token
    positions,  # (tokens,), int64
    rope,  # (context, HEAD_DIM / 2, 2), fp32: cosines and sines, read with ROPE
    # heads
    QUERIES: tl.constexpr,  # numbers in the queries of a token: heads * HEAD_DIM
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,  # tokens of a page
    ROPE: tl.constexpr,  # whether queries and keys are rotated
    # variants
    LAYER_NORM: tl.constexpr,  # LayerNorm, otherwise RMSNorm
    BIAS: tl.constexpr,
    BITS: tl.constexpr,  # of a quantised weight: 8 or 4; 0 for weights in the model's format
    GROUP: tl.constexpr,  # inputs that share a scale, with 4 bits
    EXACT: tl.constexpr,  # quantised weights: whether all sums are in fp32
    # tiles
    INPUTS: tl.constexpr,  # a power of two, ``inputs`` or more
    WORDS: tl.constexpr,  # elements of ``weight`` that hold INPUTS numbers
    ROWS: tl.constexpr,  # rows that a program multiplies at a time
    PDL: tl.constexpr,
):
    """Compute norm, then queries, keys and values; rotate (RoPE) and put keys and values into the cache."""
    token = tl.program_id(1)
    first, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
    # -- before the wait: whatever no earlier kernel writes
    prefetched = load_rows(weight, first + tl.arange(0, ROWS), outputs, stride, 0, stride, WORDS)
    norm_weight = load_vector(norm_weight, inputs, INPUTS)
    norm_bias = load_vector(norm_bias, inputs, INPUTS) if LAYER_NORM else norm_weight
    m = token + tl.arange(0, 1)
    position, slot = locate_in_cache(m, token + 1, table, table_width, cache_rows, positions, KV_HEADS, HEAD_DIM, PAGE)
    launch_dependents(PDL)
    griddep_wait(PDL)
    # -- norm of the whole vector
    x = load_normalized(hidden + token * inputs, inputs, norm_weight, norm_bias, epsilon, INPUTS, LAYER_NORM)
    x = interleave_for_packed_weights(x, BITS, GROUP, EXACT)
    for start in range(first, outputs, step):
        # -- load the next rows, multiply the current ones
        tile, n = prefetched, start + tl.arange(0, ROWS)
        prefetched = load_rows(weight, n + step, outputs, stride, 0, stride, WORDS)
        if ROPE:
            cos, sin = load_cos_sin(rope, position, n, QUERIES, KV_HEADS, HEAD_DIM, ROWS)
        y = gemv(tile, x, scales, n, outputs, groups, 0, ROWS, INPUTS, BITS, GROUP, EXACT)[None, :]
        y = add_bias(y, n, outputs, bias, BIAS)
        if ROPE:
            y = apply_rope(y, cos, sin, 1, ROWS)
        store_query_key_value(
            y, m, n, token + 1, outputs, queries, keys, values, slot, QUERIES, KV_HEADS, HEAD_DIM, PAGE
        )


@triton.jit
def activate_kernel(
    # the hidden state and its norm
    hidden,  # (tokens, inputs), fp32
    norm_weight,  # (inputs,)
    norm_bias,  # (inputs,), read with LAYER_NORM
    epsilon,
    # the first matrix of the feed-forward part
    weight,  # (outputs, stride)
    scales,  # (outputs, groups), read for quantised weights
    bias,  # (outputs,), read with BIAS
    inputs,
    outputs,
    stride,
    groups,  # scales of a row
    inner,  # (tokens, outputs), or (tokens, outputs / 2) with GATED; written
    # variants
    GATED: tl.constexpr,  # SwiGLU, otherwise GELU
    LAYER_NORM: tl.constexpr,  # LayerNorm, otherwise RMSNorm
    BIAS: tl.constexpr,
    BITS: tl.constexpr,  # of a quantised weight: 8 or 4; 0 for weights in the model's format
    GROUP: tl.constexpr,  # inputs that share a scale, with 4 bits
    EXACT: tl.constexpr,  # quantised weights: whether all sums are in fp32
    # tiles
    INPUTS: tl.constexpr,  # a power of two, ``inputs`` or more
    WORDS: tl.constexpr,  # elements of ``weight`` that hold INPUTS numbers
    ROWS: tl.constexpr,  # rows that a program multiplies at a time
    PDL: tl.constexpr,
):
    """Compute norm, the first GEMV of the feed-forward part, and its activation: GELU or SwiGLU."""
    token = tl.program_id(1)
    first, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
    # -- before the wait: whatever no earlier kernel writes
    prefetched = load_rows(weight, first + tl.arange(0, ROWS), outputs, stride, 0, stride, WORDS)
    norm_weight = load_vector(norm_weight, inputs, INPUTS)
    norm_bias = load_vector(norm_bias, inputs, INPUTS) if LAYER_NORM else norm_weight
    launch_dependents(PDL)
    griddep_wait(PDL)
    # -- norm of the whole vector
    x = load_normalized(hidden + token * inputs, inputs, norm_weight, norm_bias, epsilon, INPUTS, LAYER_NORM)
    x = interleave_for_packed_weights(x, BITS, GROUP, EXACT)
    m = token + tl.arange(0, 1)
    for start in range(first, outputs, step):
        # -- load the next rows, multiply the current ones
        tile, n = prefetched, start + tl.arange(0, ROWS)
        prefetched = load_rows(weight, n + step, outputs, stride, 0, stride, WORDS)
        y = gemv(tile, x, scales, n, outputs, groups, 0, ROWS, INPUTS, BITS, GROUP, EXACT)[None, :]
        y = add_bias(y, n, outputs, bias, BIAS)
        store_activation(y, m, n, token + 1, outputs, inner, GATED, 1, ROWS)


@triton.jit
def add_kernel(
    x,  # (tokens, inputs)
    # the matrix
    weight,  # (outputs, stride)
    scales,  # (outputs, groups), read for quantised weights
    bias,  # (outputs,), read with BIAS
    inputs,
    outputs,
    stride,
    groups,  # scales of a row
    hidden,  # (tokens, outputs), fp32: the result is added to it
    # split-K
    partial,  # (tokens, SPLIT_K, outputs), fp32: sums of each part of the inputs
    counters,  # (tokens, programs), int32: parts that have finished; zero before and after
    length,  # inputs of a part
    # variants
    BIAS: tl.constexpr,
    BITS: tl.constexpr,  # of a quantised weight: 8 or 4; 0 for weights in the model's format
    GROUP: tl.constexpr,  # inputs that share a scale, with 4 bits
    EXACT: tl.constexpr,  # quantised weights: whether all sums are in fp32
    # tiles
    INPUTS: tl.constexpr,  # a power of two, ``length`` or more
    WORDS: tl.constexpr,  # elements of ``weight`` that hold INPUTS numbers
    ROWS: tl.constexpr,  # rows that a program multiplies at a time
    ROUNDS_PAD: tl.constexpr,  # a power of two, the row blocks of a program or more
    SPLIT_K: tl.constexpr,  # parts of the inputs
    PDL: tl.constexpr,
):
    """Multiply and add the result to the hidden state: the output projection, and the second feed-forward matrix.

    A vector that is too long for a program's registers is split into parts of ``length`` inputs (split-K). The last
    program to finish its part of a row block adds the parts up, always in the same order.
    """
    group, token, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, step = group * ROWS, tl.num_programs(0) * ROWS
    begin = part * length
    column = begin * WORDS // INPUTS
    stop = tl.minimum(stride, (begin + length) * WORDS // INPUTS)
    # -- before the wait: whatever no earlier kernel writes
    prefetched = load_rows(weight, first + tl.arange(0, ROWS), outputs, stride, column, stop, WORDS)
    launch_dependents(PDL)
    griddep_wait(PDL)
    vector = load_vector(x + token * inputs + begin, tl.minimum(inputs - begin, length), INPUTS)
    vector = interleave_for_packed_weights(vector, BITS, GROUP, EXACT)
    hidden += token * outputs
    for start in range(first, outputs, step):
        # -- load the next rows, multiply the current ones
        tile, n = prefetched, start + tl.arange(0, ROWS)
        prefetched = load_rows(weight, n + step, outputs, stride, column, stop, WORDS)
        if SPLIT_K == 1:
            residual = load_residual(hidden, bias, n, outputs, BIAS)
        y = gemv(tile, vector, scales, n, outputs, groups, begin // GROUP, ROWS, INPUTS, BITS, GROUP, EXACT)
        if SPLIT_K == 1:
            tl.store(hidden + n, residual + y, mask=n < outputs)
        else:
            tl.store(partial + (token * SPLIT_K + part) * outputs + n, y, mask=n < outputs)
    if SPLIT_K > 1:
        # -- the last program of these rows adds the parts up
        tl.debug_barrier()
        counter = counters + token * tl.num_programs(0) + group
        if tl.atomic_add(counter, 1, sem="acq_rel") == SPLIT_K - 1:
            tl.store(counter, 0)
            row = tl.arange(0, ROUNDS_PAD * ROWS)
            n = first + row // ROWS * step + row % ROWS  # all rows of this program at once
            y = load_residual(hidden, bias, n, outputs, BIAS)
            for other in tl.static_range(SPLIT_K):
                source = partial + (token * SPLIT_K + other) * outputs + n
                y += tl.load(source, mask=n < outputs, other=0, cache_modifier=".cg")
            tl.store(hidden + n, y, mask=n < outputs)


@triton.jit
def head_kernel(
    # the hidden state and its norm
    hidden,  # (tokens, inputs), fp32
    norm_weight,  # (inputs,)
    norm_bias,  # (inputs,), read with LAYER_NORM
    epsilon,
    # the head
    weight,  # (outputs, inputs)
    inputs,
    outputs,  # the vocabulary's size
    logits,  # (tokens, outputs), fp32, written
    best,  # (tokens,), int64: argmax_key of the highest logit, raised
    LAYER_NORM: tl.constexpr,  # LayerNorm, otherwise RMSNorm
    INPUTS: tl.constexpr,  # a power of two, ``inputs`` or more
    ROWS: tl.constexpr,  # rows that a program multiplies at a time
    PDL: tl.constexpr,
):
    """Compute norm, then the logits in fp32, and their maximum by one atomic operation a program."""
    token = tl.program_id(1)
    first, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
    # -- before the wait: whatever no earlier kernel writes
    prefetched = load_rows(weight, first + tl.arange(0, ROWS), outputs, inputs, 0, inputs, INPUTS)
    norm_weight = load_vector(norm_weight, inputs, INPUTS)
    norm_bias = load_vector(norm_bias, inputs, INPUTS) if LAYER_NORM else norm_weight
    launch_dependents(PDL)
    griddep_wait(PDL)
    # -- norm of the whole vector
    x = load_normalized(hidden + token * inputs, inputs, norm_weight, norm_bias, epsilon, INPUTS, LAYER_NORM)
    highest = tl.full((ROWS,), -9223372036854775808, tl.int64)
    for start in range(first, outputs, step):
        # -- load the next rows, multiply the current ones
        tile, n = prefetched, start + tl.arange(0, ROWS)
        prefetched = load_rows(weight, n + step, outputs, inputs, 0, inputs, INPUTS)
        y = tl.sum(tile.to(tl.float32) * x[None, :], axis=1)
        tl.store(logits + token.to(tl.int64) * outputs + n, y, mask=n < outputs)
        highest = tl.maximum(highest, tl.where(n < outputs, argmax_key(y, n), -9223372036854775808))
    tl.atomic_max(best + token, tl.max(highest, 0), sem="relaxed")


@triton.jit
def load_residual(hidden, bias, n, outputs, BIAS: tl.constexpr):
    """Load what some outputs are added to: the hidden state, plus their bias."""
    residual = tl.load(hidden + n, mask=n < outputs, other=0)
    if BIAS:
        residual += tl.load(bias + n, mask=n < outputs, other=0).to(tl.float32)
    return residual


@triton.jit
def advance_kernel(
    best,  # (rows,), int64: argmax_key of the highest logit; reset with GREEDY
    drawn,  # (rows,), int64: drawn tokens, read without GREEDY
    tokens,  # (rows,), int64, written: the input of the next step
    lengths,  # (rows,), int64, raised
    writing,  # (rows,), bool: rows that have a text
    texts,  # (rows, text_width), int64, written
    text_width,
    GREEDY: tl.constexpr,
    LOWEST: tl.constexpr,  # below every argmax_key
    PDL: tl.constexpr,
):
    """Store each row's new token as the next step's input and in the row's text."""
    griddep_wait(PDL)
    row = tl.program_id(0)
    if GREEDY:
        token = 2147483647 - (tl.load(best + row) & 0xFFFFFFFF)
        tl.store(best + row, LOWEST)
    else:
        token = tl.maximum(tl.load(drawn + row), 0)
    length = tl.load(lengths + row) + tl.load(writing + row).to(tl.int64)
    tl.store(tokens + row, token)
    tl.store(texts + row * text_width + length, token)
    tl.store(lengths + row, tl.minimum(length, text_width - 2))

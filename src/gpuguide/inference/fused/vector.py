"""A decode step for one token: products of a matrix with a vector, with all around them in the same kernel.

A product with one vector does one multiplication for each weight, so nothing counts but how fast weights arrive. A
program keeps the whole vector in registers, as the product wants it: normalised, which each program does for itself,
since a few kilobytes from the L2 cache are cheaper than another launch. Then it goes over rows of the matrix, and asks
for the next rows before it uses those that have come.

The programs of a kernel share the rows out among themselves: program ``p`` of ``P`` takes the ``p``-th group of rows,
then the one ``P`` further on, so that all of them together read the matrix from one end to the other. What depends on
no predecessor, the first rows and the norm's weights, is asked for before it is waited for.

All programs of a kernel are on the GPU at once, so it lets its successor start at once too: a program of that one can
only take the place of one that has ended, asks for its first rows, and waits. So memory stays busy while the slowest
programs end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpuguide.inference.fused.parts import (
    add_bias,
    embed,
    let_successor_start,
    load_rows,
    load_turns,
    load_vector,
    normalized,
    order_of,
    place_in_cache,
    rotated,
    spread,
    store_activated,
    store_projected,
    times_vector,
    wait_for_predecessor,
)


@triton.jit
def embed_kernel(tokens, positions, embedding, position_embedding, hidden, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
                 POSITIONS: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Write the first hidden state of each token: its vector, and that of its position where there is one.

    Later kernels read positions before they wait, so none may begin before what wrote them has ended.
    """
    wait_for_predecessor(OVERLAP)
    let_successor_start(OVERLAP)
    m = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    embed(tl.load(tokens + m), tl.load(positions + m), embedding, position_embedding, hidden + m * WIDTH, column, WIDTH,
          POSITIONS)  # fmt: skip


@triton.jit
def project_kernel(hidden, norm_weight, norm_bias, epsilon, weight, scales, bias, inputs, outputs, stride,
                   groups, queries, keys, values, table, table_width, cache_rows, positions, rotations,
                   QUERIES: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
                   ROTATE: tl.constexpr, LAYER_NORM: tl.constexpr, BIAS: tl.constexpr, BITS: tl.constexpr,
                   GROUP: tl.constexpr, EXACT: tl.constexpr, INPUTS: tl.constexpr, ACROSS: tl.constexpr,
                   ROWS: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Norm, then queries, keys and values: rotated, and the latter two put into the cache."""
    token = tl.program_id(1)
    first, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
    ahead = load_rows(weight, first + tl.arange(0, ROWS), outputs, stride, 0, stride, ACROSS)
    norm_weight = load_vector(norm_weight, inputs, INPUTS)
    norm_bias = load_vector(norm_bias, inputs, INPUTS) if LAYER_NORM else norm_weight
    m = token + tl.arange(0, 1)
    position, slot = place_in_cache(m, token + 1, table, table_width, cache_rows, positions, KV_HEADS, HEAD_DIM, PAGE)
    let_successor_start(OVERLAP)
    wait_for_predecessor(OVERLAP)
    x = normalized(hidden + token * inputs, inputs, norm_weight, norm_bias, epsilon, INPUTS, LAYER_NORM)
    x = spread(x, BITS, GROUP, EXACT)
    for start in range(first, outputs, step):
        tile, n = ahead, start + tl.arange(0, ROWS)
        ahead = load_rows(weight, n + step, outputs, stride, 0, stride, ACROSS)
        if ROTATE:
            cosine, sine = load_turns(rotations, position, n, QUERIES, KV_HEADS, HEAD_DIM, ROWS)
        y = times_vector(tile, x, scales, n, outputs, groups, 0, ROWS, INPUTS, BITS, GROUP, EXACT)[None, :]
        y = add_bias(y, n, outputs, bias, BIAS)
        if ROTATE:
            y = rotated(y, cosine, sine, 1, ROWS)
        store_projected(y, m, n, token + 1, outputs, queries, keys, values, slot, QUERIES, KV_HEADS, HEAD_DIM, PAGE)


@triton.jit
def activate_kernel(hidden, norm_weight, norm_bias, epsilon, weight, scales, bias, inputs, outputs, stride,
                    groups, inner, GATED: tl.constexpr, LAYER_NORM: tl.constexpr, BIAS: tl.constexpr,
                    BITS: tl.constexpr, GROUP: tl.constexpr, EXACT: tl.constexpr, INPUTS: tl.constexpr,
                    ACROSS: tl.constexpr, ROWS: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Norm, then the first product of the feed-forward part and what follows it: GELU or the gate."""
    token = tl.program_id(1)
    first, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
    ahead = load_rows(weight, first + tl.arange(0, ROWS), outputs, stride, 0, stride, ACROSS)
    norm_weight = load_vector(norm_weight, inputs, INPUTS)
    norm_bias = load_vector(norm_bias, inputs, INPUTS) if LAYER_NORM else norm_weight
    let_successor_start(OVERLAP)
    wait_for_predecessor(OVERLAP)
    x = normalized(hidden + token * inputs, inputs, norm_weight, norm_bias, epsilon, INPUTS, LAYER_NORM)
    x = spread(x, BITS, GROUP, EXACT)
    m = token + tl.arange(0, 1)
    for start in range(first, outputs, step):
        tile, n = ahead, start + tl.arange(0, ROWS)
        ahead = load_rows(weight, n + step, outputs, stride, 0, stride, ACROSS)
        y = times_vector(tile, x, scales, n, outputs, groups, 0, ROWS, INPUTS, BITS, GROUP, EXACT)[None, :]
        y = add_bias(y, n, outputs, bias, BIAS)
        store_activated(y, m, n, token + 1, outputs, inner, GATED, 1, ROWS)


@triton.jit
def add_kernel(x, weight, scales, bias, inputs, outputs, stride, groups, hidden, partial, arrived, length,
               BIAS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, EXACT: tl.constexpr,
               INPUTS: tl.constexpr, ACROSS: tl.constexpr, ROWS: tl.constexpr, ROUNDS_PAD: tl.constexpr,
               PARTS: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Multiply, and add the result to the hidden state: the second product of attention and of the feed-forward part.

    A vector that is too long for a program's registers is cut into parts of ``length``. The last program to finish with
    its part of some rows adds them up, always in the same order.
    """
    group, token, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, step = group * ROWS, tl.num_programs(0) * ROWS
    begin = part * length
    column = begin * ACROSS // INPUTS
    stop = tl.minimum(stride, (begin + length) * ACROSS // INPUTS)
    ahead = load_rows(weight, first + tl.arange(0, ROWS), outputs, stride, column, stop, ACROSS)
    let_successor_start(OVERLAP)
    wait_for_predecessor(OVERLAP)
    vector = load_vector(x + token * inputs + begin, tl.minimum(inputs - begin, length), INPUTS)
    vector = spread(vector, BITS, GROUP, EXACT)
    hidden += token * outputs
    for start in range(first, outputs, step):
        tile, n = ahead, start + tl.arange(0, ROWS)
        ahead = load_rows(weight, n + step, outputs, stride, column, stop, ACROSS)
        if PARTS == 1:
            before = load_hidden(hidden, bias, n, outputs, BIAS)
        y = times_vector(tile, vector, scales, n, outputs, groups, begin // GROUP, ROWS, INPUTS, BITS, GROUP, EXACT)
        if PARTS == 1:
            tl.store(hidden + n, before + y, mask=n < outputs)
        else:
            tl.store(partial + (token * PARTS + part) * outputs + n, y, mask=n < outputs)
    if PARTS > 1:
        tl.debug_barrier()
        counter = arrived + token * tl.num_programs(0) + group
        if tl.atomic_add(counter, 1, sem="acq_rel") == PARTS - 1:
            tl.store(counter, 0)
            row = tl.arange(0, ROUNDS_PAD * ROWS)
            n = first + row // ROWS * step + row % ROWS  # all rows of this program at once
            y = load_hidden(hidden, bias, n, outputs, BIAS)
            for other in tl.static_range(PARTS):
                where = partial + (token * PARTS + other) * outputs + n
                y += tl.load(where, mask=n < outputs, other=0, cache_modifier=".cg")
            tl.store(hidden + n, y, mask=n < outputs)


@triton.jit
def head_kernel(hidden, norm_weight, norm_bias, epsilon, weight, inputs, outputs, logits, best,
                LAYER_NORM: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Norm, then the logits, in fp32; and the best of them, by one atomic operation a program."""
    token = tl.program_id(1)
    first, step = tl.program_id(0) * ROWS, tl.num_programs(0) * ROWS
    ahead = load_rows(weight, first + tl.arange(0, ROWS), outputs, inputs, 0, inputs, INPUTS)
    norm_weight = load_vector(norm_weight, inputs, INPUTS)
    norm_bias = load_vector(norm_bias, inputs, INPUTS) if LAYER_NORM else norm_weight
    let_successor_start(OVERLAP)
    wait_for_predecessor(OVERLAP)
    x = normalized(hidden + token * inputs, inputs, norm_weight, norm_bias, epsilon, INPUTS, LAYER_NORM)
    highest = tl.full((ROWS,), -9223372036854775808, tl.int64)
    for start in range(first, outputs, step):
        tile, n = ahead, start + tl.arange(0, ROWS)
        ahead = load_rows(weight, n + step, outputs, inputs, 0, inputs, INPUTS)
        y = tl.sum(tile.to(tl.float32) * x[None, :], axis=1)
        tl.store(logits + token.to(tl.int64) * outputs + n, y, mask=n < outputs)
        highest = tl.maximum(highest, tl.where(n < outputs, order_of(y, n), -9223372036854775808))
    tl.atomic_max(best + token, tl.max(highest, 0), sem="relaxed")


@triton.jit
def load_hidden(hidden, bias, n, outputs, BIAS: tl.constexpr):
    """Load what some outputs are added to: the hidden state, and their bias."""
    before = tl.load(hidden + n, mask=n < outputs, other=0)
    if BIAS:
        before += tl.load(bias + n, mask=n < outputs, other=0).to(tl.float32)
    return before


@triton.jit
def advance_kernel(best, drawn, tokens, lengths, writing, texts, text_width, GREEDY: tl.constexpr,
                   LOWEST: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Put each row's new token where the next step reads it, and into its text."""
    wait_for_predecessor(OVERLAP)
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

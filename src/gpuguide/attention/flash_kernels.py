"""Attention by tiles, as Triton kernels: one for the forward pass, three for the backward pass.

A program of the forward pass owns a tile of queries. It goes along the keys, a tile at a time, and keeps three things
of each query in registers: the highest score so far, the sum of the powers below it, and the output that belongs to
them. When a tile has a higher score, sum and output shrink accordingly. Scores never leave the multiprocessor. What
the backward pass needs of them is one number for each query, the log-sum-exp.

The backward pass computes the scores anew. A program of :func:`backward_keys_kernel` owns a tile of keys and values
and goes along the queries; one of :func:`backward_queries_kernel` owns a tile of queries and goes along the keys. Every
gradient is thus written once, by one program, in a fixed order: the result is the same every time. The price are seven
products of tiles where five would do if programs added to gradients that they share.

With a causal mask, tiles are of three kinds. Those that no query sees are left out, those that all see need no mask,
and only the ones that the diagonal crosses are masked. The loop over the second kind therefore has no mask in it.

Tensors are ``(batch, heads, length, head_dim)``. Tiles come through tensor descriptors: on GPUs that have one, the
bulk copy engine (TMA) moves them, and what lies beyond the end of a sequence reads as zero and is not written.

Sources: T. Dao et al., "FlashAttention", 2022, https://arxiv.org/abs/2205.14135; T. Dao, "FlashAttention-2", 2023,
https://arxiv.org/abs/2307.08691.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


# --- forward -----------------------------------------------------------------------------------------------


@triton.jit
def own_tile(length, heads, ROWS: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Return batch, head and first row of the tile that is this program's."""
    blocks = tl.cdiv(length, ROWS)
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    if LAST_FIRST:
        block = blocks - 1 - block  # the longest rows first, so that the short ones fill the gaps at the end
    return head // heads, head % heads, block * ROWS


@triton.jit
def tile(tensor, batch, head, first, ROWS: tl.constexpr, HEAD: tl.constexpr):
    """Return ``ROWS`` rows of one head, ``(ROWS, HEAD)``."""
    return tensor.load([batch, head, first, 0]).reshape(ROWS, HEAD)


@triton.jit
def store_tile(tensor, batch, head, first, values, ROWS: tl.constexpr, HEAD: tl.constexpr):
    """Write ``ROWS`` rows of one head."""
    tensor.store([batch, head, first, 0], values.to(tensor.dtype).reshape(1, 1, ROWS, HEAD))


@triton.jit
def power(x, EXP2: tl.constexpr):
    """Return two to the power of ``x``, or e."""
    return tl.exp2(x) if EXP2 else tl.exp(x)


@triton.jit
def visible_keys(first_row, rows, query_length, key_length, CAUSAL: tl.constexpr, COLUMNS: tl.constexpr):
    """Return where the keys end that all of some queries see, in whole tiles, and where those end that any sees."""
    end = key_length
    if CAUSAL:
        seen_by_first = first_row + 1 + key_length - query_length
        end = tl.minimum(end, tl.maximum(seen_by_first + rows - 1, 0))
        return tl.minimum(key_length, tl.maximum(seen_by_first, 0)) // COLUMNS * COLUMNS, end
    return key_length // COLUMNS * COLUMNS, end


@triton.jit
def sees(row, first, key_length, reach, COLUMNS: tl.constexpr):
    """Return which keys from the first on each row sees: those up to its number plus ``reach``."""
    column = first + tl.arange(0, COLUMNS)
    return (column[None, :] <= row[:, None] + reach) & (column[None, :] < key_length)


@triton.jit
def absorb(
    state, q, keys, values, batch, kv_head, row, start, end, key_length, reach, scale,
    MASKED: tl.constexpr, EXP2: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Take in the keys from ``start`` to ``end``."""
    highest, total, out = state
    for first in tl.range(start, end, COLUMNS):
        scores = tl.dot(q, tile(keys, batch, kv_head, first, COLUMNS, HEAD).T)
        if MASKED:
            scores = tl.where(sees(row, first, key_length, reach, COLUMNS), scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1) * scale)
        level = higher
        if MASKED:
            level = tl.where(higher == -float("inf"), 0.0, higher)  # a row that has seen nothing yet
        powers = power(scores * scale - level[:, None], EXP2)
        shrink = power(highest - level, EXP2)
        total = total * shrink + tl.sum(powers, 1)
        v = tile(values, batch, kv_head, first, COLUMNS, HEAD)
        out = tl.dot(powers.to(v.dtype), v, out * shrink[:, None])
        highest = higher
    return highest, total, out


@triton.jit
def forward_kernel(
    queries, keys, values, outputs,  # descriptors of (batch, heads, length, head_dim)
    lse,  # (batch, heads, query_length), fp32
    scale, heads, group, query_length, key_length,
    CAUSAL: tl.constexpr, SPLIT: tl.constexpr, EXP2: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of one tile of queries."""
    batch, head, first_row = own_tile(query_length, heads, ROWS, CAUSAL)
    row = first_row + tl.arange(0, ROWS)
    reach = key_length
    if CAUSAL:
        reach -= query_length
    unmasked, end = visible_keys(first_row, ROWS, query_length, key_length, CAUSAL, COLUMNS)
    in_units = scale
    if EXP2:
        in_units *= LOG2_E
    q = tile(queries, batch, head, first_row, ROWS, HEAD)
    kv_head = head // group
    state = tl.full([ROWS], -float("inf"), tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, HEAD], tl.float32)
    if SPLIT:
        state = absorb(
            state, q, keys, values, batch, kv_head, row, 0, unmasked, key_length, reach, in_units,
            False, EXP2, COLUMNS, HEAD,
        )  # fmt: skip
    else:
        unmasked = 0
    state = absorb(
        state, q, keys, values, batch, kv_head, row, unmasked, end, key_length, reach, in_units,
        True, EXP2, COLUMNS, HEAD,
    )  # fmt: skip
    highest, total, out = state
    store_tile(outputs, batch, head, first_row, out / tl.where(total == 0, 1.0, total)[:, None], ROWS, HEAD)
    if EXP2:
        highest *= LN_2
    of_head = (batch * heads + head).to(tl.int64) * query_length
    tl.store(lse + of_head + row, highest + tl.log(total), mask=row < query_length)


# --- backward ----------------------------------------------------------------------------------------------


@triton.jit
def delta_kernel(outputs, upstream, delta, heads, query_length, ROWS: tl.constexpr, HEAD: tl.constexpr):
    """Write the sum of output times its gradient, for each query: what softmax subtracts from the gradient of P."""
    batch, head, first_row = own_tile(query_length, heads, ROWS, False)
    out = tile(outputs, batch, head, first_row, ROWS, HEAD).to(tl.float32)
    d_out = tile(upstream, batch, head, first_row, ROWS, HEAD).to(tl.float32)
    row = first_row + tl.arange(0, ROWS)
    of_head = (batch * heads + head).to(tl.int64) * query_length
    tl.store(delta + of_head + row, tl.sum(out * d_out, 1), mask=row < query_length)


@triton.jit
def numbers_of_rows(lse, delta, of_head, row, query_length):
    """Return log-sum-exp, in powers of two, and delta of some queries. One beyond the end gets weights of zero."""
    inside = row < query_length
    level = tl.load(lse + of_head + row, mask=inside, other=float("inf")) * LOG2_E
    return level, tl.load(delta + of_head + row, mask=inside, other=0.0)


@triton.jit
def along_queries(
    d_k, d_v, k, v, queries, upstream, lse, delta, batch, head, of_head, column, start, end, query_length, reach, scale,
    MASKED: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Add to the gradients of a tile of keys and values what the queries from ``start`` to ``end`` give."""
    for first in tl.range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)
        q = tile(queries, batch, head, first, ROWS, HEAD)
        level, d_row = numbers_of_rows(lse, delta, of_head, row, query_length)
        weights = tl.exp2(tl.dot(k, q.T) * scale - level[None, :])  # transposed: (columns, rows)
        if MASKED:
            weights = tl.where(column[:, None] <= row[None, :] + reach, weights, 0.0)
        d_out = tile(upstream, batch, head, first, ROWS, HEAD)
        d_v = tl.dot(weights.to(d_out.dtype), d_out, d_v)
        d_scores = weights * (tl.dot(v, d_out.T) - d_row[None, :])
        d_k = tl.dot(d_scores.to(q.dtype), q, d_k)
    return d_k, d_v


@triton.jit
def backward_keys_kernel(
    queries, keys, values, upstream, d_keys, d_values,  # descriptors
    lse, delta,  # (batch, heads, query_length), fp32
    scale, heads, group, query_length, key_length,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one tile of keys and values, from all heads of queries that share them."""
    batch, kv_head, first_column = own_tile(key_length, heads // group, COLUMNS, False)
    column = first_column + tl.arange(0, COLUMNS)
    k = tile(keys, batch, kv_head, first_column, COLUMNS, HEAD)
    v = tile(values, batch, kv_head, first_column, COLUMNS, HEAD)
    d_k, d_v = tl.zeros([COLUMNS, HEAD], tl.float32), tl.zeros([COLUMNS, HEAD], tl.float32)
    reach, first_seeing, all_seeing = 0, 0, 0
    if CAUSAL:
        reach = key_length - query_length
        first_seeing = tl.maximum(first_column - reach, 0) // ROWS * ROWS
        all_seeing = tl.cdiv(tl.maximum(first_column + COLUMNS - 1 - reach, 0), ROWS) * ROWS
        all_seeing = tl.minimum(all_seeing, tl.cdiv(query_length, ROWS) * ROWS)
    for head in range(kv_head * group, kv_head * group + group):
        of_head = (batch * heads + head).to(tl.int64) * query_length
        if CAUSAL:
            d_k, d_v = along_queries(
                d_k, d_v, k, v, queries, upstream, lse, delta, batch, head, of_head, column, first_seeing, all_seeing,
                query_length, reach, scale * LOG2_E, True, ROWS, HEAD,
            )  # fmt: skip
        d_k, d_v = along_queries(
            d_k, d_v, k, v, queries, upstream, lse, delta, batch, head, of_head, column, all_seeing, query_length,
            query_length, reach, scale * LOG2_E, False, ROWS, HEAD,
        )  # fmt: skip
    store_tile(d_keys, batch, kv_head, first_column, d_k * scale, COLUMNS, HEAD)
    store_tile(d_values, batch, kv_head, first_column, d_v, COLUMNS, HEAD)


@triton.jit
def along_keys(
    d_q, q, d_out, level, d_row, keys, values, batch, kv_head, row, start, end, key_length, reach, scale,
    MASKED: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Add to the gradient of a tile of queries what the keys from ``start`` to ``end`` give."""
    for first in tl.range(start, end, COLUMNS):
        k = tile(keys, batch, kv_head, first, COLUMNS, HEAD)
        weights = tl.exp2(tl.dot(q, k.T) * scale - level[:, None])
        if MASKED:
            weights = tl.where(sees(row, first, key_length, reach, COLUMNS), weights, 0.0)
        d_weights = tl.dot(d_out, tile(values, batch, kv_head, first, COLUMNS, HEAD).T)
        d_scores = weights * (d_weights - d_row[:, None])
        d_q = tl.dot(d_scores.to(k.dtype), k, d_q)
    return d_q


@triton.jit
def backward_queries_kernel(
    queries, keys, values, upstream, d_queries,  # descriptors
    lse, delta,  # (batch, heads, query_length), fp32
    scale, heads, group, query_length, key_length,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of one tile of queries."""
    batch, head, first_row = own_tile(query_length, heads, ROWS, CAUSAL)
    row = first_row + tl.arange(0, ROWS)
    of_head = (batch * heads + head).to(tl.int64) * query_length
    level, d_row = numbers_of_rows(lse, delta, of_head, row, query_length)
    q = tile(queries, batch, head, first_row, ROWS, HEAD)
    d_out = tile(upstream, batch, head, first_row, ROWS, HEAD)
    d_q = tl.zeros([ROWS, HEAD], tl.float32)
    reach = key_length
    if CAUSAL:
        reach -= query_length
    unmasked, end = visible_keys(first_row, ROWS, query_length, key_length, CAUSAL, COLUMNS)
    d_q = along_keys(
        d_q, q, d_out, level, d_row, keys, values, batch, head // group, row, 0, unmasked, key_length, reach,
        scale * LOG2_E, False, COLUMNS, HEAD,
    )  # fmt: skip
    d_q = along_keys(
        d_q, q, d_out, level, d_row, keys, values, batch, head // group, row, unmasked, end, key_length, reach,
        scale * LOG2_E, True, COLUMNS, HEAD,
    )  # fmt: skip
    store_tile(d_queries, batch, head, first_row, d_q * scale, ROWS, HEAD)

"""What the kernels of a decode step share: norms, products, and what is done with a result before it is stored.

A kernel waits for the one before it as late as it can. Hopper can launch a kernel while its predecessor still runs
(programmatic dependent launch): it asks for its first weights, which depend on nobody, and only then waits.

Weights are numbers of the model's format (``BITS`` is 0), or whole numbers of 8 or 4 bits, several to an int32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_successor_start(OVERLAP: tl.constexpr):
    """Let the next kernel be launched: it will wait for this one's results by itself."""
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait_for_predecessor(OVERLAP: tl.constexpr):
    """Wait until everything that earlier kernels wrote can be read."""
    if OVERLAP:
        gdc_wait()


# --- vectors and matrices -----------------------------------------------------------------------------------


@triton.jit
def load_rows(weight, rows, outputs, stride, first, stop, ACROSS: tl.constexpr):
    """Load rows of a matrix as they lie in memory, from one column to another: ``(rows, ACROSS)`` numbers or words."""
    column = first + tl.arange(0, ACROSS)
    inside = (rows < outputs)[:, None] & (column < stop)[None, :]
    return tl.load(weight + rows.to(tl.int64)[:, None] * stride + column[None, :], mask=inside, other=0)


@triton.jit
def halves(vector):
    """Return the numbers at even and at odd places of a vector."""
    return tl.split(vector.reshape(vector.shape[0] // 2, 2))


@triton.jit
def spread(vector, BITS: tl.constexpr):
    """Return a vector as the numbers of a word of weights meet it: one vector for each place in a word.

    With four bits the places whose numbers are unpacked smaller by 16 (:func:`number`) are larger by that.
    """
    if BITS == 4:
        even, odd = halves(vector)
        x04, x26 = halves(even)
        x15, x37 = halves(odd)
        x0, x4 = halves(x04)
        x1, x5 = halves(x15)
        x2, x6 = halves(x26)
        x3, x7 = halves(x37)
        return (x0 * 16, x1 * 16, x2, x3, x4 * 16, x5 * 16, x6, x7)
    elif BITS == 8:
        even, odd = halves(vector)
        x0, x2 = halves(even)
        x1, x3 = halves(odd)
        return (x0, x1, x2, x3)
    else:
        return (vector,)


@triton.jit
def number(words, PLACE: tl.constexpr, BITS: tl.constexpr, high, low):
    """Return the numbers at one place of words, as floats between one and two.

    A conversion of integers takes the processor several times as long as a multiplication. A float between 1 and 2 has
    its number in its upper bits of the fraction, and those can be put there: a shift, and one operation that takes the
    bits and adds the exponent. For ``q`` of eight bits that gives 1.5 + q / 256. Of four bits, two places share a
    shift: one gives 1 + q / 16, the other 1 + q / 256. :func:`start_of_sum` takes away what is too much.

    ``high`` and ``low`` are the bits of the fraction where a number lies. They are arguments so that they are in
    registers: the instruction has room for one constant only.
    """
    LEFT: tl.constexpr = 15 - (8 * PLACE if BITS == 8 else PLACE // 4 * 8 + PLACE % 2 * 16)
    if LEFT >= 0:
        moved = words << LEFT
    else:
        moved = words >> (-LEFT)
    if BITS == 8:
        return ((moved & high) ^ 0x3FC00000).to(tl.float32, bitcast=True)
    elif PLACE // 2 % 2 == 1:
        return ((moved & high) | 0x3F800000).to(tl.float32, bitcast=True)
    else:
        return ((moved & low) | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def start_of_sum(x, BITS: tl.constexpr):
    """Return with what a sum of products with :func:`number` starts, so that it ends where it should."""
    if BITS == 8:
        return -1.5 * (x[0] + x[1] + x[2] + x[3])
    else:
        return -1.03125 * (x[0] + x[1] + x[4] + x[5]) - 1.5 * (x[2] + x[3] + x[6] + x[7])


@triton.jit
def times_vector(tile, x, scales, rows, outputs, groups, first_group, high, low, ROWS: tl.constexpr,
                 INPUTS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Multiply rows of a matrix by a vector in fp32: ``(rows,)``. ``x`` is from :func:`spread`."""
    if BITS == 0:
        return tl.sum(tile.to(tl.float32) * x[0][None, :], axis=1)
    else:
        WORD: tl.constexpr = 32 // BITS
        sums = start_of_sum(x, BITS)[None, :] + tl.zeros((ROWS, INPUTS // WORD), tl.float32)
        for place in tl.static_range(WORD):
            sums += number(tile, place, BITS, high, low) * x[place][None, :]
        if BITS == 8:
            by = tl.load(scales + rows, mask=rows < outputs, other=0).to(tl.float32)
            return tl.sum(sums, axis=1) * by * 256
        else:
            of_groups = tl.sum(sums.reshape(ROWS, INPUTS // GROUP, GROUP // WORD), axis=2)
            group = first_group + tl.arange(0, INPUTS // GROUP)
            there = (rows < outputs)[:, None] & (group < groups)[None, :]
            by = tl.load(scales + rows[:, None] * groups + group[None, :], mask=there, other=0).to(tl.float32)
            return tl.sum(of_groups * by, axis=1) * 16


@triton.jit
def normalized(hidden, inputs, weight, bias, epsilon, INPUTS: tl.constexpr, LAYER_NORM: tl.constexpr):
    """Load a hidden state and normalise it: LayerNorm, or RMSNorm, which leaves the mean and has no bias.

    ``weight`` and ``bias`` are vectors that have been loaded: they depend on no predecessor.
    """
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
    """Load a vector in fp32."""
    place = tl.arange(0, INPUTS)
    return tl.load(vector + place, mask=place < inputs, other=0).to(tl.float32)


# --- what is done with a result -------------------------------------------------------------------------------


@triton.jit
def gelu(x):
    """Return GELU by its formula with a hyperbolic tangent, which is written with a logistic function here."""
    inner = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    return x * tl.sigmoid(inner)


@triton.jit
def add_bias(y, n, outputs, bias, BIAS: tl.constexpr):
    """Add a bias to ``(tokens, outputs)``."""
    if BIAS:
        y += tl.load(bias + n, mask=n < outputs, other=0).to(tl.float32)[None, :]
    return y


@triton.jit
def store_activated(y, m, n, count, outputs, out, GATED: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr):
    """Store the inner values of a feed-forward part: through GELU, or each pair's gate times what it gates."""
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
def place_in_cache(m, count, table, table_width, cache_rows, positions, KV_HEADS: tl.constexpr,
                   HEAD_DIM: tl.constexpr, PAGE: tl.constexpr):  # fmt: skip
    """Return the position of each token, and where its first head of keys begins in the cache."""
    position = tl.load(positions + m, mask=m < count, other=0)
    row = tl.load(cache_rows + m, mask=m < count, other=0)
    page = tl.load(table + row * table_width + position // PAGE, mask=m < count, other=0).to(tl.int64)
    return position, (page * (KV_HEADS * PAGE) + position % PAGE) * HEAD_DIM


@triton.jit
def load_turns(rotations, position, n, QUERIES: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
               ROWS: tl.constexpr):  # fmt: skip
    """Return the cosine and the sine by which each pair of outputs is rotated: of no angle for values."""
    pair, _ = tl.split(n.reshape(ROWS // 2, 2))
    turn = rotations + position[:, None] * HEAD_DIM + (pair % HEAD_DIM)[None, :]
    turned = (position >= 0)[:, None] & (pair < QUERIES + KV_HEADS * HEAD_DIM)[None, :]
    return tl.load(turn, mask=turned, other=1.0), tl.load(turn + 1, mask=turned, other=0.0)


@triton.jit
def rotated(y, cosine, sine, TOKENS: tl.constexpr, ROWS: tl.constexpr):
    """Rotate each pair of outputs."""
    first, second = tl.split(y.reshape(TOKENS, ROWS // 2, 2))
    return tl.join(first * cosine - second * sine, second * cosine + first * sine).reshape(TOKENS, ROWS)


@triton.jit
def store_projected(y, m, n, count, outputs, queries, keys, values, slot, QUERIES: tl.constexpr,
                    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr):  # fmt: skip
    """Store queries, and put keys and values into the cache."""
    keys_size: tl.constexpr = KV_HEADS * HEAD_DIM
    inside_m = (m < count)[:, None]
    is_query = inside_m & (n < QUERIES)[None, :]
    tl.store(queries + m[:, None] * QUERIES + n[None, :], y.to(queries.dtype.element_ty), mask=is_query)
    of_kind = n - QUERIES
    is_key = (of_kind >= 0) & (of_kind < keys_size)
    is_value = (of_kind >= keys_size) & (n < outputs)
    inner = tl.where(is_key, of_kind, of_kind - keys_size)
    place = slot[:, None] + ((inner // HEAD_DIM) * (PAGE * HEAD_DIM) + inner % HEAD_DIM)[None, :]
    kept = y.to(keys.dtype.element_ty)
    tl.store(keys + place, kept, mask=inside_m & is_key[None, :])
    tl.store(values + place, kept, mask=inside_m & is_value[None, :])


@triton.jit
def order_of(logits, n):
    """Return an int64 for each logit: larger for a larger logit, and of equal ones for the first."""
    bits = logits.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (2147483647 - n).to(tl.int64)

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
def spread(vector, BITS: tl.constexpr, GROUP: tl.constexpr, EXACT: tl.constexpr):
    """Return a vector as the words of a matrix meet it, for :func:`times_vector`.

    For whole numbers of 8 or 4 bits that is one vector for each number of a word, or with ``EXACT`` unset one for each
    pair of them, in fp16. The latter come with the power of two by which a result must be multiplied, and for 4 bits
    with what each group of inputs has too much.
    """
    if BITS == 0:
        return (vector,)
    elif EXACT:
        even, odd = halves(vector)
        x04, x26 = halves(even)
        x15, x37 = halves(odd)
        if BITS == 8:
            return (x04, x15, x26, x37)
        else:
            x0, x4 = halves(x04)
            x1, x5 = halves(x15)
            x2, x6 = halves(x26)
            x3, x7 = halves(x37)
            return (x0, x1, x2, x3, x4, x5, x6, x7)
    else:
        # The largest is near 2**15 for 4 bits, whose numbers are below 2**-20; near 2**5 for 8, so that sums fit.
        exponent = (tl.max(tl.abs(vector), 0).to(tl.int32, bitcast=True) >> 23) & 0xFF
        scale = tl.minimum((268 if BITS == 4 else 258) - exponent, 253)
        rounded = (vector * (scale << 23).to(tl.float32, bitcast=True)).to(tl.float16)
        back = ((254 - scale) << 23).to(tl.float32, bitcast=True)
        if BITS == 8:
            even, odd = halves(rounded)
            x0, x2 = halves(even)
            x1, x3 = halves(odd)
            return (pack(x0, x2), pack(x1, x3), back)
        else:
            too_much = tl.sum(rounded.to(tl.float32).reshape(vector.shape[0] // GROUP, GROUP), 1) * (8 * 2.0**-24)
            low, high = halves(rounded)
            x0145, x2367 = halves(pack(low, high))
            x01, x45 = halves(x0145)
            x23, x67 = halves(x2367)
            return (x01, sixteenth(x23), x45, sixteenth(x67), too_much, back * 2.0**24)


@triton.jit
def pack(low, high):
    """Return pairs of numbers in fp16 as int32."""
    low, high = low.to(tl.uint16, bitcast=True).to(tl.uint32), high.to(tl.uint16, bitcast=True).to(tl.uint32)
    return (low | (high << 16)).to(tl.int32, bitcast=True)


@triton.jit
def sixteenth(pairs):
    """Return a sixteenth of pairs in fp16: their numbers meet places of a word that read 16 times too large."""
    return tl.inline_asm_elementwise(
        "mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [pairs, 0x2C002C00], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def times_vector(tile, x, scales, rows, outputs, groups, first_group, ROWS: tl.constexpr, INPUTS: tl.constexpr,
                 BITS: tl.constexpr, GROUP: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """Multiply rows of a matrix by a vector: ``(rows,)`` in fp32. ``x`` is from :func:`spread`.

    With ``EXACT``, and for weights of the model's format, all of it is computed in fp32. Else few products of whole
    numbers and the vector are added up in fp16, two at a time, before the sum goes on in fp32.
    """
    if BITS == 0:
        return tl.sum(tile.to(tl.float32) * x[0][None, :], axis=1)
    elif BITS == 8:
        by = tl.load(scales + rows, mask=rows < outputs, other=0).to(tl.float32)
        if EXACT:
            return tl.sum(exact_sums(tile, x, BITS), axis=1) * by
        else:
            return tl.sum(sums_of_neighbours(pairs_of_8_bits(tile, x), ROWS, INPUTS // 4), axis=1) * (by * x[2])
    else:
        group = first_group + tl.arange(0, INPUTS // GROUP)
        there = (rows < outputs)[:, None] & (group < groups)[None, :]
        by = tl.load(scales + rows[:, None] * groups + group[None, :], mask=there, other=0).to(tl.float32)
        if EXACT:
            sums = exact_sums(tile, x, BITS)
            return tl.sum(tl.sum(sums.reshape(ROWS, INPUTS // GROUP, GROUP // 8), axis=2) * by, axis=1)
        else:
            sums = sums_of_neighbours(pairs_of_4_bits(tile, x), ROWS, INPUTS // 8)
            of_groups = tl.sum(sums.reshape(ROWS, INPUTS // GROUP, GROUP // 32), axis=2)
            return tl.sum((of_groups - x[4][None, :]) * by, axis=1) * x[5]


@triton.jit
def exact_sums(words, x, BITS: tl.constexpr):
    """Return each word's sum of products, in fp32."""
    sums = tl.zeros(words.shape, tl.float32)
    for place in tl.static_range(32 // BITS):
        if BITS == 8:
            numbers = (words << (24 - 8 * place)) >> 24
        else:
            numbers = ((words >> (place // 2 * 4 + place % 2 * 16)) & 0xF) - 8
        sums += numbers.to(tl.float32) * x[place][None, :]
    return sums


@triton.jit
def pairs_of_4_bits(words, x):
    """Return each word's sum of products as a pair in fp16, which are to be added: smaller by 2**24, and too large.

    To turn an integer into a float takes a processor longer than to multiply it. But the last ten bits of a number in
    fp16 whose exponent is zero are a whole number, of 2**-24: so there is nothing to be turned, and two of them are
    there for one operation. They are 0 to 15 in place of -8 to 7, and what that is too much is subtracted from the sum.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 pair, rest, sum;
        and.b32 pair, $1, 0x000F000F;
        mul.rn.f16x2 sum, pair, $2;
        and.b32 pair, $1, 0x00F000F0;
        fma.rn.f16x2 sum, pair, $3, sum;
        shr.u32 rest, $1, 8;
        and.b32 pair, rest, 0x000F000F;
        fma.rn.f16x2 sum, pair, $4, sum;
        and.b32 pair, rest, 0x00F000F0;
        fma.rn.f16x2 $0, pair, $5, sum;
        }
        """,
        "=r,r,r,r,r,r",
        [words, x[0][None, :], x[1][None, :], x[2][None, :], x[3][None, :]],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def pairs_of_8_bits(words, x):
    """Return each word's sum of products as a pair in fp16, which are to be added.

    With an exponent of 2**10 the last ten bits of a number in fp16 are a whole number. With its sign turned round, a
    byte is 128 + q: so that is 1024 + 128 + q, and one subtraction leaves q. One instruction cuts two bytes out and
    turns both round (``lop3``, by a table for ``(word & bytes) ^ as_float``).
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 pair, rest, sum, bytes, as_float, less;
        mov.b32 bytes, 0x00FF00FF;
        mov.b32 as_float, 0x64806480;
        mov.b32 less, 0xE480E480;
        lop3.b32 pair, $1, bytes, as_float, 0x6A;
        add.rn.f16x2 pair, pair, less;
        mul.rn.f16x2 sum, pair, $2;
        shr.u32 rest, $1, 8;
        lop3.b32 pair, rest, bytes, as_float, 0x6A;
        add.rn.f16x2 pair, pair, less;
        fma.rn.f16x2 $0, pair, $3, sum;
        }
        """,
        "=r,r,r,r",
        [words, x[0][None, :], x[1][None, :]],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def sums_of_neighbours(pairs, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Add up four neighbouring pairs in fp16, and the two numbers that come of it in fp32: ``(rows, words / 4)``."""
    first, second = tl.split(pairs.reshape(ROWS, WORDS // 2, 2))
    first, second = tl.split(added(first, second).reshape(ROWS, WORDS // 4, 2))
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b16 low, high;
        .reg .f32 one, other;
        mov.b32 {low, high}, $1;
        cvt.f32.f16 one, low;
        cvt.f32.f16 other, high;
        add.f32 $0, one, other;
        }
        """,
        "=r,r",
        [added(first, second)],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def added(first, second):
    """Add pairs in fp16."""
    return tl.inline_asm_elementwise(
        "add.rn.f16x2 $0, $1, $2;", "=r,r,r", [first, second], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def embed(token, position, embedding, position_embedding, hidden, column, WIDTH: tl.constexpr,
          POSITIONS: tl.constexpr):  # fmt: skip
    """Write some columns of the first hidden state of a token."""
    inside = column < WIDTH
    x = tl.load(embedding + token * WIDTH + column, mask=inside).to(tl.float32)
    if POSITIONS:
        x += tl.load(position_embedding + position * WIDTH + column, mask=inside).to(tl.float32)
    tl.store(hidden + column, x, mask=inside)


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

"""Matrix-vector products (GEMV) with plain weights, or with 8 or 4-bit weights that are packed in int32 words."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def split_even_odd(vector):
    """Return the elements of a vector at even and at odd indices."""
    return tl.split(vector.reshape(vector.shape[0] // 2, 2))


@triton.jit
def interleave_for_packed_weights(vector, BITS: tl.constexpr, GROUP: tl.constexpr, EXACT: tl.constexpr):
    """Return a vector in the order in which packed words hold the weights, as a tuple for :func:`gemv`.

    Word ``w`` of a row holds the weights of inputs ``8w`` to ``8w + 7`` (4 bits) or ``4w`` to ``4w + 3`` (8 bits). With
    ``EXACT`` the tuple has one vector for each position in a word. Otherwise it has one for each pair of positions, as
    two fp16 numbers in an int32, followed by the power of two that a result is multiplied by. For 4 bits a correction
    for each group of inputs stands before that, because :func:`multiply_int4_pairs` reads each weight 8 too large.
    """
    if BITS == 0:
        return (vector,)
    elif EXACT:
        even, odd = split_even_odd(vector)
        x04, x26 = split_even_odd(even)
        x15, x37 = split_even_odd(odd)
        if BITS == 8:
            return (x04, x15, x26, x37)
        else:
            x0, x4 = split_even_odd(x04)
            x1, x5 = split_even_odd(x15)
            x2, x6 = split_even_odd(x26)
            x3, x7 = split_even_odd(x37)
            return (x0, x1, x2, x3, x4, x5, x6, x7)
    else:
        # The largest is near 2**15 for 4 bits, whose numbers are below 2**-20; near 2**5 for 8, so that sums fit.
        exponent = (tl.max(tl.abs(vector), 0).to(tl.int32, bitcast=True) >> 23) & 0xFF
        scale = tl.minimum((268 if BITS == 4 else 258) - exponent, 253)
        rounded = (vector * (scale << 23).to(tl.float32, bitcast=True)).to(tl.float16)
        back = ((254 - scale) << 23).to(tl.float32, bitcast=True)
        if BITS == 8:
            even, odd = split_even_odd(rounded)
            x0, x2 = split_even_odd(even)
            x1, x3 = split_even_odd(odd)
            return (pack(x0, x2), pack(x1, x3), back)
        else:
            too_much = tl.sum(rounded.to(tl.float32).reshape(vector.shape[0] // GROUP, GROUP), 1) * (8 * 2.0**-24)
            low, high = split_even_odd(rounded)
            x0145, x2367 = split_even_odd(pack(low, high))
            x01, x45 = split_even_odd(x0145)
            x23, x67 = split_even_odd(x2367)
            return (x01, divide_by_16(x23), x45, divide_by_16(x67), too_much, back * 2.0**24)


@triton.jit
def pack(low, high):
    """Return pairs of fp16 numbers, each pair as an int32."""
    low, high = low.to(tl.uint16, bitcast=True).to(tl.uint32), high.to(tl.uint16, bitcast=True).to(tl.uint32)
    return (low | (high << 16)).to(tl.int32, bitcast=True)


@triton.jit
def divide_by_16(pairs):
    """Divide pairs of fp16 numbers by 16, for the positions of a word that are read 16 times too large."""
    return tl.inline_asm_elementwise(
        "mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [pairs, 0x2C002C00], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def gemv(
    tile,  # (ROWS, words): rows of the matrix as they are stored
    x,  # tuple from interleave_for_packed_weights
    scales,  # (outputs, groups), read for quantised weights
    rows,  # (ROWS,): rows of the matrix in the tile
    outputs,
    groups,  # scales of a row
    first_group,  # group of the tile's first column
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,  # numbers of a row in the tile
    BITS: tl.constexpr,  # 8, 4, or 0 for weights in the model's format
    GROUP: tl.constexpr,  # inputs that share a scale, with 4 bits
    EXACT: tl.constexpr,
):
    """Multiply rows of a matrix by a vector: ``(ROWS,)`` in fp32.

    With ``EXACT``, and for weights in the model's format, all of it is computed in fp32. Otherwise sums of 16 products
    for 4 bits, or 8 for 8 bits, are computed in fp16, two at a time, and added up in fp32.
    """
    if BITS == 0:
        return tl.sum(tile.to(tl.float32) * x[0][None, :], axis=1)
    elif BITS == 8:
        by = tl.load(scales + rows, mask=rows < outputs, other=0).to(tl.float32)
        if EXACT:
            return tl.sum(multiply_exact(tile, x, BITS), axis=1) * by
        else:
            return tl.sum(sum_neighbours(multiply_int8_pairs(tile, x), ROWS, INPUTS // 4), axis=1) * (by * x[2])
    else:
        group = first_group + tl.arange(0, INPUTS // GROUP)
        there = (rows < outputs)[:, None] & (group < groups)[None, :]
        by = tl.load(scales + rows[:, None] * groups + group[None, :], mask=there, other=0).to(tl.float32)
        if EXACT:
            sums = multiply_exact(tile, x, BITS)
            return tl.sum(tl.sum(sums.reshape(ROWS, INPUTS // GROUP, GROUP // 8), axis=2) * by, axis=1)
        else:
            sums = sum_neighbours(multiply_int4_pairs(tile, x), ROWS, INPUTS // 8)
            of_groups = tl.sum(sums.reshape(ROWS, INPUTS // GROUP, GROUP // 32), axis=2)
            return tl.sum((of_groups - x[4][None, :]) * by, axis=1) * x[5]


@triton.jit
def multiply_exact(words, x, BITS: tl.constexpr):
    """Return the sum of products of each word, in fp32."""
    sums = tl.zeros(words.shape, tl.float32)
    for place in tl.static_range(32 // BITS):
        if BITS == 8:
            numbers = (words << (24 - 8 * place)) >> 24
        else:
            numbers = ((words >> (place // 2 * 4 + place % 2 * 16)) & 0xF) - 8
        sums += numbers.to(tl.float32) * x[place][None, :]
    return sums


@triton.jit
def multiply_int4_pairs(words, x):
    """Return the sum of products of each word as a pair of fp16 numbers to be added, scaled by 2**-24.

    Converting an integer to a float takes a multiprocessor longer than multiplying it. The last ten bits of an fp16
    number whose exponent is zero are an integer times 2**-24, so masked bits need no conversion, and one instruction
    multiplies two of them. They are 0 to 15 instead of -8 to 7; :func:`gemv` subtracts the difference from the sum.
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
def multiply_int8_pairs(words, x):
    """Return the sum of products of each word as a pair of fp16 numbers to be added.

    With an exponent of 2**10 the last ten bits of an fp16 number are an integer. With its sign bit flipped, a byte is
    128 + q, so the number is 1024 + 128 + q, and one subtraction leaves q. One instruction masks two bytes and flips
    both signs (``lop3``, with a table for ``(word & bytes) ^ as_float``).
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
def sum_neighbours(pairs, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Add four neighbouring pairs in fp16, then the two numbers of the sum in fp32: ``(ROWS, WORDS / 4)``."""
    first, second = tl.split(pairs.reshape(ROWS, WORDS // 2, 2))
    first, second = tl.split(add_fp16_pairs(first, second).reshape(ROWS, WORDS // 4, 2))
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
        [add_fp16_pairs(first, second)],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def add_fp16_pairs(first, second):
    """Add pairs of fp16 numbers."""
    return tl.inline_asm_elementwise(
        "add.rn.f16x2 $0, $1, $2;", "=r,r,r", [first, second], dtype=tl.int32, is_pure=True, pack=1
    )

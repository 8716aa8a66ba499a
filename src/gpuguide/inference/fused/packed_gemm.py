"""Unpacking of int8 and int4 weights for tensor cores, in registers.

Tensor cores multiply numbers of one format, so integers are converted to the model's format first. Converting them one
by one would take longer than reading them. Instead, one instruction puts two integers into the mantissas of two
16-bit numbers, and another subtracts what these have too much.

A word holds its weights in pairs whose members are 16 bits apart. There are two orders in which a tile is unpacked:

* Pair by pair: the first pair of every word, then the second of every word, and so on. A thread unpacks all of a word,
  and no unpacked number has to change threads. The sum of a matmul does not depend on the order of its terms, so
  :func:`order_as_unpacked` gives the tokens' inputs the same order.
* As the inputs lie, for 4 bits: a thread needs one pair of each word, and four threads read the same words. The inputs
  stay as they are, so Hopper's tensor cores (``wgmma``) read them in shared memory where they arrived. In the other
  order, every block of them would go through registers and into shared memory again before the matmul can start.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unpack(
    words,  # (ROWS, WORDS), int32
    like: tl.constexpr,  # dtype of the result
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    BITS: tl.constexpr,  # 8 or 4
    EXACT: tl.constexpr,  # whether to convert integers one by one, for fp32 and for the interpreter
    IN_ORDER: tl.constexpr = False,  # with 4 bits: as the inputs lie, otherwise pair by pair
):
    """Unpack the integers of a tile, without their scales: ``(ROWS, WORDS * 32 / BITS)``."""
    PAIRS: tl.constexpr = 16 // BITS
    shift = BITS * tl.arange(0, PAIRS)
    if IN_ORDER:
        pairs = (words[:, :, None] >> shift[None, None, :]).reshape(ROWS, PAIRS * WORDS)
    else:
        pairs = (words[:, None, :] >> shift[None, :, None]).reshape(ROWS, PAIRS * WORDS)
    if EXACT:
        low, high = lowest_integer(pairs, BITS).to(like), lowest_integer(pairs >> 16, BITS).to(like)
    else:
        numbers = convert_pairs(pairs, like, BITS)
        low = numbers.to(tl.int16).to(like, bitcast=True)
        high = (numbers >> 16).to(tl.int16).to(like, bitcast=True)
    return tl.join(low, high).reshape(ROWS, 2 * PAIRS * WORDS)


@triton.jit
def order_as_unpacked(
    values,  # (TOKENS, WORDS * 32 / BITS): inputs of tokens
    TOKENS: tl.constexpr,
    WORDS: tl.constexpr,  # words that hold the weights of these inputs
    BITS: tl.constexpr,
):
    """Reorder the inputs of tokens as :func:`unpack` orders weights pair by pair."""
    if BITS == 4:  # inputs 2p and 2p + 1 of a word are pair p
        pairs_first = values.reshape(TOKENS, WORDS, 4, 2).permute(0, 2, 1, 3)
    else:  # inputs p and p + 2 of a word are pair p
        pairs_first = values.reshape(TOKENS, WORDS, 2, 2).permute(0, 3, 1, 2)
    return pairs_first.reshape(TOKENS, WORDS * 32 // BITS)


@triton.jit
def lowest_integer(words, BITS: tl.constexpr):
    """Return the signed integer in the lowest bits of words."""
    if BITS == 4:
        return (words & 0xF) - 8
    else:
        return ((words & 0xFF) ^ 0x80) - 0x80


@triton.jit
def convert_pairs(pairs, like: tl.constexpr, BITS: tl.constexpr):
    """Convert the integers in the lowest bits of both halves of words to 16-bit numbers, two in an int32.

    A 16-bit number with a fitting exponent (``MAGIC``: 128 in bf16, 1024 in fp16) has an integer of up to seven bits as
    its last bits. A weight of 4 bits is stored as 8 + q, so 128 + 8 is subtracted. A weight of 8 bits is its last seven
    bits minus 128 times its sign bit: one number is made of each, and their difference is q. All of it is exact.
    """
    MAGIC: tl.constexpr = 0x43004300 if like == tl.bfloat16 else 0x64006400
    if BITS == 4:
        return subtract_pairs(mask_and_set(pairs, 0x000F000F, MAGIC), MAGIC + 0x00080008, like)
    else:
        last_bits, sign = mask_and_set(pairs, 0x007F007F, MAGIC), mask_and_set(pairs, 0x00800080, MAGIC)
        return subtract_pairs(last_bits, sign, like)


@triton.jit
def mask_and_set(words, mask, bits):
    """Return ``(words & mask) | bits`` by one instruction, where the compiler would use two."""
    return tl.inline_asm_elementwise(
        "lop3.b32 $0, $1, $2, $3, 0xEA;", "=r,r,r,r", [words, mask, bits], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def subtract_pairs(first, second, like: tl.constexpr):
    """Subtract pairs of 16-bit numbers of the type ``like``, each pair in an int32."""
    if like == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "sub.rn.bf16x2 $0, $1, $2;", "=r,r,r", [first, second], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        return tl.inline_asm_elementwise(
            "sub.rn.f16x2 $0, $1, $2;", "=r,r,r", [first, second], dtype=tl.int32, is_pure=True, pack=1
        )

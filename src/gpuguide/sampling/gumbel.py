"""Gumbel-max sampling on a GPU: random words and perturbed logits, as device functions of the sampler's kernels.

Most of the work for a perturbed logit are the ten rounds of Philox. Four things keep it small: one evaluation gives the
words of four neighbouring tokens, one multiplication gives both halves of a product of two words, the instruction for a
logarithm to base 2 replaces a function of twenty instructions, and a short series replaces it where it would lose
digits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpuguide.logits.fused import CAN_HIDE, LOG2_E

INFINITY = tl.constexpr(float("inf"))
LARGEST = tl.constexpr(3.4028234663852886e38)
LN_2 = tl.constexpr(0.6931471805599453)
LAST_COLUMN = tl.constexpr(2147483647)
ROUNDS = tl.constexpr(10)
MULTIPLIERS = tl.constexpr((0xD2511F53, 0xCD9E8D57))
KEY_INCREMENTS = tl.constexpr((0x9E3779B9, 0xBB67AE85))


@triton.jit
def wide_product(word, by: tl.constexpr):
    """Return the upper and the lower 32 bits of the product of two words, for which there is one instruction."""
    product = word.to(tl.uint64) * by
    return (product >> 32).to(tl.uint32), product.to(tl.uint32)


@triton.jit
def four_words(seed, counter, step):
    """Return the four words of Philox for each counter."""
    key_0, key_1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    counter_0 = counter.to(tl.uint32)
    counter_3 = counter_0 * 0
    counter_1, counter_2 = counter_3 + step.to(tl.uint32), counter_3 + (step >> 32).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        high_0, low_0 = wide_product(counter_0, MULTIPLIERS[0])
        high_2, low_2 = wide_product(counter_2, MULTIPLIERS[1])
        counter_0, counter_1 = high_2 ^ counter_1 ^ key_0, low_2
        counter_2, counter_3 = high_0 ^ counter_3 ^ key_1, low_0
        key_0 = (key_0 + KEY_INCREMENTS[0]).to(tl.uint32)
        key_1 = (key_1 + KEY_INCREMENTS[1]).to(tl.uint32)
    return counter_0, counter_1, counter_2, counter_3


@triton.jit
def random_words(seed, columns, step):
    """Return a random word for each token, as :func:`gpuguide.sampling.reference.random_words` does."""
    word_0, word_1, word_2, word_3 = four_words(seed, columns // 4, step)
    is_odd = columns % 2 == 1
    return tl.where(columns % 4 < 2, tl.where(is_odd, word_1, word_0), tl.where(is_odd, word_3, word_2))


@triton.jit
def words_of_neighbours(seed, quarters, step):
    """Return the random words of four neighbours each, ``(..., 2, 2)``; ``quarters`` are their tokens divided by four.

    One evaluation of Philox has the words of all four, which :func:`random_words` would repeat for each.
    """
    word_0, word_1, word_2, word_3 = four_words(seed, quarters, step)
    return tl.join(tl.join(word_0, word_2), tl.join(word_1, word_3))


@triton.jit
def approximate_log2(x):
    """Return the logarithm to base 2 by the processor's instruction, with an error of 2⁻²² near one."""
    if CAN_HIDE:
        logarithm = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        logarithm = tl.log2(x)
    return logarithm


@triton.jit
def approximate_exp2(x):
    """Return the power of 2 by the processor's instruction; a result below the normal numbers becomes zero."""
    if CAN_HIDE:
        power = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        power = tl.exp2(x)
    return power


@triton.jit
def exponential_variates(words):
    """Map random words to exponentially distributed numbers of mean one: ``-log(1 - u)``, with ``u`` in (0, 1)."""
    u = tl.minimum((words.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)  # so that the result is finite
    # small variates win, and the logarithm of a number near one has lost their digits: the series has them
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6))))))
    return tl.where(u < 1 / 16, series, -LN_2 * approximate_log2(1 - u))


@triton.jit
def perturb_logits(values, columns, kept, highest, scale, seed, step):
    """Return the perturbed logits (logit minus log of an exponential variate, to base 2), ``-inf`` where not kept."""
    return perturb_by_words(values, random_words(seed, columns, step), kept, highest, scale)


@triton.jit
def perturb_by_words(values, words, kept, highest, scale):
    """Perturb logits by given random words; see :func:`perturb_logits`."""
    return tl.where(kept, (values - highest) * scale - approximate_log2(exponential_variates(words)), -INFINITY)


@triton.jit
def log2_scale(temperature):
    """Return ``log2(e) / temperature``, the factor of differences of logits, limited to a finite number."""
    return tl.minimum(((1 / temperature) * LOG2_E).to(tl.float32), LARGEST)


@triton.jit
def first_argmax(perturbed, columns, best):
    """Return the lowest column with the best perturbed logit."""
    return tl.min(tl.where(perturbed == best, columns, LAST_COLUMN), 0)


@triton.jit
def keep_better(best, winner, perturbed, columns):
    """Return, lane by lane, the better of two perturbed logits and its token; of equals, the lower token."""
    is_better = (perturbed > best) | ((perturbed == best) & (columns < winner))
    return tl.where(is_better, perturbed, best), tl.where(is_better, columns, winner)

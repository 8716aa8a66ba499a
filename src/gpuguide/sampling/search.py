"""Finding what top-k and top-p keep, without a sort: the parts of the sampler's kernels that search a row.

To Triton a larger float is only a larger whole number (:func:`order_of`), so a search can halve the floats between
two bounds. Candidates are found through the largest logit of each group; where there are too many of them, a pivot
closes in on the smallest logit kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

INFINITY = tl.constexpr(float("inf"))
HALVINGS = tl.constexpr(32)
LOWEST = tl.constexpr(-3.4028234663852886e38)


# --- floats in order ------------------------------------------------------------------------------------


@triton.jit
def order_of(x):
    """Return an int32 for a float32, such that larger floats have larger ones; both zeros have zero."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@triton.jit
def float_at(order):
    """Return the float32 of an order."""
    magnitude = tl.abs(order).to(tl.float32, bitcast=True)
    return tl.where(order < 0, -magnitude, magnitude)


@triton.jit
def middle_of(low, high):
    """Return the whole number in the middle, rounded down, where a sum could overflow."""
    return (low >> 1) + (high >> 1) + (low & high & 1)


# --- the first kernel ------------------------------------------------------------------------------------


@triton.jit
def group_maxima_kernel(
    logits,  # (rows, vocab)
    maxima,  # (rows, groups), fp32
    row_stride,
    vocab_size,
    groups,
    GROUP: tl.constexpr,
    GROUPS_AT_ONCE: tl.constexpr,
):
    """Store the largest logit of each group of a piece of a row, ``+inf`` if there is a NaN among them."""
    row = tl.program_id(0).to(tl.int64)  # an offset may exceed 32 bits
    group = tl.program_id(1) * GROUPS_AT_ONCE + tl.arange(0, GROUPS_AT_ONCE)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(logits + row * row_stride + column, mask=column < vocab_size, other=-INFINITY).to(tl.float32)
    x = tl.where(x == x, x, INFINITY)
    tl.store(maxima + row * groups + group, tl.max(x, 1), mask=group < groups)


# --- candidates ------------------------------------------------------------------------------------------


@triton.jit
def bound_below_top_k(maxima, highest, k, MOST: tl.constexpr):
    """Return a number that the k largest logits reach, and how many groups have one that does.

    These are at most MOST, unless maxima tie. With fewer groups than k the number is the lowest there is.
    """
    reached = tl.sum((maxima > -INFINITY).to(tl.int32), 0)
    smallest = tl.min(tl.where(maxima > -INFINITY, maxima, highest), 0)
    low = order_of(tl.where(reached >= k, smallest, LOWEST))
    high = order_of(highest) + 1
    while (reached > MOST) & (low + 1 < high):
        middle = middle_of(low, high)
        reach_it = tl.sum((maxima >= float_at(middle)).to(tl.int32), 0)
        if reach_it >= k:
            low = middle
            reached = reach_it
        else:
            high = middle
    return float_at(low), reached


@triton.jit
def gather_candidates(logits, vocab_size, chosen, candidates, maxima, bound, reached, GROUP: tl.constexpr,
                      GROUPS: tl.constexpr, CAPACITY: tl.constexpr):  # fmt: skip
    """Write the columns of the logits that reach the bound, as far as there is room, and return how many do."""
    is_chosen = maxima >= bound
    tl.store(chosen + tl.cumsum(is_chosen.to(tl.int32), 0) - 1, tl.arange(0, GROUPS), mask=is_chosen)
    tl.debug_barrier()  # what one thread wrote is read by others
    AT_ONCE: tl.constexpr = 8192
    found = tl.full((), 0, tl.int32)
    for start in range(0, reached * GROUP, AT_ONCE):
        number = start + tl.arange(0, AT_ONCE)
        inside = number < reached * GROUP
        column = tl.load(chosen + number // GROUP, mask=inside, other=0) * GROUP + number % GROUP
        x = tl.load(logits + column, mask=inside & (column < vocab_size), other=-INFINITY).to(tl.float32)
        reaches = x >= bound
        place = found + tl.cumsum(reaches.to(tl.int32), 0) - 1
        tl.store(candidates + place, column, mask=reaches & (place < CAPACITY))
        found += tl.sum(reaches.to(tl.int32), 0)
    tl.debug_barrier()
    return found


@triton.jit
def keep_of_candidates(values, weights, inside, others, found, k, p, CAPACITY: tl.constexpr):
    """Return which candidates top-k and top-p keep. ``others`` is room for their values and weights in memory."""
    here = tl.arange(0, CAPACITY)
    tl.store(others + here, values, mask=inside)
    tl.store(others + CAPACITY + here, weights, mask=inside)
    tl.debug_barrier()
    larger = tl.zeros([CAPACITY], tl.int32)
    before = tl.zeros([CAPACITY], tl.float64)
    AT_ONCE: tl.constexpr = 16
    for start in range(0, found, AT_ONCE):
        other = start + tl.arange(0, AT_ONCE)
        value = tl.load(others + other, mask=other < found, other=-INFINITY)
        weight = tl.load(others + CAPACITY + other, mask=other < found, other=0.0)
        is_larger = value[None, :] > values[:, None]
        larger += tl.sum(is_larger.to(tl.int32), 1)
        before += tl.sum(tl.where(is_larger, weight[None, :], 0.0), 1)
    kept = inside & (larger < k)
    limit = p * tl.sum(tl.where(kept, weights, 0.0), 0)
    return kept & (before < tl.where(p == 1, INFINITY, limit))  # a weight can vanish in the sum


# --- the long way ----------------------------------------------------------------------------------------


@triton.jit
def above(logits, vocab_size, highest, scale, pivot, COUNTED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Read a row. Return what lies above a pivot, counted or weighed, and the logits next to it on either side."""
    measure = tl.zeros([BLOCK], tl.float32)
    over = tl.full([BLOCK], INFINITY, tl.float32)
    under = tl.full([BLOCK], -INFINITY, tl.float32)
    for start in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits + column, mask=column < vocab_size, other=-INFINITY).to(tl.float32)
        is_over = x > pivot
        if COUNTED:
            measure += is_over.to(tl.float32)
        else:
            measure += tl.where(is_over, tl.exp2((x - highest) * scale), 0.0)
        over = tl.minimum(over, tl.where(is_over, x, INFINITY))
        under = tl.maximum(under, tl.where(is_over, -INFINITY, x))
    return tl.sum(measure.to(tl.float64), 0), tl.min(over, 0), tl.max(under, 0)


@triton.jit
def smallest_kept(
    logits, vocab_size, highest, scale, floor, limit, COUNTED: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    """Return the smallest logit, not below ``floor``, with less than ``limit`` above it: so many, or so much weight.

    ``floor`` and the highest logit are logits of the row. ``low`` is the order of a number that is too small, ``high``
    that of a logit that is kept. The pivot halves the distance between the two; where this takes too long, because
    logits are spread very unevenly, it halves the number of floats between them instead.
    """
    low = order_of(floor) - 1
    high = order_of(highest)
    rounds = 0
    while low + 1 < high:
        middle = order_of(float_at(low) * 0.5 + float_at(high) * 0.5)
        if (middle <= low) | (middle >= high) | (rounds >= HALVINGS):
            middle = middle_of(low, high)
        rounds += 1
        measure, over, under = above(logits, vocab_size, highest, scale, float_at(middle), COUNTED, BLOCK, STAGES)
        if measure >= limit:
            low = middle
            if over == float_at(high):  # nothing lies between
                low = high - 1
        elif under >= floor:
            high = order_of(under)
        else:  # there is no logit from the floor to the pivot
            high = order_of(over)
            low = high - 1
    return float_at(high)


@triton.jit
def next_float_at_least(number):
    """Return the smallest float32 that is not below a float64."""
    rounded = number.to(tl.float32)
    return tl.where(rounded.to(tl.float64) < number, float_at(order_of(rounded) + 1), rounded)

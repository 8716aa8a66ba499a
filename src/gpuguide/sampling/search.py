"""Search for the tokens that top-k and top-p keep, without a sort: device functions of the sampler's kernels.

The bits of floats can be mapped to integers of the same order (:func:`float_order`), so a search can bisect the floats
between two bounds. Candidates are found by the largest logit of each group; where there are too many of them, a pivot
converges to the smallest logit kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gpuguide.sampling.gumbel import approximate_exp2

INFINITY = tl.constexpr(float("inf"))
HALVINGS = tl.constexpr(32)
LOWEST = tl.constexpr(-3.4028234663852886e38)


# --- floats in order ------------------------------------------------------------------------------------


@triton.jit
def float_order(x):
    """Return an int32 for a float32, such that larger floats have larger ones; both zeros have zero."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@triton.jit
def float_from_order(order):
    """Return the float32 of an order."""
    magnitude = tl.abs(order).to(tl.float32, bitcast=True)
    return tl.where(order < 0, -magnitude, magnitude)


@triton.jit
def midpoint(low, high):
    """Return the midpoint of two integers, rounded down, without overflow."""
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
    GROUPS_PER_PROGRAM: tl.constexpr,
):
    """Store the largest logit of each group of a piece of a row, ``+inf`` if there is a NaN among them."""
    row = tl.program_id(0).to(tl.int64)  # an offset may exceed 32 bits
    group = tl.program_id(1) * GROUPS_PER_PROGRAM + tl.arange(0, GROUPS_PER_PROGRAM)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(logits + row * row_stride + column, mask=column < vocab_size, other=-INFINITY).to(tl.float32)
    x = tl.where(x == x, x, INFINITY)
    tl.store(maxima + row * groups + group, tl.max(x, 1), mask=group < groups)


# --- candidates ------------------------------------------------------------------------------------------


@triton.jit
def find_top_k_bound(maxima, highest, k, MOST: tl.constexpr):
    """Return a lower bound of the k largest logits, and the number of groups whose maximum reaches it.

    These are at most MOST, unless maxima tie. With fewer groups than k the bound is the lowest number.
    """
    reached = tl.sum((maxima > -INFINITY).to(tl.int32), 0)
    smallest = tl.min(tl.where(maxima > -INFINITY, maxima, highest), 0)
    low = float_order(tl.where(reached >= k, smallest, LOWEST))
    high = float_order(highest) + 1
    while (reached > MOST) & (low + 1 < high):
        middle = midpoint(low, high)
        count_at_middle = tl.sum((maxima >= float_from_order(middle)).to(tl.int32), 0)
        if count_at_middle >= k:
            low = middle
            reached = count_at_middle
        else:
            high = middle
    return float_from_order(low), reached


@triton.jit
def gather_candidates(
    logits,  # (vocab,), of one row
    vocab_size,
    chosen,  # (MOST,), int32, written: groups whose maximum reaches the bound
    candidates,  # (CAPACITY,), int32, written: columns of the candidates
    maxima,  # (GROUPS,)
    bound,
    reached,  # number of groups whose maximum reaches the bound
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Write the columns of the logits that reach the bound, at most CAPACITY, and return how many do."""
    is_chosen = maxima >= bound
    tl.store(chosen + tl.cumsum(is_chosen.to(tl.int32), 0) - 1, tl.arange(0, GROUPS), mask=is_chosen)
    tl.debug_barrier()  # what one thread wrote is read by others
    CHUNK: tl.constexpr = 8192
    found = tl.full((), 0, tl.int32)
    for start in range(0, reached * GROUP, CHUNK):
        number = start + tl.arange(0, CHUNK)
        inside = number < reached * GROUP
        column = tl.load(chosen + number // GROUP, mask=inside, other=0) * GROUP + number % GROUP
        x = tl.load(logits + column, mask=inside & (column < vocab_size), other=-INFINITY).to(tl.float32)
        reaches = x >= bound
        position = found + tl.cumsum(reaches.to(tl.int32), 0) - 1
        tl.store(candidates + position, column, mask=reaches & (position < CAPACITY))
        found += tl.sum(reaches.to(tl.int32), 0)
    tl.debug_barrier()
    return found


@triton.jit
def mask_candidates(values, weights, inside, others, found, k, p, CAPACITY: tl.constexpr):
    """Return which candidates top-k and top-p keep. ``others`` is a workspace for their values and weights."""
    here = tl.arange(0, CAPACITY)
    tl.store(others + here, values, mask=inside)
    tl.store(others + CAPACITY + here, weights, mask=inside)
    tl.debug_barrier()
    larger = tl.zeros([CAPACITY], tl.int32)
    before = tl.zeros([CAPACITY], tl.float64)
    CHUNK: tl.constexpr = 16
    for start in range(0, found, CHUNK):
        other = start + tl.arange(0, CHUNK)
        value = tl.load(others + other, mask=other < found, other=-INFINITY)
        weight = tl.load(others + CAPACITY + other, mask=other < found, other=0.0)
        is_larger = value[None, :] > values[:, None]
        larger += tl.sum(is_larger.to(tl.int32), 1)
        before += tl.sum(tl.where(is_larger, weight[None, :], 0.0), 1)
    kept = inside & (larger < k)
    limit = p * tl.sum(tl.where(kept, weights, 0.0), 0)
    return kept & (before < tl.where(p == 1, INFINITY, limit))  # a weight can vanish in the sum


# --- repeated passes over a row -------------------------------------------------------------------------


@triton.jit
def measure_above(
    logits, vocab_size, highest, scale, pivot, COUNT: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    """Return the count or the weight of a row's logits above a pivot, and the next logits above and below it."""
    measure = tl.zeros([BLOCK], tl.float32)
    over = tl.full([BLOCK], INFINITY, tl.float32)
    under = tl.full([BLOCK], -INFINITY, tl.float32)
    for start in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits + column, mask=column < vocab_size, other=-INFINITY).to(tl.float32)
        is_over = x > pivot
        if COUNT:
            measure += is_over.to(tl.float32)
        else:
            measure += tl.where(is_over, tl.exp2((x - highest) * scale), 0.0)
        over = tl.minimum(over, tl.where(is_over, x, INFINITY))
        under = tl.maximum(under, tl.where(is_over, -INFINITY, x))
    return tl.sum(measure.to(tl.float64), 0), tl.min(over, 0), tl.max(under, 0)


@triton.jit
def find_threshold(
    logits, vocab_size, highest, scale, floor, limit, COUNT: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    """Return the smallest logit, not below ``floor``, with less than ``limit`` above it, in count or weight.

    ``floor`` and the highest logit are logits of the row. ``low`` is the order of a number that is too small, ``high``
    that of a logit that is kept. The pivot halves the distance between the two; where this takes too long, because
    logits are spread very unevenly, it halves the number of floats between them instead.
    """
    low = float_order(floor) - 1
    high = float_order(highest)
    rounds = 0
    while low + 1 < high:
        middle = float_order(float_from_order(low) * 0.5 + float_from_order(high) * 0.5)
        if (middle <= low) | (middle >= high) | (rounds >= HALVINGS):
            middle = midpoint(low, high)
        rounds += 1
        measure, over, under = measure_above(
            logits, vocab_size, highest, scale, float_from_order(middle), COUNT, BLOCK, STAGES
        )
        if measure >= limit:
            low = middle
            if over == float_from_order(high):  # no logit between
                low = high - 1
        elif under >= floor:
            high = float_order(under)
        else:  # there is no logit from the floor to the pivot
            high = float_order(over)
            low = high - 1
    return float_from_order(high)


@triton.jit
def count_ones(x):
    """Return the number of ones among the bits of each int32. The compiler knows this sum, and has an instruction."""
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def find_smallest_kept(values, weights, mass, limit, others, highest, scale, PAIRS: tl.constexpr):
    """Return the smallest of the values with less than ``limit`` above it, in weight; see :func:`find_threshold`.

    ``values`` are in registers, ``-inf`` where there are none. All their weights together, ``mass``, reach the limit.
    Two pivots enclose the point where the sum should cross the limit if it grew evenly from ``low`` to ``high``, and
    every other time they enclose the middle, in case it does not. When few values are left between, all pairs of them
    are compared, in the workspace ``others``.
    """
    low = float_order(tl.min(tl.where(values > -INFINITY, values, INFINITY), 0)) - 1
    high = float_order(tl.max(values, 0))
    above_low, above_high = mass, mass * 0
    left = tl.sum((values > -INFINITY).to(tl.int32), 0)
    rounds = 0
    while (left > PAIRS) & (low + 1 < high):
        bottom, top = float_from_order(low), float_from_order(high)
        is_even = (rounds & 1) == 0
        share = tl.where(is_even, (above_low - limit) / (above_low - above_high), 0.5)
        half = tl.where(is_even, 0.04, 0.2)
        first = float_order(bottom + (top - bottom) * tl.maximum(share - half, 0.01))
        second = float_order(bottom + (top - bottom) * tl.minimum(share + half, 0.99))
        if (first <= low) | (second <= first) | (second >= high) | (rounds >= HALVINGS):
            first = midpoint(low, high)
            second = first
        rounds += 1
        above_first = tl.sum(tl.where(values > float_from_order(first), weights, 0.0), 0)
        above_second = tl.sum(tl.where(values > float_from_order(second), weights, 0.0), 0)
        if above_second >= limit:
            low = second
            above_low = above_second
        elif above_first >= limit:
            low = first
            high = second
            above_low = above_first
            above_high = above_second
        else:
            high = first
            above_high = above_first
        is_between = (values > float_from_order(low)) & (values <= float_from_order(high))
        left = tl.sum(is_between.to(tl.int32), 0)
    smallest = float_from_order(high)
    if left <= PAIRS:
        is_between = (values > float_from_order(low)) & (values <= smallest)
        tl.store(others + tl.cumsum(is_between.to(tl.int32), 0) - 1, values, mask=is_between)
        tl.debug_barrier()  # what one thread wrote is read by others
        place = tl.arange(0, PAIRS)
        few = tl.load(others + place, mask=place < left, other=-INFINITY)
        before = tl.zeros([PAIRS], tl.float32)
        CHUNK: tl.constexpr = 16
        for start in range(0, left, CHUNK):
            other = start + tl.arange(0, CHUNK)
            value = tl.load(others + other, mask=other < left, other=-INFINITY)
            weight = approximate_exp2((value - highest) * scale)
            before += tl.sum(tl.where(value[None, :] > few[:, None], weight[None, :], 0.0), 1)
        smallest = tl.min(tl.where((place < left) & (before < limit - above_high), few, INFINITY), 0)
    return smallest


@triton.jit
def next_float_at_least(number):
    """Return the smallest float32 that is not below a float64."""
    rounded = number.to(tl.float32)
    return tl.where(rounded.to(tl.float64) < number, float_from_order(float_order(rounded) + 1), rounded)

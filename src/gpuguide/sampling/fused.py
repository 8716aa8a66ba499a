"""The sampler for a GPU: Triton kernels, of which with top-k only the first reads all logits.

A sort orders the whole vocabulary to find its few likely tokens. They can be found without one:

1. Cut each row into groups of 64 logits and keep the largest logit of each (:func:`group_maxima_kernel`). The k-th
   largest of these maxima is reached by k logits at least, one in each of k groups. So everything that top-k keeps is
   at least as large, and lies in one of the few groups whose maximum is.
2. Read these groups again, a few kilobytes, and gather what reaches that bound: the candidates, little more than k.
   Count for each how many candidates are larger, and add up their probabilities. That decides top-k and top-p, as
   :func:`gpuguide.logits.keep_top_k` and :func:`~gpuguide.logits.keep_top_p` define them (:func:`draw_kernel`).
3. Let the candidates that are kept race (:mod:`gpuguide.sampling.reference`).

Without top-k, with a large one, or where very many logits tie, there are too many candidates. Then the row is read
again and again, with a pivot that closes in on the smallest logit kept: about twenty times. And if everything is kept
there is nothing to find, and the race alone is one pass (:func:`race_kernel`).

Probabilities of candidates are added up in float64, so the same tokens are kept as with a sort in float64. On the long
way they are added up in float32, which can move the cut of top-p by a token whose sum lies within 1e-6 of p.
"""

from __future__ import annotations

import math
import struct

import torch
import triton
import triton.language as tl

from gpuguide.sampling.reference import NO_TOKEN, Settings
from gpuguide.softmax.fused import LOG2_E, Cut, as_rows

GROUP = 64
"""Logits of a group"""
MOST_GROUPS = 8192
"""Group maxima that a program looks at together; with a larger vocabulary the groups grow"""
BLOCK = 4096
"""Logits whose group maxima a program finds"""
LARGEST_K = 128
"""With a larger k the candidates would be compared with one another for longer than the row is read again"""
LONG_BLOCK = 8192
"""Logits at a time where the row is read again and again"""
RARE_BLOCK = 2048
"""The same where that happens only if logits tie, and registers are needed for something else"""

INFINITY = tl.constexpr(float("inf"))
HALVINGS = tl.constexpr(32)
LOWEST = tl.constexpr(-3.4028234663852886e38)
NOTHING = tl.constexpr(NO_TOKEN)


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


# --- the draw --------------------------------------------------------------------------------------------


@triton.jit
def lead(values, columns, kept, highest, scale, seed, step):
    """Return how far ahead each token is in the race, ``-inf`` if it is not kept: logit minus log of its time."""
    zero = columns * 0
    word, _, _, _ = tl.philox(seed, columns, zero + step.to(tl.int32), zero + (step >> 32).to(tl.int32), zero)
    chance = tl.minimum((word.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)  # not 1: no time is infinite
    # -log(1 - chance) would lose the digits of short times, the ones that win: the factor makes up for the rounding
    rest = 1 - chance
    time = tl.where(rest == 1, chance, -tl.log(rest) * (chance / (1 - rest)))
    return tl.where(kept, (values - highest) * scale - tl.log2(time), -INFINITY)


@triton.jit
def scale_of(temperature):
    """Return what differences of logits are multiplied by, for powers of two: finite, however small a temperature."""
    return tl.minimum(((1 / temperature) * LOG2_E).to(tl.float32), -LOWEST)


@triton.jit
def first_at(leads, columns, best):
    """Return the lowest column whose lead is the best."""
    return tl.min(tl.where(leads == best, columns, 2147483647), 0)


@triton.jit(do_not_specialize=["k", "temperature", "p", "log_min_p"])
def draw_kernel(
    logits,  # (rows, vocab)
    maxima,  # (rows, groups), fp32
    seeds,  # (rows,), int64
    steps,  # one int64
    tokens,  # (rows,), int64, written
    lowest,  # (rows,), fp32, written: the smallest logit that was kept
    room_for_columns,  # (rows, MOST + CAPACITY), int32
    room_for_numbers,  # (rows, 2 * CAPACITY), fp64
    row_stride,
    vocab_size,
    groups,
    k,  # the vocabulary's size, if all are kept
    temperature,  # as bits of a float64, as is what follows
    p,
    log_min_p,
    FROM_CANDIDATES: tl.constexpr,  # whether k is small enough
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,  # a power of two, ``groups`` or more
    MOST: tl.constexpr,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,  # blocks under way where the row is read again and again
):
    """Draw the token of one row."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    temperature = temperature.to(tl.float64, bitcast=True)
    p = p.to(tl.float64, bitcast=True)
    log_min_p = log_min_p.to(tl.float64, bitcast=True)
    seed = tl.load(seeds + row)
    step = tl.load(steps)
    group = tl.arange(0, GROUPS)
    of_groups = tl.load(maxima + row * groups + group, mask=group < groups, other=-INFINITY)
    highest = tl.max(of_groups, 0)
    if tl.abs(highest) == INFINITY:
        tl.store(tokens + row, NOTHING)
        tl.store(lowest + row, INFINITY)
        return

    scale = scale_of(temperature)
    found = tl.full((), CAPACITY + 1, tl.int32)
    if FROM_CANDIDATES:
        bound, reached = bound_below_top_k(of_groups, highest, k, MOST)
        columns_of_row = room_for_columns + row * (MOST + CAPACITY)
        if reached <= MOST:
            found = gather_candidates(
                logits, vocab_size, columns_of_row, columns_of_row + MOST, of_groups, bound, reached, GROUP, GROUPS,
                CAPACITY,
            )  # fmt: skip
        if found <= CAPACITY:
            here = tl.arange(0, CAPACITY)
            inside = here < found
            columns = tl.load(columns_of_row + MOST + here, mask=inside, other=0)
            values = tl.load(logits + columns, mask=inside, other=-INFINITY).to(tl.float32)
            distance = (values.to(tl.float64) - highest.to(tl.float64)) / temperature
            weights = tl.where(inside, tl.exp(distance), 0.0)
            numbers_of_row = room_for_numbers + row * (2 * CAPACITY)
            kept = keep_of_candidates(values, weights, inside, numbers_of_row, found, k, p, CAPACITY)
            kept &= distance >= log_min_p
            leads = lead(values, columns, kept, highest, scale, seed, step)
            tl.store(tokens + row, first_at(leads, columns, tl.max(leads, 0)).to(tl.int64))
            tl.store(lowest + row, tl.min(tl.where(kept, values, INFINITY), 0))
    if found > CAPACITY:
        total, floor, _ = above(logits, vocab_size, highest, scale, -INFINITY, False, BLOCK, STAGES)
        if k < vocab_size:
            floor = smallest_kept(logits, vocab_size, highest, scale, floor, k, True, BLOCK, STAGES)
            total, _, _ = above(logits, vocab_size, highest, scale, float_at(order_of(floor) - 1), False, BLOCK, STAGES)
        if p < 1:
            floor = smallest_kept(logits, vocab_size, highest, scale, floor, p * total, False, BLOCK, STAGES)
        floor = tl.maximum(floor, next_float_at_least(highest.to(tl.float64) + temperature * log_min_p))
        best = tl.full((), -INFINITY, tl.float32)
        smallest = tl.full((), INFINITY, tl.float32)
        token = tl.full((), 0, tl.int32)
        for start in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
            columns = start + tl.arange(0, BLOCK)
            values = tl.load(logits + columns, mask=columns < vocab_size, other=-INFINITY).to(tl.float32)
            kept = values >= floor
            if tl.max(kept.to(tl.int32), 0) > 0:
                leads = lead(values, columns, kept, highest, scale, seed, step)
                best_here = tl.max(leads, 0)
                if best_here > best:
                    best = best_here
                    token = first_at(leads, columns, best_here)
                smallest = tl.minimum(smallest, tl.min(tl.where(kept, values, INFINITY), 0))
        tl.store(tokens + row, token.to(tl.int64))
        tl.store(lowest + row, smallest)


@triton.jit(do_not_specialize=["temperature"])
def race_kernel(
    logits,  # (rows, vocab)
    seeds,  # (rows,), int64
    steps,  # one int64
    tokens,  # (rows,), int64, written
    numbers,  # (rows, 2, pieces), fp32: highest logit and best lead of each piece
    winners,  # (rows, pieces), int32
    arrived,  # (rows,), int32, zero: pieces that are done
    row_stride,
    vocab_size,
    length,  # of a piece
    pieces,
    temperature,  # as bits of a float64
    SLOTS: tl.constexpr,  # a power of two, ``pieces`` or more
    BLOCK: tl.constexpr,  # a power of two, ``length`` or more
):
    """Let all tokens of one piece race; the last program of a row compares the winners of its pieces."""
    row = (tl.program_id(0) // pieces).to(tl.int64)
    piece = tl.program_id(0) % pieces
    scale = scale_of(temperature.to(tl.float64, bitcast=True))
    columns = piece * length + tl.arange(0, BLOCK)
    inside = (tl.arange(0, BLOCK) < length) & (columns < vocab_size)
    x = tl.load(logits + row * row_stride + columns, mask=inside, other=-INFINITY).to(tl.float32)
    x = tl.where(x == x, x, INFINITY)
    highest = tl.max(x, 0)
    leads = lead(x, columns, x > -INFINITY, highest, scale, tl.load(seeds + row), tl.load(steps))
    best = tl.max(leads, 0)
    numbers += row * 2 * pieces
    winners += row * pieces
    tl.store(numbers + piece, highest)
    tl.store(numbers + pieces + piece, best)
    tl.store(winners + piece, first_at(leads, columns, best))
    if tl.atomic_add(arrived + row, 1, sem="acq_rel") == pieces - 1:
        slot = tl.arange(0, SLOTS)
        there = slot < pieces
        highest_of = tl.load(numbers + slot, mask=there, other=-INFINITY, cache_modifier=".cg")
        best_of = tl.load(numbers + pieces + slot, mask=there, other=-INFINITY, cache_modifier=".cg")
        winner_of = tl.load(winners + slot, mask=there, other=0, cache_modifier=".cg")
        of_row = tl.max(highest_of, 0)
        leads_of = tl.where(highest_of > -INFINITY, best_of + (highest_of - of_row) * scale, -INFINITY)
        token = first_at(leads_of, winner_of, tl.max(leads_of, 0))
        tl.store(tokens + row, tl.where(tl.abs(of_row) == INFINITY, NOTHING, token).to(tl.int64))


def draw(
    logits: torch.Tensor, seeds: torch.Tensor, step: torch.Tensor, settings: Settings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token from each row.

    Parameters
    ----------
    logits, seeds, settings
        As in :func:`gpuguide.sampling.sample_token`, on a GPU and with a temperature above zero.
    step : torch.Tensor
        One int64 on the same GPU.

    Returns
    -------
    tokens : torch.Tensor
        int64, shape ``(...)``.
    lowest : torch.Tensor
        fp32, shape ``(...)``: every logit of the row that is not smaller was kept. The lowest number there is if the
        settings keep everything.
    """
    rows = as_rows(logits)
    seeds_of_rows = seeds.reshape(-1).contiguous()
    keeps_all = not 0 < settings.top_k < rows.shape[1] and settings.top_p == 1 and settings.min_p == 0
    find = _race if keeps_all else _draw_kept
    tokens, lowest = find(rows, seeds_of_rows, step, settings)
    return tokens.view(seeds.shape), lowest.view(seeds.shape)


def _race(
    rows: torch.Tensor, seeds: torch.Tensor, step: torch.Tensor, settings: Settings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from everything."""
    count, vocab = rows.shape
    cut = Cut.of(vocab, rows.element_size())
    tokens = torch.empty(count, dtype=torch.int64, device=rows.device)
    race_kernel[(count * cut.pieces,)](
        rows,
        seeds,
        step,
        tokens,
        cut.numbers(count, rows.device),
        torch.empty(count, cut.pieces, dtype=torch.int32, device=rows.device),
        torch.zeros(count, dtype=torch.int32, device=rows.device),
        rows.stride(0),
        vocab,
        cut.length,
        cut.pieces,
        bits_of(settings.temperature),
        SLOTS=cut.slots,
        BLOCK=cut.block,
        num_warps=min(32, 2 * cut.warps),  # random numbers take registers
    )
    return tokens, torch.full((count,), torch.finfo(torch.float32).min, device=rows.device)


def _draw_kept(
    rows: torch.Tensor, seeds: torch.Tensor, step: torch.Tensor, settings: Settings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find what is kept, and draw from that."""
    count, vocab = rows.shape
    k = settings.top_k if 0 < settings.top_k < vocab else vocab
    group = GROUP
    while triton.cdiv(vocab, group) > MOST_GROUPS:
        group *= 2
    groups = triton.cdiv(vocab, group)
    few = k <= LARGEST_K and k < vocab
    most, capacity = (max(64, triton.next_power_of_2(factor * k)) if few else 1 for factor in (2, 4))

    def new(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=rows.device)

    maxima = new(count, groups, dtype=torch.float32)
    at_once = BLOCK // group
    group_maxima_kernel[(count, triton.cdiv(groups, at_once))](
        rows, maxima, rows.stride(0), vocab, groups, GROUP=group, GROUPS_AT_ONCE=at_once, num_warps=4
    )
    tokens, lowest = new(count, dtype=torch.int64), new(count, dtype=torch.float32)
    draw_kernel[(count,)](
        rows,
        maxima,
        seeds,
        step,
        tokens,
        lowest,
        new(count, most + capacity, dtype=torch.int32),
        new(count, 2 * capacity, dtype=torch.float64),
        rows.stride(0),
        vocab,
        groups,
        k,
        bits_of(settings.temperature),
        bits_of(settings.top_p),
        bits_of(log_of(settings.min_p)),
        FROM_CANDIDATES=few,
        GROUP=group,
        GROUPS=triton.next_power_of_2(groups),
        MOST=most,
        CAPACITY=capacity,
        BLOCK=RARE_BLOCK if few else LONG_BLOCK,
        STAGES=1 if few else 4,
        num_warps=8 if few else 16,
    )
    return tokens, lowest


def bits_of(number: float) -> int:
    """Return the 64 bits of a float as an integer: a kernel's own floating-point parameters have 32.

    The integer must not look like one of 32 bits, so positive numbers too small for any use are taken for 1e-300.
    """
    return int(struct.unpack("<q", struct.pack("<d", number if number <= 0 else max(number, 1e-300)))[0])


def log_of(p: float) -> float:
    """Return the logarithm of a number in [0, 1]. One gives minus zero, whose bits are not those of a small integer."""
    return -math.inf if p == 0 else -abs(math.log(p))

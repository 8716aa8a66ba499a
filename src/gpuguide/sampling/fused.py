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
from gpuguide.sampling.search import (
    INFINITY,
    LOWEST,
    above,
    bound_below_top_k,
    float_at,
    gather_candidates,
    group_maxima_kernel,
    keep_of_candidates,
    next_float_at_least,
    order_of,
    smallest_kept,
)
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
NOTHING = tl.constexpr(NO_TOKEN)


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
        num_warps=min(32, 4 * cut.warps),  # random numbers take registers
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

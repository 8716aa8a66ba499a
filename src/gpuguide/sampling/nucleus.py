"""Top-p and min-p without a top-k, on a GPU: two reads of the logits, however many tokens are kept.

Top-p keeps all logits from a threshold upwards, and the threshold depends on all of them. It can be found without a
sort:

1. Read every logit (:func:`survey_kernel`). For each piece of a row, find the largest logit and the sum of the
   exponentials below it, and count every fourth logit in bins, four of them for each halving of the probability. The
   program that finishes a row last estimates from the counts which rank the threshold has
   (:func:`estimate_bracket`), and chooses a bracket around it with two thousand logits.
2. Read every logit again (:func:`race_kernel`). What lies above the bracket is kept for certain: add up its
   probability, and find its best perturbed logit. What lies in the bracket is a candidate.
3. Find the exact threshold among the candidates of each row, and the best perturbed logit of all that are kept
   (:func:`finish_kernel`).

The bracket is an estimate, but the threshold is exact: the third kernel knows how much probability lies above the
bracket. If that shows that the threshold lies outside, or if very many logits tie, the row is read again and again
(:func:`~gpuguide.sampling.search.find_threshold`). Probabilities above the bracket are added up in float32, which can
move the cut of top-p by a token whose sum lies within 1e-6 of p.

Min-p alone needs no search, because its threshold follows from the largest logit.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from gpuguide.logits.fused import RowSplit, register_limit
from gpuguide.sampling.gumbel import first_argmax, keep_better, log2_scale, perturb_logits
from gpuguide.sampling.kernel_arguments import as_bits
from gpuguide.sampling.reference import NO_TOKEN, SamplingSettings
from gpuguide.sampling.search import (
    INFINITY,
    find_smallest_kept,
    find_threshold,
    measure_above,
    next_float_at_least,
)

SURVEYED = 8192
"""Logits that a program surveys"""
BINS = 64
"""Bins of a piece; the last takes everything below the others"""
BINS_PER_OCTAVE = tl.constexpr(4)
SAMPLED = tl.constexpr(4)
"""One logit of so many is counted. The others would make the bracket no narrower than two thousand logits need it."""
MEAN_IN_BIN = tl.constexpr((math.log(2) / 4) / math.expm1(math.log(2) / 4))
"""Mean probability in a bin, divided by that at its upper edge, if logits double as often as their probability halves.

They do where the logits have most of their probability in all."""
BRACKET = 2048
"""Logits that are expected in the bracket"""
CAPACITY = 8192
"""Most candidates of a row, which one program holds in registers"""
RACED = 2048
"""Logits that a program perturbs"""
CHUNK = 512
"""Logits that a program perturbs at once"""
RACE_REGISTERS = 64
"""Registers of a thread of the second read. With so many, eight programs of 128 threads share a multiprocessor."""
RARE_BLOCK = 2048
"""Logits per block where a row is read again and again"""
NOTHING = tl.constexpr(NO_TOKEN)


# --- the first read --------------------------------------------------------------------------------------


@triton.jit
def every_fourth(x, BLOCK: tl.constexpr):
    """Return every fourth element, ``(BLOCK // 4,)``, without an exchange between threads: each holds all four."""
    pairs, _ = tl.split(tl.reshape(x, [BLOCK // 4, 2, 2]))
    quarter, _ = tl.split(pairs)
    return quarter


@triton.jit
def upper_edge(highest, scale):
    """Return the upper edge of the first bin, in bins from a logit of zero: the next whole number."""
    return tl.ceil(highest * (scale * BINS_PER_OCTAVE))


@triton.jit
def value_at(index, values):
    """Return one element."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == index, values, 0.0), 0)


@triton.jit
def depth_of_rank(rank, counts, ranks):
    """Return how many bins deep ``rank`` logits lie above. ``ranks`` is the running sum of ``counts``."""
    crossed = tl.minimum(tl.sum((ranks < rank).to(tl.int32), 0), counts.shape[0] - 1)
    within = value_at(crossed, counts)
    share = (rank - value_at(crossed, ranks)) / tl.maximum(within, 1.0) + 1
    return crossed + tl.where(within > 0, share, 0.0)


@triton.jit
def estimate_bracket(
    counts,  # (bins,), fp32: logits of a row in each bin
    top,  # depth of the highest logit, in bins
    tail,  # probability of the bins below the threshold, with that of the highest logit as one
    BRACKET: tl.constexpr,
):
    """Return two depths, in bins, between which the threshold should lie, with ``BRACKET`` logits between them.

    Probabilities are added up from the smallest logits upwards. These are many, so their mean in a bin is known well,
    while a single large logit may have much of all probability and lie anywhere in its bin.
    """
    depth = tl.arange(0, counts.shape[0])
    weights = counts * tl.exp2((top - depth) * (1 / BINS_PER_OCTAVE)) * MEAN_IN_BIN
    tails = tl.cumsum(weights, 0, reverse=True)
    crossed = tl.maximum(tl.sum((tails >= tail).to(tl.int32), 0) - 1, 0)
    share = (value_at(crossed, tails) - tail) / tl.maximum(value_at(crossed, weights), 1e-30)
    ranks = tl.cumsum(counts, 0)
    rank = value_at(crossed, ranks) - (1 - tl.minimum(share, 1.0)) * value_at(crossed, counts)
    upper = tl.where(rank <= BRACKET // 2, -1.0, depth_of_rank(rank - BRACKET // 2, counts, ranks))
    complete = tl.maximum(counts.shape[0] // 2 - 1, crossed + 1)  # from there on, bins of some pieces are missing
    return upper, tl.minimum(depth_of_rank(rank + BRACKET // 2, counts, ranks), complete)


@triton.jit(do_not_specialize=["temperature", "p", "log_min_p"])
def survey_kernel(
    logits,  # (rows, vocab)
    maxima,  # (rows, pieces), fp32, written
    sums,  # (rows, pieces), fp32, written: of the exponentials below the largest logit of the piece
    rests,  # (rows, pieces), fp32, written: estimate of the same sum for the last bin alone
    counts,  # (rows, pieces, BINS), int32, written
    finished_pieces,  # (rows,), int32, zero: pieces that are done
    brackets,  # (rows, 4), fp64, written: highest logit, the bracket, and the probability that top-p has to reach
    row_stride,
    vocab_size,
    length,  # of a piece
    pieces,
    temperature,  # as bits of a float64, like p and log_min_p
    p,
    log_min_p,
    WITH_TOP_P: tl.constexpr,
    BRACKET: tl.constexpr,
    BINS: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two, ``pieces`` or more
    BLOCK: tl.constexpr,  # a power of two, ``length`` or more
):
    """Survey one piece of a row; the last program of a row chooses the bracket."""
    row = (tl.program_id(0) // pieces).to(tl.int64)
    piece = tl.program_id(0) % pieces
    temperature = temperature.to(tl.float64, bitcast=True)
    p = p.to(tl.float64, bitcast=True)
    log_min_p = log_min_p.to(tl.float64, bitcast=True)
    scale = log2_scale(temperature)
    # -- survey the piece
    lane = tl.arange(0, BLOCK)
    inside = (lane < length) & (piece * length + lane < vocab_size)
    x = tl.load(logits + row * row_stride + piece * length + lane, mask=inside, other=-INFINITY).to(tl.float32)
    x = tl.where(x == x, x, INFINITY)
    largest = tl.max(x, 0)
    tl.store(maxima + row * pieces + piece, largest)
    if WITH_TOP_P:
        largest = tl.where(tl.abs(largest) == INFINITY, 0.0, largest)
        tl.store(sums + row * pieces + piece, tl.sum(tl.exp2((x - largest) * scale), 0))
        sample = every_fourth(x, BLOCK)
        depth = upper_edge(largest, scale) - sample * (scale * BINS_PER_OCTAVE)
        bins = tl.minimum(tl.maximum(depth, 0.0), BINS - 1.0).to(tl.int32)
        tl.store(counts + (row * pieces + piece) * BINS + tl.arange(0, BINS), tl.histogram(bins, BINS))
        in_last_bin = tl.where(bins == BINS - 1, tl.exp2((sample - largest) * scale), 0.0)
        tl.store(rests + row * pieces + piece, tl.sum(in_last_bin, 0) * SAMPLED)
    # -- choose the bracket
    if tl.atomic_add(finished_pieces + row, 1, sem="acq_rel") == pieces - 1:
        slot = tl.arange(0, SLOTS)
        there = slot < pieces  # other multiprocessors wrote these, so the loads bypass the L1 cache
        piece_max = tl.load(maxima + row * pieces + slot, mask=there, other=-INFINITY, cache_modifier=".cg")
        highest = tl.max(piece_max, 0)
        low = next_float_at_least(highest.to(tl.float64) + temperature * log_min_p)
        high = low
        limit = p
        if WITH_TOP_P:
            if tl.abs(highest) < INFINITY:
                piece_max = tl.where(piece_max == -INFINITY, 0.0, piece_max)
                piece_sum = tl.load(sums + row * pieces + slot, mask=there, other=0.0, cache_modifier=".cg")
                piece_rest = tl.load(rests + row * pieces + slot, mask=there, other=0.0, cache_modifier=".cg")
                factor = tl.exp2((piece_max - highest) * scale).to(tl.float64)
                total = tl.sum(tl.where(piece_sum > 0, piece_sum * factor, 0.0), 0)
                rest = tl.sum(tl.where(piece_rest > 0, piece_rest * factor, 0.0), 0)
                limit = p * total
                # -- align the bins of the pieces, which begin at their own largest logits
                edge = upper_edge(highest, scale)
                shift = tl.minimum(edge - upper_edge(piece_max, scale), 2.0 * BINS).to(tl.int32)
                bin_of_piece = tl.arange(0, 2 * BINS)[None, :] - shift[:, None]
                has_edges = (bin_of_piece >= 0) & (bin_of_piece < BINS - 1)  # the last bin has no lower edge
                place = (row * pieces + slot)[:, None] * BINS + bin_of_piece
                in_bins = tl.load(counts + place, mask=there[:, None] & has_edges, other=0, cache_modifier=".cg")
                in_bins = tl.sum(in_bins, 0).to(tl.float32) * SAMPLED
                top = edge - highest * (scale * BINS_PER_OCTAVE)
                upper, lower = estimate_bracket(in_bins, top, (total - limit - rest).to(tl.float32), BRACKET)
                width = 1 / (scale * BINS_PER_OCTAVE)
                low, high = tl.maximum(low, (edge - lower) * width), tl.maximum(high, (edge - upper) * width)
        tl.store(brackets + row * 4, highest.to(tl.float64))
        tl.store(brackets + row * 4 + 1, low.to(tl.float64))
        tl.store(brackets + row * 4 + 2, high.to(tl.float64))
        tl.store(brackets + row * 4 + 3, limit)


# --- the second read -------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["temperature"])
def race_kernel(
    logits,  # (rows, vocab)
    seeds,  # (rows,), int64
    steps,  # one int64
    brackets,  # (rows, 4), fp64
    masses,  # (rows, pieces), fp32, written: probability above the bracket, with that of the highest logit as one
    piece_bests,  # (rows, pieces), fp32, written: best perturbed logit above the bracket
    piece_winners,  # (rows, pieces), int32, written: its token
    candidate_counts,  # (rows, pieces), int32, written
    candidate_values,  # (rows, pieces, SEGMENT), fp32, written
    candidate_columns,  # (rows, pieces, SEGMENT), int32, written
    certain_counts,  # (rows, pieces), int32, written
    certain_columns,  # (rows, pieces, FEW), int32, written
    row_stride,
    vocab_size,
    length,  # of a piece
    pieces,
    temperature,  # as bits of a float64
    WITH_TOP_P: tl.constexpr,
    SEGMENT: tl.constexpr,
    FEW: tl.constexpr,  # logits above the bracket up to which these alone are perturbed, in chunks
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two, ``length`` or more
):
    """Perturb the logits of one piece that lie above the bracket, and gather those in the bracket."""
    place = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)  # what was read last is still in the cache
    row = place // pieces
    piece = (place % pieces).to(tl.int32)
    scale = log2_scale(temperature.to(tl.float64, bitcast=True))
    logits += row * row_stride
    columns = piece * length + tl.arange(0, BLOCK)
    inside = (tl.arange(0, BLOCK) < length) & (columns < vocab_size)
    x = tl.load(logits + columns, mask=inside, other=-INFINITY).to(tl.float32)
    highest = tl.load(brackets + row * 4).to(tl.float32)
    low = tl.load(brackets + row * 4 + 1).to(tl.float32)
    high = tl.load(brackets + row * 4 + 2).to(tl.float32)
    seed, step = tl.load(seeds + row), tl.load(steps)
    tl.store(candidate_counts + place, 0)
    tl.store(certain_counts + place, 0)
    tl.debug_barrier()  # what one thread wrote is read by others
    is_certain = (x >= high) & (x > -INFINITY)
    if WITH_TOP_P:
        tl.store(masses + place, tl.sum(tl.where(is_certain, tl.exp2((x - highest) * scale), 0.0), 0))
        # -- gather the candidates
        is_candidate = (x >= low) & (x < high) & (x > -INFINITY)
        if tl.max(is_candidate.to(tl.int32), 0) > 0:
            number = tl.atomic_add(candidate_counts + place + columns * 0, 1, mask=is_candidate, sem="relaxed")
            fits = is_candidate & (number < SEGMENT)
            tl.store(candidate_values + place * SEGMENT + number, x, mask=fits)
            tl.store(candidate_columns + place * SEGMENT + number, columns, mask=fits)
    # -- list what is kept for certain, unless that is much of the piece
    number = tl.sum(is_certain.to(tl.int32), 0)
    is_listed = number <= FEW
    certain_columns += place * FEW
    if is_listed:
        position = tl.atomic_add(certain_counts + place + columns * 0, 1, mask=is_certain, sem="relaxed")
        tl.store(certain_columns + position, columns, mask=is_certain)
        tl.debug_barrier()
    else:
        number = length
    # -- perturb it, in chunks that leave registers for other programs
    lane_best = tl.full([CHUNK], -INFINITY, tl.float32)
    lane_winner = tl.zeros([CHUNK], tl.int32)
    for start in range(0, number, CHUNK):
        here = start + tl.arange(0, CHUNK)
        again = piece * length + here
        if is_listed:
            again = tl.load(certain_columns + here, mask=here < number, other=0)
        values = tl.load(logits + again, mask=(here < number) & (again < vocab_size), other=-INFINITY).to(tl.float32)
        kept = (values >= high) & (values > -INFINITY)
        perturbed = perturb_logits(values, again, kept, highest, scale, seed, step)
        lane_best, lane_winner = keep_better(lane_best, lane_winner, perturbed, again)
    best = tl.max(lane_best, 0)
    tl.store(piece_bests + place, best)
    tl.store(piece_winners + place, first_argmax(lane_best, lane_winner, best))


# --- the threshold ---------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["temperature", "log_min_p"])
def finish_kernel(
    logits,  # (rows, vocab)
    seeds,  # (rows,), int64
    steps,  # one int64
    tokens,  # (rows,), int64, written
    lowest,  # (rows,), fp32, written: the threshold
    brackets,  # (rows, 4), fp64
    masses,  # (rows, pieces), fp32
    piece_bests,  # (rows, pieces), fp32
    piece_winners,  # (rows, pieces), int32
    candidate_counts,  # (rows, pieces), int32
    candidate_values,  # (rows, pieces, SEGMENT), fp32
    candidate_columns,  # (rows, pieces, SEGMENT), int32
    row_stride,
    vocab_size,
    pieces,
    temperature,  # as bits of a float64, like log_min_p
    log_min_p,
    WITH_TOP_P: tl.constexpr,
    SEGMENT: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two, ``pieces`` or more
    BLOCK: tl.constexpr,
):
    """Draw the token of one row."""
    row = tl.program_id(0).to(tl.int64)
    temperature = temperature.to(tl.float64, bitcast=True)
    log_min_p = log_min_p.to(tl.float64, bitcast=True)
    scale = log2_scale(temperature)
    highest = tl.load(brackets + row * 4).to(tl.float32)
    threshold = tl.load(brackets + row * 4 + 1).to(tl.float32)
    if tl.abs(highest) == INFINITY:
        tl.store(tokens + row, NOTHING)
        tl.store(lowest + row, INFINITY)
        return

    # -- the best above the bracket
    slot = tl.arange(0, SLOTS)
    there = slot < pieces
    bests = tl.load(piece_bests + row * pieces + slot, mask=there, other=-INFINITY)
    winners = tl.load(piece_winners + row * pieces + slot, mask=there, other=0)
    best = tl.max(bests, 0)
    token = first_argmax(bests, winners, best)
    if WITH_TOP_P:
        # -- load the candidates
        seed, step = tl.load(seeds + row), tl.load(steps)
        here = tl.arange(0, SLOTS * SEGMENT)
        counts = tl.load(candidate_counts + row * pieces + here // SEGMENT, mask=here // SEGMENT < pieces, other=0)
        inside = here % SEGMENT < counts
        place = row * pieces * SEGMENT + here
        values = tl.load(candidate_values + place, mask=inside, other=-INFINITY)
        columns = tl.load(candidate_columns + place, mask=inside, other=0)
        weights = tl.exp2((values - highest) * scale).to(tl.float64)
        # -- see whether the threshold is among them
        limit = tl.load(brackets + row * 4 + 3)
        above = tl.load(masses + row * pieces + slot, mask=there, other=0.0).to(tl.float64)
        limit_in_bracket = limit - tl.sum(above, 0)
        is_reached = tl.sum(weights, 0) >= limit_in_bracket
        floor = next_float_at_least(highest.to(tl.float64) + temperature * log_min_p)
        is_right = is_reached | (threshold == floor)  # otherwise the bracket does not reach down to the threshold
        if is_right & (limit_in_bracket > 0) & (tl.max(counts, 0) <= SEGMENT):
            if is_reached:
                threshold = find_smallest_kept(values, weights, limit_in_bracket)
            kept = inside & (values >= threshold)
            perturbed = perturb_logits(values, columns, kept, highest, scale, seed, step)
            best_candidate = tl.max(perturbed, 0)
            candidate = first_argmax(perturbed, columns, best_candidate)
            _, token = keep_better(best, token, best_candidate, candidate)
        else:
            logits += row * row_stride
            _, smallest, _ = measure_above(logits, vocab_size, highest, scale, -INFINITY, False, BLOCK, 1)
            threshold = find_threshold(logits, vocab_size, highest, scale, smallest, limit, False, BLOCK, 1)
            threshold = tl.maximum(threshold, floor)
            token = race_through(logits, vocab_size, threshold, highest, scale, seed, step, BLOCK)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(lowest + row, threshold)


@triton.jit
def race_through(logits, vocab_size, threshold, highest, scale, seed, step, BLOCK: tl.constexpr):
    """Return the token with the best perturbed logit of a whole row, from a threshold upwards."""
    lane_best = tl.full([BLOCK], -INFINITY, tl.float32)
    lane_winner = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab_size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        values = tl.load(logits + columns, mask=columns < vocab_size, other=-INFINITY).to(tl.float32)
        kept = values >= threshold
        if tl.max(kept.to(tl.int32), 0) > 0:
            perturbed = perturb_logits(values, columns, kept, highest, scale, seed, step)
            lane_best, lane_winner = keep_better(lane_best, lane_winner, perturbed, columns)
    return first_argmax(lane_best, lane_winner, tl.max(lane_best, 0))


# --- the launch ------------------------------------------------------------------------------------------


def sample_from_threshold(
    rows: torch.Tensor, seeds: torch.Tensor, step: torch.Tensor, settings: SamplingSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from the tokens that top-p and min-p keep; see :func:`gpuguide.sampling.fused.draw`."""
    count, vocab = rows.shape
    bits = as_bits(settings)
    brackets = choose_brackets(rows, settings)
    split = RowSplit.from_size(vocab, rows.element_size(), RACED * rows.element_size())
    slots = triton.next_power_of_2(split.pieces)
    constants = {"WITH_TOP_P": settings.top_p < 1, "SEGMENT": 1}
    if constants["WITH_TOP_P"]:
        constants["SEGMENT"] = max(1, CAPACITY // slots)
    few = split.block // 8

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(count, *shape, dtype=dtype, device=rows.device)

    masses, piece_bests = new(split.pieces), new(split.pieces)
    piece_winners = new(split.pieces, dtype=torch.int32)
    candidate_counts, certain_counts = new(split.pieces, dtype=torch.int32), new(split.pieces, dtype=torch.int32)
    candidate_values = new(split.pieces, constants["SEGMENT"])
    candidate_columns = torch.empty_like(candidate_values, dtype=torch.int32)
    race_kernel[(count * split.pieces,)](
        rows,
        seeds,
        step,
        brackets,
        masses,
        piece_bests,
        piece_winners,
        candidate_counts,
        candidate_values,
        candidate_columns,
        certain_counts,
        new(split.pieces, few, dtype=torch.int32),
        rows.stride(0),
        vocab,
        split.length,
        split.pieces,
        bits["temperature"],
        **constants,
        FEW=few,
        CHUNK=CHUNK,
        BLOCK=split.block,
        num_warps=4,
        **register_limit(RACE_REGISTERS),
    )
    tokens, lowest = new(dtype=torch.int64), new()
    finish_kernel[(count,)](
        rows,
        seeds,
        step,
        tokens,
        lowest,
        brackets,
        masses,
        piece_bests,
        piece_winners,
        candidate_counts,
        candidate_values,
        candidate_columns,
        rows.stride(0),
        vocab,
        split.pieces,
        bits["temperature"],
        bits["log_min_p"],
        **constants,
        SLOTS=slots,
        BLOCK=RARE_BLOCK,
        num_warps=16,
    )
    return tokens, lowest


def choose_brackets(rows: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """Return what the first read finds of each row, ``(rows, 4)`` in float64.

    These are the largest logit, two logits between which the threshold should lie, and the probability that top-p has
    to reach. The two logits are equal if min-p alone decides.
    """
    count, vocab = rows.shape
    split = RowSplit.from_size(vocab, rows.element_size(), SURVEYED * rows.element_size())
    maxima, sums, rests = torch.empty(3, count, split.pieces, device=rows.device)
    brackets = torch.empty(count, 4, dtype=torch.float64, device=rows.device)
    survey_kernel[(count * split.pieces,)](
        rows,
        maxima,
        sums,
        rests,
        torch.empty(count, split.pieces, BINS, dtype=torch.int32, device=rows.device),
        torch.zeros(count, dtype=torch.int32, device=rows.device),
        brackets,
        rows.stride(0),
        vocab,
        split.length,
        split.pieces,
        **as_bits(settings),
        WITH_TOP_P=settings.top_p < 1,
        BRACKET=BRACKET,
        BINS=BINS,
        SLOTS=split.slots,
        BLOCK=split.block,
        num_warps=8,
    )
    return brackets

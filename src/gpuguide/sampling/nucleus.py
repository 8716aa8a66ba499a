"""Top-p and min-p without a top-k, on a GPU: two reads of the logits, however many tokens are kept.

Top-p keeps all logits from a threshold upwards, and the threshold depends on all of them. It can be found without a
sort:

1. Read every logit (:func:`survey_kernel`). For each piece of a row, find the largest logit and the sum of the
   exponentials below it, and count every fourth logit in bins, four of them for each halving of the probability. The
   program that finishes a row last estimates from the counts which rank the threshold has
   (:func:`estimate_bracket`), and chooses a bracket around it with two thousand logits.
2. Read every logit again (:func:`race_kernel`). What lies above the bracket is kept for certain: add up its
   probability. Set a bit for each logit in the bracket, and for each above it that may be drawn.
3. Find the exact threshold among the logits in the bracket, and the best perturbed logit of all that have a bit and
   are kept (:func:`finish_kernel`).

Which logits may be drawn follows from a limit in time. In the exponential race
(:mod:`gpuguide.sampling.reference`) the winner's time is itself exponentially distributed, with the sum of the kept
weights as its rate. So it is below 20 divided by that sum, except with a probability of e⁻²⁰. A token comes before this
limit only if its random number is below the limit times its weight, which the bits of both show without a logarithm.
About a hundred tokens of a row do, and only these are perturbed. If few logits lie above the lower end of the bracket,
all of them get a bit, and the second read needs no random numbers.

Bracket and limit are estimates, but threshold and draw are exact: the third kernel knows how much probability lies
above the bracket, and when the winner came. If that shows that the threshold lies outside, or that the winner came
after the limit, or if very many logits tie, the row is read again and again
(:func:`~gpuguide.sampling.search.find_threshold`). Probabilities are added up in float32, which can move the cut of
top-p by a token whose sum lies within 1e-6 of p.

With min-p alone the threshold follows from the largest logit, and the bracket is empty.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from gpuguide.logits.fused import RowSplit, register_limit
from gpuguide.sampling.gumbel import (
    approximate_exp2,
    first_argmax,
    keep_better,
    log2_scale,
    perturb_logits,
    words_of_neighbours,
)
from gpuguide.sampling.kernel_arguments import as_bits
from gpuguide.sampling.reference import NO_TOKEN, SamplingSettings
from gpuguide.sampling.search import (
    INFINITY,
    LOWEST,
    count_ones,
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
CAPACITY = 4096
"""Most logits of a row with a bit, which one program holds in registers"""
FEW = 3072
"""Logits above the lower end of the bracket, by the estimate, up to which all of them get a bit"""
TILE = 2048
"""Logits that a program of the second read processes at once: sixteen a thread, whose bits fill half a word"""
TILES = 2
"""Tiles of a program, an even number"""
WORDS = 4096
"""Words of bits that are looked at together"""
RACE_WARPS, RACE_REGISTERS = 4, 80
FINISH_WARPS, FINISH_REGISTERS = 8, 128
"""Warps and registers of a thread. Fewer registers let more programs wait for memory at the same time."""
PAIRS = 256
"""Logits in the bracket, left of the search, of which all pairs are compared"""
RARE_BLOCK = 2048
"""Logits per block where a row is read again and again"""
LATEST = tl.constexpr(20.0)
"""The winner's time, multiplied by the sum of the kept weights, is below this, except with a probability of 2e-9"""
FIXED = tl.constexpr(8388608.0)
"""2**23. The bits of a float32 from here to twice as much count in ones: :data:`FIXED_BITS` plus the difference."""
FIXED_BITS = tl.constexpr(0x4B000000)
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
    brackets,  # (rows, 8), fp64, written: see choose_brackets
    row_stride,
    vocab_size,
    length,  # of a piece
    pieces,
    temperature,  # as bits of a float64, like p and log_min_p
    p,
    log_min_p,
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
    largest = tl.where(tl.abs(largest) == INFINITY, 0.0, largest)
    tl.store(sums + row * pieces + piece, tl.sum(approximate_exp2((x - largest) * scale), 0))
    sample = every_fourth(x, BLOCK)
    depth = upper_edge(largest, scale) - sample * (scale * BINS_PER_OCTAVE)
    bins = tl.minimum(tl.maximum(depth, 0.0), BINS - 1.0).to(tl.int32)
    tl.store(counts + (row * pieces + piece) * BINS + tl.arange(0, BINS), tl.histogram(bins, BINS))
    in_last_bin = tl.where(bins == BINS - 1, approximate_exp2((sample - largest) * scale), 0.0)
    tl.store(rests + row * pieces + piece, tl.sum(in_last_bin, 0) * SAMPLED)
    # -- choose the bracket
    if tl.atomic_add(finished_pieces + row, 1, sem="acq_rel") == pieces - 1:
        slot = tl.arange(0, SLOTS)
        there = slot < pieces  # other multiprocessors wrote these, so the loads bypass the L1 cache
        piece_max = tl.load(maxima + row * pieces + slot, mask=there, other=-INFINITY, cache_modifier=".cg")
        highest = tl.max(piece_max, 0)
        floor = next_float_at_least(highest.to(tl.float64) + temperature * log_min_p)
        low, high, limit = floor, floor, p
        sure_mass, listed = tl.zeros_like(highest), tl.zeros_like(highest)
        if tl.abs(highest) < INFINITY:
            piece_max = tl.where(piece_max == -INFINITY, 0.0, piece_max)
            piece_sum = tl.load(sums + row * pieces + slot, mask=there, other=0.0, cache_modifier=".cg")
            piece_rest = tl.load(rests + row * pieces + slot, mask=there, other=0.0, cache_modifier=".cg")
            factor = tl.exp2((piece_max - highest) * scale).to(tl.float64)
            total = tl.sum(tl.where(piece_sum > 0, piece_sum * factor, 0.0), 0)
            rest = tl.sum(tl.where(piece_rest > 0, piece_rest * factor, 0.0), 0)
            limit = tl.where(p == 1, INFINITY, p * total)
            # -- align the bins of the pieces, which begin at their own largest logits
            edge = upper_edge(highest, scale)
            shift = tl.minimum(edge - upper_edge(piece_max, scale), 2.0 * BINS).to(tl.int32)
            bin_of_piece = tl.arange(0, 2 * BINS)[None, :] - shift[:, None]
            has_edges = (bin_of_piece >= 0) & (bin_of_piece < BINS - 1)  # the last bin has no lower edge
            place = (row * pieces + slot)[:, None] * BINS + bin_of_piece
            in_bins = tl.load(counts + place, mask=there[:, None] & has_edges, other=0, cache_modifier=".cg")
            in_bins = tl.sum(in_bins, 0).to(tl.float32) * SAMPLED
            top = edge - highest * (scale * BINS_PER_OCTAVE)
            width = 1 / (scale * BINS_PER_OCTAVE)
            if p < 1:
                upper, lower = estimate_bracket(in_bins, top, (total - limit - rest).to(tl.float32), BRACKET)
                low, high = tl.maximum(low, (edge - lower) * width), tl.maximum(high, (edge - upper) * width)
            # -- estimate what is above it: the probability from below, by the logits that were counted
            lower_edge = tl.arange(0, 2 * BINS) + 1
            least = in_bins * (1 / SAMPLED) * tl.exp2((top - lower_edge) * (1 / BINS_PER_OCTAVE))
            sure_mass = tl.sum(tl.where(lower_edge <= edge - high * (scale * BINS_PER_OCTAVE), least, 0.0), 0)
            listed = tl.sum(tl.where(lower_edge - 1 <= edge - low * (scale * BINS_PER_OCTAVE), in_bins, 0.0), 0)
        brackets += row * 8
        tl.store(brackets, highest.to(tl.float64))
        tl.store(brackets + 1, low.to(tl.float64))
        tl.store(brackets + 2, high.to(tl.float64))
        tl.store(brackets + 3, limit)
        tl.store(brackets + 4, tl.maximum(sure_mass, 1.0).to(tl.float64))  # the highest logit is always kept
        tl.store(brackets + 5, listed.to(tl.float64))
        tl.store(brackets + 6, scale.to(tl.float64))


# --- the second read -------------------------------------------------------------------------------------


@triton.jit
def load_tile(logits, tile, vocab_size, THREADS: tl.constexpr):
    """Load sixteen logits for each thread, four times four neighbours, ``(4, THREADS, 4)``."""
    columns = tile * (16 * THREADS) + tile_lanes(THREADS)
    return tl.load(logits + columns, mask=columns < vocab_size, other=-INFINITY).to(tl.float32)


@triton.jit
def tile_lanes(THREADS: tl.constexpr):
    """Return the places of a tile, ``(4, THREADS, 4)``."""
    group, thread, neighbour = tl.arange(0, 4), tl.arange(0, THREADS), tl.arange(0, 4)
    return group[:, None, None] * (4 * THREADS) + thread[None, :, None] * 4 + neighbour[None, None, :]


@triton.jit
def race_kernel(
    logits,  # (rows, vocab)
    seeds,  # (rows,), int64
    steps,  # one int64
    brackets,  # (rows, 8), fp64
    masses,  # (rows, pieces), fp32, written: probability above the bracket, with that of the highest logit as one
    bits,  # (rows, pieces * TILES // 2, THREADS, 2), int16, written: of two tiles, so that they can be read as int32
    row_stride,
    vocab_size,
    pieces,
    FEW: tl.constexpr,
    THREADS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Add up what lies above the bracket, and set a bit for what may be drawn. No thread waits for another."""
    place = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)  # what was read last is still in the cache
    row = place // pieces
    first = (place % pieces).to(tl.int32) * TILES
    logits += row * row_stride
    bits += place * (TILES * THREADS)
    x = load_tile(logits, first, vocab_size, THREADS)
    brackets += row * 8
    highest = tl.load(brackets).to(tl.float32)
    low = tl.maximum(tl.load(brackets + 1).to(tl.float32), LOWEST)  # so that -inf is never above it
    high = tl.maximum(tl.load(brackets + 2).to(tl.float32), LOWEST)
    latest = LATEST / tl.load(brackets + 4).to(tl.float32)
    is_dense = tl.load(brackets + 5) > FEW
    scale = tl.load(brackets + 6).to(tl.float32)
    seed, step = tl.load(seeds + row), tl.load(steps)
    group, neighbour = tl.arange(0, 4)[:, None, None], tl.arange(0, 4)[None, None, :]
    group_of_quarters = tl.arange(0, 4)[:, None] * THREADS
    mass = tl.zeros([THREADS], tl.float32)
    for tile in range(TILES):
        following = load_tile(logits, tl.where(tile + 1 < TILES, first + tile + 1, first), vocab_size, THREADS)
        weights = approximate_exp2((x - highest) * scale)
        mass += tl.sum(tl.sum(tl.where(x >= high, weights, 0.0), 2), 0)
        # -- compare the upper 23 bits of u with those of the limit; one more makes up for rounding
        earliest = tl.zeros([4, THREADS, 4], tl.int32)
        if is_dense:
            quarters = (first + tile) * (4 * THREADS) + group_of_quarters + tl.arange(0, THREADS)[None, :]
            words = tl.reshape(words_of_neighbours(seed, quarters, step), [4, THREADS, 4])
            earliest = (words >> 9).to(tl.int32)
        in_time = earliest + FIXED_BITS <= (weights * (latest * FIXED * 1.0001) + (FIXED + 1)).to(
            tl.int32, bitcast=True
        )
        may_win = (x >= low) & ((x < high) | in_time)
        of_thread = tl.sum(tl.sum(may_win.to(tl.int32) << (group * 4 + neighbour), 2), 0)
        place_of_bits = tile // 2 * (2 * THREADS) + tl.arange(0, THREADS) * 2 + tile % 2
        tl.store(bits + place_of_bits, of_thread.to(tl.int16))
        x = following
    tl.store(masses + place, tl.sum(mass, 0))


# --- the threshold ---------------------------------------------------------------------------------------


@triton.jit
def list_columns(bits, columns, words, WORDS: tl.constexpr, THREADS: tl.constexpr, CAPACITY: tl.constexpr):
    """Write the columns of a row's bits in order of their words, at most CAPACITY, and return how many there are."""
    found = tl.full((), 0, tl.int32)
    for start in range(0, words, WORDS):
        word = start + tl.arange(0, WORDS)
        rest = tl.load(bits + word, mask=word < words, other=0)
        number = count_ones(rest)
        position = tl.cumsum(number, 0)
        found_here = tl.max(position, 0)
        position += found - number
        first = word // THREADS * (32 * THREADS) + word % THREADS * 4
        for _ in range(tl.max(number, 0)):
            bit = count_ones((rest & -rest) - 1)
            column = first + bit // 16 * (16 * THREADS) + bit % 16 // 4 * (4 * THREADS) + bit % 4
            tl.store(columns + position, column, mask=(rest != 0) & (position < CAPACITY))
            rest &= rest - 1
            position += 1
        found += found_here
    tl.debug_barrier()  # what one thread wrote is read by others
    return found


@triton.jit(do_not_specialize=["temperature", "log_min_p"])
def finish_kernel(
    logits,  # (rows, vocab)
    seeds,  # (rows,), int64
    steps,  # one int64
    tokens,  # (rows,), int64, written
    lowest,  # (rows,), fp32, written: the threshold
    brackets,  # (rows, 8), fp64
    masses,  # (rows, pieces), fp32
    bits,  # (rows, words), int32
    column_workspace,  # (rows, CAPACITY), int32
    value_workspace,  # (rows, PAIRS), fp32
    row_stride,
    vocab_size,
    pieces,
    words,
    temperature,  # as bits of a float64, like log_min_p
    log_min_p,
    CAPACITY: tl.constexpr,
    WORDS: tl.constexpr,
    THREADS: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two, ``pieces`` or more
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Draw the token of one row."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    brackets += row * 8
    temperature = temperature.to(tl.float64, bitcast=True)
    log_min_p = log_min_p.to(tl.float64, bitcast=True)
    highest = tl.load(brackets).to(tl.float32)
    if tl.abs(highest) == INFINITY:
        tl.store(tokens + row, NOTHING)
        tl.store(lowest + row, INFINITY)
        return

    low, high = tl.load(brackets + 1).to(tl.float32), tl.load(brackets + 2).to(tl.float32)
    limit = tl.load(brackets + 3)
    sure_mass, scale = tl.load(brackets + 4).to(tl.float32), tl.load(brackets + 6).to(tl.float32)
    seed, step = tl.load(seeds + row), tl.load(steps)
    slot = tl.arange(0, SLOTS)
    above = tl.sum(tl.load(masses + row * pieces + slot, mask=slot < pieces, other=0.0).to(tl.float64), 0)
    floor = next_float_at_least(highest.to(tl.float64) + temperature * log_min_p)
    row_columns = column_workspace + row * CAPACITY
    count = list_columns(bits + row * words, row_columns, words, WORDS, THREADS, CAPACITY)
    threshold = floor
    token = tl.full((), 0, tl.int32)
    is_right = count <= CAPACITY
    if is_right:
        here = tl.arange(0, CAPACITY)
        columns = tl.load(row_columns + here, mask=here < count, other=0)
        values = tl.load(logits + columns, mask=here < count, other=-INFINITY).to(tl.float32)
        # -- see whether the threshold is in the bracket
        in_bracket = tl.where(values < high, values, -INFINITY)
        weights = approximate_exp2((in_bracket - highest) * scale)
        mass = tl.sum(weights, 0)
        limit_in_bracket = (limit - above).to(tl.float32)
        is_reached = mass >= limit_in_bracket
        is_right = (limit_in_bracket > 0) & (is_reached | (low <= floor))
        if is_right & is_reached:
            threshold = find_smallest_kept(
                in_bracket, weights, mass, limit_in_bracket, value_workspace + row * PAIRS, highest, scale, PAIRS
            )
            threshold = tl.maximum(threshold, floor)
        # -- see who wins, and whether nobody without a bit could have come before
        perturbed = perturb_logits(values, columns, values >= threshold, highest, scale, seed, step)
        perturbed = tl.where(values > -INFINITY, perturbed, -INFINITY)
        best = tl.max(perturbed, 0)
        token = first_argmax(perturbed, columns, best)
        is_right &= best >= tl.log2(sure_mass / LATEST)
    if is_right == 0:
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
    arguments = as_bits(settings)
    brackets = choose_brackets(rows, settings)
    threads = TILE // 16
    pieces = triton.cdiv(vocab, TILE * TILES)
    words = pieces * TILES // 2 * threads

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(count, *shape, dtype=dtype, device=rows.device)

    masses, bits = new(pieces), new(words, dtype=torch.int32)
    race_kernel[(count * pieces,)](
        rows,
        seeds,
        step,
        brackets,
        masses,
        bits.view(torch.int16),
        rows.stride(0),
        vocab,
        pieces,
        FEW=FEW,
        THREADS=threads,
        TILES=TILES,
        num_warps=RACE_WARPS,
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
        bits,
        new(CAPACITY, dtype=torch.int32),
        new(PAIRS),
        rows.stride(0),
        vocab,
        pieces,
        words,
        arguments["temperature"],
        arguments["log_min_p"],
        CAPACITY=CAPACITY,
        WORDS=WORDS,
        THREADS=threads,
        SLOTS=triton.next_power_of_2(pieces),
        PAIRS=PAIRS,
        BLOCK=RARE_BLOCK,
        num_warps=FINISH_WARPS,
        **register_limit(FINISH_REGISTERS),
    )
    return tokens, lowest


def choose_brackets(rows: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """Return what the first read finds of each row, ``(rows, 8)`` in float64.

    These are the largest logit, two logits between which the threshold should lie, the probability that top-p has to
    reach, a lower bound of the probability that is kept, an estimate of the number of logits from the lower end of the
    bracket upwards, and the factor of differences of logits; the eighth is not used. The two logits are equal if min-p
    alone decides. Probabilities are relative to that of the largest logit.
    """
    count, vocab = rows.shape
    split = RowSplit.from_size(vocab, rows.element_size(), SURVEYED * rows.element_size())
    maxima, sums, rests = torch.empty(3, count, split.pieces, device=rows.device)
    brackets = torch.empty(count, 8, dtype=torch.float64, device=rows.device)
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
        BRACKET=BRACKET,
        BINS=BINS,
        SLOTS=split.slots,
        BLOCK=split.block,
        num_warps=4,
    )
    return brackets

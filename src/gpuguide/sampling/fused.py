"""Sampler for a GPU in Triton. With a top-k, only the first of two kernels reads all logits.

A sort orders the whole vocabulary to find its few likely tokens. They can be found without one:

1. Cut each row into groups of 64 logits and keep the largest logit of each (:func:`group_maxima_kernel`). The k-th
   largest of these maxima is a lower bound: at least k logits reach it, one in each of k groups. So everything that
   top-k keeps reaches the bound too, and is in one of the few groups whose maximum does.
2. Read these groups again, a few kilobytes, and gather what reaches that bound: the candidates, little more than k.
   Count for each how many candidates are larger, and add up their probabilities. That decides top-k and top-p, as
   :func:`gpuguide.logits.keep_top_k` and :func:`~gpuguide.logits.keep_top_p` define them (:func:`draw_kernel`).
3. Draw from the kept candidates with the Gumbel-max trick (:mod:`gpuguide.sampling.reference`).

With a large top-k, or where very many logits tie, there are too many candidates. Then the row is read again and again,
with a pivot that closes in on the smallest logit kept: about twenty times. Without a top-k, top-p and min-p take two
reads (:mod:`~gpuguide.sampling.nucleus`). And if everything is kept there is nothing to search, and the Gumbel-max draw
is one pass (:func:`gumbel_max_kernel`).

Probabilities of candidates are added up in float64, so the same tokens are kept as with a sort in float64. When the row
is read again and again, they are added up in float32, which can move the cut of top-p by a token whose sum lies within
1e-6 of p.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpuguide.logits.fused import RowSplit, as_rows, register_limit
from gpuguide.sampling.gumbel import (
    first_argmax,
    keep_better,
    log2_scale,
    perturb_by_words,
    perturb_logits,
    words_of_neighbours,
)
from gpuguide.sampling.kernel_arguments import as_bits
from gpuguide.sampling.nucleus import sample_from_threshold
from gpuguide.sampling.reference import NO_TOKEN, SamplingSettings
from gpuguide.sampling.search import (
    INFINITY,
    find_threshold,
    find_top_k_bound,
    float_from_order,
    float_order,
    gather_candidates,
    group_maxima_kernel,
    mask_candidates,
    measure_above,
    next_float_at_least,
)

GROUP = 64
"""Logits in a group"""
MOST_GROUPS = 8192
"""Most group maxima of a row, which one program holds in registers; with a larger vocabulary the groups grow"""
BLOCK = 4096
"""Logits whose group maxima a program finds"""
LARGEST_K = 128
"""Largest k for which comparing all pairs of candidates is faster than reading the row again"""
LONG_BLOCK = 8192
"""Logits per block where the row is read again and again"""
RARE_BLOCK = 2048
"""Logits per block where that happens only if logits tie, and other data needs the registers"""
RACED = 2048
"""Logits that a program perturbs if everything is kept"""
CHUNK = 512
"""Logits that it perturbs at once"""
RACE_REGISTERS = 64
"""Registers of a thread that perturbs. With so many, eight programs of 128 threads share a multiprocessor."""
NOTHING = tl.constexpr(NO_TOKEN)


@triton.jit(do_not_specialize=["k", "temperature", "p", "log_min_p"])
def draw_kernel(
    logits,  # (rows, vocab)
    maxima,  # (rows, groups), fp32
    seeds,  # (rows,), int64
    steps,  # one int64
    tokens,  # (rows,), int64, written
    lowest,  # (rows,), fp32, written: the smallest logit that was kept
    column_workspace,  # (rows, MOST + CAPACITY), int32: indices of groups, then of candidates
    value_workspace,  # (rows, 2 * CAPACITY), fp64: values and weights of candidates
    row_stride,
    vocab_size,
    groups,
    k,  # less than the vocabulary's size
    temperature,  # as bits of a float64, like p and log_min_p
    p,
    log_min_p,
    FROM_CANDIDATES: tl.constexpr,  # whether k is small enough
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,  # a power of two, ``groups`` or more
    MOST: tl.constexpr,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,  # blocks that are prefetched where the row is read again and again
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
    group_maxima = tl.load(maxima + row * groups + group, mask=group < groups, other=-INFINITY)
    highest = tl.max(group_maxima, 0)
    if tl.abs(highest) == INFINITY:
        tl.store(tokens + row, NOTHING)
        tl.store(lowest + row, INFINITY)
        return

    scale = log2_scale(temperature)
    count = tl.full((), CAPACITY + 1, tl.int32)
    if FROM_CANDIDATES:
        bound, reached = find_top_k_bound(group_maxima, highest, k, MOST)
        row_columns = column_workspace + row * (MOST + CAPACITY)
        if reached <= MOST:
            count = gather_candidates(
                logits,
                vocab_size,
                row_columns,
                row_columns + MOST,
                group_maxima,
                bound,
                reached,
                GROUP=GROUP,
                GROUPS=GROUPS,
                CAPACITY=CAPACITY,
            )
        if count <= CAPACITY:
            here = tl.arange(0, CAPACITY)
            inside = here < count
            columns = tl.load(row_columns + MOST + here, mask=inside, other=0)
            values = tl.load(logits + columns, mask=inside, other=-INFINITY).to(tl.float32)
            distance = (values.to(tl.float64) - highest.to(tl.float64)) / temperature
            weights = tl.where(inside, tl.exp(distance), 0.0)
            row_values = value_workspace + row * (2 * CAPACITY)
            kept = mask_candidates(values, weights, inside, row_values, count, k, p, CAPACITY)
            kept &= distance >= log_min_p
            perturbed = perturb_logits(values, columns, kept, highest, scale, seed, step)
            tl.store(tokens + row, first_argmax(perturbed, columns, tl.max(perturbed, 0)).to(tl.int64))
            tl.store(lowest + row, tl.min(tl.where(kept, values, INFINITY), 0))
    if count > CAPACITY:
        _, floor, _ = measure_above(logits, vocab_size, highest, scale, -INFINITY, False, BLOCK, STAGES)
        floor = find_threshold(logits, vocab_size, highest, scale, floor, k, True, BLOCK, STAGES)
        if p < 1:
            below = float_from_order(float_order(floor) - 1)
            total, _, _ = measure_above(logits, vocab_size, highest, scale, below, False, BLOCK, STAGES)
            floor = find_threshold(logits, vocab_size, highest, scale, floor, p * total, False, BLOCK, STAGES)
        floor = tl.maximum(floor, next_float_at_least(highest.to(tl.float64) + temperature * log_min_p))
        best = tl.full((), -INFINITY, tl.float32)
        smallest = tl.full((), INFINITY, tl.float32)
        token = tl.full((), 0, tl.int32)
        for start in tl.range(0, vocab_size, BLOCK, num_stages=STAGES):
            columns = start + tl.arange(0, BLOCK)
            values = tl.load(logits + columns, mask=columns < vocab_size, other=-INFINITY).to(tl.float32)
            kept = values >= floor
            if tl.max(kept.to(tl.int32), 0) > 0:
                perturbed = perturb_logits(values, columns, kept, highest, scale, seed, step)
                best_here = tl.max(perturbed, 0)
                if best_here > best:
                    best = best_here
                    token = first_argmax(perturbed, columns, best_here)
                smallest = tl.minimum(smallest, tl.min(tl.where(kept, values, INFINITY), 0))
        tl.store(tokens + row, token.to(tl.int64))
        tl.store(lowest + row, smallest)


@triton.jit(do_not_specialize=["temperature"])
def gumbel_max_kernel(
    logits,  # (rows, vocab)
    seeds,  # (rows,), int64
    steps,  # one int64
    tokens,  # (rows,), int64, written
    partials,  # (rows, 2, pieces), fp32: largest logit and best perturbed logit of each piece
    piece_winners,  # (rows, pieces), int32: token of the best perturbed logit
    finished_pieces,  # (rows,), int32, zero: pieces that are done
    row_stride,
    vocab_size,
    length,  # of a piece, a multiple of four
    pieces,
    temperature,  # as bits of a float64
    SLOTS: tl.constexpr,  # a power of two, ``pieces`` or more
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two, ``length`` or more
):
    """Find the best perturbed logit of one piece; the last program of a row compares those of all its pieces."""
    row = (tl.program_id(0) // pieces).to(tl.int64)
    piece = tl.program_id(0) % pieces
    scale = log2_scale(temperature.to(tl.float64, bitcast=True))
    logits += row * row_stride
    seed, step = tl.load(seeds + row), tl.load(steps)
    # -- find the largest logit
    whole = tl.arange(0, BLOCK)
    in_piece = (whole < length) & (piece * length + whole < vocab_size)
    x = tl.load(logits + piece * length + whole, mask=in_piece, other=-INFINITY).to(tl.float32)
    highest = tl.max(tl.where(x == x, x, INFINITY), 0)
    # -- perturb in chunks, which are still in the cache and leave registers for other programs
    lane_best = tl.full([CHUNK], -INFINITY, tl.float32)
    lane_winner = tl.zeros([CHUNK], tl.int32)
    for start in range(0, length, CHUNK):
        lane = start + tl.arange(0, CHUNK)
        columns = piece * length + lane
        inside = (lane < length) & (columns < vocab_size)
        values = tl.load(logits + columns, mask=inside, other=-INFINITY).to(tl.float32)
        quarters = (piece * length + start) // 4 + tl.arange(0, CHUNK // 4)
        words = tl.reshape(words_of_neighbours(seed, quarters, step), [CHUNK])
        perturbed = perturb_by_words(values, words, values > -INFINITY, highest, scale)
        lane_best, lane_winner = keep_better(lane_best, lane_winner, perturbed, columns)
    best = tl.max(lane_best, 0)
    partials += row * 2 * pieces
    piece_winners += row * pieces
    tl.store(partials + piece, highest)
    tl.store(partials + pieces + piece, best)
    tl.store(piece_winners + piece, first_argmax(lane_best, lane_winner, best))
    # -- combine the pieces
    if tl.atomic_add(finished_pieces + row, 1, sem="acq_rel") == pieces - 1:
        slot = tl.arange(0, SLOTS)
        there = slot < pieces
        piece_max = tl.load(partials + slot, mask=there, other=-INFINITY, cache_modifier=".cg")
        piece_best = tl.load(partials + pieces + slot, mask=there, other=-INFINITY, cache_modifier=".cg")
        piece_tokens = tl.load(piece_winners + slot, mask=there, other=0, cache_modifier=".cg")
        row_max = tl.max(piece_max, 0)
        rescaled = tl.where(piece_max > -INFINITY, piece_best + (piece_max - row_max) * scale, -INFINITY)
        token = first_argmax(rescaled, piece_tokens, tl.max(rescaled, 0))
        tl.store(tokens + row, tl.where(tl.abs(row_max) == INFINITY, NOTHING, token).to(tl.int64))


def draw(
    logits: torch.Tensor, seeds: torch.Tensor, step: torch.Tensor, settings: SamplingSettings
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
        fp32, shape ``(...)``: the threshold, so that a row keeps the logits from it upwards. The smallest fp32 number
        if the settings keep everything.
    """
    rows = as_rows(logits)
    seeds_of_rows = seeds.reshape(-1).contiguous()
    if 0 < settings.top_k < rows.shape[1]:
        sample = _sample_top_k
    elif settings.top_p < 1 or settings.min_p > 0:
        sample = sample_from_threshold
    else:
        sample = _sample_all
    tokens, lowest = sample(rows, seeds_of_rows, step, settings)
    return tokens.view(seeds.shape), lowest.view(seeds.shape)


def _sample_all(
    rows: torch.Tensor, seeds: torch.Tensor, step: torch.Tensor, settings: SamplingSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from all tokens."""
    count, vocab = rows.shape
    split = RowSplit.from_size(vocab, rows.element_size(), RACED * rows.element_size())
    tokens = torch.empty(count, dtype=torch.int64, device=rows.device)
    gumbel_max_kernel[(count * split.pieces,)](
        rows,
        seeds,
        step,
        tokens,
        split.allocate_partials(count, rows.device),
        torch.empty(count, split.pieces, dtype=torch.int32, device=rows.device),
        torch.zeros(count, dtype=torch.int32, device=rows.device),
        rows.stride(0),
        vocab,
        split.length,
        split.pieces,
        as_bits(settings)["temperature"],
        SLOTS=split.slots,
        CHUNK=CHUNK,
        BLOCK=split.block,
        num_warps=4,
        **register_limit(RACE_REGISTERS),
    )
    return tokens, torch.full((count,), torch.finfo(torch.float32).min, device=rows.device)


def _sample_top_k(
    rows: torch.Tensor, seeds: torch.Tensor, step: torch.Tensor, settings: SamplingSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the tokens that top-k and the other settings keep, and draw from them."""
    count, vocab = rows.shape
    k = settings.top_k
    group = GROUP
    while triton.cdiv(vocab, group) > MOST_GROUPS:
        group *= 2
    groups = triton.cdiv(vocab, group)
    few = k <= LARGEST_K
    most, capacity = (max(64, triton.next_power_of_2(factor * k)) if few else 1 for factor in (2, 4))

    def new(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=rows.device)

    maxima = new(count, groups, dtype=torch.float32)
    at_once = BLOCK // group
    group_maxima_kernel[(count, triton.cdiv(groups, at_once))](
        rows, maxima, rows.stride(0), vocab, groups, GROUP=group, GROUPS_PER_PROGRAM=at_once, num_warps=4
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
        **as_bits(settings),
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

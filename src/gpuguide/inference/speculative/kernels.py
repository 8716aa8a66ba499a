"""Kernels of a speculative cycle between steps of the models, each in place of many small operations.

A draw is accepted in three, where some fifty operations would take microseconds each:

1. :func:`weigh_kernel` finds for each row of logits its largest and the sum of its weights. With these two a logit
   becomes a probability wherever it is read, so no probabilities are stored.
2. :func:`accept_kernel` has one program a row. It tests the drafted tokens one after another, and draws the token after
   them in two passes over the vocabulary: what is missing in all, and where the running sum passes a random share.
3. :func:`advance_kernel` puts the tokens into the texts and moves on.

:mod:`gpuguide.inference.speculative.acceptance` has the same in plain PyTorch.

Greedy decoding needs no logits, only the best token, which a step of :mod:`gpuguide.inference.fused` finds by itself.
:func:`begin_kernel`, :func:`take_best_kernel` and :func:`move_on_kernel` lead from one step to the next;
:class:`gpuguide.inference.speculative.greedy.GreedyCycle` launches them.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from gpuguide.inference.fused.parts import embed, griddep_wait, launch_dependents
from gpuguide.sampling.reference import SamplingSettings

LOWEST = tl.constexpr(-3.4028234663852886e38)
BLOCK = 4096
"""Logits at a time"""


# --- from logits to probabilities ---------------------------------------------------------------------------


@triton.jit
def weigh_kernel(logits, lowest, highest, total, vocab_size, scale, BLOCK: tl.constexpr):
    """Store a row's largest logit, and the sum of the weights of those that are kept."""
    row = tl.program_id(0).to(tl.int64)
    smallest = tl.load(lowest + row)
    largest = tl.full((), LOWEST, tl.float32)
    weights = tl.zeros((), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * vocab_size + column, mask=column < vocab_size, other=-float("inf"))
        now = tl.maximum(largest, tl.max(x, 0))
        kept = tl.where(x >= smallest, tl.exp2((x - now) * scale), 0.0)
        weights = weights * tl.exp2((largest - now) * scale) + tl.sum(kept, 0)
        largest = now
    tl.store(highest + row, largest)
    tl.store(total + row, weights)


@triton.jit
def probability(x, lowest, highest, total, scale):
    """Return the probability of a logit."""
    return tl.where(x >= lowest, tl.exp2((x - highest) * scale) / total, 0.0)


# --- accepting -----------------------------------------------------------------------------------------------


@triton.jit
def accept_kernel(
    target,  # (rows, K + 1, vocab)
    target_lowest,  # (rows, K + 1), as the next two
    target_highest,
    target_total,
    draft,  # (rows, K, vocab)
    draft_lowest,  # (rows, K), as the next two
    draft_highest,
    draft_total,
    drafted,  # (rows, K)
    uniforms,  # (rows, K + 1)
    counts,  # (rows,)
    tokens,  # (rows, K + 1)
    vocab_size,
    scale,
    K: tl.constexpr,
    CERTAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Accept the drafted tokens of one row, and draw the one after them."""
    row = tl.program_id(0).to(tl.int64)
    count = tl.zeros((), tl.int32)
    goes_on = tl.full((), 1, tl.int32)
    for place in tl.static_range(K):
        token = tl.load(drafted + row * K + place)
        at = row * (K + 1) + place
        x = tl.load(target + at * vocab_size + token)
        p = probability(x, tl.load(target_lowest + at), tl.load(target_highest + at), tl.load(target_total + at), scale)
        if CERTAIN:
            q = 1.0
        else:
            of_draft = row * K + place
            x = tl.load(draft + of_draft * vocab_size + token)
            q = probability(x, tl.load(draft_lowest + of_draft), tl.load(draft_highest + of_draft),
                            tl.load(draft_total + of_draft), scale)  # fmt: skip
        # In float64, where no random number below 1 is rounded to it: equal distributions accept everything.
        kept = tl.load(uniforms + row * (K + 1) + place) * q < p.to(tl.float64)
        goes_on = goes_on & kept.to(tl.int32)
        count += goes_on
        tl.store(tokens + at, token)
    tl.store(tokens + row * (K + 1) + K, 0)
    tl.store(counts + row, count.to(tl.int64))

    at = row * (K + 1) + count
    of_draft = row * K + tl.minimum(count, K - 1)
    rejected = tl.load(drafted + of_draft)
    target += at * vocab_size
    draft += of_draft * vocab_size
    target_row = tl.load(target_lowest + at), tl.load(target_highest + at), tl.load(target_total + at)
    if CERTAIN:
        draft_row = target_row
    else:
        draft_row = tl.load(draft_lowest + of_draft), tl.load(draft_highest + of_draft), tl.load(draft_total + of_draft)
    missing = tl.zeros((), tl.float64)
    for start in range(0, vocab_size, BLOCK):
        missing += tl.sum(missing_of(target, target_row, draft, draft_row, rejected, count, start, vocab_size, scale,
                                     K, CERTAIN, BLOCK), 0)  # fmt: skip
    share = tl.load(uniforms + row * (K + 1) + K) * missing
    before = tl.zeros((), tl.float64)
    passed = tl.zeros((), tl.int32)
    for start in range(0, vocab_size, BLOCK):
        part = missing_of(target, target_row, draft, draft_row, rejected, count, start, vocab_size, scale, K, CERTAIN,
                          BLOCK)  # fmt: skip
        sums = before + tl.cumsum(part, 0)
        inside = start + tl.arange(0, BLOCK) < vocab_size
        passed += tl.sum(((sums <= share) & inside).to(tl.int32), 0)
        before += tl.sum(part, 0)
    following = tl.where(missing > 0, tl.minimum(passed, vocab_size - 1).to(tl.int64), rejected)
    tl.debug_barrier()  # this place was written above, perhaps by another thread
    tl.store(tokens + at, following)


@triton.jit
def missing_of(target, target_row, draft, draft_row, rejected, count, start, vocab_size, scale, K: tl.constexpr,
               CERTAIN: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Return by how much the target's probabilities exceed the draft's, or all of them where nothing was drafted."""
    column = start + tl.arange(0, BLOCK)
    inside = column < vocab_size
    x = tl.load(target + column, mask=inside, other=-float("inf"))
    p = probability(x, target_row[0], target_row[1], target_row[2], scale)
    if CERTAIN:
        q = (column == rejected).to(tl.float32)
    else:
        x = tl.load(draft + column, mask=inside, other=-float("inf"))
        q = probability(x, draft_row[0], draft_row[1], draft_row[2], scale)
    return tl.maximum(p - tl.where(count < K, q, 0.0), 0.0).to(tl.float64)


def accept(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    drafted: torch.Tensor,
    uniforms: torch.Tensor,
    settings: SamplingSettings,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept drafted tokens. As :func:`gpuguide.inference.speculative.acceptance.accept_logits`, on a GPU."""
    rows, k = drafted.shape
    vocab = target_logits.shape[-1]
    scale = math.log2(math.e) / max(settings.temperature, 1e-30)
    target = weigh_logits(target_logits, settings, scale)
    draft = target if draft_logits is None else weigh_logits(draft_logits, settings, scale)
    counts = torch.empty(rows, dtype=torch.int64, device=drafted.device)
    tokens = torch.empty(rows, k + 1, dtype=torch.int64, device=drafted.device)
    accept_kernel[(rows,)](
        *target, *draft, drafted.contiguous(), uniforms.contiguous(), counts, tokens, vocab, scale, K=k,
        CERTAIN=draft_logits is None, BLOCK=block_for(vocab), num_warps=8,
    )  # fmt: skip
    return counts, tokens


def weigh_logits(
    logits: torch.Tensor, settings: SamplingSettings, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits in fp32 with what makes them probabilities: the lowest that is kept, the highest, the total."""
    from gpuguide.sampling import fused

    wide = logits.float().contiguous()
    shape, vocab = wide.shape[:-1], wide.shape[-1]
    if 0 < settings.top_k < vocab or settings.top_p < 1 or settings.min_p > 0:
        # A draw finds the smallest logit that the settings keep; the token it draws is not needed.
        seeds = torch.zeros(shape, dtype=torch.int64, device=wide.device)
        lowest = fused.draw(wide, seeds, torch.zeros((), dtype=torch.int64, device=wide.device), settings)[1]
    else:
        lowest = torch.full(shape, LOWEST.value, device=wide.device)
    highest, total = torch.empty_like(lowest), torch.empty_like(lowest)
    weigh_kernel[(shape.numel(),)](wide, lowest, highest, total, vocab, scale, BLOCK=block_for(vocab), num_warps=8)
    return wide, lowest, highest, total


def block_for(vocab: int) -> int:
    """Return how many logits a program looks at together."""
    return min(BLOCK, triton.next_power_of_2(vocab))


# --- moving on -----------------------------------------------------------------------------------------------


@triton.jit
def advance_kernel(counts, tokens, drafted, lengths, ends, texts, outcomes, gained, text_width, capacity,
                   K: tl.constexpr, PLACES: tl.constexpr, COUNTED: tl.constexpr):  # fmt: skip
    """Put a row's tokens into its text, and count them."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PLACES)
    token = tl.load(tokens + row * (K + 1) + place, mask=place <= K, other=0)
    if COUNTED:
        count = tl.load(counts + row)
    else:
        guess = tl.load(drafted + row * K + place, mask=place < K, other=-1)
        count = count_agreed(token, guess, place, K)
    extend_text(row, place, token, count, lengths, ends, texts, outcomes, gained, text_width, capacity, K)


@triton.jit
def count_agreed(token, guess, place, K: tl.constexpr):
    """Return how many guesses stand before the first that is not the target's choice."""
    return tl.min(tl.where((token != guess) | (place >= K), place, K), 0).to(tl.int64)


@triton.jit
def extend_text(row, place, token, count, lengths, ends, texts, outcomes, gained, text_width, capacity,
                K: tl.constexpr):  # fmt: skip
    """Put the accepted tokens and the one after them into a row's text, count them, and return its length.

    All ``K + 1`` are stored, for nothing reads what stands behind the last token of a text. A complete one gains
    nothing: its tokens go behind all places that a text can have.
    """
    length = tl.load(lengths + row)
    complete = length >= tl.load(ends + row)
    first = tl.where(complete, capacity, length + 1)
    tl.store(texts + row * text_width + first + place, token, mask=place <= K)
    gain = tl.where(complete, 0, count + 1)
    tl.store(gained + row, gain)
    tl.store(lengths + row, length + gain)
    outcome = outcomes + row * (K + 2) + gain
    tl.store(outcome, tl.load(outcome) + 1)
    return length + gain


def advance(
    counts: torch.Tensor | None,
    tokens: torch.Tensor,
    drafted: torch.Tensor,
    lengths: torch.Tensor,
    ends: torch.Tensor,
    texts: torch.Tensor,
    outcomes: torch.Tensor,
    capacity: int,
) -> torch.Tensor:
    """Put accepted tokens into the texts, and move on.

    Parameters
    ----------
    counts : torch.Tensor or None
        ``(rows,)``, int64: tokens accepted; ``None`` for greedy decoding, which accepts those that are ``tokens``.
    tokens : torch.Tensor
        ``(rows, k + 1)``, int64: the accepted ones and the one after them; with greedy decoding the target's choices.
    drafted : torch.Tensor
        ``(rows, k)``, int64
    lengths, ends, texts, outcomes : torch.Tensor
        As :class:`gpuguide.inference.speculative.Speculator` has them; all but ``ends`` are written.
    capacity : int
        Tokens of a text at most; of one that is complete, new tokens go behind them.

    Returns
    -------
    torch.Tensor
        ``(rows,)``, int64: the tokens that each row has gained.
    """
    rows, k = drafted.shape
    gained = torch.empty_like(lengths)
    advance_kernel[(rows,)](
        tokens if counts is None else counts, tokens, drafted, lengths, ends, texts, outcomes, gained, texts.shape[1],
        capacity, K=k, PLACES=triton.next_power_of_2(k + 1), COUNTED=counts is not None, num_warps=1,
    )  # fmt: skip
    return gained


# --- a greedy cycle ------------------------------------------------------------------------------------------


@triton.jit
def token_of(order):
    """Return the token whose logit :func:`gpuguide.inference.fused.parts.argmax_key` put into an order."""
    return 2147483647 - (order & 0xFFFFFFFF)


@triton.jit
def begin_kernel(lengths, ends, texts, last_two, last_two_places, draft_places, given, given_places, text_width,
                 capacity, K: tl.constexpr, PLACES: tl.constexpr):  # fmt: skip
    """Write what the first cycle's steps read of a row."""
    row = tl.program_id(0).to(tl.int64)
    prepare_cycle(row, tl.load(lengths + row), ends, texts, last_two, last_two_places, draft_places, given,
                  given_places, text_width, capacity, K, PLACES)  # fmt: skip


@triton.jit
def prepare_cycle(row, length, ends, texts, last_two, last_two_places, draft_places, given, given_places, text_width,
                  capacity, K: tl.constexpr, PLACES: tl.constexpr):  # fmt: skip
    """Write what a cycle's steps read of a row: its last tokens, and the positions from there on.

    A complete text goes nowhere: it is computed as if its last token stood in the last place that a text can have.
    """
    last = tl.where(length >= tl.load(ends + row), capacity - 1, length)
    text = texts + row * text_width + last
    two = tl.arange(0, 2)
    tl.store(last_two + row * 2 + two, tl.load(text - 1 + two))
    tl.store(last_two_places + row * 2 + two, last - 1 + two)
    tl.store(given + row * (K + 1), tl.load(text))
    place = tl.arange(0, PLACES)
    tl.store(draft_places + place * tl.num_programs(0) + row, last + place, mask=place < K)
    tl.store(given_places + row * (K + 1) + place, last + place, mask=place <= K)


@triton.jit
def embed_guess_kernel(best, given, places, embedding, position_embedding, hidden, given_stride, SEQ: tl.constexpr,
                       COUNT: tl.constexpr, LOWEST_ORDER: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
                       POSITIONS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Take a guess from a step of the draft, and write the first hidden states of the step that reads it.

    That one reads ``COUNT`` tokens of each row, ``given``, of which the last is the guess: the best token after the
    last of the ``SEQ`` tokens of a row that the draft has read. Later kernels read positions before they wait, so none
    may begin before what wrote them has ended.
    """
    griddep_wait(PDL)
    launch_dependents(PDL)
    row, place = tl.program_id(0).to(tl.int64), tl.program_id(1)
    given += row * given_stride + place
    if place == COUNT - 1:
        best += row * SEQ
        token = token_of(tl.load(best + SEQ - 1))
        tl.debug_barrier()  # every thread has read it
        for each in tl.static_range(SEQ):
            tl.store(best + each, LOWEST_ORDER)
        tl.store(given, token)
    else:
        token = tl.load(given)
    at = row * COUNT + place
    position = tl.load(places + at)
    for start in tl.static_range(0, WIDTH, BLOCK):
        embed(token, position, embedding, position_embedding, hidden + at * WIDTH, start + tl.arange(0, BLOCK), WIDTH,
              POSITIONS)  # fmt: skip


@triton.jit
def move_on_kernel(best, lengths, ends, texts, outcomes, gained, last_two, last_two_places, draft_places, given,
                   given_places, text_width, capacity, K: tl.constexpr, PLACES: tl.constexpr,
                   LOWEST_ORDER: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Compare a row's guesses with the target's choices, extend its text, and prepare the next cycle."""
    griddep_wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PLACES)
    best += row * (K + 1) + place
    token = token_of(tl.load(best, mask=place <= K, other=LOWEST_ORDER))
    tl.store(best, LOWEST_ORDER, mask=place <= K)
    guess = tl.load(given + row * (K + 1) + 1 + place, mask=place < K, other=-1)
    count = count_agreed(token, guess, place, K)
    length = extend_text(row, place, token, count, lengths, ends, texts, outcomes, gained, text_width, capacity, K)
    tl.debug_barrier()  # the text was written above, perhaps by another thread
    prepare_cycle(row, length, ends, texts, last_two, last_two_places, draft_places, given, given_places, text_width,
                  capacity, K, PLACES)  # fmt: skip

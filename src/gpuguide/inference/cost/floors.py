"""The shortest times of prefill, of a decode step and of an answer, and what follows for readers and for batches.

Each part of a pass takes at least as long as its arithmetic at the peak, and as its bytes at the bandwidth. Parts
follow one another, because each needs what the one before it made, so their floors add up. A program that runs one part
of some sequences beside another part of others can beat the sum; nothing beats the floor of all arithmetic and all
bytes taken together, :func:`gpuguide.costs.limits.decode_step`.

Source of the roofline: S. Williams et al., 2009, see :mod:`gpuguide.costs.roofline`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuguide.costs import roofline
from gpuguide.costs.memory import Shape
from gpuguide.errors import GpuguideError
from gpuguide.inference.cost.parts import (
    BF16,
    Part,
    Storage,
    cache_bytes_per_token,
    decode_step,
    prefill,
    verification,
    weight_bytes_held,
)

MOST_SEQUENCES = 1 << 16
"""Sequences in a batch that are looked at, at most"""


def part_time(part: Part, peak: float, bandwidth: float) -> float:
    """Return the shortest time of one part in seconds, at ``peak`` FLOP/s and ``bandwidth`` B/s."""
    return roofline.time_floor(part.flops, part.moved, peak, bandwidth)


def part_bound(part: Part, peak: float, bandwidth: float) -> str:
    """Return what takes longer in a part: ``arithmetic`` or ``memory``."""
    return "arithmetic" if part.flops / peak >= part.moved / bandwidth else "memory"


def pass_time(parts: Sequence[Part], peak: float, bandwidth: float) -> float:
    """Return the shortest time in seconds of parts that follow one another."""
    return sum(part_time(part, peak, bandwidth) for part in parts)


def decode_time(
    shape: Shape, batch: int, context: int, peak: float, bandwidth: float, storage: Storage = BF16
) -> float:
    """Return the shortest time in seconds of a step that writes one token of each sequence.

    Parameters
    ----------
    shape : Shape
        The model.
    batch : int
        Sequences that are written together. They share what is read of the weights.
    context : int
        Tokens in the cache of each. Nobody shares these.
    peak, bandwidth : float
        FLOP/s of matmuls and B/s of memory.
    storage : Storage
        How weights and cache are stored.

    Raises
    ------
    GpuguideError
        If ``batch`` is below 1, or the model knows fewer positions.
    """
    return pass_time(decode_step(shape, batch, context, storage), peak, bandwidth)


def prefill_time(
    shape: Shape, tokens: int, peak: float, bandwidth: float, batch: int = 1, storage: Storage = BF16
) -> float:
    """Return the shortest time in seconds of reading ``batch`` prompts of so many tokens; only the last gets logits."""
    return pass_time(prefill(shape, tokens, batch, storage), peak, bandwidth)


def verification_time(
    shape: Shape, batch: int, context: int, drafted: int, peak: float, bandwidth: float, storage: Storage = BF16
) -> float:
    """Return the shortest time in seconds of checking ``drafted`` tokens of each sequence in one pass."""
    return pass_time(verification(shape, batch, context, drafted, storage), peak, bandwidth)


# --- what a reader waits for -----------------------------------------------------------------------------


def time_to_first_token(
    shape: Shape, prompt: int, peak: float, bandwidth: float, waiting: float = 0.0, storage: Storage = BF16
) -> float:
    """Return the shortest time in seconds to a first token: the wait for a turn, and the prefill, which makes it."""
    return waiting + prefill_time(shape, prompt, peak, bandwidth, storage=storage)


def answer_time(
    shape: Shape, prompt: int, answer: int, batch: int, peak: float, bandwidth: float, storage: Storage = BF16
) -> float:
    """Return the shortest time in seconds of ``batch`` answers that are written together, prompts and answers alike.

    Prefill makes the first token; each further one is a step, with one more token in the cache.
    """
    if answer < 1:
        raise GpuguideError(f"answer is {answer}; it must have at least 1 token.")
    steps = (decode_time(shape, batch, prompt + done, peak, bandwidth, storage) for done in range(answer - 1))
    return prefill_time(shape, prompt, peak, bandwidth, batch, storage) + sum(steps)


def tokens_per_second(batch: int, step_time: float, tokens: float = 1.0) -> float:
    """Return the tokens a second of a batch when each sequence gets ``tokens`` in a step; of one reader, ``batch=1``.

    >>> tokens_per_second(32, 0.2), tokens_per_second(1, 0.2)
    (160.0, 5.0)
    """
    return batch * tokens / step_time


# --- batches ---------------------------------------------------------------------------------------------


def compute_bound_tokens(peak: float, bandwidth: float, matrix_size: float = 2.0) -> float:
    """Return the tokens in one pass above which linear layers are bound by arithmetic and no longer by memory.

    A weight of ``matrix_size`` bytes takes two operations for each token, so it is the ridge times half that size. In
    decode these tokens are the sequences of a batch, in prefill those of all prompts. What the layers read and write
    beside their weights is left out; it puts the number up (:func:`gpuguide.logits.head_turning_point`).

    >>> compute_bound_tokens(1000e12, 4e12), compute_bound_tokens(1000e12, 4e12, 0.5)
    (250.0, 62.5)
    """
    return roofline.ridge(peak, bandwidth) * matrix_size / 2


def cache_intensity(shape: Shape, storage: Storage = BF16) -> float:
    """Return the operations for each byte of cache that a decode step reads, in FLOP/B.

    When a number takes two bytes, it is how many heads of queries share a head of keys, whatever batch and length are.
    """
    return 2 * shape.heads / shape.kv_heads / storage.cache


def cache_capacity(shape: Shape, memory: float, storage: Storage = BF16) -> int:
    """Return how many tokens of all sequences together fit into ``memory`` bytes beside the weights; 0 if none does."""
    return max(0, int((memory - weight_bytes_held(shape, storage)) // cache_bytes_per_token(shape, storage)))


def largest_batch(shape: Shape, context: int, memory: float, storage: Storage = BF16) -> int:
    """Return how many sequences of ``context`` tokens fit into ``memory`` bytes beside the weights; 0 if none does.

    Activations and logits need memory as well: :func:`gpuguide.costs.memory.largest_batch` counts them.
    """
    if context < 1:
        raise GpuguideError(f"context is {context}; it must be at least 1.")
    return cache_capacity(shape, memory, storage) // context


def largest_batch_in_time(
    shape: Shape, context: int, seconds: float, peak: float, bandwidth: float, storage: Storage = BF16
) -> int:
    """Return the largest batch whose decode step can take at most ``seconds``: 0 if even one sequence takes longer.

    Memory is not asked (:func:`largest_batch`), and no batch above :data:`MOST_SEQUENCES` is looked at.
    """
    return _largest(lambda batch: decode_time(shape, batch, context, peak, bandwidth, storage) <= seconds)


def _largest(holds: Callable[[int], bool]) -> int:
    """Return the largest number of sequences for which something holds that holds for every smaller one too."""
    low, high = 0, 1
    while high <= MOST_SEQUENCES and holds(high):
        low, high = high, 2 * high
    high = min(high, MOST_SEQUENCES + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low

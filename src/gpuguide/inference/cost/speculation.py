"""Speculative decoding in numbers: what a small model's guesses bring, and what they cost.

A draft model writes ``drafted`` tokens one after another. The target model reads them all in one pass and keeps those
before the first that it rejects; that pass also yields one token of the target's own. So a cycle gives at least one
token and at most ``drafted + 1``.

Source: Y. Leviathan, M. Kalman, Y. Matias, "Fast Inference from Transformers via Speculative Decoding", 2023,
section 3, https://arxiv.org/abs/2211.17192. It takes the acceptance of a token to be independent of those before it,
and equally likely everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuguide.errors import GpuguideError


def expected_tokens(acceptance: float, drafted: int) -> float:
    """Return the tokens that a cycle gives on average: ``(1 - a**(k + 1)) / (1 - a)``, equation 1 of the paper.

    It is a sum: one token always comes, a second if the first guess is accepted, a third if the first two are.

    Parameters
    ----------
    acceptance : float
        The probability ``a`` that a drafted token is accepted, from 0 to 1.
    drafted : int
        Tokens drafted in a cycle, ``k``.

    Raises
    ------
    GpuguideError
        If ``acceptance`` is no probability, or ``drafted`` is negative.
    """
    _check(acceptance, drafted)
    return sum(acceptance**accepted for accepted in range(drafted + 1))


def speedup(acceptance: float, drafted: int, cost_ratio: float) -> float:
    """Return how many times as fast as ordinary decoding it is, theorem 3.8 of the paper.

    Checking ``drafted`` tokens is taken to last no longer than writing one. That is so while the target model is bound
    by memory with all of them, which it is not in large batches: :func:`cycle_speedup` takes the three times.

    Parameters
    ----------
    acceptance, drafted
        As in :func:`expected_tokens`.
    cost_ratio : float
        The time of a step of the draft model as a share of a step of the target.

    Raises
    ------
    GpuguideError
        As :func:`expected_tokens`, or if ``cost_ratio`` is negative.
    """
    if cost_ratio < 0:
        raise GpuguideError(f"cost_ratio is {cost_ratio}; a step cannot take less than no time.")
    return cycle_speedup(acceptance, drafted, 1.0, cost_ratio, 1.0)


def cycle_speedup(acceptance: float, drafted: int, step: float, draft_step: float, verification: float) -> float:
    """Return how many times as fast as ordinary decoding it is, from the three times that decide it.

    Parameters
    ----------
    acceptance, drafted
        As in :func:`expected_tokens`.
    step, draft_step : float
        Seconds of a decode step of the target model and of the draft model.
    verification : float
        Seconds of the target's pass over ``drafted + 1`` tokens of each sequence
        (:func:`gpuguide.inference.cost.verification_time`).

    Raises
    ------
    GpuguideError
        As :func:`expected_tokens`.
    """
    return expected_tokens(acceptance, drafted) * step / (drafted * draft_step + verification)


def best_draft_length(acceptance: float, cost_ratio: float, most: int = 64) -> int:
    """Return how many tokens to draft, at most ``most``, for the largest :func:`speedup`; 0 where drafting never pays.

    It pays only if ``acceptance`` is above ``cost_ratio``, corollary 3.9 of the paper. Each further token brings less
    than the one before it and costs the same, so the first one that does not help is where to stop.
    """
    best = 0
    while best < most and speedup(acceptance, best + 1, cost_ratio) > speedup(acceptance, best, cost_ratio):
        best += 1
    return best


def operations_factor(acceptance: float, drafted: int, operations_ratio: float = 0.0) -> float:
    """Return how many times the operations of ordinary decoding a token takes, theorem 3.11 of the paper.

    Parameters
    ----------
    acceptance, drafted
        As in :func:`expected_tokens`.
    operations_ratio : float
        Operations a token of the draft model, as a share of the target's.
    """
    return (drafted * operations_ratio + drafted + 1) / expected_tokens(acceptance, drafted)


def acceptance_probability(target: Sequence[float], draft: Sequence[float]) -> float:
    """Return the probability that a token drawn from ``draft`` is accepted: the sum of the smaller probabilities.

    Theorem 3.5 of the paper. Greedy decoding is the case where each distribution is one token's alone: accepted if both
    chose the same.

    Parameters
    ----------
    target, draft : sequence of float
        Probabilities of the same tokens, in the same order; each adds up to 1.

    Raises
    ------
    GpuguideError
        If the lengths differ, or one of them is no distribution.
    """
    if len(target) != len(draft):
        raise GpuguideError(f"There are {len(target)} probabilities of the target and {len(draft)} of the draft.")
    for name, given in (("target", target), ("draft", draft)):
        if min(given, default=-1.0) < 0 or abs(sum(given) - 1) > 1e-4:
            raise GpuguideError(f"{name} is no distribution; give probabilities that add up to 1.")
    return float(sum(min(pair) for pair in zip(target, draft, strict=True)))


def _check(acceptance: float, drafted: int) -> None:
    if not 0 <= acceptance <= 1:
        raise GpuguideError(f"acceptance is {acceptance}; it is a probability, from 0 to 1.")
    if drafted < 0:
        raise GpuguideError(f"drafted is {drafted}; it must be at least 0.")

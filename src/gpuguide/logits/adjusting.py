"""Changing the distribution: temperature, top-k, top-p, min-p and the repetition penalty."""

from __future__ import annotations

import math

import torch

from gpuguide.logits.checks import _row_maximum, check_settings
from gpuguide.logits.probabilities import promote_to_fp32, softmax


def with_temperature(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Divide logits by a temperature: below one sharpens the distribution, above one flattens it.

    The largest logit of each row is moved to zero before the division. This changes no probability, and no
    temperature, however small, then overflows.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.
    temperature : float
        Zero means greedy: only the largest logit is left, and of equal ones that with the lowest index.

    Returns
    -------
    torch.Tensor
        Same shape and dtype.

    Raises
    ------
    ValueError
        If the temperature is negative or not finite, or a row is no distribution.
    """
    check_settings(temperature=temperature)
    largest = _row_maximum(logits)
    if temperature == 0:
        first = logits.argmax(dim=-1, keepdim=True)
        return torch.full_like(logits, -torch.inf).scatter(-1, first, 0.0)
    shifted = (
        promote_to_fp32(logits) - promote_to_fp32(largest)
    ).double()  # fp32 would round a tiny temperature to zero
    smallest = 1e-300  # GPUs multiply by one over the temperature, which must not be infinite
    return (shifted / max(temperature, smallest)).to(logits.dtype)


def keep_top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Exclude all but the ``k`` largest logits of each row, and those equal to the smallest of these.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.
    k : int
        Zero, and anything from ``vocab_size`` on, keeps every token. (In ``transformers`` zero switches it off too.)

    Returns
    -------
    torch.Tensor
        Same shape and dtype, ``-inf`` where a token is excluded.

    Raises
    ------
    ValueError
        If ``k`` is negative or not an integer, or a row is no distribution.
    """
    check_settings(top_k=k)
    _row_maximum(logits)
    if k == 0 or k >= logits.shape[-1]:
        return logits
    smallest_kept = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest_kept, -torch.inf)


def keep_top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Keep the fewest most likely tokens whose probabilities reach ``p`` together, and exclude the rest.

    The token with which the sum reaches ``p`` is kept, so at least one always is. Tokens equal to it are kept as
    well; ``transformers`` keeps as many of those as the order of its sort happens to leave. The sum is taken in
    float64, because rounding errors of 250,000 additions in float32 would move the cut.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.
    p : float
        In (0, 1]. One keeps every token.

    Returns
    -------
    torch.Tensor
        Same shape and dtype, ``-inf`` where a token is excluded.

    Raises
    ------
    ValueError
        If ``p`` is outside (0, 1], or a row is no distribution.

    References
    ----------
    A. Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020, section 3.1. https://arxiv.org/abs/1904.09751
    """
    check_settings(top_p=p)
    _row_maximum(logits)
    if p == 1:
        return logits
    ordered = logits.sort(dim=-1, descending=True).values
    probabilities = softmax(ordered.double())
    before = probabilities.cumsum(dim=-1) - probabilities
    last_kept = (before < p).sum(dim=-1, keepdim=True) - 1
    return logits.masked_fill(logits < ordered.gather(-1, last_kept), -torch.inf)


def keep_min_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Exclude tokens whose probability is below ``p`` times that of the most likely one.

    A ratio of probabilities is a difference of logits, so no softmax is needed.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.
    p : float
        In [0, 1]. Zero keeps every token, one the most likely one and its equals.

    Returns
    -------
    torch.Tensor
        Same shape and dtype, ``-inf`` where a token is excluded.

    Raises
    ------
    ValueError
        If ``p`` is outside [0, 1], or a row is no distribution.

    References
    ----------
    M. N. Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs", 2024.
    https://arxiv.org/abs/2407.01082
    """
    check_settings(min_p=p)
    largest = _row_maximum(logits)
    if p == 0:
        return logits
    below = promote_to_fp32(logits) - promote_to_fp32(largest) < math.log(p)
    return logits.masked_fill(below, -torch.inf)


def with_repetition_penalty(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Make tokens that were generated already less likely: divide their logits by a penalty, or multiply negative ones.

    It works on logits before :func:`adjust`, and is the one change here that depends on the position of zero: adding
    a constant to all logits, which changes no probability, changes the effect of the penalty.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.
    seen : torch.Tensor
        ``(..., count)``, int64: the tokens of each row so far. A token that occurs twice is penalised once.
    penalty : float
        Above zero. One changes nothing; below one rewards repetition.

    Returns
    -------
    torch.Tensor
        Same shape and dtype as the logits.

    Raises
    ------
    ValueError
        If the penalty is not a finite number above zero, shapes, types or devices do not fit, a token is outside the
        vocabulary, or a row is no distribution.

    References
    ----------
    N. S. Keskar et al., "CTRL", 2019, section 4.1. https://arxiv.org/abs/1909.05858. The paper divides every logit, and
    so makes tokens with negative ones more likely; like ``transformers``, this multiplies those.
    """
    if not (math.isfinite(penalty) and penalty > 0):
        raise ValueError(f"The repetition penalty is {penalty}; it must be a finite number above 0 (1: no penalty).")
    _row_maximum(logits)
    fits = seen.ndim == logits.ndim and seen.shape[:-1] == logits.shape[:-1]
    if seen.dtype != torch.int64 or not fits or seen.device != logits.device:
        raise ValueError(
            f"The tokens seen must be int64 of shape ({', '.join(map(str, (*logits.shape[:-1], 'count')))}) on "
            f"{logits.device}, as many rows as the logits; "
            f"given {seen.dtype} of shape {tuple(seen.shape)} on {seen.device}."
        )
    if bool(((seen < 0) | (seen >= logits.shape[-1])).any()):
        raise ValueError(f"A token that was seen is outside the vocabulary of {logits.shape[-1]}.")
    seen_logits = logits.gather(-1, seen)
    return logits.scatter(-1, seen, torch.where(seen_logits < 0, seen_logits * penalty, seen_logits / penalty))


def adjust(
    logits: torch.Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> torch.Tensor:
    """Apply temperature, top-k, top-p and min-p, in this order. The defaults change no probability.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.
    temperature, top_k, top_p, min_p
        As in :func:`with_temperature`, :func:`keep_top_k`, :func:`keep_top_p` and :func:`keep_min_p`.

    Returns
    -------
    torch.Tensor
        Same shape and dtype, ``-inf`` where a token is excluded.

    Raises
    ------
    ValueError
        If a setting is out of its range, or a row is no distribution.
    """
    scaled = with_temperature(logits, temperature)
    return keep_min_p(keep_top_p(keep_top_k(scaled, top_k), top_p), min_p)

"""Logits: from a hidden state to scores, from scores to probabilities, from probabilities to a token.

All functions take logits of shape ``(..., vocab_size)``. This is the plain version of each, written to be read; the
cost model of the language-model head is at the end.

Sampling changes logits in a fixed order, that of ``transformers``: temperature, then top-k, then top-p on what top-k
left (with its probabilities adding up to one again), then min-p. :func:`adjust` does all four. A token that is
excluded has the logit ``-inf``, hence the probability zero. What is kept depends on the values alone and never on
where they stand: tokens that tie with the last one kept are kept too.

Functions that change or sample logits refuse rows that are no distribution (NaN, ``+inf``, or nothing but ``-inf``)
with a :class:`ValueError`. To know, they wait for the device that holds the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from gpuguide.costs import roofline

# --- from scores to probabilities ------------------------------------------------------------------------


def at_least_fp32(values: torch.Tensor) -> torch.Tensor:
    """Return values in the format in which to compute with them: float64 as it is, everything else in fp32."""
    return values if values.dtype == torch.float64 else values.float()


def softmax_naive(logits: torch.Tensor) -> torch.Tensor:
    """Return the probabilities as the definition is written, in the logits' own format. It overflows.

    ``exp`` exceeds the largest fp16 number above a logit of 11.09 and the largest fp32 or bf16 number above 88.7.
    The result there is ``inf / inf``, which is NaN. Where all logits of a row lie far below zero it is ``0 / 0``.
    """
    powers = torch.exp(logits)
    return powers / powers.sum(dim=-1, keepdim=True)


def softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the probabilities, computed so that nothing overflows.

    Adding a constant to a row of logits leaves its probabilities as they are, so the largest is moved to zero first:
    no power is above one. The sum of a large vocabulary can still exceed fp16, and is taken in fp32.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.

    Returns
    -------
    torch.Tensor
        Same shape and format. A row that is no distribution gives NaN, as in :func:`torch.softmax`.
    """
    wide = at_least_fp32(logits)
    powers = torch.exp(wide - wide.amax(dim=-1, keepdim=True))
    return (powers / powers.sum(dim=-1, keepdim=True)).to(logits.dtype)


def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the sum of ``exp`` over the last axis, shape ``(...)``, in fp32 or wider.

    It is what separates a logit from its log-probability.
    """
    wide = at_least_fp32(logits)
    largest = wide.amax(dim=-1, keepdim=True)
    return (largest + torch.exp(wide - largest).sum(dim=-1, keepdim=True).log()).squeeze(-1)


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities. They stay exact where the probability itself is too small for the format.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.

    Returns
    -------
    torch.Tensor
        Same shape and format.
    """
    wide = at_least_fp32(logits)
    return (wide - log_sum_exp(wide).unsqueeze(-1)).to(logits.dtype)


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each row's distribution in nats, shape ``(...)``, in fp32 or wider.

    It is zero if one token is certain, and ``log(vocab_size)`` if all are equally likely.
    """
    return torch.special.entr(softmax(at_least_fp32(logits))).sum(dim=-1)


# --- changing the distribution ---------------------------------------------------------------------------


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
        Same shape and format.

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
    shifted = (at_least_fp32(logits) - at_least_fp32(largest)).double()  # fp32 would round a tiny temperature to zero
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
        Same shape and format, ``-inf`` where a token is excluded.

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
        Same shape and format, ``-inf`` where a token is excluded.

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
        Same shape and format, ``-inf`` where a token is excluded.

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
    below = at_least_fp32(logits) - at_least_fp32(largest) < math.log(p)
    return logits.masked_fill(below, -torch.inf)


def with_repetition_penalty(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Make tokens that were written already less likely: divide their logits by a penalty, or multiply negative ones.

    It works on logits before :func:`adjust`, and is the one change here that depends on where zero lies: adding a
    constant to all logits, which changes no probability, changes what the penalty does.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.
    seen : torch.Tensor
        ``(..., count)``, int64: the tokens of each row so far. A token that stands there twice is punished once.
    penalty : float
        Above zero. One changes nothing; below one rewards repetition.

    Returns
    -------
    torch.Tensor
        Same shape and format as the logits.

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
    of_seen = logits.gather(-1, seen)
    return logits.scatter(-1, seen, torch.where(of_seen < 0, of_seen * penalty, of_seen / penalty))


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
        Same shape and format, ``-inf`` where a token is excluded.

    Raises
    ------
    ValueError
        If a setting is out of its range, or a row is no distribution.
    """
    scaled = with_temperature(logits, temperature)
    return keep_min_p(keep_top_p(keep_top_k(scaled, top_k), top_p), min_p)


# --- choosing a token ------------------------------------------------------------------------------------


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """Return the token with the largest logit, of equal ones that with the lowest index: int64, shape ``(...)``.

    Raises
    ------
    ValueError
        If a row is no distribution.
    """
    _row_maximum(logits)
    return logits.argmax(dim=-1)


def sample(logits: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draw one token from each row's distribution.

    :func:`torch.multinomial` takes one or two dimensions only, so the leading ones are folded into one and put back.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point, often from :func:`adjust`. A vocabulary has at most 2²⁴ tokens.
    generator : torch.Generator, optional
        The source of randomness, on the device of the logits. PyTorch's own by default.

    Returns
    -------
    torch.Tensor
        int64, shape ``(...)``.

    Raises
    ------
    ValueError
        If a row is no distribution.
    """
    _row_maximum(logits)
    if logits.shape[:-1].numel() == 0:
        return torch.empty(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    rows = softmax(at_least_fp32(logits)).reshape(-1, logits.shape[-1])
    return torch.multinomial(rows, num_samples=1, generator=generator).reshape(logits.shape[:-1])


# --- looking inside a model ------------------------------------------------------------------------------


def project(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """Turn hidden states into logits: one dot product with each row of the head.

    Parameters
    ----------
    hidden : torch.Tensor
        ``(..., hidden_size)``, after the final norm.
    head : torch.Tensor
        ``(vocab_size, hidden_size)``: in a model with tied heads, the token embedding.

    Returns
    -------
    torch.Tensor
        ``(..., vocab_size)``

    Raises
    ------
    ValueError
        If the sizes do not fit.
    """
    if head.ndim != 2 or hidden.ndim < 1 or hidden.shape[-1] != head.shape[-1]:
        raise ValueError(
            f"The head must be (vocab_size, hidden_size) and the hidden states (..., hidden_size); "
            f"given {tuple(head.shape)} and {tuple(hidden.shape)}."
        )
    return torch.nn.functional.linear(hidden, head)


def logit_lens(
    hidden_states: Sequence[torch.Tensor], final_norm: Callable[[torch.Tensor], torch.Tensor], head: torch.Tensor
) -> torch.Tensor:
    """Return the logits that each layer's hidden state would give if the model ended there.

    Parameters
    ----------
    hidden_states : sequence of torch.Tensor
        The residual stream after the embedding and after each block, all ``(..., hidden_size)``, before the final
        norm. (In ``transformers`` the last of ``hidden_states`` is normalised already; leave that one out.)
    final_norm : callable
        The model's norm before the head.
    head : torch.Tensor
        ``(vocab_size, hidden_size)``

    Returns
    -------
    torch.Tensor
        ``(layers, ..., vocab_size)``, the last being the model's own logits. It takes ``layers`` times the memory of
        those, so pick the positions of interest first.

    Raises
    ------
    ValueError
        If there are no hidden states, or the sizes do not fit.

    References
    ----------
    nostalgebraist, "interpreting GPT: the logit lens", 2020.
    https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru/interpreting-gpt-the-logit-lens
    """
    if not hidden_states:
        raise ValueError("There are no hidden states; give that after the embedding and after each block.")
    return torch.stack([project(final_norm(hidden), head) for hidden in hidden_states])


# --- cost model ------------------------------------------------------------------------------------------


def softmax_bytes(rows: int, vocab: int, element_size: float) -> float:
    """Return the fewest bytes a softmax must move: each logit read once, each probability written once."""
    return 2 * rows * vocab * element_size


def logits_bytes(tokens: int, vocab: int, element_size: float) -> float:
    """Return the bytes that the logits of ``tokens`` positions take."""
    return tokens * vocab * element_size


def head_flops(tokens: int, hidden: int, vocab: int) -> int:
    """Return the floating-point operations of the language-model head on ``tokens`` positions."""
    return roofline.matmul_flops(tokens, hidden, vocab)


def head_bytes(tokens: int, hidden: int, vocab: int, element_size: float) -> float:
    """Return the fewest bytes the head must move: hidden states and weight read once, logits written once.

    Parameters
    ----------
    tokens : int
        Positions that get logits: one a sequence when text is generated, all of them in training.
    hidden, vocab : int
        Sizes of the weight, ``(vocab, hidden)``.
    element_size : float
        Bytes an element, the same for all three.
    """
    return roofline.matmul_bytes(tokens, hidden, vocab, element_size)


def head_intensity(tokens: int, hidden: int, vocab: int, element_size: float) -> float:
    """Return the arithmetic intensity of the head in FLOP/B.

    For few tokens it is ``2 * tokens / element_size``: the weight is read for each of them together. It grows towards
    ``2 / element_size * hidden * vocab / (hidden + vocab)``, because logits and hidden states must move too.
    """
    flops = head_flops(tokens, hidden, vocab)
    return roofline.arithmetic_intensity(flops, head_bytes(tokens, hidden, vocab, element_size))


def head_turning_point(hidden: int, vocab: int, element_size: float, ridge: float) -> float:
    """Return the number of tokens at which the head turns from memory-bound to compute-bound.

    Parameters
    ----------
    hidden, vocab : int
        Sizes of the weight.
    element_size : float
        Bytes an element.
    ridge : float
        The machine's, in FLOP/B (:func:`gpuguide.costs.roofline.ridge`).

    Returns
    -------
    float
        Not rounded; infinite if logits and hidden states alone keep the intensity below the ridge.
    """
    most = 2 / element_size * hidden * vocab / (hidden + vocab)
    if most <= ridge:
        return math.inf
    return ridge * element_size / 2 / (1 - ridge / most)


# --- checks ----------------------------------------------------------------------------------------------


def check_settings(*, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> None:
    """Raise a :class:`ValueError` if a setting of :func:`adjust` is out of its range."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"The temperature is {temperature}; it must be a finite number, zero (greedy) or above.")
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 0:
        raise ValueError(f"top-k is {top_k!r}; it must be an integer, zero (keep every token) or above.")
    if not 0 < top_p <= 1:
        raise ValueError(f"top-p is {top_p}; it must lie above 0 and be at most 1 (keep every token).")
    if not 0 <= min_p <= 1:
        raise ValueError(f"min-p is {min_p}; it must lie between 0 (keep every token) and 1.")


def check_shape(logits: torch.Tensor) -> None:
    """Raise a :class:`ValueError` unless logits are floating-point numbers of shape ``(..., vocab_size)``."""
    if not logits.is_floating_point():
        raise ValueError(f"Logits must be floating-point numbers, not {logits.dtype}.")
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"Logits must have the shape (..., vocab_size), with a token or more; not {logits.shape}.")


def _row_maximum(logits: torch.Tensor) -> torch.Tensor:
    """Return each row's largest logit, ``(..., 1)``, or raise if a row is no distribution.

    The maximum of a row is a finite number only if the row holds no NaN, no ``+inf``, and something but ``-inf``.
    """
    check_shape(logits)
    largest = logits.amax(dim=-1, keepdim=True)
    bad = ~torch.isfinite(largest.squeeze(-1))
    if bool(bad.any()):
        where = tuple(int(index) for index in bad.nonzero()[0])
        value = float(largest.squeeze(-1)[where])
        what = "NaN" if math.isnan(value) else "+inf" if value > 0 else "nothing but -inf"
        row = f"row {where}" if where else "the row"
        raise ValueError(f"Logits must describe a distribution, but {row} of shape {tuple(logits.shape)} holds {what}.")
    return largest

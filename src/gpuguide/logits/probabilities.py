"""Probabilities of logits: softmax, its logarithm, and entropy."""

from __future__ import annotations

import torch


def promote_to_fp32(values: torch.Tensor) -> torch.Tensor:
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
    wide = promote_to_fp32(logits)
    powers = torch.exp(wide - wide.amax(dim=-1, keepdim=True))
    return (powers / powers.sum(dim=-1, keepdim=True)).to(logits.dtype)


def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the sum of ``exp`` over the last axis, shape ``(...)``, in fp32 or wider.

    It is what separates a logit from its log-probability.
    """
    wide = promote_to_fp32(logits)
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
    wide = promote_to_fp32(logits)
    return (wide - log_sum_exp(wide).unsqueeze(-1)).to(logits.dtype)


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each row's distribution in nats, shape ``(...)``, in fp32 or wider.

    It is zero if one token is certain, and ``log(vocab_size)`` if all are equally likely.
    """
    return torch.special.entr(softmax(promote_to_fp32(logits))).sum(dim=-1)

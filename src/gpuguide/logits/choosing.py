"""Choosing a token: the most likely one, or one drawn from the distribution."""

from __future__ import annotations

import torch

from gpuguide.logits.checks import _row_maximum
from gpuguide.logits.probabilities import promote_to_fp32, softmax


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

    :func:`torch.multinomial` takes one or two dimensions only, so the leading ones are flattened and restored.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point, often from :func:`adjust`. A vocabulary has at most 2²⁴ tokens.
    generator : torch.Generator, optional
        Generator on the device of the logits; PyTorch's default one by default.

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
    rows = softmax(promote_to_fp32(logits)).reshape(-1, logits.shape[-1])
    return torch.multinomial(rows, num_samples=1, generator=generator).reshape(logits.shape[:-1])

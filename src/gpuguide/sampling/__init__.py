"""Sampling of the next token: temperature, top-k, top-p, min-p and the draw, without a sort or synchronisation.

:mod:`gpuguide.logits` has each step as a function. :func:`sample_token` applies all of them to many rows at once, each
with its own seed: the same seed and step draw the same token, alone or in a batch, and on any device, except for about
one draw in a million, in which two perturbed logits are so close that rounding decides.
:mod:`~gpuguide.sampling.reference` is the reference sampler, :mod:`~gpuguide.sampling.fused` has the GPU kernels.
"""

from __future__ import annotations

import torch

from gpuguide.sampling import operators, reference
from gpuguide.sampling.reference import NO_TOKEN, SamplingSettings

__all__ = ["NO_TOKEN", "sample_bytes", "sample_token"]


def sample_token(
    logits: torch.Tensor,
    seeds: torch.Tensor,
    *,
    step: int | torch.Tensor = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> torch.Tensor:
    """Draw one token from each row, after temperature, top-k, top-p and min-p in this order.

    Nothing waits for the device, so a CUDA graph can capture it. A row that is no distribution (NaN, ``+inf``, or
    nothing but ``-inf``) can then raise no error; its token is ``NO_TOKEN``, which is −1.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.
    seeds : torch.Tensor
        ``(...)``, int64, on the device of the logits: one for each sequence. A row's token depends on its logits, its
        seed and the step, and on nothing else in the batch.
    step : int or torch.Tensor
        Index of the draw in the sequence, from zero. In a captured graph pass an int64 tensor with one element and
        increment it: an integer would be captured as a constant.
    temperature, top_k, top_p, min_p
        As in :func:`gpuguide.logits.adjust`. Tokens that tie with the last one kept are kept too. A temperature of
        zero selects the most likely token, the first of equals.

    Returns
    -------
    torch.Tensor
        int64, shape ``(...)``.

    Raises
    ------
    ValueError
        If a setting is out of its range, or shapes, types or devices do not fit.
    """
    reference.check(logits, seeds, SamplingSettings(temperature, top_k, top_p, min_p))
    tokens: torch.Tensor = operators.sample_token(
        logits, seeds, reference.check_step(step), temperature, top_k, top_p, min_p
    )
    return tokens


def sample_bytes(rows: int, vocab: int, element_size: float) -> float:
    """Return the fewest bytes that a sampler must move: one read of every logit. It writes only one number a row."""
    return rows * vocab * element_size

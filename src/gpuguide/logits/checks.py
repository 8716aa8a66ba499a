"""Checks of logits and settings, which raise a ``ValueError`` that names the wrong value."""

from __future__ import annotations

import math

import torch


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

"""The operations of :mod:`gpuguide.fusion` written out in PyTorch, one operation a line, as a tutorial would.

Uncompiled, each line starts at least one kernel, which reads its operands from memory and writes its result there. The
functions compute in the dtype that they are given, so in float64 they are the reference of the kernels.
"""

from __future__ import annotations

import math

import torch

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715
"""Constants of GELU's tanh form. Source: D. Hendrycks and K. Gimpel, "Gaussian Error Linear Units (GELUs)", 2016."""


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    """Normalise each row of ``x``, in eight operations.

    Parameters
    ----------
    x : torch.Tensor
        ``(..., columns)``
    weight, bias : torch.Tensor
        ``(columns,)``
    epsilon : float
        Added to the variance.
    """
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, correction=0, keepdim=True)  # by default var divides by n - 1
    return (x - mean) / torch.sqrt(variance + epsilon) * weight + bias


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the normalised sum of ``x`` and ``residual``, and the sum; shapes as in :func:`layer_norm`."""
    s = x + residual
    return layer_norm(s, weight, bias, epsilon), s


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return GELU in its tanh form, which GPT-2 uses, in eight operations."""
    return 0.5 * x * (1 + torch.tanh(SQRT_2_OVER_PI * (x + CUBIC * x**3)))


def add_four(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Add four arrays of one shape: three kernels, nine passes over memory. Five would do."""
    return a + b + c + d


def add_multiply_relu_divide(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Return ``relu((a + b) * c) / d``: four kernels, eleven passes over memory."""
    return torch.relu((a + b) * c) / d


def tanh_chain(x: torch.Tensor, b: torch.Tensor, c: torch.Tensor, links: int = 8) -> torch.Tensor:
    """Take ``x = tanh(x * b + c)`` as often as ``links`` says: three small operations each."""
    for _ in range(links):
        x = torch.tanh(x * b + c)
    return x


def linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return GELU of a linear layer.

    Parameters
    ----------
    x : torch.Tensor
        ``(..., inner)``
    weight : torch.Tensor
        ``(columns, inner)``
    bias : torch.Tensor
        ``(columns,)``
    """
    return gelu(torch.nn.functional.linear(x, weight, bias))

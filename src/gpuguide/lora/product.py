"""The product of a frozen matrix with a thin one added to it: plainly, and as one step of autograd.

With inputs x, a frozen matrix W of the shape (out, in), A of (rank, in) and B of (out, rank)::

    y = x Wᵀ + bias + scale (x Aᵀ) Bᵀ

References
----------
E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, section 4.1.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.nn import functional


class Packed(Protocol):
    """A frozen matrix in few bits, such as those of :mod:`gpuguide.inference.quantize`."""

    @property
    def in_features(self) -> int:
        """Columns of the matrix."""

    @property
    def out_features(self) -> int:
        """Rows of the matrix."""

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the values that are stored, ``(out, in)``."""


Frozen = torch.Tensor | Packed
"""A matrix that is not trained: ``(out, in)``, or packed"""


def plain_product(
    x: torch.Tensor,
    weight: Frozen,
    bias: torch.Tensor | None,
    down: torch.Tensor,
    up: torch.Tensor,
    scale: float,
    dropped: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the output of a layer with an adapter, as it is defined.

    Parameters
    ----------
    x : torch.Tensor
        ``(..., in)``, floating point.
    weight : torch.Tensor or Packed
        ``(out, in)``, in the format of ``x``, or packed.
    bias : torch.Tensor or None
        ``(out,)``
    down, up : torch.Tensor
        A, ``(rank, in)``, and B, ``(out, rank)``, in the format of ``x``.
    scale : float
        What the adapter's part is multiplied by.
    dropped : torch.Tensor, optional
        What A reads instead of ``x``: the input after dropout.

    Returns
    -------
    torch.Tensor
        ``(..., out)``, in the format of ``x``.
    """
    read = x if dropped is None else dropped
    hidden = functional.linear(read, down)
    return functional.linear(x, _matrix(weight, x.dtype), bias) + scale * functional.linear(hidden, up)


def product(
    x: torch.Tensor,
    weight: Frozen,
    bias: torch.Tensor | None,
    down: torch.Tensor,
    up: torch.Tensor,
    scale: float,
    dropped: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what :func:`plain_product` does, keeping less for the backward pass, and computing less in it.

    The gradient of the frozen matrix is never computed. What is kept is the input of A and the ``rank`` numbers that
    come out of it; a packed matrix is unpacked a second time rather than kept in whole. Both parts are added in the
    products themselves. Neither the matrix nor its bias gets a gradient, whether they ask for one or not.

    Parameters and result as :func:`plain_product`.
    """
    return _Product.apply(x, dropped, weight, bias, down, up, scale)


class _Product(torch.autograd.Function):
    """The product by hand. ``weight`` is a tensor or packed, which autograd passes on as it is."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        dropped: torch.Tensor | None,
        weight: Frozen,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Multiply, and keep what the gradients need."""
        read = x if dropped is None else dropped
        hidden = functional.linear(read, down)
        out = functional.linear(x, _matrix(weight, x.dtype), bias)
        out.flatten(0, -2).addmm_(hidden.flatten(0, -2), up.t(), alpha=scale)
        stored = weight if isinstance(weight, torch.Tensor) else None
        ctx.save_for_backward(read, hidden, down, up, stored)
        ctx.packed = None if stored is not None else weight
        ctx.scale, ctx.dropping = scale, dropped is not None
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the inputs and of both thin matrices."""
        read, hidden, down, up, stored = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        through_up = (rows @ up).mul_(ctx.scale)  # read by the gradient of A and by that of the input
        of_down = through_up.t() @ read.reshape(-1, read.shape[-1]) if ctx.needs_input_grad[4] else None
        of_up = (rows.t() @ hidden.flatten(0, -2)).mul_(ctx.scale) if ctx.needs_input_grad[5] else None
        of_x = of_dropped = None
        if ctx.needs_input_grad[0]:
            of_x = rows @ _matrix(ctx.packed if stored is None else stored, rows.dtype)
            if not ctx.dropping:
                of_x.addmm_(through_up, down)
            of_x = of_x.view(read.shape)
        if ctx.dropping and ctx.needs_input_grad[1]:
            of_dropped = (through_up @ down).view(read.shape)
        return of_x, of_dropped, None, None, of_down, of_up, None


def _matrix(weight: Frozen, dtype: torch.dtype) -> torch.Tensor:
    return weight if isinstance(weight, torch.Tensor) else weight.dequantize(dtype)

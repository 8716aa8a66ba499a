"""The product of a frozen matrix with a thin one added to it: plainly, and as one step of autograd.

With inputs x, a frozen matrix W of the shape (out, in), A of (rank, in) and B of (out, rank)::

    y = x Wᵀ + bias + scale (x Aᵀ) Bᵀ

Where one matrix holds several, such as queries, keys and values, an adapter may stand beside some of them: beside rows
of W, each such *span* with an A and a B of its own. Their As lie below each other, and so do their Bs.

References
----------
E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, section 4.1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula

from gpuguide.costs import roofline
from gpuguide.lora.packed import Packed, PackedMatrix, Parts, kind_of, parts_of, unpack
from gpuguide.lora.product import skinny_gemm

Frozen = torch.Tensor | Packed | PackedMatrix
"""A matrix that is not trained: ``(out, in)``, or packed"""
Spans = tuple[tuple[int, int], ...]
"""First row of the frozen matrix, and the one after the last, of each part that has an adapter"""


def plain_product(
    x: torch.Tensor,
    weight: Frozen,
    bias: torch.Tensor | None,
    down: torch.Tensor,
    up: torch.Tensor,
    scale: float,
    dropped: torch.Tensor | None = None,
    spans: Spans | None = None,
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
        A, ``(rank, in)``, and B, ``(out, rank)``, in the format of ``x``. With spans A is ``(spans * rank, in)``, and
        B has only the rows of all spans.
    scale : float
        What the adapter's part is multiplied by.
    dropped : torch.Tensor, optional
        What A reads instead of ``x``: the input after dropout.
    spans : tuple of (int, int), optional
        Rows that have adapters; all, if they are left out.

    Returns
    -------
    torch.Tensor
        ``(..., out)``, in the format of ``x``.
    """
    matrix = weight if isinstance(weight, torch.Tensor) else weight.dequantize(x.dtype)
    hidden = functional.linear(x if dropped is None else dropped, down)
    whole = up if spans is None else whole_up(up, spans, len(matrix))
    return functional.linear(x, matrix, bias) + scale * functional.linear(hidden, whole)


def whole_up(up: torch.Tensor, spans: Spans, outputs: int) -> torch.Tensor:
    """Return the one B that does what those of spans do, with zeros elsewhere.

    Parameters
    ----------
    up : torch.Tensor
        ``(rows of all spans, rank)``
    spans : tuple of (int, int)
        Rows that have adapters.
    outputs : int
        Rows of the frozen matrix.

    Returns
    -------
    torch.Tensor
        ``(outputs, spans * rank)``
    """
    rank = up.shape[1]
    whole = up.new_zeros(outputs, len(spans) * rank)
    for place, ((start, stop), part) in enumerate(zip(spans, _split_spans(up, spans), strict=True)):
        whole[start:stop, place * rank : (place + 1) * rank] = part
    return whole


def product(
    x: torch.Tensor,
    weight: Frozen,
    bias: torch.Tensor | None,
    down: torch.Tensor,
    up: torch.Tensor,
    scale: float,
    dropped: torch.Tensor | None = None,
    spans: Spans | None = None,
) -> torch.Tensor:
    """Return what :func:`plain_product` does, keeping less for the backward pass, and computing less in it.

    The gradient of the frozen matrix is never computed. What is kept is the input of A and the ``rank`` numbers that
    come out of it; a packed matrix is unpacked a second time rather than kept in whole. Both parts are added in the
    products themselves. Neither the matrix nor its bias gets a gradient, whether they ask for one or not.

    ``torch.compile`` takes it as it is, in one graph. There is no second derivative. In fp16 the product with A is kept
    times ``scale``, so it must stay below 65,504 over the scale.

    Parameters and result as :func:`plain_product`.
    """
    parts: Parts = (weight,) if isinstance(weight, torch.Tensor) else parts_of(weight)
    kind = None if isinstance(weight, torch.Tensor) else kind_of(weight)
    return _Product.apply(x, dropped, bias, down, up, scale, spans, kind, *parts)


class _Product(torch.autograd.Function):
    """The product by hand. The matrix comes last: itself, or the tensors of a packed one, whose kind is a number."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        dropped: torch.Tensor | None,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scale: float,
        spans: Spans | None,
        kind: int | None,
        *parts: torch.Tensor,
    ) -> torch.Tensor:
        """Multiply, and keep what the gradients need."""
        rows = _as_rows(x)
        read = rows if dropped is None else _as_rows(dropped)
        hidden = skinny_gemm.skinny_matmul(read, down.t(), scale)
        ctx.save_for_backward(read, hidden, down, up, *parts)
        ctx.scale, ctx.spans, ctx.kind, ctx.dropping, ctx.shape = scale, spans, kind, dropped is not None, x.shape
        matrix = _matrix(parts, kind, x.dtype)
        whole = up if spans is None else whole_up(up, spans, len(matrix))
        if kind is None and _is_joined(len(rows), reads=matrix.shape[1], writes=len(matrix), rank=hidden.shape[1]):
            out = functional.linear(torch.cat([rows, hidden], dim=1), torch.cat([matrix, whole], dim=1), bias)
        else:
            out = _sum_of_products(functional.linear(rows, matrix, bias), hidden, whole.t())
        return out.view(*x.shape[:-1], len(matrix))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the inputs and of both thin matrices."""
        read, hidden, down, up, *parts = ctx.saved_tensors
        rows = _as_rows(gradient)
        whole = up if ctx.spans is None else whole_up(up, ctx.spans, rows.shape[1])
        through_up = skinny_gemm.skinny_matmul(rows, whole, ctx.scale)  # for the gradients of A and of the input
        of_down = up_gradient = of_x = of_dropped = None
        if ctx.needs_input_grad[3] and ctx.needs_input_grad[4]:
            up_gradient, of_down = skinny_gemm.factor_gradients(rows, hidden, read, through_up)
        elif ctx.needs_input_grad[3]:
            of_down = through_up.t() @ read
        elif ctx.needs_input_grad[4]:
            up_gradient = rows.t() @ hidden
        if up_gradient is not None and ctx.spans is not None:
            up_gradient = _select_spans(up_gradient, ctx.spans, up.shape[1])
        if ctx.needs_input_grad[0]:
            matrix = _matrix_again(parts, ctx.kind, rows.dtype)
            if ctx.dropping:
                of_x = rows @ matrix
            elif ctx.kind is None and _is_joined(len(rows), len(matrix), matrix.shape[1], hidden.shape[1]):
                of_x = torch.cat([rows, through_up], dim=1) @ torch.cat([matrix, down])
            else:
                of_x = _sum_of_products(rows @ matrix, through_up, down)
            of_x = of_x.view(ctx.shape)
        if ctx.dropping and ctx.needs_input_grad[1]:
            of_dropped = (through_up @ down).view(ctx.shape)
        return of_x, of_dropped, None, of_down, up_gradient, None, None, None, *(None for _ in parts)


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """Return ``(..., columns)`` as ``(rows, columns)``.

    The same view goes into every product, and is what is kept. A compiler would take two for two values, and compute
    and write both from what they have in common, the activation before.
    """
    return x.reshape(-1, x.shape[-1])


def _matrix(parts: Parts, kind: int | None, dtype: torch.dtype) -> torch.Tensor:
    return parts[0] if kind is None else unpack(list(parts), kind, dtype)


def _matrix_again(parts: Parts, kind: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix for the backward pass. A compiler must not find out that it was there before, and keep it."""
    return parts[0] if kind is None else unpack(list(parts), kind, dtype, again=True)


def _is_joined(rows: int, reads: int, writes: int, rank: int) -> bool:
    """Return whether the thin factors are put beside the frozen ones, so that one product does both.

    That copies the inputs and the frozen matrix, and saves writing and reading what is written once more, which few
    rows are not worth. With a rank that is no multiple of 8, rows would begin where a GPU cannot read them whole. In
    eager mode a product adds to what is there, and nothing is written twice.
    """
    return torch.compiler.is_compiling() and rank % 8 == 0 and rows * reads + writes * reads < rows * writes


def _sum_of_products(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return ``out + left @ right``, in the place of ``out``, by one product that adds to what is there."""
    if torch.compiler.is_compiling():
        add_product_(out, left, right)
        return out
    return out.addmm_(left, right)


@torch.library.custom_op("gpuguide::add_product_", mutates_args=("out",))
def add_product_(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add ``left @ right`` to ``out``: ``(rows, columns)``, ``(rows, rank)`` and ``(rank, columns)``.

    As an operator, because ``torch.compile`` does not take ``addmm_`` for what it is: it would copy ``out`` first, or
    store the product and add it in the operation that comes next.
    """
    out.addmm_(left, right)


@add_product_.register_fake
def _nothing(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Return nothing, as the operator does."""


@register_flop_formula(torch.ops.gpuguide.add_product_)
def _flops_added(out: torch.Size, left: torch.Size, right: torch.Size, **others: Any) -> int:
    return roofline.matmul_flops(left[0], left[1], right[1])


def _select_spans(whole: torch.Tensor, spans: Spans, rank: int) -> torch.Tensor:
    """Return of :func:`whole_up`, or of its gradient, what is not always zero: ``(rows of all spans, rank)``."""
    pieces = [whole[start:stop, place * rank : (place + 1) * rank] for place, (start, stop) in enumerate(spans)]
    return torch.cat(pieces)


def _split_spans(up: torch.Tensor, spans: Spans) -> tuple[torch.Tensor, ...]:
    return up.split([stop - start for start, stop in spans])

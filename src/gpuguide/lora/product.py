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

from gpuguide.lora.packed import Packed, PackedMatrix, Parts, kind_of, parts_of, unpack

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
    for place, ((start, stop), part) in enumerate(zip(spans, _by_span(up, spans), strict=True)):
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

    ``torch.compile`` takes it as it is, in one graph.

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
        read = x if dropped is None else dropped
        hidden = functional.linear(read, down)
        out = functional.linear(x, _matrix(parts, kind, x.dtype), bias)
        ctx.save_for_backward(read, hidden, down, up, *parts)
        ctx.scale, ctx.spans, ctx.kind, ctx.dropping = scale, spans, kind, dropped is not None
        return _add(out, hidden, up, scale, spans)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the inputs and of both thin matrices."""
        read, hidden, down, up, *parts = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        through_up = _through_up(rows, up, ctx.spans) * ctx.scale  # for the gradient of A and for that of the input
        of_down = of_up = of_x = of_dropped = None
        if ctx.needs_input_grad[3]:
            of_down = through_up.t() @ read.reshape(-1, read.shape[-1])
        if ctx.needs_input_grad[4]:
            of_up = _gradient_of_up(rows, hidden.flatten(0, -2), ctx.spans) * ctx.scale
        if ctx.needs_input_grad[0]:
            of_x = rows @ _matrix_again(parts, ctx.kind, rows.dtype)
            if not ctx.dropping:
                of_x = _sum_of_products(of_x, through_up, down)
            of_x = of_x.view(read.shape)
        if ctx.dropping and ctx.needs_input_grad[1]:
            of_dropped = (through_up @ down).view(read.shape)
        return of_x, of_dropped, None, of_down, of_up, None, None, None, *(None for _ in parts)


def _matrix(parts: Parts, kind: int | None, dtype: torch.dtype) -> torch.Tensor:
    return parts[0] if kind is None else unpack(list(parts), kind, dtype)


def _matrix_again(parts: Parts, kind: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix for the backward pass. A compiler must not find out that it was there before, and keep it."""
    return parts[0] if kind is None else unpack(list(parts), kind, dtype, again=True)


def _add(out: torch.Tensor, hidden: torch.Tensor, up: torch.Tensor, scale: float, spans: Spans | None) -> torch.Tensor:
    """Return the frozen part with the adapter's added to it, in place where nothing is traced."""
    if spans is None:
        return _sum_of_products(out, hidden, up.t(), scale)
    of_each = list(zip(spans, hidden.chunk(len(spans), dim=-1), _by_span(up, spans), strict=True))
    if torch.compiler.is_compiling():
        return out + scale * _spread([(span, columns @ part.t()) for span, columns, part in of_each], out)
    flat = out.flatten(0, -2)
    for (start, stop), columns, part in of_each:
        flat[:, start:stop].addmm_(columns.flatten(0, -2), part.t(), alpha=scale)
    return out


def _spread(found: list[tuple[tuple[int, int], torch.Tensor]], out: torch.Tensor) -> torch.Tensor:
    """Return what was found for some columns side by side, in the shape of ``out``, with zeros between."""
    pieces, reached = [], 0
    for (start, stop), piece in found:
        if start > reached:
            pieces.append(out.new_zeros(*out.shape[:-1], start - reached))
        pieces.append(piece)
        reached = stop
    if reached < out.shape[-1]:
        pieces.append(out.new_zeros(*out.shape[:-1], out.shape[-1] - reached))
    return torch.cat(pieces, dim=-1)


def _sum_of_products(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Return ``out + scale * left @ right``.

    In eager mode that is one product, which adds to what is there. A compiler would copy ``out`` first, since it does
    nothing in place by itself; a sum it puts into the operation that comes next.
    """
    if torch.compiler.is_compiling():
        return out + (left @ right if scale == 1 else scale * (left @ right))
    out.flatten(0, -2).addmm_(left.flatten(0, -2), right, alpha=scale)
    return out


def _through_up(rows: torch.Tensor, up: torch.Tensor, spans: Spans | None) -> torch.Tensor:
    """Return what comes back through B, ``(rows, spans * rank)``."""
    if spans is None:
        return rows @ up
    parts = zip(spans, _by_span(up, spans), strict=True)
    return torch.cat([rows[:, start:stop] @ part for (start, stop), part in parts], dim=1)


def _gradient_of_up(rows: torch.Tensor, hidden: torch.Tensor, spans: Spans | None) -> torch.Tensor:
    if spans is None:
        return rows.t() @ hidden
    of_each = zip(spans, hidden.chunk(len(spans), dim=1), strict=True)
    return torch.cat([rows[:, start:stop].t() @ columns for (start, stop), columns in of_each])


def _by_span(up: torch.Tensor, spans: Spans) -> tuple[torch.Tensor, ...]:
    return up.split([stop - start for start, stop in spans])

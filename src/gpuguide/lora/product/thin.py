"""Products of a large matrix and a thin one: plainly, and as operators for which a GPU has kernels of ours.

An adapter of rank r needs four of them a layer. Each reads a large matrix once, and does r multiplications and
additions with each of its numbers: too few to keep a GPU busy, so that its memory decides how long they take. A library
made for large products starts a kernel more for the scale, and one more where it divides a sum among programs.

A second derivative does not go through the operators; :func:`plain_narrow` and :func:`plain_gradients` have one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from gpuguide import kernels
from gpuguide.costs import roofline

HIGHEST_RANK = 128
"""Above it a product is no longer thin, and what a program needs finds no room on a multiprocessor"""
FORMATS = (torch.bfloat16, torch.float16)
"""For others the tensor cores are slow, or round"""


def plain_narrow(wide: torch.Tensor, thin: torch.Tensor, scale: float) -> torch.Tensor:
    """Return ``scale * wide @ thin``.

    Parameters
    ----------
    wide : torch.Tensor
        ``(rows, inner)``, floating point.
    thin : torch.Tensor
        ``(inner, rank)``, in the format of ``wide``.
    scale : float
        What the product is multiplied by.

    Returns
    -------
    torch.Tensor
        ``(rows, rank)``, in the format of ``wide``.
    """
    return (wide @ thin) * scale


def plain_gradients(
    rows: torch.Tensor, hidden: torch.Tensor, read: torch.Tensor, through_up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of B and of A.

    Parameters
    ----------
    rows : torch.Tensor
        The gradient of the layer's output, ``(tokens, out)``.
    hidden : torch.Tensor
        What came out of A, ``(tokens, rank)``, times the adapter's scale.
    read : torch.Tensor
        What A has read, ``(tokens, in)``.
    through_up : torch.Tensor
        What comes back through B, ``(tokens, rank)``, times the adapter's scale.

    Returns
    -------
    tuple of torch.Tensor
        ``(out, rank)`` and ``(rank, in)``, in the format of the inputs.
    """
    return rows.t() @ hidden, through_up.t() @ read


def narrow(wide: torch.Tensor, thin: torch.Tensor, scale: float) -> torch.Tensor:
    """Return what :func:`plain_narrow` does, rounded once, by one kernel on a GPU."""
    return narrow_operator(wide, thin, scale) if is_thin(wide, thin) else plain_narrow(wide, thin, scale)


def gradients(
    rows: torch.Tensor, hidden: torch.Tensor, read: torch.Tensor, through_up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what :func:`plain_gradients` does, by two kernels on a GPU. The same inputs give the same bits."""
    compute = gradients_operator if is_thin(rows, hidden) and is_thin(read, through_up) else plain_gradients
    found: tuple[torch.Tensor, torch.Tensor] = compute(rows, hidden, read, through_up)
    return found


def is_thin(wide: torch.Tensor, thin: torch.Tensor) -> bool:
    """Return whether the operators are asked. A compiler finds that out as well: it depends on no contents."""
    return wide.is_cuda and thin.shape[1] <= HIGHEST_RANK and wide.dtype in FORMATS and thin.dtype == wide.dtype


# --- operators -------------------------------------------------------------------------------------------


@torch.library.custom_op("gpuguide::narrow", mutates_args=())
def narrow_operator(wide: torch.Tensor, thin: torch.Tensor, scale: float) -> torch.Tensor:
    """Return ``scale * wide @ thin``, ``(rows, rank)``."""
    if not kernels.supports_triton(wide):
        return plain_narrow(wide, thin, scale)
    from gpuguide.lora.product import thin_kernels

    with torch.cuda.device_of(wide):
        return thin_kernels.narrow(wide, thin, scale)


@narrow_operator.register_fake
def _narrow_shape(wide: torch.Tensor, thin: torch.Tensor, scale: float) -> torch.Tensor:
    return wide.new_empty(wide.shape[0], thin.shape[1])


@torch.library.custom_op("gpuguide::thin_gradients", mutates_args=())
def gradients_operator(
    rows: torch.Tensor, hidden: torch.Tensor, read: torch.Tensor, through_up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``rows.t() @ hidden`` and ``through_up.t() @ read``."""
    if not (kernels.supports_triton(rows) and kernels.supports_triton(read)):
        return plain_gradients(rows, hidden, read, through_up)
    from gpuguide.lora.product import thin_kernels

    with torch.cuda.device_of(rows):
        return thin_kernels.sums_over_rows(rows, hidden, read, through_up)


@gradients_operator.register_fake
def _gradient_shapes(
    rows: torch.Tensor, hidden: torch.Tensor, read: torch.Tensor, through_up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    of_up = rows.new_empty(rows.shape[1], hidden.shape[1])
    return of_up, read.new_empty(through_up.shape[1], read.shape[1])


@register_flop_formula(torch.ops.gpuguide.narrow)
def _narrow_flops(wide: torch.Size, thin: torch.Size, *scale: Any, out_shape: Any = None) -> int:
    return roofline.matmul_flops(wide[0], wide[1], thin[1])


@register_flop_formula(torch.ops.gpuguide.thin_gradients)
def _gradient_flops(
    rows: torch.Size, hidden: torch.Size, read: torch.Size, through_up: torch.Size, out_shape: Any = None
) -> int:
    return roofline.matmul_flops(hidden[1], rows[0], rows[1]) + roofline.matmul_flops(hidden[1], read[0], read[1])

"""Skinny GEMMs: a large matrix times a low-rank one, in plain PyTorch and as operators with Triton kernels.

An adapter of rank r needs four of them per layer. Each reads a large matrix once and does r multiply-adds with each of
its numbers, so they are memory-bound. A library made for large matmuls launches another kernel for the scale, and one
more where it splits a sum among programs.

The operators have no second derivative; :func:`plain_skinny_matmul` and :func:`plain_factor_gradients` have one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from gpuguide import triton_support
from gpuguide.costs import roofline

HIGHEST_RANK = 128
"""Highest rank of the kernels: above it the tiles of a program do not fit on a multiprocessor"""
FORMATS = (torch.bfloat16, torch.float16)
"""Formats of the kernels; for others tensor cores are slow, or round"""


def plain_skinny_matmul(wide: torch.Tensor, thin: torch.Tensor, scale: float) -> torch.Tensor:
    """Return ``scale * wide @ thin``.

    Parameters
    ----------
    wide : torch.Tensor
        ``(rows, inner)``, floating point.
    thin : torch.Tensor
        ``(inner, rank)``, in the format of ``wide``.
    scale : float
        Factor of the product.

    Returns
    -------
    torch.Tensor
        ``(rows, rank)``, in the format of ``wide``.
    """
    return (wide @ thin) * scale


def plain_factor_gradients(
    rows: torch.Tensor, hidden: torch.Tensor, read: torch.Tensor, through_up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of B and of A.

    Parameters
    ----------
    rows : torch.Tensor
        Gradient of the layer's output, ``(tokens, out)``.
    hidden : torch.Tensor
        Output of A, ``(tokens, rank)``, times the adapter's scale.
    read : torch.Tensor
        Input of A, ``(tokens, in)``.
    through_up : torch.Tensor
        Gradient of the output of A, ``(tokens, rank)``, times the adapter's scale.

    Returns
    -------
    tuple of torch.Tensor
        ``(out, rank)`` and ``(rank, in)``, in the format of the inputs.
    """
    return rows.t() @ hidden, through_up.t() @ read


def skinny_matmul(wide: torch.Tensor, thin: torch.Tensor, scale: float) -> torch.Tensor:
    """Return ``scale * wide @ thin`` as :func:`plain_skinny_matmul`, rounded once, by one kernel on a GPU."""
    return (
        skinny_matmul_operator(wide, thin, scale) if is_skinny(wide, thin) else plain_skinny_matmul(wide, thin, scale)
    )


def factor_gradients(
    rows: torch.Tensor, hidden: torch.Tensor, read: torch.Tensor, through_up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of B and of A by two kernels on a GPU. The same inputs give the same bits."""
    compute = (
        factor_gradients_operator if is_skinny(rows, hidden) and is_skinny(read, through_up) else plain_factor_gradients
    )
    found: tuple[torch.Tensor, torch.Tensor] = compute(rows, hidden, read, through_up)
    return found


def is_skinny(wide: torch.Tensor, thin: torch.Tensor) -> bool:
    """Return whether the operators support these matrices. It depends on no values, so a compiler can decide it too."""
    return wide.is_cuda and thin.shape[1] <= HIGHEST_RANK and wide.dtype in FORMATS and thin.dtype == wide.dtype


# --- operators -------------------------------------------------------------------------------------------


@torch.library.custom_op("gpuguide::narrow", mutates_args=())
def skinny_matmul_operator(wide: torch.Tensor, thin: torch.Tensor, scale: float) -> torch.Tensor:
    """Return ``scale * wide @ thin``, ``(rows, rank)``."""
    if not triton_support.supports_triton(wide):
        return plain_skinny_matmul(wide, thin, scale)
    from gpuguide.lora.product import skinny_gemm_kernels

    with torch.cuda.device_of(wide):
        return skinny_gemm_kernels.skinny_matmul(wide, thin, scale)


@skinny_matmul_operator.register_fake
def _skinny_matmul_shape(wide: torch.Tensor, thin: torch.Tensor, scale: float) -> torch.Tensor:
    return wide.new_empty(wide.shape[0], thin.shape[1])


@torch.library.custom_op("gpuguide::thin_gradients", mutates_args=())
def factor_gradients_operator(
    rows: torch.Tensor, hidden: torch.Tensor, read: torch.Tensor, through_up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``rows.t() @ hidden`` and ``through_up.t() @ read``."""
    if not (triton_support.supports_triton(rows) and triton_support.supports_triton(read)):
        return plain_factor_gradients(rows, hidden, read, through_up)
    from gpuguide.lora.product import skinny_gemm_kernels

    with torch.cuda.device_of(rows):
        return skinny_gemm_kernels.reduce_rows(rows, hidden, read, through_up)


@factor_gradients_operator.register_fake
def _gradient_shapes(
    rows: torch.Tensor, hidden: torch.Tensor, read: torch.Tensor, through_up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    up_gradient = rows.new_empty(rows.shape[1], hidden.shape[1])
    return up_gradient, read.new_empty(through_up.shape[1], read.shape[1])


@register_flop_formula(torch.ops.gpuguide.narrow)
def _skinny_matmul_flops(wide: torch.Size, thin: torch.Size, *scale: Any, out_shape: Any = None) -> int:
    return roofline.matmul_flops(wide[0], wide[1], thin[1])


@register_flop_formula(torch.ops.gpuguide.thin_gradients)
def _gradient_flops(
    rows: torch.Size, hidden: torch.Size, read: torch.Size, through_up: torch.Size, out_shape: Any = None
) -> int:
    return roofline.matmul_flops(hidden[1], rows[0], rows[1]) + roofline.matmul_flops(hidden[1], read[0], read[1])

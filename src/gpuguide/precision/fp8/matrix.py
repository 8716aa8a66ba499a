"""Matrices in fp8: values of eight bits times scales, one for a whole matrix or one for each block, and their matmul.

On a GPU, a matrix with one scale is rounded by two kernels (:mod:`gpuguide.precision.fp8.kernels`) and multiplied by
``torch._scaled_mm``. Elsewhere, and with blocks, values are rounded to fp8 too but then multiplied in fp32:
this is the reference, for errors and not for speed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from gpuguide.precision.formats import E4M3, E5M2, FloatFormat
from gpuguide.precision.fp8 import operators

MULTIPLE = 16
"""Number that the sizes of an fp8 matmul must be multiples of, on a GPU"""
SMALLEST_SCALE = 2.0**-126
"""The smallest normal number of fp32: a tensor of zeros has this scale"""


@dataclass(frozen=True, eq=False)
class Fp8:
    """A matrix in fp8: values times scales."""

    values: torch.Tensor
    """``(rows, columns)``, e4m3 or e5m2"""
    scales: torch.Tensor
    """fp32; without axes for one scale, else ``(rows / block rows, columns / block columns)``, rounded up"""
    block: tuple[int, int] | None
    """Rows and columns that share a scale; all if there is none"""

    def dequantize(self) -> torch.Tensor:
        """Return the numbers that are stored, ``(rows, columns)``, fp32."""
        return self.values.float() * _expand_scales(self.scales, self.block, self.values.shape)

    def transpose(self) -> Fp8:
        """Return the transposed matrix as a contiguous copy, because matmuls need the axis of the sum as the last one.

        Raises
        ------
        ValueError
            If the blocks are not square: then the other axis needs scales of its own.
        """
        if self.block is not None and self.block[0] != self.block[1]:
            raise ValueError(f"Blocks of {self.block} cannot be transposed; quantise the transposed matrix.")
        return Fp8(self.values.t().contiguous(), self.scales.t() if self.block else self.scales, self.block)


def quantize_fp8(x: torch.Tensor, format: FloatFormat = E4M3, block: tuple[int, int] | None = None) -> Fp8:
    """Store a matrix in fp8, with scales that bring the largest values to the largest number of the format.

    Parameters
    ----------
    x : torch.Tensor
        ``(rows, columns)``, floating point. Where a value is infinite or NaN, all that share its scale become NaN, so
        that checks of the result, such as a loss scaler's, detect it.
    format : FloatFormat
        ``E4M3`` or ``E5M2`` of :mod:`gpuguide.precision.formats`.
    block : (int, int), optional
        Rows and columns that share a scale. Blocks at the edges may be smaller.

    Raises
    ------
    ValueError
        If ``x`` is no matrix, the format is not one of the two, or a block has no size.
    """
    dtype = _torch_dtype(x, format)
    if block is not None and min(block) < 1:
        raise ValueError(f"Blocks of {block} have no size.")
    if block is None:
        values, _, scale = operators.quantize(x.detach(), dtype, format.largest, SMALLEST_SCALE, False)
        return Fp8(values, scale, None)
    x = x.detach().float()
    scales = (_block_amax(x, block) / format.largest).clamp(min=SMALLEST_SCALE)
    shares = x * _expand_scales(scales.reciprocal(), block, x.shape)
    return Fp8(torch.where(shares.isfinite(), shares, torch.nan).to(dtype), scales, block)


def quantize_fp8_with_transpose(x: torch.Tensor, format: FloatFormat = E4M3) -> tuple[Fp8, Fp8]:
    """Store a matrix and its transpose in fp8, ``(rows, columns)`` and ``(columns, rows)``, with one scale.

    A layer's matmuls read both. On a GPU they are written together. Arguments and errors as in :func:`quantize_fp8`.
    """
    dtype = _torch_dtype(x, format)
    values, transposed, scale = operators.quantize(x.detach(), dtype, format.largest, SMALLEST_SCALE, True)
    return Fp8(values, scale, None), Fp8(transposed, scale, None)


def fp8_matmul(a: Fp8, b: Fp8, dtype: torch.dtype = torch.bfloat16, *, fast: bool = False) -> torch.Tensor:
    """Return ``a @ b.T``, added up in fp32.

    Parameters
    ----------
    a, b : Fp8
        ``(rows, inner)`` and ``(columns, inner)``. Not both may be e5m2.
    dtype : torch.dtype
        Dtype of the result.
    fast : bool
        On Hopper, add up with fewer bits within the tensor cores. The reference ignores it.

    Returns
    -------
    torch.Tensor
        ``(rows, columns)``.

    Raises
    ------
    ValueError
        If the shapes do not fit, both are e5m2, or on a GPU a size is no multiple of 16.
    """
    if a.values.shape[1] != b.values.shape[1]:
        raise ValueError(f"Both matrices have the inner axis last; {_shape(a)} and {_shape(b)} do not fit.")
    if a.values.dtype == b.values.dtype == E5M2.dtype:
        raise ValueError("Both matrices are e5m2; tensor cores take at most one, so store one in e4m3.")
    if not a.values.is_cuda or a.block is not None or b.block is not None:
        with torch.autocast(a.values.device.type, enabled=False):  # which would round the matrices once more
            return (a.dequantize() @ b.dequantize().t()).to(dtype)
    if any(size % MULTIPLE for size in (*a.values.shape, *b.values.shape)):
        raise ValueError(f"Sizes of an fp8 matmul must be multiples of {MULTIPLE}; given {_shape(a)} and {_shape(b)}.")
    return torch._scaled_mm(
        a.values, b.values.t(), scale_a=a.scales, scale_b=b.scales, out_dtype=dtype, use_fast_accum=fast
    )


def _block_amax(x: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return the largest magnitude of each block, NaN where one is there."""
    rows, columns = x.shape
    padded = nn.functional.pad(x, (0, -columns % block[1], 0, -rows % block[0]))
    return padded.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0])).abs().amax(dim=(1, 3))


def _expand_scales(scales: torch.Tensor, block: tuple[int, int] | None, shape: torch.Size) -> torch.Tensor:
    """Return the scales expanded to one for each value."""
    if block is None:
        return scales
    return scales.repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]


def _torch_dtype(x: torch.Tensor, format: FloatFormat) -> torch.dtype:
    """Return the PyTorch dtype of a format in which a matrix can be stored."""
    if x.ndim != 2 or format not in (E4M3, E5M2) or format.dtype is None:
        raise ValueError(f"A matrix becomes e4m3 or e5m2; given {tuple(x.shape)} and {format.name}.")
    return format.dtype


def _shape(matrix: Fp8) -> tuple[int, ...]:
    return tuple(matrix.values.shape)

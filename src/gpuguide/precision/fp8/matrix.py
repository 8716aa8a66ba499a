"""Matrices in fp8: values of eight bits times scales, one for a whole matrix or one for each block, and their product.

On a GPU, a matrix with one scale is rounded by two kernels (:mod:`gpuguide.precision.fp8.kernels`) and multiplied by
``torch._scaled_mm``. Elsewhere, and with blocks, values are rounded to fp8 all the same and then multiplied in fp32:
this is the reference, for errors and not for speed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from gpuguide.precision.formats import E4M3, E5M2, Format
from gpuguide.precision.fp8 import operators

MULTIPLE = 16
"""What the sizes of a product in fp8 have to be multiples of, on a GPU"""
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
        return self.values.float() * _spread(self.scales, self.block, self.values.shape)

    def transposed(self) -> Fp8:
        """Return the transposed matrix, laid out anew: the products want the axis that they sum over to be the last.

        Raises
        ------
        ValueError
            If the blocks are not square: then the other axis needs scales of its own.
        """
        if self.block is not None and self.block[0] != self.block[1]:
            raise ValueError(f"Blocks of {self.block} cannot be turned; quantise the transposed matrix.")
        return Fp8(self.values.t().contiguous(), self.scales.t() if self.block else self.scales, self.block)


def quantize_fp8(x: torch.Tensor, format: Format = E4M3, block: tuple[int, int] | None = None) -> Fp8:
    """Store a matrix in fp8, with scales that bring the largest values to the largest number of the format.

    Parameters
    ----------
    x : torch.Tensor
        ``(rows, columns)``, floating point. Where a value is infinite or NaN, all that share its scale become NaN, so
        that whoever looks at a result, as a loss scaler does, finds out.
    format : Format
        ``E4M3`` or ``E5M2`` of :mod:`gpuguide.precision.formats`.
    block : (int, int), optional
        Rows and columns that share a scale. Blocks at the edges may be smaller.

    Raises
    ------
    ValueError
        If ``x`` is no matrix, the format is not one of the two, or a block has no size.
    """
    dtype = _dtype_of(x, format)
    if block is not None and min(block) < 1:
        raise ValueError(f"Blocks of {block} have no size.")
    if block is None:
        values, _, scale = operators.quantize(x.detach(), dtype, format.largest, SMALLEST_SCALE, False)
        return Fp8(values, scale, None)
    x = x.detach().float()
    scales = (_largest(x, block) / format.largest).clamp(min=SMALLEST_SCALE)
    shares = x * _spread(scales.reciprocal(), block, x.shape)
    return Fp8(torch.where(shares.isfinite(), shares, torch.nan).to(dtype), scales, block)


def quantize_fp8_twice(x: torch.Tensor, format: Format = E4M3) -> tuple[Fp8, Fp8]:
    """Store a matrix in fp8 as it is and turned, ``(rows, columns)`` and ``(columns, rows)``, with one scale.

    A layer's products read both. On a GPU they are written together. Arguments and errors as in :func:`quantize_fp8`.
    """
    dtype = _dtype_of(x, format)
    values, turned, scale = operators.quantize(x.detach(), dtype, format.largest, SMALLEST_SCALE, True)
    return Fp8(values, scale, None), Fp8(turned, scale, None)


def fp8_product(a: Fp8, b: Fp8, dtype: torch.dtype = torch.bfloat16, *, fast: bool = False) -> torch.Tensor:
    """Return ``a @ b.T``, added up in fp32.

    Parameters
    ----------
    a, b : Fp8
        ``(rows, inner)`` and ``(columns, inner)``. Not both may be e5m2.
    dtype : torch.dtype
        Of the result.
    fast : bool
        On Hopper, add up with fewer bits within the tensor cores. The reference takes no notice.

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
        raise ValueError(f"Sizes of a product in fp8 are multiples of {MULTIPLE}; given {_shape(a)} and {_shape(b)}.")
    return torch._scaled_mm(
        a.values, b.values.t(), scale_a=a.scales, scale_b=b.scales, out_dtype=dtype, use_fast_accum=fast
    )


def _largest(x: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return the largest magnitude of each block, NaN where one is there."""
    rows, columns = x.shape
    padded = nn.functional.pad(x, (0, -columns % block[1], 0, -rows % block[0]))
    return padded.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0])).abs().amax(dim=(1, 3))


def _spread(scales: torch.Tensor, block: tuple[int, int] | None, shape: torch.Size) -> torch.Tensor:
    """Return scales so that each value finds its own."""
    if block is None:
        return scales
    return scales.repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]


def _dtype_of(x: torch.Tensor, format: Format) -> torch.dtype:
    """Return PyTorch's name of a format that a matrix can be stored in."""
    if x.ndim != 2 or format not in (E4M3, E5M2) or format.dtype is None:
        raise ValueError(f"A matrix becomes e4m3 or e5m2; given {tuple(x.shape)} and {format.name}.")
    return format.dtype


def _shape(matrix: Fp8) -> tuple[int, ...]:
    return tuple(matrix.values.shape)

"""Two kernels that quantise a matrix to fp8 with one scale, in both layouts that the matmuls of a layer read.

The scale has to be known before the first value is divided by it, so the matrix is read twice, and no more:

1. Each program finds the largest magnitude of its part.
2. Each program takes the largest of all parts, multiplies a tile by one over the scale, and writes it and its
   transpose. The tensor cores need the axis of the sum as the last one of both matrices, and each matrix is summed
   over one axis in the forward pass and over the other in the backward pass.

With PyTorch's operations the same takes eight passes in fp32, and the transposed copy two more.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

PARTS = 512
"""Most programs that look for the largest magnitude"""
PART = 8192
"""Values that each of them reads at a time"""
TILE = (64, 128)
"""Rows and columns of a program's tile"""
WARPS = 8
ALIGNED = 16
"""Triton compiles a kernel for sizes and addresses that are multiples of this number, and another for others"""
COMPILED_KERNELS: dict[tuple[Any, ...], tuple[Any, Any]] = {}
"""Both kernels for aligned matrices, by device, dtypes and layouts"""


@triton.jit(do_not_specialize=["programs"])
def amax_kernel(
    x,  # (size,), any float
    parts,  # (programs,), int32, written
    size,
    programs,
    PART: tl.constexpr,
):
    """Write the bits of the largest magnitude in every ``programs``-th piece, as fp32.

    Bits of numbers that are not negative are ordered as the numbers are, with infinity and then NaN on top. A maximum
    of floats would lose a NaN.
    """
    largest = tl.zeros((PART,), tl.int32)
    for start in range(tl.program_id(0) * PART, size, programs * PART):
        at = start + tl.arange(0, PART).to(tl.int64)
        value = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, value.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.store(parts + tl.program_id(0), tl.max(largest))


@triton.jit(do_not_specialize=["programs"])
def quantize_kernel(
    x,  # (rows, columns), any float
    parts,  # (programs,), int32: bits of the largest magnitudes
    values,  # (rows, columns), fp8, written
    transposed,  # (columns, rows), fp8, written with TRANSPOSED
    scale,  # one fp32, written
    rows,
    columns,
    programs,  # of the other kernel
    LARGEST: tl.constexpr,  # the largest number of the format
    SMALLEST_SCALE: tl.constexpr,
    PARTS: tl.constexpr,  # a power of two, ``programs`` or more
    TRANSPOSED: tl.constexpr,  # whether the transpose is written too
    BITS: tl.constexpr,  # the unsigned integer of the format's size
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Quantise a tile, and write it, with TRANSPOSED also its transpose.

    The transposed values are read back from memory as plain ``BITS`` after they were written. Otherwise some of them
    are bytes that this kernel never wrote, where the kernel is assembled by ptxas 12.9, which Triton brings for Hopper;
    with 13.3 they are right. The cause is not known. Source: https://github.com/triton-lang/triton/issues/11111.
    """
    part = tl.arange(0, PARTS)
    bits = tl.max(tl.load(parts + part, mask=part < programs, other=0))
    exact_scale = tl.div_rn(bits.to(tl.float32, bitcast=True), LARGEST)
    tile_scale = tl.where(exact_scale < SMALLEST_SCALE, SMALLEST_SCALE, exact_scale)  # NaN stays NaN
    tile = tl.program_id(0)
    if tile == 0:
        tl.store(scale, tile_scale)
    across = tl.cdiv(columns, COLUMNS)
    row = (tile // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = (tile % across * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    offsets = row[:, None] * columns + column[None, :]
    value = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)
    fp8_values = (value * tl.div_rn(1.0, tile_scale)).to(values.dtype.element_ty)
    tl.store(values + offsets, fp8_values, mask=inside)
    if TRANSPOSED:
        tl.debug_barrier()  # makes what other threads of the program wrote visible
        written = tl.load(values.to(tl.pointer_type(BITS)) + offsets, mask=inside, other=0)
        transposed_offsets = column[:, None] * rows + row[None, :]
        tl.store(transposed.to(tl.pointer_type(BITS)) + transposed_offsets, tl.trans(written), mask=tl.trans(inside))


def quantize(
    x: torch.Tensor, dtype: torch.dtype, largest: float, smallest_scale: float, *, transposed: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a matrix in fp8, its transpose in fp8, and the scale of both.

    Parameters
    ----------
    x : torch.Tensor
        ``(rows, columns)``, contiguous, not empty; fp32, bf16 or fp16.
    dtype : torch.dtype
        One of PyTorch's formats of fp8.
    largest : float
        The largest number of the format.
    smallest_scale : float
        The scale of a matrix of zeros.
    transposed : bool
        Whether to return the transpose. Otherwise the second result is empty.

    Returns
    -------
    (torch.Tensor, torch.Tensor, torch.Tensor)
        ``(rows, columns)`` and ``(columns, rows)`` of ``dtype``, and one fp32 number without axes.
    """
    rows, columns = x.shape
    values = torch.empty(rows, columns, dtype=dtype, device=x.device)
    other = torch.empty((columns, rows) if transposed else (0, 0), dtype=dtype, device=x.device)
    scale = torch.empty((), dtype=torch.float32, device=x.device)
    parts = torch.empty(PARTS, dtype=torch.int32, device=x.device)
    programs = min(PARTS, _ceil_div(x.numel(), PART))
    tiles = _ceil_div(rows, TILE[0]) * _ceil_div(columns, TILE[1])
    bits = tl.uint8 if dtype.itemsize == 1 else tl.uint16
    find_arguments = (x, parts, x.numel(), programs, PART)
    round_arguments = (
        x,
        parts,
        values,
        other,
        scale,
        rows,
        columns,
        programs,
        largest,
        smallest_scale,
        PARTS,
        transposed,
        bits,
        *TILE,
    )
    aligned = not (rows % ALIGNED or columns % ALIGNED or x.data_ptr() % ALIGNED) and x.numel() < 2**31
    key = (x.device, x.dtype, dtype, largest, smallest_scale, transposed)
    if (
        aligned and key in COMPILED_KERNELS
    ):  # Triton's own look-up of a kernel takes the host longer than the rest of this function
        find_largest, quantize_tiles = COMPILED_KERNELS[key]
        find_largest[(programs, 1, 1)](*find_arguments)
        quantize_tiles[(tiles, 1, 1)](*round_arguments)
    else:
        compiled = (
            amax_kernel[(programs,)](*find_arguments, num_warps=WARPS),
            quantize_kernel[(tiles,)](*round_arguments, num_warps=WARPS),
        )
        if aligned and all(compiled):  # interpreted, there is none
            COMPILED_KERNELS[key] = compiled
    return values, other, scale


def _ceil_div(size: int, piece: int) -> int:
    return -(-size // piece)

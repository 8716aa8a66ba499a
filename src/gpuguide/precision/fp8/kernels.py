"""Two kernels that bring a matrix into fp8 with one scale, in both layouts that the products of a layer read.

The scale has to be known before the first value is divided by it, so the matrix is read twice, and no more:

1. Each program finds the largest magnitude of its part.
2. Each program takes the largest of all parts, multiplies a tile by one over the scale, and writes it as it is and
   turned. The tensor cores want the axis that is summed over to be the last one of both matrices, and each matrix is
   summed over along one axis in the forward pass and along the other in the backward pass.

With PyTorch's operations the same takes eight passes in fp32, and the turned copy two more.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

PARTS = 512
"""Programs that look for the largest magnitude, at most"""
PART = 8192
"""Values that one of them reads at a time"""
TILE = (64, 128)
"""Rows and columns that a program rounds"""
WARPS = 8
ALIGNED = 16
"""Triton compiles a kernel for sizes and addresses that are multiples of this number, and another for others"""
COMPILED: dict[tuple[Any, ...], tuple[Any, Any]] = {}
"""Both kernels for aligned matrices, by device, formats and layouts"""


@triton.jit(do_not_specialize=["programs"])
def largest_kernel(
    x, parts,  # (size,), any float; (programs,) int32
    size, programs,
    PART: tl.constexpr,
):  # fmt: skip
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
    x, parts, values, turned, scale,  # (rows, columns), (programs,), (rows, columns), (columns, rows), one number
    rows, columns, programs,
    LARGEST: tl.constexpr, SMALLEST_SCALE: tl.constexpr, PARTS: tl.constexpr, TURNED: tl.constexpr,
    BITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Round a tile, and write it once or twice.

    The transposed values are read back from where they were just written, as plain ``BITS``. Otherwise some of them
    are bytes that this kernel never wrote, where the kernel is assembled by ptxas 12.9, which Triton brings for Hopper;
    with 13.3 they are right. Why is not settled. Source: https://github.com/triton-lang/triton/issues/11111.
    """
    part = tl.arange(0, PARTS)
    bits = tl.max(tl.load(parts + part, mask=part < programs, other=0))
    share = tl.div_rn(bits.to(tl.float32, bitcast=True), LARGEST)
    by = tl.where(share < SMALLEST_SCALE, SMALLEST_SCALE, share)  # NaN stays
    tile = tl.program_id(0)
    if tile == 0:
        tl.store(scale, by)
    across = tl.cdiv(columns, COLUMNS)
    row = (tile // across * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = (tile % across * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    there = row[:, None] * columns + column[None, :]
    value = tl.load(x + there, mask=inside, other=0.0).to(tl.float32)
    narrow = (value * tl.div_rn(1.0, by)).to(values.dtype.element_ty)
    tl.store(values + there, narrow, mask=inside)
    if TURNED:
        tl.debug_barrier()  # what other threads of the program have written is there
        written = tl.load(values.to(tl.pointer_type(BITS)) + there, mask=inside, other=0)
        place = column[:, None] * rows + row[None, :]
        tl.store(turned.to(tl.pointer_type(BITS)) + place, tl.trans(written), mask=tl.trans(inside))


def quantize(
    x: torch.Tensor, dtype: torch.dtype, largest: float, smallest_scale: float, *, turned: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a matrix in fp8, the same turned, and the scale that both are multiplied by.

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
    turned : bool
        Whether the second result is wanted. Otherwise it is empty.

    Returns
    -------
    (torch.Tensor, torch.Tensor, torch.Tensor)
        ``(rows, columns)`` and ``(columns, rows)`` of ``dtype``, and one fp32 number without axes.
    """
    rows, columns = x.shape
    values = torch.empty(rows, columns, dtype=dtype, device=x.device)
    other = torch.empty((columns, rows) if turned else (0, 0), dtype=dtype, device=x.device)
    scale = torch.empty((), dtype=torch.float32, device=x.device)
    parts = torch.empty(PARTS, dtype=torch.int32, device=x.device)
    programs = min(PARTS, _in_pieces(x.numel(), PART))
    tiles = _in_pieces(rows, TILE[0]) * _in_pieces(columns, TILE[1])
    bits = tl.uint8 if dtype.itemsize == 1 else tl.uint16
    find = (x, parts, x.numel(), programs, PART)
    round_ = (
        x, parts, values, other, scale, rows, columns, programs, largest, smallest_scale, PARTS, turned, bits, *TILE
    )  # fmt: skip
    aligned = not (rows % ALIGNED or columns % ALIGNED or x.data_ptr() % ALIGNED) and x.numel() < 2**31
    key = (x.device, x.dtype, dtype, largest, smallest_scale, turned)
    if aligned and key in COMPILED:  # to let Triton find a kernel takes the host longer than all the rest here
        find_largest, quantize_tiles = COMPILED[key]
        find_largest[(programs, 1, 1)](*find)
        quantize_tiles[(tiles, 1, 1)](*round_)
    else:
        compiled = (
            largest_kernel[(programs,)](*find, num_warps=WARPS),
            quantize_kernel[(tiles,)](*round_, num_warps=WARPS),
        )
        if aligned and all(compiled):  # interpreted, there is none
            COMPILED[key] = compiled
    return values, other, scale


def _in_pieces(size: int, piece: int) -> int:
    return -(-size // piece)

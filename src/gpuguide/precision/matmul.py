"""A matmul in Triton, for bf16, fp16 and fp8: tiles that the copy engine brings, summed in fp32.

As many programs run as the GPU has multiprocessors, and each takes one tile of the result after another. So the tiles
that the next one needs are on their way while the last one is still being written (*persistent* programs). Tiles are
taken in groups of some rows: the programs that run at the same time read few rows and few columns, which stay in the
L2 cache.

There is no autotuning at run time. :func:`choose` selects a :class:`MatmulTiling` by the size of the result;
:data:`TILINGS` names others, to be measured against each other.

References
----------
Triton, "Persistent Matmul", https://triton-lang.org/main/getting-started/tutorials/09-persistent-matmul.html; Triton,
"Matrix Multiplication", tutorial 03, section "L2 Cache Optimizations", for the order of the tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpuguide.triton_support.context import device_of
from gpuguide.triton_support.tiles import (
    ALIGNED,
    MatmulTiling,
    count_multiprocessors,
    describe_tiles,
    is_misaligned,
    row_stride,
    tile_position,
)

TYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
EIGHT_BITS = TYPES[2:]
TILINGS = {
    "wide": MatmulTiling(),
    "wide, four stages": MatmulTiling(stages=4, halves=True),
    "square": MatmulTiling(columns=128, stages=4),
    "square, four warps": MatmulTiling(columns=128, stages=4, warps=4),
    "tall": MatmulTiling(rows=256, columns=128),
    "small": MatmulTiling(rows=64, columns=128, stages=4, warps=4),
    "one tile a program": MatmulTiling(persistent=False),
}
"""Named tilings for a sweep"""
SLOWNESS = {"wide": 1.0, "square": 1.1, "small": 1.4}
"""Relative time per element of the result on a full GPU: a smaller tile reads more for each element"""


def choose(rows: int, columns: int, multiprocessors: int, *, fast: bool = True) -> MatmulTiling:
    """Return the tiling with the shortest estimated time: large tiles are faster unless multiprocessors stay idle.

    Parameters
    ----------
    rows, columns : int
        Size of the result.
    multiprocessors : int
        Multiprocessors, each of which computes a tile at a time.
    fast : bool
        False if fp32 sums are kept in addition to those of the tensor cores: then a large tile does not fit the
        registers.
    """

    def time(name: str) -> float:
        tiling = TILINGS[name]
        tiles = triton.cdiv(rows, tiling.rows) * triton.cdiv(columns, tiling.columns)
        return SLOWNESS[name] * triton.cdiv(tiles, multiprocessors) * tiling.rows * tiling.columns

    return TILINGS[min((name for name in SLOWNESS if fast or name != "wide"), key=time)]


@triton.jit
def matmul_kernel(
    left,  # descriptor of (rows, inner)
    right,  # descriptor of (columns, inner) with INNER_LAST, else (inner, columns)
    out,  # descriptor of (rows, columns), written
    left_scale,  # one fp32, read with SCALED
    right_scale,  # one fp32, read with SCALED
    rows,
    columns,
    inner,
    programs,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,  # rows of tiles in a group
    INNER_LAST: tl.constexpr,
    SCALED: tl.constexpr,
    HALVES: tl.constexpr,  # whether a tile is written in two halves
    FAST: tl.constexpr,  # whether fp8 sums stay in the tensor cores
):
    """Compute every ``programs``-th tile of the result."""
    tiles_down, tiles_across = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    for tile in tl.range(tl.program_id(0), tiles_down * tiles_across, programs, flatten=True):
        down, across = tile_position(tile, tiles_down, tiles_across, GROUP)
        row, column = down * ROWS, across * COLUMNS
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for at in range(0, inner, INNER):  # beyond the ends of a matrix the copy engine brings zeros
            a = left.load([row, at])
            if INNER_LAST:
                b = right.load([column, at]).T
            else:
                b = right.load([at, column])
            if FAST:
                total = tl.dot(a, b, total)
            else:  # for fp8, accumulate the tensor cores' sums in fp32 after each tile
                total = tl.dot(a, b, total, max_num_imprecise_acc=INNER)
        if SCALED:
            total *= tl.load(left_scale) * tl.load(right_scale)
        if HALVES:
            one, other = total.reshape(ROWS, 2, COLUMNS // 2).permute(0, 2, 1).split()
            out.store([row, column], one.to(out.dtype))
            out.store([row, column + COLUMNS // 2], other.to(out.dtype))
        else:
            out.store([row, column], total.to(out.dtype))


def matmul(
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    dtype: torch.dtype | None = None,
    tiling: MatmulTiling | None = None,
    fast: bool = True,
) -> torch.Tensor:
    """Return ``left @ right``, summed in fp32.

    Parameters
    ----------
    left : torch.Tensor
        ``(rows, inner)``, contiguous; bf16, fp16 or fp8.
    right : torch.Tensor
        ``(inner, columns)``, contiguous or the transpose of a contiguous tensor; in fp8 the latter, which is the one
        that tensor cores read. Of the type of ``left``, or both in fp8.
    scales : (torch.Tensor, torch.Tensor), optional
        Scale of each matrix, one fp32 number on their device, which the result is multiplied by.
    dtype : torch.dtype, optional
        Dtype of the result; by default that of the matrices, and bf16 for fp8.
    tiling : MatmulTiling, optional
        Tile sizes; by default those of :func:`choose`.
    fast : bool
        For fp8 on Hopper: whether sums may stay in the tensor cores, which keep fewer bits than fp32 has.

    Returns
    -------
    torch.Tensor
        ``(rows, columns)``; its rows begin at multiples of 16 bytes.

    Raises
    ------
    TypeError
        If a dtype is not supported, or the two dtypes do not fit together.
    ValueError
        If shapes do not fit, a matrix is empty, or its layout in memory is not supported.
    """
    transposed = _check(left, right)
    eight = left.dtype in EIGHT_BITS
    dtype = dtype or (torch.bfloat16 if eight else left.dtype)
    (rows, inner), columns = left.shape, right.shape[1]
    tiling = tiling or choose(rows, columns, count_multiprocessors(left), fast=fast or not eight)
    inner_block = tiling.inner // left.element_size()
    out = torch.empty(rows, row_stride(columns, dtype), dtype=dtype, device=left.device)[:, :columns]
    tiles = triton.cdiv(rows, tiling.rows) * triton.cdiv(columns, tiling.columns)
    programs = min(tiles, count_multiprocessors(left)) if tiling.persistent else tiles
    left_scale, right_scale = scales or (left, right)
    width = tiling.columns // (2 if tiling.halves else 1)
    with device_of(left):
        matmul_kernel[(programs,)](
            describe_tiles(left, tiling.rows, inner_block),
            describe_tiles(right.t(), tiling.columns, inner_block)
            if transposed
            else describe_tiles(right, inner_block, tiling.columns),
            describe_tiles(out, tiling.rows, width),
            left_scale,
            right_scale,
            rows,
            columns,
            inner,
            programs,
            ROWS=tiling.rows,
            COLUMNS=tiling.columns,
            INNER=inner_block,
            GROUP=tiling.group,
            INNER_LAST=transposed,
            SCALED=scales is not None,
            HALVES=tiling.halves,
            FAST=fast,
            num_warps=tiling.warps,
            num_stages=tiling.stages,
        )
    return out


def _check(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Raise if the matrices cannot be multiplied; else return whether ``right`` is transposed in memory."""
    eight = left.dtype in EIGHT_BITS and right.dtype in EIGHT_BITS
    if left.dtype not in TYPES or right.dtype not in TYPES or (left.dtype != right.dtype and not eight):
        raise TypeError(f"Both matrices are bf16, both fp16 or both fp8; given {left.dtype} and {right.dtype}.")
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0] or not left.numel() * right.numel():
        raise ValueError(
            f"A matmul takes (rows, inner) and (inner, columns), none of them 0; "
            f"given {tuple(left.shape)} and {tuple(right.shape)}."
        )
    transposed = right.stride(0) == 1 and (right.stride(1) != 1 or eight)
    rows_of_both = (left, right.t() if transposed else right)
    if any(is_misaligned(matrix) for matrix in rows_of_both) or (eight and not transposed):
        raise ValueError(
            f"Rows must be contiguous and begin at multiples of {ALIGNED} bytes, and in fp8 the second matrix is the "
            f"transpose of such a one; given strides {left.stride()} and {right.stride()} in {left.dtype}."
        )
    return transposed

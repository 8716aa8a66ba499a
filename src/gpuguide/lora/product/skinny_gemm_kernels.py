"""Triton kernels of skinny GEMMs: a large matrix times a low-rank one, and reductions over the rows of a large matrix.

They are memory-bound. So each program keeps several loads of the large matrix in flight, and there are enough programs
for all multiprocessors. Every program reads the skinny operand again from the L2 cache; the larger its tile, the less
often.

:func:`skinny_matmul` sums along rows, so each program owns its rows. :func:`reduce_rows` sums along columns, of which
there are too few, so rows are split among programs as well (split-K); a second kernel adds their sums in fp32, always
in the same order. An adapter needs two such reductions over the same rows, which one launch computes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

MOST_SPLITS = 64
"""Largest number of programs among which the rows of a column are split: one program then adds all their sums"""
SUMS_PER_PROGRAM = 2048
"""Sums in fp32 that a program of :func:`reduce_splits_kernel` holds in registers: few, for many programs"""
COLUMNS_PER_PROGRAM = 128
"""Columns that a program of :func:`partial_sums_kernel` takes"""


@dataclass(frozen=True)
class Tile:
    """Tile of the large matrix that a program loads at a time, with the number of warps and of loads in flight."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 4
    programs: int = 2
    """Programs per multiprocessor, where rows are split"""


@triton.jit
def skinny_matmul_kernel(
    wide,  # (rows, inner), with the numbers of a row side by side
    thin,  # (rank, inner) if INNER_LAST, else (inner, rank), contiguous
    out,  # (rows, rank), contiguous
    rows,
    inner,
    row_stride,
    scale,
    RANK: tl.constexpr,
    INNER_LAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,  # of the large matrix, at once
    WIDTH: tl.constexpr,  # a power of two, RANK or more
):
    """Multiply a block of rows by the whole skinny matrix."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, COLUMNS)
    place = tl.arange(0, WIDTH)
    wide += row.to(tl.int64)[:, None] * row_stride + lane[None, :]  # an offset may exceed 32 bits
    if INNER_LAST:
        thin += place[None, :] * inner + lane[:, None]
    else:
        thin += lane[:, None] * RANK + place[None, :]
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, inner, COLUMNS):
        inside = start + lane < inner
        x = tl.load(wide + start, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        offset = start if INNER_LAST else start * RANK
        factor = tl.load(thin + offset, mask=inside[:, None] & (place < RANK)[None, :], other=0.0)
        total = tl.dot(x, factor, total, input_precision="ieee")
    out += row.to(tl.int64)[:, None] * RANK + place[None, :]
    tl.store(out, (total * scale).to(out.dtype.element_ty), mask=(row < rows)[:, None] & (place < RANK)[None, :])


@triton.jit
def partial_sums_kernel(
    wide,  # (rows, columns), with the numbers of a row side by side
    thin,  # (rows, rank), contiguous
    other_wide,  # (rows, other_columns)
    other_thin,  # (rows, rank), contiguous
    sums,  # (splits, blocks, COLUMNS, WIDTH), fp32
    rows,
    columns,
    row_stride,
    other_columns,
    other_row_stride,
    rows_each,  # of a split, a multiple of ROWS
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Reduce a split of the rows, for a block of columns of the first matrix or, in later blocks, of the other one."""
    block = tl.program_id(0)
    blocks = tl.cdiv(columns, COLUMNS)
    sums += (tl.program_id(1) * tl.num_programs(0) + block).to(tl.int64) * (COLUMNS * WIDTH)
    if block >= blocks:  # one loop for both: with two, the tiles of each would have their room
        wide, thin = other_wide, other_thin
    columns = tl.where(block < blocks, columns, other_columns)  # not above: of a one, Triton makes a constant
    row_stride = tl.where(block < blocks, row_stride, other_row_stride)
    block = tl.where(block < blocks, block, block - blocks)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    lane = tl.arange(0, ROWS)
    place = tl.arange(0, WIDTH)
    first = tl.program_id(1) * rows_each
    stop = tl.minimum(first + rows_each, rows)
    here = first.to(tl.int64) + lane  # an offset may exceed 32 bits
    wide += here[:, None] * row_stride + column[None, :]
    thin += here[:, None] * RANK + place[None, :]
    total = tl.zeros((COLUMNS, WIDTH), tl.float32)
    for start in range(first, stop, ROWS):
        inside = start + lane < stop
        x = tl.load(wide, mask=inside[:, None] & (column < columns)[None, :], other=0.0)
        factor = tl.load(thin, mask=inside[:, None] & (place < RANK)[None, :], other=0.0)
        total = tl.dot(tl.trans(x), factor, total, input_precision="ieee")
        wide += ROWS * row_stride
        thin += ROWS * RANK
    tl.store(sums + tl.arange(0, COLUMNS)[:, None] * WIDTH + place[None, :], total)


@triton.jit
def reduce_splits_kernel(
    sums,  # (splits, blocks, COLUMNS, WIDTH), fp32
    out,  # (columns, rank), contiguous
    other_out,  # (rank, other_columns), contiguous
    splits,
    blocks,
    columns,
    other_columns,
    RANK: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,  # a power of two, ``splits`` or more
    CHUNK: tl.constexpr,  # of the columns of a block, how many a program takes
):
    """Reduce the partial sums of all splits, for a chunk of columns."""
    column = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)  # the padded ones of the last block are counted too
    place = tl.arange(0, WIDTH)
    split = tl.arange(0, SPLITS)
    offset = split.to(tl.int64)[:, None, None] * blocks * (COLUMNS * WIDTH)
    offset += column[None, :, None] * WIDTH + place[None, None, :]
    every = tl.load(sums + offset, mask=(split < splits)[:, None, None], other=0.0)
    total = tl.sum(every, 0).to(out.dtype.element_ty)
    other_column = column - tl.cdiv(columns, COLUMNS) * COLUMNS
    real = (place < RANK)[None, :]
    tl.store(out + column[:, None] * RANK + place[None, :], total, mask=(column < columns)[:, None] & real)
    is_other = (other_column >= 0) & (other_column < other_columns)
    other_out += place[None, :] * other_columns + other_column[:, None]
    tl.store(other_out, total, mask=is_other[:, None] & real)


# --- launches --------------------------------------------------------------------------------------------


def skinny_matmul(wide: torch.Tensor, thin: torch.Tensor, scale: float, tile: Tile | None = None) -> torch.Tensor:
    """Return ``scale * wide @ thin``. See :func:`gpuguide.lora.product.skinny_gemm.skinny_matmul`.

    Parameters
    ----------
    wide : torch.Tensor
        ``(rows, inner)``
    thin : torch.Tensor
        ``(inner, rank)``, of any layout.
    scale : float
        Factor of the product.
    tile : Tile, optional
        Tile of a program.
    """
    (rows, inner), rank = wide.shape, thin.shape[1]
    wide = _make_rows_dense(wide)
    inner_last = thin.t().is_contiguous()
    tile = tile or skinny_matmul_tile(rows, rank, _multiprocessors(wide.device))
    out = wide.new_empty(rows, rank)
    skinny_matmul_kernel[(triton.cdiv(rows, tile.rows),)](
        wide,
        thin if inner_last else thin.contiguous(),
        out,
        rows,
        inner,
        wide.stride(0),
        scale,
        RANK=rank,
        INNER_LAST=inner_last,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        WIDTH=width(rank),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


def reduce_rows(
    wide: torch.Tensor,
    thin: torch.Tensor,
    other_wide: torch.Tensor,
    other_thin: torch.Tensor,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``wide.t() @ thin`` and ``other_thin.t() @ other_wide``, both contiguous.

    Parameters
    ----------
    wide, other_wide : torch.Tensor
        ``(rows, columns)``, each with columns of its own.
    thin, other_thin : torch.Tensor
        ``(rows, rank)``, both of one rank.
    tile : Tile, optional
        Tile of a program.
    """
    (rows, columns), rank, other_columns = wide.shape, thin.shape[1], other_wide.shape[1]
    wide, other_wide = _make_rows_dense(wide), _make_rows_dense(other_wide)
    multiprocessors = _multiprocessors(wide.device)
    tile = tile or reduction_tile(rank, columns + other_columns, multiprocessors)
    blocks = triton.cdiv(columns, tile.columns) + triton.cdiv(other_columns, tile.columns)
    splits, rows_each = split_rows(rows, blocks, tile, multiprocessors)
    sums = torch.empty(splits, blocks, tile.columns, width(rank), dtype=torch.float32, device=wide.device)
    out, other_out = wide.new_empty(columns, rank), wide.new_empty(rank, other_columns)
    partial_sums_kernel[(blocks, splits)](
        wide,
        thin.contiguous(),
        other_wide,
        other_thin.contiguous(),
        sums,
        rows,
        columns,
        wide.stride(0),
        other_columns,
        other_wide.stride(0),
        rows_each,
        RANK=rank,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        WIDTH=width(rank),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    at_once = triton.next_power_of_2(splits)
    chunk = min(tile.columns, max(1, SUMS_PER_PROGRAM // (at_once * width(rank))))
    reduce_splits_kernel[(blocks * tile.columns // chunk,)](
        sums,
        out,
        other_out,
        splits,
        blocks,
        columns,
        other_columns,
        RANK=rank,
        COLUMNS=tile.columns,
        WIDTH=width(rank),
        SPLITS=at_once,
        CHUNK=chunk,
    )
    return out, other_out


def skinny_matmul_tile(rows: int, rank: int, multiprocessors: int) -> Tile:
    """Return the tile with the most rows that still gives nearly every multiprocessor a program."""
    stages = 6 if width(rank) <= 64 else 3  # with their part of the thin matrix they must find room
    for height in (64, 32):
        if triton.cdiv(rows, height) >= 0.9 * multiprocessors:
            return Tile(height, 128, stages=stages)
    return Tile(16, 256 if width(rank) <= 32 else 128, stages=stages)


def reduction_tile(rank: int, columns: int, multiprocessors: int) -> Tile:
    """Return the tile of a reduction over rows, for the total number of columns.

    One program for each multiprocessor writes fewest sums. With more blocks of columns than multiprocessors a second
    one fills the last round.
    """
    if width(rank) > 64:
        return Tile(64, COLUMNS_PER_PROGRAM, stages=3)
    if columns > multiprocessors * COLUMNS_PER_PROGRAM:
        return Tile(64, COLUMNS_PER_PROGRAM, stages=4)
    return Tile(64, COLUMNS_PER_PROGRAM, stages=5, programs=1)


def split_rows(rows: int, blocks: int, tile: Tile, multiprocessors: int) -> tuple[int, int]:
    """Return the number of splits of the rows, and the number of rows of each."""
    wanted = max(1, min(MOST_SPLITS, tile.programs * multiprocessors // blocks))
    rows_each = tile.rows * triton.cdiv(triton.cdiv(rows, wanted), tile.rows)
    return triton.cdiv(rows, rows_each), rows_each


def width(rank: int) -> int:
    """Return the padded rank: a power of two, at least the 16 columns that tensor cores need."""
    return max(16, int(triton.next_power_of_2(rank)))


def _make_rows_dense(matrix: torch.Tensor) -> torch.Tensor:
    return matrix if matrix.stride(1) == 1 or matrix.shape[1] == 1 else matrix.contiguous()


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a device; a few in the interpreter on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4

"""Tiles of a matmul in Triton: their sizes, their order, and the matrices that the copy engine can bring them from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

ALIGNED = 16
"""Bytes that a row has to be a multiple of, for the copy engine"""


@dataclass(frozen=True)
class MatmulTiling:
    """Tile sizes and schedule of the matmul kernel."""

    rows: int = 128
    columns: int = 256
    """Columns of the result in a tile"""
    inner: int = 128
    """Bytes of each row that are summed over at a time; 128 is what the copy engine can place without bank conflicts"""
    stages: int = 3
    """Tiles of both matrices in shared memory at a time"""
    warps: int = 8
    group: int = 8
    """Rows of tiles in a group, which are computed before the next column of tiles"""
    halves: bool = False
    """Whether a tile is written in two halves, which need half the shared memory"""
    persistent: bool = True
    """Whether a program computes several tiles, or one"""


@triton.jit
def tile_position(tile, tiles_down, tiles_across, GROUP: tl.constexpr):
    """Return row and column of a tile; tiles are ordered in groups of rows, and within a group from left to right."""
    in_group = GROUP * tiles_across
    first = tile // in_group * GROUP
    height = min(tiles_down - first, GROUP)
    return first + tile % in_group % height, tile % in_group // height


def is_misaligned(matrix: torch.Tensor) -> bool:
    """Return whether the copy engine cannot read a matrix: rows that are not contiguous or begin elsewhere."""
    return bool(
        matrix.stride(1) != 1 or matrix.stride(0) * matrix.element_size() % ALIGNED or matrix.data_ptr() % ALIGNED
    )


def describe_tiles(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return what a kernel loads and stores tiles of a matrix by."""
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


def row_stride(columns: int, dtype: torch.dtype) -> int:
    """Return the length of padded rows, which begin at multiples of 16 bytes."""
    return triton.cdiv(columns * dtype.itemsize, ALIGNED) * ALIGNED // dtype.itemsize


def count_multiprocessors(tensor: torch.Tensor) -> int:
    """Return how many multiprocessors the GPU of a tensor has, so how many programs run at a time."""
    if not tensor.is_cuda:
        return 2  # when interpreted, so that a program has several tiles
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count

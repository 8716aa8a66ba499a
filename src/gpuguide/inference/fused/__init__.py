"""A decode step in few kernels, for a GPU.

A :class:`DecodeStep` runs them. The kernels for one token are in :mod:`~gpuguide.inference.fused.vector`, those for
several in :mod:`~gpuguide.inference.fused.matrix`, and attention to the cache in
:mod:`~gpuguide.inference.fused.attention`.
"""

from __future__ import annotations

from gpuguide.inference.fused.attention import CacheAttention, overlaps
from gpuguide.inference.fused.step import DecodeStep, advance
from gpuguide.inference.fused.tiling import Matrix, MatrixTiling, VectorTiling, matrix_tiling, vector_tiling

__all__ = [
    "CacheAttention",
    "DecodeStep",
    "Matrix",
    "MatrixTiling",
    "VectorTiling",
    "advance",
    "matrix_tiling",
    "overlaps",
    "vector_tiling",
]

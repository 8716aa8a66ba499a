"""A decode step in few kernels, for a GPU.

A :class:`Step` puts them together. The kernels for one token are in :mod:`~gpuguide.inference.fused.vector`, those for
several in :mod:`~gpuguide.inference.fused.matrix`, and attention to the cache in
:mod:`~gpuguide.inference.fused.attention`.
"""

from __future__ import annotations

from gpuguide.inference.fused.attention import Attention, overlaps
from gpuguide.inference.fused.step import Step, advance
from gpuguide.inference.fused.tiling import Matrix, MatrixTiling, VectorTiling, matrix_tiling, vector_tiling

__all__ = [
    "Attention",
    "Matrix",
    "MatrixTiling",
    "Step",
    "VectorTiling",
    "advance",
    "matrix_tiling",
    "overlaps",
    "vector_tiling",
]

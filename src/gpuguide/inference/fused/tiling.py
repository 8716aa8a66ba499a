"""How the products of a decode step are cut up for a GPU: which rows, tokens and inputs a program has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch.nn import functional

from gpuguide.inference.decoder import Linear
from gpuguide.inference.quantize import Int4

LONGEST_PART = 4096
"""Numbers of a vector that the registers of a program hold beside the weights"""
WIDTH = 128
"""Parts of vectors are multiples of this, as the groups of four-bit weights are its divisors"""


@dataclass(frozen=True)
class Matrix:
    """A matrix as a kernel takes it."""

    weight: torch.Tensor
    """Numbers of the model's format, or int32 words of quantised ones, ``(outputs, stride)``"""
    scales: torch.Tensor
    bias: torch.Tensor
    has_bias: bool
    outputs: int
    inputs: int
    groups: int
    """Scales of a row"""
    bits: int
    """8 or 4; 0 for numbers of the model's format"""
    group: int
    """Inputs that share a scale, with 4 bits"""

    @classmethod
    def of(cls, linear: Linear) -> Matrix:
        """Return the matrix of a linear layer, plain or quantised."""
        weight = linear.weight
        has_bias = linear.bias is not None
        if isinstance(weight, torch.Tensor):
            bias = weight if linear.bias is None else linear.bias
            return cls(weight, weight, bias, has_bias, weight.shape[0], weight.shape[1], 1, 0, 1)
        stored = weight.weight
        bias = stored if linear.bias is None else linear.bias
        sizes = weight.out_features, weight.in_features, weight.groups
        if isinstance(weight, Int4):
            return cls(stored, weight.scales, bias, has_bias, *sizes, 4, weight.group)
        words = functional.pad(stored, (0, -stored.shape[1] % WIDTH)).view(torch.int32)
        return cls(words, weight.scales, bias, has_bias, *sizes, 8, 1)

    @property
    def word(self) -> int:
        """Numbers in an element of the stored matrix."""
        return 32 // self.bits if self.bits else 1

    @property
    def stride(self) -> int:
        """Elements of a row in memory."""
        return self.weight.shape[1]

    def arguments(self) -> tuple[Any, ...]:
        """Return what every kernel takes of a matrix, in order."""
        return self.weight, self.scales, self.bias, self.inputs, self.outputs, self.stride, self.groups


@dataclass(frozen=True)
class VectorTiling:
    """How a product with one vector is shared out."""

    parts: int
    """Into which the vector is cut, where it is too long for registers"""
    length: int
    """Of a part"""
    padded: int
    """The power of two that holds a part"""
    rows: int
    """That a program multiplies at a time"""
    programs: int
    """That share the rows out"""
    rounds: int
    """In which they take them"""
    warps: int


@dataclass(frozen=True)
class MatrixTiling:
    """How a product with several tokens is cut up."""

    tokens: int
    rows: int
    block: int
    parts: int
    warps: int
    stages: int


def vector_tiling(matrix: Matrix, processors: int, *, can_cut: bool) -> VectorTiling:
    """Return the tiling for one vector.

    Found by trying, on an H200 with the shapes of models of one and of seven billion weights: how many rows a program
    has under way, how many warps share them, and how many programs a multiprocessor has. Small matrices get fewer rows
    a program, so that every multiprocessor has work for two. The rounds in which programs take rows come out even.
    """
    inputs = matrix.stride * matrix.word
    parts = triton.cdiv(inputs, LONGEST_PART) if can_cut else 1
    length = triton.cdiv(triton.cdiv(inputs, parts), WIDTH) * WIDTH
    padded = max(WIDTH, triton.next_power_of_2(length))
    if matrix.bits == 8:
        rows, warps, at_once = 4, padded // 512, 32
    elif matrix.bits == 4:
        rows, warps, at_once = 16, padded // 512, 16
    elif padded >= 2048:
        rows, warps, at_once = 2, padded // 512, 32
    else:
        rows, warps, at_once = 8192 // padded, padded // 512, 32
    warps = min(16, max(2, warps))
    while rows > 2 and matrix.outputs // rows * parts < 2 * processors:
        rows //= 2
    groups = triton.cdiv(matrix.outputs, rows)
    rounds = triton.cdiv(groups, max(1, processors * max(1, at_once // warps) // parts))
    return VectorTiling(parts, length, padded, rows, triton.cdiv(groups, rounds), rounds, warps)


def matrix_tiling(matrix: Matrix, count: int, processors: int, *, can_split: bool) -> MatrixTiling:
    """Return the tiling for ``count`` tokens; ``can_split`` says whether inputs may be cut into parts."""
    tokens = max(16, min(64, triton.next_power_of_2(count)))
    few = count <= 32
    block = matrix.group if matrix.bits == 4 else 256 if few else 128
    rows = 32 if few else 64
    while rows > 16 and triton.cdiv(matrix.outputs, rows) < processors:
        rows //= 2
    programs = triton.cdiv(matrix.outputs, rows) * triton.cdiv(count, tokens)
    blocks = triton.cdiv(matrix.inputs, block)
    parts = max(1, min(8, 2 * processors // programs, blocks)) if can_split else 1
    return MatrixTiling(tokens, rows, block, parts, 2 if few and not matrix.bits else 4, 3 if few else 5)


def vector_constants(of: Matrix, tiling: VectorTiling, like: torch.Tensor) -> Mapping[str, Any]:
    """Return what is fixed when a kernel for one vector is compiled; ``like`` is of the model's format and device.

    Sums of narrow weights go through fp16 for a model in 16 bits. The instructions for that are a GPU's: elsewhere, and
    for a model in fp32, everything is computed in fp32.
    """
    return {
        "BIAS": of.has_bias,
        "BITS": of.bits,
        "GROUP": of.group,
        "EXACT": like.dtype == torch.float32 or not like.is_cuda,
        "INPUTS": tiling.padded,
        "ACROSS": tiling.padded // of.word,
        "ROWS": tiling.rows,
    }

"""Tiling of the matmuls of a decode step: the rows, tokens and inputs of each program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch.nn import functional

from gpuguide.inference.decoder import Linear
from gpuguide.quantization import Int4

LONGEST_PART = 4096
"""Numbers of a vector that the registers of a program hold in addition to the weights"""
WIDTH = 128
"""Multiple that split-K parts have: the groups of 4-bit weights divide it"""
ROWS = 64
"""Rows of a matrix that a program multiplies by several tokens: as many as an instruction of Hopper's tensor cores"""
FEWEST_TOKENS, MOST_TOKENS = 8, 128
"""Tokens of a program; half as many at most with quantised weights, for which registers are needed too"""
MOST_PARTS = 8
"""Split-K parts, which the norm that follows adds up"""
SHORTEST_PART = 8
"""Blocks of a part, if there is work for all multiprocessors"""
MOST_STAGES = 4
"""Most stages of a kernel's pipeline; fewer where shared memory is too small"""
SHARED_MEMORY = 100 * 2**10
"""Bytes of shared memory that a program takes, so that two run on a multiprocessor"""


@dataclass(frozen=True)
class Matrix:
    """A matrix as the kernels read it."""

    weight: torch.Tensor
    """Weights in the model's format, or packed in int32 words, ``(outputs, stride)``"""
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
    def from_linear(cls, linear: Linear) -> Matrix:
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

    def arguments(self) -> dict[str, Any]:
        """Return the kernel arguments that describe the matrix."""
        return {
            "weight": self.weight,
            "scales": self.scales,
            "bias": self.bias,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "stride": self.stride,
            "groups": self.groups,
        }


@dataclass(frozen=True)
class VectorTiling:
    """Split of a GEMV's rows among its programs."""

    parts: int
    """Splits of the vector (split-K), where it is too long for the registers of a program"""
    length: int
    """Inputs of a part"""
    padded: int
    """Power of two that a part is padded to"""
    rows: int
    """Rows that a program multiplies at a time"""
    programs: int
    """Grid size: programs that divide the rows among themselves"""
    rounds: int
    """Row blocks of a program"""
    warps: int


@dataclass(frozen=True)
class MatrixTiling:
    """Split of a matmul with several tokens: its tokens, rows and inputs per program."""

    tokens: int
    rows: int
    block: int
    parts: int
    warps: int
    stages: int


def vector_tiling(matrix: Matrix, processors: int, *, can_cut: bool) -> VectorTiling:
    """Choose the tiling of a GEMV.

    The constants were tuned on an H200 with the shapes of models of one and of seven billion weights: the rows that a
    program has in flight, the warps that share them, and the programs of a multiprocessor. Small matrices get fewer
    rows a program, so that every multiprocessor has work for two programs. All programs have as many row blocks, except
    for the last ones.
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


def matrix_tiling(matrix: Matrix, count: int, processors: int, *, element_size: int, can_split: bool) -> MatrixTiling:
    """Choose the tiling of a matmul for several tokens.

    Parameters
    ----------
    matrix : Matrix
        Left operand.
    count : int
        Tokens.
    processors : int
        Multiprocessors of the GPU.
    element_size : int
        Bytes of a number of the tokens.
    can_split : bool
        Whether to allow split-K.
    """
    tokens = max(FEWEST_TOKENS, min(MOST_TOKENS // 2 if matrix.bits else MOST_TOKENS, triton.next_power_of_2(count)))
    rows, warps = ROWS, 4
    if matrix.bits == 4 and tokens == FEWEST_TOKENS:
        warps = 2  # each loads the inputs of all tokens, and two with more rows load them half as often as four
    fits = matrix.bits == 8 and tokens == 32 and triton.cdiv(matrix.outputs, 2 * ROWS) <= processors
    if matrix.bits and (tokens == 64 or fits):
        rows, warps = 2 * ROWS, 8  # the inputs of so many tokens are loaded, and with 8 bits reordered, for more rows
    block = matrix.group if matrix.bits == 4 else WIDTH if tokens < MOST_TOKENS else WIDTH // 2
    weight_size = matrix.bits / 8 if matrix.bits else element_size
    block_bytes = block * (rows * weight_size + tokens * element_size)
    stages = max(2, min(MOST_STAGES, int(SHARED_MEMORY // block_bytes)))
    programs = triton.cdiv(matrix.outputs, rows) * triton.cdiv(count, tokens)
    resident = (6 if warps == 2 else 3 if matrix.bits else 2) * processors
    parts = split_k_parts(triton.cdiv(matrix.inputs, block), programs, processors, resident) if can_split else 1
    return MatrixTiling(tokens, rows, block, parts, warps, stages)


def split_k_parts(blocks: int, programs: int, processors: int, resident: int) -> int:
    """Return into how many parts to split the inputs of a matmul.

    Every multiprocessor gets work, even if parts are short. Beyond that, parts have a useful length, and no more
    programs are started than are on the GPU at once.

    Parameters
    ----------
    blocks : int
        Blocks of inputs.
    programs : int
        Programs without split-K.
    processors, resident : int
        Multiprocessors of the GPU, and the programs that they hold at once.
    """
    needed = min(triton.cdiv(processors, programs), blocks)
    useful = min(resident // programs, blocks // SHORTEST_PART)
    return max(1, min(MOST_PARTS, max(needed, useful)))


def unpacks_exactly(like: torch.Tensor) -> bool:
    """Return whether quantised weights are unpacked without a GPU's instructions for pairs of 16-bit numbers.

    The interpreter has no such instructions, and a model in fp32 has no such numbers.
    """
    return like.dtype == torch.float32 or not like.is_cuda


def vector_constants(matrix: Matrix, tiling: VectorTiling, like: torch.Tensor) -> Mapping[str, Any]:
    """Return the compile-time constants of a GEMV kernel; ``like`` has the model's type and device.

    Sums of quantised weights are computed partly in fp16 where they are not unpacked exactly.
    """
    return {
        "BIAS": matrix.has_bias,
        "BITS": matrix.bits,
        "GROUP": matrix.group,
        "EXACT": unpacks_exactly(like),
        "INPUTS": tiling.padded,
        "WORDS": tiling.padded // matrix.word,
        "ROWS": tiling.rows,
    }

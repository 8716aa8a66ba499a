"""Matrices in 8 and 4 bits a weight: how they lie in memory, and what they read as.

A kernel that multiplies by one reads ``weight`` and ``scales`` as they are described here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

import torch
from torch.nn import functional

from gpuguide import triton_support

GROUPS = (32, 64, 128)
"""Inputs that may share a scale in :class:`Int4`"""
SCALE_FORMATS = (torch.bfloat16, torch.float32)
"""Formats of the scales of :class:`Int4`; fp16 has too small a range for them"""
NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)
"""Order of eight neighbouring inputs in a word: the input in bits 0 to 3, the one in bits 4 to 7, and so on"""
ZERO = 8
"""The value of 4 bits that reads as zero"""


@dataclass(frozen=True, eq=False)
class _Quantized:
    """Base of both formats: ``out`` rows of integers, and ``(out, groups)`` scales."""

    weight: torch.Tensor
    scales: torch.Tensor

    @property
    def out_features(self) -> int:
        """Rows of the matrix."""
        return self.weight.shape[0]

    @property
    def groups(self) -> int:
        """Scales of a row."""
        return self.scales.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of integers and scales."""
        return self.weight.nbytes + self.scales.nbytes

    def to(self, device: torch.device | str) -> Self:
        """Return the same matrix on another device."""
        return dataclasses.replace(self, weight=self.weight.to(device), scales=self.scales.to(device))


@dataclass(frozen=True, eq=False)
class Int8(_Quantized):
    """A matrix in 8 bits a weight: ``w ≈ q * scale``, made by :func:`quantize_int8`.

    Parameters
    ----------
    weight : torch.Tensor
        ``(out, in)``, int8: q, from -127 to 127.
    scales : torch.Tensor
        ``(out, 1)``, fp32: one scale a row, so there is one group.

    Raises
    ------
    ValueError
        If shapes or formats are others.
    """

    def __post_init__(self) -> None:
        fits = self.weight.ndim == 2 and self.scales.shape == (self.out_features, 1)
        if not fits or self.weight.dtype != torch.int8 or self.scales.dtype != torch.float32:
            raise ValueError(
                "8-bit weights are int8 of the shape (out, in) with scales (out, 1) in fp32; "
                f"given {_describe_tensor(self.weight)} and {_describe_tensor(self.scales)}."
            )

    @property
    def in_features(self) -> int:
        """Columns of the matrix."""
        return self.weight.shape[1]

    @property
    def group(self) -> int:
        """Inputs that share a scale: all."""
        return self.in_features

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the values that are stored, ``(out, in)``: products in fp32, rounded to ``dtype``."""
        return (self.weight.float() * self.scales).to(dtype)


@dataclass(frozen=True, eq=False)
class Int4(_Quantized):
    """A matrix in 4 bits a weight: ``w ≈ (q - 8) * scale``, made by :func:`quantize_int4`.

    Rows are padded to whole groups with q = 8, which reads as zero. Eight neighbouring inputs k0 to k7 share a word::

        bits   31-28 27-24 23-20 19-16 15-12 11-8  7-4   3-0
        input  k7    k5    k3    k1    k6    k4    k2    k0

    so ``(word >> 4 * i) & 0x000F000F`` gives inputs ``2 * i`` and ``2 * i + 1``, each in 16 bits of its own.

    Parameters
    ----------
    weight : torch.Tensor
        ``(out, groups * group / 8)``, int32: the words.
    scales : torch.Tensor
        ``(out, groups)``, bf16 or fp32. A scale may be negative.
    in_features : int
        Columns of the matrix, without the padding.

    Raises
    ------
    ValueError
        If shapes or formats are others.
    """

    in_features: int

    def __post_init__(self) -> None:
        fits = self.weight.ndim == self.scales.ndim == 2 and self.weight.shape[0] == self.scales.shape[0]
        fits = fits and self.group in GROUPS and self.weight.shape[1] * 8 == self.groups * self.group
        fits = fits and -(-self.in_features // self.group) == self.groups
        if not fits or self.weight.dtype != torch.int32 or self.scales.dtype not in SCALE_FORMATS:
            raise ValueError(
                f"4-bit weights for {self.in_features} inputs are int32 words of the shape (out, groups * group / 8) "
                "with scales (out, groups) in bf16 or fp32 and groups of 32, 64 or 128 inputs; "
                f"given {_describe_tensor(self.weight)} and {_describe_tensor(self.scales)}."
            )

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.weight.shape[1] * 8 // self.groups if self.groups else 0

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the values that are stored, ``(out, in)``: products in fp32, rounded to ``dtype``."""
        if triton_support.supports_triton(self.weight):
            from gpuguide.quantization.unpacking import dequantize

            return dequantize(self.weight, self.scales, self.in_features, self.group, dtype)
        grouped = (unpack(self.weight).float() - ZERO).unflatten(1, (self.groups, self.group))
        return (grouped * self.scales.float().unsqueeze(-1)).flatten(1)[:, : self.in_features].to(dtype)


def pack(values: torch.Tensor) -> torch.Tensor:
    """Store eight neighbouring values of 4 bits in a word, in the order that :class:`Int4` has.

    Parameters
    ----------
    values : torch.Tensor
        ``(..., columns)``, integers from 0 to 15; the columns are a multiple of 8.

    Returns
    -------
    torch.Tensor
        ``(..., columns / 8)``, int32. The last input of eight lies where the sign is, so words may be negative.

    Raises
    ------
    TypeError
        If the values are no integers.
    ValueError
        If one does not fit into 4 bits, or the columns do not fill whole words.
    """
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"Values to pack must be integers, not {values.dtype}; round them first.")
    if values.ndim == 0 or values.shape[-1] % 8:
        raise ValueError(f"A word takes 8 values, and {tuple(values.shape)} is no multiple of it; pad the last axis.")
    if values.numel() and not 0 <= int(values.min()) <= int(values.max()) <= 15:
        raise ValueError(f"Values lie from {int(values.min())} to {int(values.max())}; 4 bits hold 0 to 15.")
    eights = values.unflatten(-1, (-1, 8))
    words = torch.zeros(eights.shape[:-1], dtype=torch.int32, device=values.device)
    for nibble, element in enumerate(NIBBLES):
        words |= eights[..., element].to(torch.int32) << 4 * nibble
    return words


def unpack(words: torch.Tensor) -> torch.Tensor:
    """Return the values that :func:`pack` stored, ``(..., 8 * words)``, uint8.

    Raises
    ------
    TypeError
        If the words are not int32.
    """
    if words.dtype != torch.int32:
        raise TypeError(f"Packed words must be torch.int32, not {words.dtype}.")
    values = torch.empty(*words.shape, 8, dtype=torch.uint8, device=words.device)
    for nibble, element in enumerate(NIBBLES):
        values[..., element] = (words >> 4 * nibble) & 15
    return values.flatten(-2)


def _describe_tensor(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def linear(x: torch.Tensor, weight: Int8 | Int4) -> torch.Tensor:
    """Multiply by a quantised matrix, plainly: turn all of it back, then multiply and add in fp32.

    In bf16 on a GPU tensor cores multiply, which also add in fp32; weights in 4 bits are then rounded to bf16 before.

    Parameters
    ----------
    x : torch.Tensor
        ``(..., in)``, floating point.
    weight : Int8 or Int4
        ``(out, in)``, on the same device.

    Returns
    -------
    torch.Tensor
        ``(..., out)``, in the format of ``x``.

    Raises
    ------
    ValueError
        If the sizes do not fit.
    """
    if x.ndim == 0 or x.shape[-1] != weight.in_features:
        raise ValueError(f"The matrix takes inputs of the shape (..., {weight.in_features}); given {tuple(x.shape)}.")
    if not x.is_cuda or x.dtype != torch.bfloat16:
        return functional.linear(x.float(), weight.dequantize()).to(x.dtype)
    if isinstance(weight, Int8):  # its integers are exact in bf16, its scales are not
        return (functional.linear(x, weight.weight.to(x.dtype)) * weight.scales[:, 0]).to(x.dtype)
    return functional.linear(x, weight.dequantize(x.dtype))

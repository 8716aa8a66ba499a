"""Weights in 4 bits, turned back by one kernel, which reads each word and each scale once and writes the result."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

WORDS = 256
"""Words per program"""


@triton.jit
def dequantize_kernel(words, scales, out, count, across, inputs, WORDS_OF_GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Turn words back into numbers, in the order in which the rows have them."""
    word = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = word < count
    place = tl.arange(0, 8)
    shift = place // 2 * 4 + place % 2 * 16
    packed = tl.load(words + word, mask=there, other=0)
    scale = tl.load(scales + word // WORDS_OF_GROUP, mask=there, other=0).to(tl.float32)
    numbers = ((packed[:, None] >> shift[None, :]) & 0xF) - 8
    row, column = word // across, word % across * 8
    inside = there[:, None] & (column[:, None] + place[None, :] < inputs)
    where = out + (row * inputs + column)[:, None] + place[None, :]
    tl.store(where, (numbers.to(tl.float32) * scale[:, None]).to(out.dtype.element_ty), mask=inside)


def dequantize(words: torch.Tensor, scales: torch.Tensor, inputs: int, group: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the values of a matrix in 4 bits, ``(outputs, inputs)``.

    Parameters
    ----------
    words : torch.Tensor
        ``(outputs, groups * group / 8)``, int32, as :class:`~gpuguide.quantization.Int4` has them.
    scales : torch.Tensor
        ``(outputs, groups)``, bf16 or fp32.
    inputs, group : int
        Columns of the matrix, and how many of them share a scale.
    dtype : torch.dtype
        What the products of integers and scales, in fp32, are rounded to.
    """
    out = torch.empty(len(words), inputs, dtype=dtype, device=words.device)
    dequantize_kernel[(triton.cdiv(words.numel(), WORDS),)](
        words, scales, out, words.numel(), words.shape[1], inputs, WORDS_OF_GROUP=group // 8, BLOCK=WORDS
    )
    return out

"""NF4, the format of 4 bits in which QLoRA stores frozen weights.

A weight becomes one of 16 values between -1 and 1, times a scale. The values lie where quantiles of a normal
distribution are, close together near zero, because trained weights are distributed almost like that; one of them is
exactly zero. A block of 64 weights shares a scale, its largest magnitude. In fp32 it would be half a bit a weight, so
scales are stored in 8 bits themselves: 256 of them share a mean and a scale, both in fp32 (double quantisation). That
makes 4 + 8 / 64 + 64 / (64 * 256) bits a weight, 4.13.

The values are those of bitsandbytes, and so are the blocks, in the order of the weight's rows. Its 8-bit scales use a
table of their own, here they are whole numbers from -127 to 127, so weights come back slightly different.

References
----------
T. Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023, https://arxiv.org/abs/2305.14314, section 3
and appendix E, which lists the values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from gpuguide.errors import GpuguideError

VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Values of the 4-bit codes, from 0 to 15"""
BLOCK = 64
"""Weights that share a scale"""
SCALES_TOGETHER = 256
"""Scales that share a mean and a scale of their own"""
MOST = 127
"""The largest of an 8-bit number with a sign"""


@dataclass(frozen=True, eq=False)
class Nf4:
    """A matrix in NF4, made by :func:`quantize_nf4`.

    Parameters
    ----------
    weight : torch.Tensor
        ``(blocks * 32,)``, uint8: two weights a byte, the first in the upper four bits.
    scales : torch.Tensor
        ``(blocks,)``, int8.
    of_scales : torch.Tensor
        ``(2, ceil(blocks / 256))``, fp32: means of scales, and their scales.
    values : torch.Tensor
        ``(16,)``, fp32: :data:`VALUES`, on the same device, since a CUDA graph that is captured cannot fetch them.
    shape : tuple of int
        ``(out, in)``.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    of_scales: torch.Tensor
    values: torch.Tensor
    shape: tuple[int, int]

    @property
    def out_features(self) -> int:
        """Rows of the matrix."""
        return self.shape[0]

    @property
    def in_features(self) -> int:
        """Columns of the matrix."""
        return self.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of weights, scales, and scales of scales; the 16 values are the same for all matrices."""
        return self.weight.nbytes + self.scales.nbytes + self.of_scales.nbytes

    def to(self, device: torch.device | str) -> Nf4:
        """Return the same matrix on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("weight", "scales", "of_scales", "values")}
        return replace(self, **moved)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the values that are stored, ``(out, in)``: products in fp32, rounded to ``dtype``."""
        numbers = torch.stack([self.weight >> 4, self.weight & 15], dim=-1).int()
        blocks = self.values[numbers].view(-1, BLOCK) * _scales(self.scales, self.of_scales).unsqueeze(1)
        return blocks.flatten()[: self.shape[0] * self.shape[1]].view(self.shape).to(dtype)


@torch.no_grad()
def quantize_nf4(weight: torch.Tensor) -> Nf4:
    """Round each weight to the nearest value of NF4, times the scale of its block as that is stored.

    Parameters
    ----------
    weight : torch.Tensor
        ``(out, in)``, floating point. The last block is padded.

    Raises
    ------
    GpuguideError
        If it is no matrix of finite floating-point numbers, or empty.
    """
    if weight.ndim != 2 or not weight.numel() or not weight.is_floating_point():
        raise GpuguideError(
            f"NF4 stores a matrix (out, in) of floating-point numbers; given {weight.dtype} {tuple(weight.shape)}."
        )
    flat = weight.detach().float().flatten()
    if not bool(flat.isfinite().all()):
        raise GpuguideError("A weight is NaN or infinite in fp32, which no scale can hold.")
    blocks = functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales, of_scales = _double_quantized(blocks.abs().amax(1))
    read_back = _scales(scales, of_scales).unsqueeze(1)
    steps = torch.where(read_back == 0, 0.0, blocks / torch.where(read_back == 0, 1.0, read_back))
    values = torch.tensor(VALUES, device=weight.device)
    numbers = torch.bucketize(steps, (values[1:] + values[:-1]) / 2).to(torch.uint8).view(-1, 2)
    return Nf4(numbers[:, 0] << 4 | numbers[:, 1], scales, of_scales, values, (weight.shape[0], weight.shape[1]))


def _double_quantized(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales in 8 bits, and the means and scales that they share."""
    count = len(scales)
    padded = torch.cat([scales, scales[-1:].expand(-count % SCALES_TOGETHER)]).view(-1, SCALES_TOGETHER)
    means = padded.mean(1)
    steps = (padded - means.unsqueeze(1)).abs().amax(1) / MOST
    divisor = torch.where(steps == 0, 1.0, steps).unsqueeze(1)
    numbers = ((padded - means.unsqueeze(1)) / divisor).round().clamp(-MOST, MOST)
    return numbers.to(torch.int8).flatten()[:count], torch.stack([means, steps])


def _scales(scales: torch.Tensor, of_scales: torch.Tensor) -> torch.Tensor:
    """Return scales as they are read back, never below zero."""
    together = torch.arange(len(scales), device=scales.device) // SCALES_TOGETHER
    means, steps = of_scales[0][together], of_scales[1][together]
    return (scales.float() * steps + means).clamp(min=0)

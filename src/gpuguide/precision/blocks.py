"""Blocks of small numbers that share a scale: how four and eight bits get a range that they do not have alone.

A format of 4 bits holds 15 numbers from -6 to 6. So neighbouring values share a scale, and each is stored as a number
of the format in units of it. The two variants differ in the values of a scale:

* Microscaling (MX), blocks of 32: a power of two, stored as its exponent in 8 bits (e8m0). Scaling then rounds nothing,
  but the largest value of a block can be anywhere in the upper half of the format's range, or beyond it and is cut off.
* NVFP4, blocks of 16: a number in e4m3, so that the largest value of a block comes to lie near 6, and one fp32 scale
  for the whole tensor, which brings the scales of the blocks into e4m3's range.

References
----------
Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0, 2023, sections 5 and 6.3. NVIDIA,
"Introducing NVFP4 for Efficient and Accurate Low-Precision Inference", 2025, for blocks of 16 with scales in e4m3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpuguide.precision.formats import E2M1, E4M3, E5M2, FloatFormat
from gpuguide.precision.rounding import decode, encode, round_to

SMALLEST_POWER, LARGEST_POWER = -127, 127
"""Exponents that e8m0 holds; its 256th code is a NaN"""


@dataclass(frozen=True)
class BlockFormat:
    """A format whose values share a scale in blocks."""

    name: str
    element: FloatFormat
    block: int
    """Neighbouring values, along the last axis, that share a scale"""
    powers_of_two: bool
    """Whether scales are powers of two (e8m0), or numbers in e4m3 with another scale for the tensor"""

    @property
    def bits_per_value(self) -> float:
        """Bits of a value with its share of the block's scale: 4.25 for mxfp4, 4.5 for nvfp4."""
        return self.element.stored_bits + 8 / self.block


MXFP8_E4M3 = BlockFormat("mxfp8-e4m3", E4M3, 32, powers_of_two=True)
MXFP8_E5M2 = BlockFormat("mxfp8-e5m2", E5M2, 32, powers_of_two=True)
MXFP4 = BlockFormat("mxfp4", E2M1, 32, powers_of_two=True)
NVFP4 = BlockFormat("nvfp4", E2M1, 16, powers_of_two=False)
BLOCK_FORMATS = {each.name: each for each in (MXFP8_E4M3, MXFP8_E5M2, MXFP4, NVFP4)}
"""All block formats by name"""


@dataclass(frozen=True, eq=False)
class Blocks:
    """A tensor in a block format, made by :func:`quantize_blocks`."""

    format: BlockFormat
    codes: torch.Tensor
    """``(..., n)``, uint8: a code of the element's format each"""
    scales: torch.Tensor
    """``(..., n / block)``, fp32: the scales of the blocks, each a number that 8 bits hold"""
    tensor_scale: float
    """Factor of all scales; 1 in the MX formats"""

    def dequantize(self) -> torch.Tensor:
        """Return the values that are stored, ``(..., n)``, fp32."""
        elements = decode(self.codes, self.format.element).unflatten(-1, (-1, self.format.block))
        return (elements * self.scales.double().unsqueeze(-1) * self.tensor_scale).flatten(-2).float()


@torch.no_grad()
def quantize_blocks(x: torch.Tensor, format: str | BlockFormat) -> Blocks:
    """Store a tensor in a block format, with blocks along its last axis.

    Parameters
    ----------
    x : torch.Tensor
        ``(..., n)``, floating point and finite; n is a multiple of the block.
    format : str or BlockFormat
        ``"mxfp8-e4m3"``, ``"mxfp8-e5m2"``, ``"mxfp4"`` or ``"nvfp4"``.

    Raises
    ------
    TypeError
        If ``x`` holds no floating-point numbers.
    ValueError
        If there is no such format, the last axis is not made of whole blocks, or a value is not finite.
    """
    wanted = format if isinstance(format, BlockFormat) else BLOCK_FORMATS.get(format)
    if wanted is None:
        raise ValueError(f"There is no block format {format!r}; there are {', '.join(BLOCK_FORMATS)}.")
    if not x.is_floating_point():
        raise TypeError(f"Values to quantise must be floating-point numbers, not {x.dtype}.")
    if x.ndim == 0 or not x.numel() or x.shape[-1] % wanted.block:
        raise ValueError(f"{wanted.name} has blocks of {wanted.block}, and {tuple(x.shape)} has no whole ones; pad it.")
    if not bool(x.isfinite().all()):
        raise ValueError(
            f"{int((~x.isfinite()).sum())} of {x.numel()} values are infinite or NaN; a block has no scale."
        )
    blocks = x.double().unflatten(-1, (-1, wanted.block))
    largest = blocks.abs().amax(dim=-1)
    if wanted.powers_of_two:
        scales, tensor_scale = _power_of_two_scales(largest, wanted.element), 1.0
    else:
        scales, tensor_scale = _two_level_scales(largest, wanted.element)
    unit = (scales * tensor_scale).unsqueeze(-1)
    codes = encode((blocks / unit.where(unit > 0, 1)), wanted.element, saturate=True)
    return Blocks(wanted, codes.to(torch.uint8).flatten(-2), scales.float(), tensor_scale)


def _power_of_two_scales(largest: torch.Tensor, element: FloatFormat) -> torch.Tensor:
    """Return powers of two that bring the largest value's exponent to the largest that the element has."""
    exponent = torch.frexp(largest).exponent - 1 - element.largest_exponent
    exponent = torch.where(largest > 0, exponent, SMALLEST_POWER).clamp(SMALLEST_POWER, LARGEST_POWER)
    return torch.ldexp(torch.ones_like(largest), exponent.double())


def _two_level_scales(largest: torch.Tensor, element: FloatFormat) -> tuple[torch.Tensor, float]:
    """Return scales in e4m3 that bring the largest value to the element's largest, and the scale of the tensor.

    The block with the tensor's largest value gets 448, the largest scale. A block whose scale is rounded to zero reads
    as zeros.
    """
    whole = float(largest.max())
    tensor_scale = float(round_to(whole / element.largest / E4M3.largest, "fp32")) or 1.0
    return round_to(largest / element.largest / tensor_scale, E4M3, saturate=True), tensor_scale

"""Number formats taken apart: which bits a number has, which numbers a format can hold, and how far apart they lie.

A number of a format is ``(-1)^sign * 2^(exponent - bias) * (1 + mantissa / 2^mantissa_bits)``. Where the field of the
exponent is zero, the leading 1 is a 0 and the exponent is that of the smallest normal numbers: these are the
*subnormal* numbers, evenly spaced down to zero, with fewer significant bits the smaller they are.

References
----------
IEEE 754-2019, section 3.4, for fp32 and fp16. P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022,
https://arxiv.org/abs/2209.05433, section 3, for e4m3 and e5m2. Open Compute Project, "OCP Microscaling Formats (MX)
Specification", version 1.0, 2023, section 5.3, for e2m1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point format with a sign.

    Parameters
    ----------
    name : str
        As this library calls it: ``"fp16"``.
    exponent_bits, mantissa_bits : int
        Sizes of the two fields. The leading bit of the mantissa is not stored.
    bias : int
        What the field of the exponent is too large by.
    specials : str
        What is no number. ``"ieee"``: the largest exponent means infinity (mantissa 0) or NaN. ``"nan"``: only the code
        with all bits set is a NaN, and there is no infinity. ``"none"``: every code is a number.
    stored_bits : int
        Bits that a value takes in memory.
    dtype : torch.dtype, optional
        PyTorch's type with these values, if it has one that holds a value each.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Literal["ieee", "nan", "none"]
    stored_bits: int
    dtype: torch.dtype | None = None
    largest: float = field(init=False, repr=False, compare=False)
    """Largest finite number: 65504 for fp16, 448 for e4m3"""

    def __post_init__(self) -> None:
        lost = 2 if self.specials == "nan" else 1  # the last mantissa of e4m3 is its NaN
        largest = math.ldexp(2 ** (self.mantissa_bits + 1) - lost, self.largest_exponent - self.mantissa_bits)
        # A stored number, because torch.compile cannot look into a cached property, which takes a lock in Python 3.11.
        object.__setattr__(self, "largest", largest)

    @property
    def bits(self) -> int:
        """Bits that decide the value: sign, exponent and mantissa."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def significant_bits(self) -> int:
        """Bits of precision of a normal number, with the leading one that is not stored."""
        return self.mantissa_bits + 1

    @property
    def digits(self) -> float:
        """Significant bits as decimal digits: 7.2 for fp32, 3.3 for fp16, 2.4 for bf16."""
        return self.significant_bits * math.log10(2)

    @property
    def smallest_exponent(self) -> int:
        """Smallest exponent of the normal numbers, as a power of two; subnormal numbers have it too."""
        return 1 - self.bias

    @property
    def largest_exponent(self) -> int:
        """Largest exponent of the finite numbers, as a power of two."""
        return 2**self.exponent_bits - (2 if self.specials == "ieee" else 1) - self.bias

    @property
    def smallest_normal(self) -> float:
        """The smallest number with all significant bits: 6.1e-5 for fp16."""
        return math.ldexp(1.0, self.smallest_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest number above zero: 6.0e-8 for fp16. It has one significant bit."""
        return math.ldexp(1.0, self.smallest_exponent - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next number above it."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def zero_up_to(self) -> float:
        """Largest number that is rounded to zero: half the smallest subnormal, 2.98e-8 for fp16."""
        return self.smallest_subnormal / 2

    @cached_property
    def overflow_from(self) -> float:
        """Smallest number that rounding takes out of the finite numbers: 65520 for fp16; infinity where none is.

        It lies half a spacing above the largest number. Half-way cases go to the even mantissa. With IEEE's specials
        the largest mantissa is odd, so the half-way case overflows. That of e4m3 is even, so there 464 is still rounded
        down to 448, and the number here is the next one in fp32.
        """
        if self.specials == "none":
            return math.inf
        half_way = self.largest + math.ldexp(0.5, self.largest_exponent - self.mantissa_bits)
        return half_way if self.specials == "ieee" else half_way + math.ldexp(1.0, self.largest_exponent - 23)

    def spacing(self, value: float) -> float:
        """Return the distance between neighbouring numbers where ``value`` lies.

        At a power of two it is the distance to the next number away from zero.

        Raises
        ------
        ValueError
            If the value is not finite, or beyond the largest number.
        """
        if not math.isfinite(value) or abs(value) > self.largest:
            raise ValueError(f"{self.name} has no numbers around {value!r}; its largest is {self.largest!r}.")
        exponent = max(math.frexp(value)[1] - 1, self.smallest_exponent) if value else self.smallest_exponent
        return math.ldexp(1.0, exponent - self.mantissa_bits)

    def parts(self, code: int) -> Parts:
        """Return the fields of a code, a whole number from 0 to ``2**bits - 1``, and what they mean.

        Raises
        ------
        ValueError
            If the code has more bits than the format.
        """
        if not 0 <= code < 2**self.bits:
            raise ValueError(f"The code is {code}; {self.name} has codes from 0 to {2**self.bits - 1}.")
        mantissa = code % 2**self.mantissa_bits
        exponent = (code >> self.mantissa_bits) % 2**self.exponent_bits
        return Parts(self, code >> (self.bits - 1), exponent, mantissa)


Kind = Literal["zero", "subnormal", "normal", "infinity", "nan"]


@dataclass(frozen=True)
class Parts:
    """The three fields of a number, as they are stored."""

    format: FloatFormat
    sign: int
    exponent: int
    mantissa: int

    @property
    def kind(self) -> Kind:
        """Kind of the number: a zero, a subnormal or normal number, an infinity or a NaN."""
        full_exponent = self.exponent == 2**self.format.exponent_bits - 1
        full_mantissa = self.mantissa == 2**self.format.mantissa_bits - 1
        if full_exponent and self.format.specials == "ieee":
            return "nan" if self.mantissa else "infinity"
        if full_exponent and full_mantissa and self.format.specials == "nan":
            return "nan"
        if self.exponent:
            return "normal"
        return "subnormal" if self.mantissa else "zero"

    @property
    def value(self) -> float:
        """The number; exact, since float64 holds all numbers of all formats here."""
        sign = -1.0 if self.sign else 1.0
        if self.kind == "nan":
            return math.nan
        if self.kind == "infinity":
            return sign * math.inf
        leading = 2**self.format.mantissa_bits if self.exponent else 0
        power = max(self.exponent, 1) - self.format.bias - self.format.mantissa_bits
        return sign * math.ldexp(leading + self.mantissa, power)

    @property
    def bits(self) -> str:
        """The bits, with the fields apart: ``"0 01111 0000000000"`` is 1 in fp16."""
        return (
            f"{self.sign} {self.exponent:0{self.format.exponent_bits}b} {self.mantissa:0{self.format.mantissa_bits}b}"
        )


FP32 = FloatFormat("fp32", 8, 23, 127, "ieee", 32, torch.float32)
TF32 = FloatFormat("tf32", 8, 10, 127, "ieee", 32)
"""Format in which tensor cores read fp32 numbers: 32 bits in memory, of which they use 19"""
FP16 = FloatFormat("fp16", 5, 10, 15, "ieee", 16, torch.float16)
BF16 = FloatFormat("bf16", 8, 7, 127, "ieee", 16, torch.bfloat16)
E4M3 = FloatFormat("e4m3", 4, 3, 7, "nan", 8, torch.float8_e4m3fn)
"""fp8 for weights and activations; PyTorch's ``float8_e4m3fn``: finite, so no infinities"""
E5M2 = FloatFormat("e5m2", 5, 2, 15, "ieee", 8, torch.float8_e5m2)
"""fp8 for gradients, which need the range"""
E2M1 = FloatFormat("e2m1", 2, 1, 1, "none", 4)
"""fp4: 0, 0.5, 1, 1.5, 2, 3, 4 and 6, with a sign; used in blocks that share a scale"""

FORMATS = {each.name: each for each in (FP32, TF32, FP16, BF16, E4M3, E5M2, E2M1)}
"""All formats by name, the widest first"""


def format_by_name(name: str | FloatFormat | torch.dtype) -> FloatFormat:
    """Return the format with a name or a PyTorch dtype; a format is returned unchanged.

    Raises
    ------
    ValueError
        If there is none.
    """
    if isinstance(name, FloatFormat):
        return name
    for each in FORMATS.values():
        if name == each.name or (each.dtype is not None and name == each.dtype):
            return each
    raise ValueError(f"There is no format {name!r}; there are {', '.join(FORMATS)}.")

"""Numbers into a format and back, in plain PyTorch: rounding, encoding, decoding, and all numbers of a small format.

Everything is computed in float64, which holds every number of every format here, the half-way points between them, and
the powers of two between them exactly. So rounding is three lines: how far apart the numbers lie here, how many of
those steps this is, and the nearest whole number of steps. ``torch.round`` takes half-way cases to the even one, as
IEEE 754 does.
"""

from __future__ import annotations

import torch

from gpuguide.precision.formats import FloatFormat, format_by_name


def round_to(
    x: torch.Tensor | float, format: str | FloatFormat | torch.dtype, *, saturate: bool = False
) -> torch.Tensor:
    """Round to the nearest number of a format, and half-way cases to the one with an even mantissa.

    Parameters
    ----------
    x : torch.Tensor or float
        Of any shape. A tensor of integers is taken as the numbers it holds.
    format : str, FloatFormat or torch.dtype
        For example ``"fp16"``, ``"tf32"`` or ``torch.float8_e4m3fn``.
    saturate : bool
        Whether numbers beyond the largest one, infinities among them, become the largest. Otherwise they become
        infinite, or NaN in e4m3, which has no infinity. e2m1 has neither, so there they always become the largest.
        PyTorch's own conversion saturates in e4m3 in 2.13, made NaN in older versions, and saturates nowhere else.

    Returns
    -------
    torch.Tensor
        The shape of ``x``; fp64 if ``x`` is a tensor in fp64, else fp32.

    Raises
    ------
    ValueError
        If there is no such format, or a NaN is to be rounded to one that has none.
    """
    wanted = format_by_name(format)
    wide, result_type = _wide(x)
    _refuse_nan(wide, wanted)
    step = spacing(wide, wanted)
    rounded = (wide / step).round() * step
    rounded = torch.where(wide.isfinite(), rounded, wide)
    return _limit_range(rounded, wanted, saturate).to(result_type)


def round_stochastically(
    x: torch.Tensor | float, format: str | FloatFormat | torch.dtype, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Round up or down at random, the more probably the nearer: a quarter of a step goes up once in four times.

    So the mean of many results is ``x`` itself, where rounding to the nearest would always miss by the same. Numbers
    beyond the largest become the largest; infinities and NaN stay.

    Parameters
    ----------
    x : torch.Tensor or float
        Of any shape.
    format : str, FloatFormat or torch.dtype
        What to round to.
    generator : torch.Generator, optional
        Where the random numbers come from, on the device of ``x``.

    Returns
    -------
    torch.Tensor
        The shape of ``x``; fp64 if ``x`` is a tensor in fp64, else fp32.

    Raises
    ------
    ValueError
        If there is no such format, or a NaN is to be rounded to one that has none.
    """
    wanted = format_by_name(format)
    wide, result_type = _wide(x)
    _refuse_nan(wide, wanted)
    step = spacing(wide, wanted)
    chance = torch.rand(wide.shape, dtype=torch.float64, device=wide.device, generator=generator)
    below = (wide / step).floor()
    rounded = (below + (chance < wide / step - below)) * step
    return torch.where(wide.isfinite(), rounded.clamp(-wanted.largest, wanted.largest), wide).to(result_type)


def spacing(x: torch.Tensor | float, format: str | FloatFormat | torch.dtype) -> torch.Tensor:
    """Return how far apart the numbers of a format lie around each ``x``, away from zero; float64.

    Beyond the largest number, and for infinities and NaN, it is what it is at the largest.
    """
    wanted = format_by_name(format)
    wide, _ = _wide(x)
    exponent = torch.frexp(torch.where(wide.isfinite(), wide, wanted.largest)).exponent.long() - 1
    exponent = torch.where(wide == 0, wanted.smallest_exponent, exponent)
    exponent = exponent.clamp(wanted.smallest_exponent, wanted.largest_exponent)
    return _power_of_two(exponent - wanted.mantissa_bits)


def encode(x: torch.Tensor | float, format: str | FloatFormat | torch.dtype, *, saturate: bool = False) -> torch.Tensor:
    """Return the codes of numbers: sign, exponent and mantissa as one whole number, after :func:`round_to`.

    NaN becomes the code with all bits of exponent and mantissa set, whatever bits it had.

    Returns
    -------
    torch.Tensor
        The shape of ``x``, int64.
    """
    wanted = format_by_name(format)
    rounded = round_to(x, wanted, saturate=saturate).double()
    exponent = torch.log2(spacing(rounded, wanted)).round().long() - wanted.smallest_exponent + wanted.mantissa_bits
    steps = (rounded.abs() / spacing(rounded, wanted)).nan_to_num(0, 0, 0).long()
    magnitude = (exponent << wanted.mantissa_bits) + steps  # a normal number's leading one adds 1 to its exponent
    full = 2 ** (wanted.bits - 1) - 1
    magnitude = torch.where(rounded.isinf(), full + 1 - 2**wanted.mantissa_bits, magnitude)
    magnitude = torch.where(rounded.isnan(), full, magnitude)
    return magnitude + (rounded.signbit().long() << (wanted.bits - 1))


def decode(codes: torch.Tensor, format: str | FloatFormat | torch.dtype) -> torch.Tensor:
    """Return the numbers that codes stand for.

    Parameters
    ----------
    codes : torch.Tensor
        Whole numbers from 0 to ``2**bits - 1``.
    format : str, FloatFormat or torch.dtype
        Whose codes they are.

    Returns
    -------
    torch.Tensor
        The shape of the codes, float64.

    Raises
    ------
    TypeError
        If the codes are no integers.
    ValueError
        If one has more bits than the format.
    """
    wanted = format_by_name(format)
    if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
        raise TypeError(f"Codes must be integers, not {codes.dtype}.")
    codes = codes.long()
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < 2**wanted.bits:
        raise ValueError(
            f"Codes lie from {int(codes.min())} to {int(codes.max())}; {wanted.name} has {wanted.bits} bits."
        )
    mantissa = codes % 2**wanted.mantissa_bits
    exponent = (codes >> wanted.mantissa_bits) % 2**wanted.exponent_bits
    leading = torch.where(exponent > 0, 2**wanted.mantissa_bits, 0)
    power = exponent.clamp(min=1) - wanted.bias - wanted.mantissa_bits
    value = (leading + mantissa).double() * _power_of_two(power)
    full = exponent == 2**wanted.exponent_bits - 1
    if wanted.specials == "ieee":
        value = torch.where(full, torch.where(mantissa > 0, torch.nan, torch.inf), value)
    elif wanted.specials == "nan":
        value = torch.where(full & (mantissa == 2**wanted.mantissa_bits - 1), torch.nan, value)
    return torch.where(codes >> (wanted.bits - 1) > 0, -value, value)


def numbers(
    format: str | FloatFormat | torch.dtype, low: float | None = None, high: float | None = None
) -> torch.Tensor:
    """Return all finite numbers of a format of up to 16 bits, or those from ``low`` to ``high``, in order; float64.

    Zero is there once.

    Raises
    ------
    ValueError
        If the format has more than 16 bits, and so too many numbers.
    """
    wanted = format_by_name(format)
    if wanted.bits > 16:
        raise ValueError(f"{wanted.name} has 2^{wanted.bits} codes; all numbers are listed for 16 bits or fewer.")
    every = decode(torch.arange(2**wanted.bits), wanted)
    every = every[every.isfinite()].unique()
    low, high = (-wanted.largest if low is None else low), (wanted.largest if high is None else high)
    return every[(every >= low) & (every <= high)]


def _wide(x: torch.Tensor | float) -> tuple[torch.Tensor, torch.dtype]:
    """Return numbers in float64, and the type of results."""
    if not isinstance(x, torch.Tensor):
        return torch.tensor(x, dtype=torch.float64), torch.float32
    return x.detach().double(), torch.float64 if x.dtype == torch.float64 else torch.float32


def _refuse_nan(wide: torch.Tensor, format: FloatFormat) -> None:
    if format.specials == "none" and bool(wide.isnan().any()):
        raise ValueError(f"{format.name} has no NaN, and {int(wide.isnan().sum())} of {wide.numel()} numbers are NaN.")


def _limit_range(rounded: torch.Tensor, format: FloatFormat, saturate: bool) -> torch.Tensor:
    """Replace numbers beyond the largest one."""
    if saturate or format.specials == "none":
        return rounded.clamp(-format.largest, format.largest)
    beyond = torch.full_like(rounded, torch.inf if format.specials == "ieee" else torch.nan).copysign(rounded)
    return torch.where(rounded.abs() > format.largest, beyond, rounded)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """Return ``2**exponent`` as float64, written into its bits: ``torch.pow`` may miss the last one."""
    return ((exponent + 1023) << 52).view(torch.float64)

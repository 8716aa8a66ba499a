"""Quantities as people write them: ``3.02 TB/s``, ``11.2 µs``, ``64 MiB``."""

from __future__ import annotations

import math
from typing import NamedTuple

_PREFIXES = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]
_SMALL_PREFIXES = [(1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")]
_BINARY = [(2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")]
_UNSCALED = {"1": "", "nat": " nat"}


class Unit(NamedTuple):
    """A unit with a prefix, or one of everyday life, as it is written behind a number."""

    base: str
    """The unit that records use for the same kind of quantity"""
    factor: float
    """How many base units it is"""


UNITS = {
    **{name: Unit("B", float(factor)) for factor, name in _BINARY},
    **{
        prefix + base: Unit(base, factor)
        for base in ("B", "B/s", "FLOP", "FLOP/s", "W", "Hz")
        for factor, prefix in _PREFIXES
        if prefix
    },
    **{prefix + "s": Unit("s", factor) for factor, prefix in _SMALL_PREFIXES if prefix},
    "bytes": Unit("B", 1.0),
    "seconds": Unit("s", 1.0),
    "minutes": Unit("s", 60.0),
    "hours": Unit("s", 3600.0),
    "days": Unit("s", 86400.0),
    "nats": Unit("nat", 1.0),
    "%": Unit("1", 1e-2),
}
"""Units by the name that stands behind a number. Base units themselves (``B/s``) are not among them."""


def significant(value: float, digits: int = 3) -> str:
    """Write ``value`` with ``digits`` significant digits and no exponent between 1e-4 and 1e6.

    >>> significant(709.64), significant(0.012345), significant(12345.6)
    ('710', '0.0123', '12300')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if not 1e-4 <= abs(rounded) < 1e6:
        return f"{rounded:.{digits - 1}e}"
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(decimals, 0)}f}"


def format_bytes(count: float, digits: int = 3) -> str:
    """Write a size in bytes, in KiB, MiB, GiB or TiB from 1 KiB on.

    >>> format_bytes(65536), format_bytes(1000), format_bytes(1.5 * 2**30)
    ('64 KiB', '1000 B', '1.50 GiB')
    """
    for scale, name in _BINARY:
        if count >= scale:
            amount = count / scale
            return f"{amount:.0f} {name}" if amount == int(amount) else f"{significant(amount, digits)} {name}"
    return f"{count:.0f} B"


def scale_for(value: float, unit: str) -> tuple[float, str]:
    """Return the divisor and the prefixed unit in which ``value`` reads best.

    >>> scale_for(3.02e12, "B/s"), scale_for(1.12e-5, "s")
    ((1000000000000.0, 'TB/s'), (1e-06, 'µs'))
    """
    if unit in _UNSCALED:
        return 1.0, unit
    prefixes = _SMALL_PREFIXES if unit == "s" else _PREFIXES
    magnitude = abs(value) / (1 - 5e-4)  # 999.5 GB/s reads as 1.00 TB/s
    for scale, prefix in prefixes:
        if magnitude >= scale:
            return scale, prefix + unit
    return prefixes[-1][0], prefixes[-1][1] + unit


def format_quantity(value: float, unit: str, digits: int = 3) -> str:
    """Write a measured value with its unit, scaled so that it reads well.

    Parameters
    ----------
    value : float
        In SI units.
    unit : str
        ``s``, ``B/s``, ``FLOP/s``, ``B``, ``1`` and others as in the records.
    digits : int
        Significant digits.

    Examples
    --------
    >>> format_quantity(7.096e14, "FLOP/s"), format_quantity(1.12e-5, "s"), format_quantity(2**26, "B")
    ('710 TFLOP/s', '11.2 µs', '64 MiB')
    """
    if unit == "B":
        return format_bytes(value, digits)
    if unit in _UNSCALED:
        return significant(value, digits) + _UNSCALED[unit]
    scale, name = scale_for(value, unit)
    return f"{significant(value / scale, digits)} {name}"

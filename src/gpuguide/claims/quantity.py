"""Numbers that know their unit and are written with it, so that no unit has to be typed behind them."""

from __future__ import annotations

import re

from gpuguide.units import UNITS, format_quantity

_TRAILING_ZEROS = re.compile(r"\.0+(?![0-9])|(?<=\.)([0-9]*[1-9])0+(?![0-9])")


class LedgerQuantity(float):
    """A number in SI units with the unit that it is written in. Arithmetic gives plain numbers, rounding a quantity.

    ``B``, ``s``, ``B/s`` and other units of records take the prefix that reads well. A unit with a prefix, or one of
    everyday life, is written as it is named, and a whole number of it in full.

    >>> LedgerQuantity(2**33, "B").text(), LedgerQuantity(2**33, "GB").text(), round(LedgerQuantity(2**33, "GB")).text()
    ('8 GiB', '8.59 GB', '9 GB')
    """

    unit: str
    digits: int
    decimals: int | None

    def __new__(cls, value: float, unit: str, digits: int = 3, decimals: int | None = None) -> LedgerQuantity:
        """Return ``value`` (SI) with its unit, its significant digits and, where it was rounded, its decimals."""
        number = super().__new__(cls, value)
        number.unit, number.digits, number.decimals = unit, digits, decimals
        return number

    @property
    def base_unit(self) -> str:
        """The unit without prefix, as records have it; ``1`` for a plain number."""
        return UNITS[self.unit].base if self.unit in UNITS else self.unit

    def __round__(self, ndigits: int | None = None) -> LedgerQuantity:  # type: ignore[override]
        """Round the number as it is written, in its own unit."""
        return LedgerQuantity(self, self.unit, self.digits, ndigits or 0)

    def text(self) -> str:
        """Write the number and its unit for a reader."""
        if self.decimals is None and self.unit not in UNITS:
            return format_number(float(self), self.unit, self.digits)
        factor = UNITS[self.unit].factor if self.unit in UNITS else 1.0
        amount = self / factor if factor >= 1 else self * round(1 / factor)
        if self.decimals is not None:
            amount = round(amount, self.decimals)
        name = "" if self.unit == "1" else self.unit
        return format_number(amount, "1", self.digits) + " " * (name not in ("", "%")) + name


def format_number(value: float, unit: str, digits: int = 3) -> str:
    """Write a number (SI) with its unit; a whole number without a unit is written in full.

    >>> format_number(65520.0, "1"), format_number(65520.5, "1"), format_number(2 / 3, "1", 5)
    ('65,520', '65500', '0.66667')
    """
    if unit == "1" and value == int(value) and abs(value) < 2**53:
        return f"{int(value):,}"
    text = format_quantity(value, unit, digits)
    # Zeros that were asked for say nothing: 43 s is as exact as 43.0000 s.
    return text if digits <= 3 else _TRAILING_ZEROS.sub(r"\1", text)

"""Axes in the units of the field: sizes at powers of two, rates and times with prefixes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axis import Axis

FEW_TICKS = 5.5
"""Inches of a figure's width below which fewer ticks stand beside each other"""

_units: WeakKeyDictionary[Axis, str] = WeakKeyDictionary()


def unit_of(axis: Axis) -> str:
    """Return the SI unit of an axis, as far as it was named."""
    return _units.get(axis, "")


def log_axis(axis: Axis, unit: str, label: str) -> None:
    """Make ``axis`` logarithmic with readable ticks.

    Parameters
    ----------
    axis : matplotlib.axis.Axis
        ``ax.xaxis`` or ``ax.yaxis``.
    unit : str
        The SI unit of the data. ``B`` gives ticks at powers of two in KiB, MiB and GiB, ``count`` bare powers of
        two; anything else powers of ten with prefixes.
    label : str
        What the axis shows, without its unit: every tick carries one.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    base = 2 if unit in ("B", "count") else 10
    scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    scale("log", base=base)
    side_by_side = axis is axis.axes.xaxis and axis.axes.get_figure(root=True).get_figwidth() < FEW_TICKS  # type: ignore[union-attr]
    axis.set_major_locator(LogLocator(base=base, numticks=5 if side_by_side else 7))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value, unit)))
    axis.set_label_text(label)
    _units[axis] = unit


def linear_axis(axis: Axis, unit: str, label: str) -> None:
    """Start ``axis`` at zero, with a few ticks that carry their unit."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    horizontal = axis is axis.axes.xaxis  # where ticks stand side by side, and fewer fit
    axis.set_major_locator(MaxNLocator(nbins=3 if horizontal else 5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value, unit)))
    axis.set_label_text(label)
    _units[axis] = unit
    if horizontal:
        axis.axes.set_xlim(left=0)
    else:
        axis.axes.set_ylim(bottom=0)


def readable_ticks(axis: Axis) -> None:
    """Write the ticks of a logarithmic axis in words where its author named no unit: raised exponents are tiny."""
    from matplotlib.ticker import FuncFormatter, LogFormatter, NullFormatter

    if axis.get_scale() == "log" and isinstance(axis.get_major_formatter(), LogFormatter):
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value, "1")))
        axis.set_minor_formatter(NullFormatter())


def tick(value: float, unit: str) -> str:
    """Write one tick: as :func:`~gpuguide.units.format_quantity`, without zeros that say nothing.

    >>> tick(2.0e12, "B/s"), tick(65536, "B"), tick(4096, "count"), tick(0, "B/s")
    ('2 TB/s', '64 KiB', '4096', '0')
    """
    if value == 0:
        return "0"
    if unit == "count":
        return f"{value:g}" if value < 1 else f"{round(value)}"
    if unit == "1":
        return f"{value:g}" if value < 1e5 else f"{value:,.0f}"
    number, _, rest = format_quantity(value, unit).partition(" ")
    if "." in number and math.isfinite(float(number)):
        number = number.rstrip("0").rstrip(".")
    return f"{number} {rest}".rstrip()

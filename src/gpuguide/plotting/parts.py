"""Lying bars of rows with names: the parts of a whole one after another, or one bar for each quantity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuguide.measure import store
from gpuguide.measure.records import Record
from gpuguide.plotting import axes, palette
from gpuguide.plotting.figure import load_published_and_mine
from gpuguide.plotting.marks import device_label
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

THICK = 0.64
"""Of a row's height: a bar, or all bars of the row together"""
ROOM = 1.24
"""The axis's end, over the longest bar: the number stands between them"""


def collect_rows(
    source: Record | str, rows_of: Callable[[Record], Mapping[str, Sequence[float]]], *contenders: str
) -> dict[str, Sequence[float]]:
    """Return the rows of a published record, and below them those of the reader's own records, with their devices.

    Parameters
    ----------
    source : Record or str
        A record, or the name of a benchmark whose published record is meant.
    rows_of : callable
        Returns the rows of a record, as :func:`stacked_bars` takes them.
    *contenders : str
        What the rows need: records are left out that lack a case of these which the published one has.
    """
    found: dict[str, Sequence[float]] = {}
    for record in load_published_and_mine(source, *contenders):
        device = f"\n{device_label(record)}" if store.is_mine(record) else ""
        found |= {name + device: sizes for name, sizes in rows_of(record).items()}
    return found


def stacked_bars(
    ax: Axes, rows: Mapping[str, Sequence[float]], parts: Mapping[str, str], *, unit: str, label: str
) -> None:
    """Draw one horizontal bar for each row, made of parts, with its sum at its end.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Where to draw. Call :func:`gpuguide.plotting.legend` afterwards.
    rows : mapping of str to sequence of float
        Name of a row to the sizes of its parts, from top to bottom.
    parts : mapping of str to str
        Name of a part to its colour in :attr:`~gpuguide.plotting.palette.Theme.series`, in the order of the sizes.
    unit : str
        The SI unit of all sizes, as :func:`~gpuguide.units.format_quantity` takes it.
    label : str
        What the axis shows.
    """
    series, places = palette.current().series, range(len(rows))
    reached = [0.0] * len(rows)
    for number, (name, colour) in enumerate(parts.items()):
        sizes = [row[number] for row in rows.values()]
        ax.barh(places, sizes, THICK, reached, color=(series[colour], 0.8), label=name)
        reached = [start + size for start, size in zip(reached, sizes, strict=True)]
    for place, total in enumerate(reached):
        _name_size(ax, total, place, unit)
    _finish(ax, list(rows), max(reached), unit, label)


def grouped_bars(
    ax: Axes, rows: Mapping[str, Sequence[float]], parts: Mapping[str, str], *, unit: str, label: str
) -> None:
    """Draw one horizontal bar for each quantity of each row, the first on top. Parameters as in :func:`stacked_bars`.

    A size that is not a number, for what was not measured, has no bar.
    """
    series, high = palette.current().series, THICK / len(parts)
    for number, (name, colour) in enumerate(parts.items()):
        places = [place + high * (number - (len(parts) - 1) / 2) for place in range(len(rows))]
        sizes = [row[number] for row in rows.values()]
        ax.barh(places, sizes, 0.9 * high, color=(series[colour], 0.8), label=name)
        for place, size in zip(places, sizes, strict=True):
            _name_size(ax, size, place, unit)
    longest = max(size for row in rows.values() for size in row if size == size)
    _finish(ax, list(rows), longest, unit, label)


def _name_size(ax: Axes, size: float, place: float, unit: str) -> None:
    if size == size:
        text = f"{size:.2f}" if unit == "1" else format_quantity(size, unit)
        ground = {"facecolor": palette.current().background, "edgecolor": "none", "pad": 0.5}  # over lines of bounds
        ax.annotate(text, (size, place), (4, 0), textcoords="offset points", va="center", fontsize=10, bbox=ground)


def _finish(ax: Axes, names: list[str], longest: float, unit: str, label: str) -> None:
    from matplotlib.ticker import MultipleLocator

    axes.linear_axis(ax.xaxis, unit, label)
    if unit == "B":  # ticks at powers of two and their multiples
        ax.xaxis.set_major_locator(MultipleLocator(2.0 ** (math.floor(math.log2(longest)) - 1)))
    ax.set_xlim(0, ROOM * longest)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)

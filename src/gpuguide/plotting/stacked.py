"""Times by part, as bars one below the other: what a step takes, and the bound beneath."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpuguide.errors import GpuguideError
from gpuguide.plotting import drawings
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLOURS = ("blue", "orange", "green", "pink", "violet", "sky", "ochre")
"""Of the parts, in their order"""
LEFT, RIGHT, TALL = 10.0, 60.0, 22.0
"""Points: margins, the right one for totals, and the height of a bar"""
LETTER = 6.2
"""Points of a letter in the key, about"""


def stacked_times(figure: Canvas, bars: Mapping[str, Mapping[str, float]], *, bound: str = "") -> None:
    """Draw bars of time, to one scale, each divided into parts, with its total to the right.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Empty.
    bars : mapping of str to mapping of str to float
        Name of a bar to the seconds of each part. All have the same parts.
    bound : str
        Name of the bar that is a bound, which is dashed.

    Raises
    ------
    GpuguideError
        If bars differ in their parts, or there are more parts than colours.
    """
    parts = list(next(iter(bars.values())))
    if any(list(each) != parts for each in bars.values()):
        raise GpuguideError(f"All bars need the same parts in the same order, those of the first: {', '.join(parts)}.")
    if len(parts) > len(COLOURS):
        raise GpuguideError(f"There are colours for {len(COLOURS)} parts, and {len(parts)} are given: join some.")
    colours = dict(zip(parts, COLOURS, strict=False))
    ax, width, height = drawings.sheet(figure)
    longest = max(sum(seconds.values()) for seconds in bars.values())
    scale = (width - LEFT - RIGHT) / longest
    bottom = _draw_key(ax, width, colours)
    pitch = (height - bottom) / len(bars)
    for row, (name, seconds) in enumerate(bars.items()):
        y, x = height - (row + 1) * pitch + 4, LEFT
        drawings.label(ax, LEFT, y + TALL + 9, name, across="left", size=10)
        for part, time in seconds.items():
            if time > 0:
                drawings.box(ax, x, y, time * scale, TALL, colour=colours[part], strength=0.4, dashed=name == bound)
            x += time * scale
        drawings.label(ax, x + 6, y + TALL / 2, format_quantity(sum(seconds.values()), "s"), across="left", size=10)


def _draw_key(ax: Axes, width: float, colours: Mapping[str, str]) -> float:
    """Name the colours at the bottom, in as few rows as they fit into, and return how high that is."""
    columns = next(
        count for count in range(len(colours), 0, -1)
        if count == 1 or sum(_column_widths(colours, count)) <= width - 2 * LEFT
    )  # fmt: skip
    rows, needed = -(-len(colours) // columns), _column_widths(colours, columns)
    spare = max(0.0, (width - 2 * LEFT - sum(needed)) / columns)
    for number, (name, colour) in enumerate(colours.items()):
        row, column = divmod(number, columns)
        x, y = LEFT + sum(needed[:column]) + column * spare, 6 + 18.0 * (rows - 1 - row)
        drawings.box(ax, x, y, 12, 12, colour=colour, strength=0.4)
        drawings.label(ax, x + 17, y + 6, name, across="left", size=10)
    return 10 + 18.0 * rows


def _column_widths(names: Iterable[str], count: int) -> list[float]:
    """Return the points that the columns of a key take."""
    listed = list(names)
    return [max(LETTER * len(name) for name in listed[column::count]) + 24 for column in range(count)]


def rows_of_bars(bars: Mapping[str, Mapping[str, float]]) -> list[dict[str, object]]:
    """Return the table that a figure of such bars offers."""
    return [
        {"bar": name, "part": part, "seconds": seconds}
        for name, parts in bars.items()
        for part, seconds in parts.items()
    ]

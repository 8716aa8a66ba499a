"""Drawings of what moves or happens: boxes, arrows, tiles and spans of time, in the colours of the figures.

A drawing is a figure like any other: :func:`sheet` gives an empty one to draw on, in points from its lower left corner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gpuguide.plotting import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Place = tuple[float, float]
SHARP = 1.0
"""Points: a box that could be rounded by less has corners"""


def sheet(figure: Canvas) -> tuple[Axes, float, float]:
    """Return axes without a frame over the whole figure, with its width and height in points."""
    figure.set_layout_engine("none")
    width, height = (72 * inches for inches in figure.get_size_inches())
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(0, width)
    ax.set_ylim(0, height)
    ax.set_axis_off()
    return ax, width, height


def box(
    ax: Axes,
    left: float,
    bottom: float,
    width: float,
    height: float,
    text: str = "",
    *,
    colour: str = "",
    strength: float = 0.16,
    dashed: bool = False,
    size: float = 11,
) -> None:
    """Draw a box with text in its middle, filled faintly in a colour of the theme's series.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        From :func:`sheet`.
    left, bottom, width, height : float
        In points.
    text : str
        In its middle; it may have several lines.
    colour : str
        A name in :attr:`~gpuguide.plotting.palette.Theme.series`; grey without.
    strength : float
        How much of the colour fills it, from 0 to 1.
    dashed : bool
        Draw the edge dashed, for what is not there or not done.
    size : float
        Of the text, in points.
    """
    from matplotlib.patches import FancyBboxPatch, Rectangle

    theme = palette.current()
    hue = theme.series[colour] if colour else theme.faint
    look: dict[str, Any] = {"facecolor": (hue, strength), "edgecolor": hue, "linestyle": "--" if dashed else "-"}
    rounding = min(4.0, width / 4, height / 4)
    ax.add_patch(
        FancyBboxPatch((left, bottom), width, height, boxstyle=f"round,pad=0,rounding_size={rounding}", **look)
        if rounding > SHARP
        else Rectangle((left, bottom), width, height, **look)
    )
    if text:
        label(ax, left + width / 2, bottom + height / 2, text, size=size)


def label(
    ax: Axes,
    x: float,
    y: float,
    text: str,
    *,
    across: Literal["left", "center", "right"] = "center",
    up: Literal["bottom", "center", "top"] = "center",
    size: float = 11,
    bold: bool = False,
) -> None:
    """Write text at a place, in points."""
    weight = "bold" if bold else "normal"
    ax.text(x, y, text, ha=across, va=up, fontsize=size, fontweight=weight, linespacing=1.25)


def arrow(ax: Axes, start: Place, end: Place, *, colour: str = "", width: float = 1.5, both: bool = False) -> None:
    """Draw an arrow from one place to another; ``both`` gives it two heads."""
    theme = palette.current()
    ax.annotate(
        "",
        end,
        start,
        arrowprops={
            "arrowstyle": "<|-|>" if both else "-|>",
            "color": theme.series[colour] if colour else theme.ceiling,
            "linewidth": width,
            "mutation_scale": 10 + 1.5 * width,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )


def tiles(
    ax: Axes,
    left: float,
    bottom: float,
    side: float,
    looks: Sequence[Sequence[tuple[str, float] | None]],
) -> None:
    """Draw a matrix as tiles, from its upper row to its lower.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        From :func:`sheet`.
    left, bottom : float
        The lower left corner, in points.
    side : float
        Of one tile, in points.
    looks : sequence of sequence
        Of each row and column: a colour's name and its strength, or ``None`` for a dashed, empty tile.
    """
    gap = min(2.0, 0.1 * side)
    for row, looks_of_row in enumerate(looks):
        for column, look in enumerate(looks_of_row):
            x, y = left + column * side, bottom + (len(looks) - 1 - row) * side
            colour, strength = look or ("", 0.0)
            tile(ax, x, y, side - gap, colour, strength)


def tile(ax: Axes, left: float, bottom: float, side: float, colour: str, strength: float) -> None:
    """Draw one tile, dashed and empty where its ``strength`` is zero."""
    bar(ax, left, bottom, side, side, colour, strength)


def bar(ax: Axes, left: float, bottom: float, width: float, height: float, colour: str, strength: float) -> None:
    """Draw a rectangle with sharp corners, dashed and empty where its ``strength`` is zero."""
    from matplotlib.patches import Rectangle

    theme = palette.current()
    hue = theme.series[colour] if colour else theme.faint
    edge: dict[str, Any] = {"edgecolor": hue, "linestyle": "-" if strength else ":", "linewidth": 0.8}
    ax.add_patch(Rectangle((left, bottom), width, height, facecolor=(hue, strength), **edge))


def time_line(
    ax: Axes,
    left: float,
    bottom: float,
    points_per_second: float,
    spans: Iterable[tuple[float, float, str, str]],
    *,
    height: float = 26,
    size: float = 10,
) -> None:
    """Draw spans of time to scale, each a box: from when to when in seconds, what it says, and its colour."""
    for start, end, text, colour in spans:
        box(
            ax,
            left + start * points_per_second,
            bottom,
            (end - start) * points_per_second,
            height,
            text,
            colour=colour,
            strength=0.3,
            size=size,
        )


def moment(ax: Axes, x: float, bottom: float, top: float, *, dotted: bool = True) -> None:
    """Draw a moment across lines of time: an upright line."""
    style = ":" if dotted else "-"
    ax.plot([x, x], [bottom, top], color=palette.current().ceiling, linestyle=style, linewidth=1.3)


def extent(ax: Axes, left: float, right: float, y: float, text: str, *, colour: str = "", below: bool = False) -> None:
    """Draw how long something takes: an arrow with two heads, and words on it."""
    arrow(ax, (left, y), (right, y), colour=colour, width=1.2, both=True)
    label(ax, (left + right) / 2, y + (-5 if below else 5), text, up="top" if below else "bottom", size=10)


def bracket(ax: Axes, x: float, bottom: float, top: float, text: str) -> None:
    """Draw an upright bracket that opens to the right, with words along it: what belongs together."""
    colour = palette.current().faint
    ax.plot([x + 5, x, x, x + 5], [bottom, bottom, top, top], color=colour, linewidth=1.2)
    ax.text(x - 3, (bottom + top) / 2, text, rotation=90, ha="right", va="center", fontsize=10)

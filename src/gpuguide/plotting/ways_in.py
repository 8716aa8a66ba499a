"""The three ways into the site as small drawings: learn, decide and measure. They show no measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuguide.plotting import drawings, palette, renditions

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SIZE = (4.2, 1.9)
"""Inches: on a phone a drawing is nearly as wide as the screen, elsewhere it takes a third of the page"""
_BLUE, _ORANGE, _GREEN = "blue", "orange", "green"
SEEN = 5
"""Queries and keys of the drawing of a causal mask"""
FOUND = (0.52, 0.58, 0.55, 0.61, 0.57, 0.60, 0.56, 0.59)
"""Where the samples of a benchmark stand under its ceiling: an example, not a measurement"""


@dataclass(frozen=True)
class SmallDrawing:
    """A drawing above words that say what it is about, so that it needs no caption, and no address."""

    alt: str
    svg: dict[str, str]
    """Of each scheme, ``light`` and ``dark``"""


def draw_small(draw: renditions.Draw, alt: str) -> SmallDrawing:
    """Return a drawing in both schemes; one width serves all screens."""
    light = renditions.svg(draw, palette.LIGHT, SIZE)
    return SmallDrawing(alt, {"light": light, "dark": palette.recolor_for_dark(light)})


def learn() -> SmallDrawing:
    """Draw how something works: a causal mask, tile by tile, of which one is being computed."""
    return draw_small(
        _draw_learn,
        "A triangle of tiles, queries by keys. One tile is taken out and computed, then the next.",
    )


def decide() -> SmallDrawing:
    """Draw a decision: memory that fits one GPU, and not another."""
    return draw_small(
        _draw_decide,
        "The same three parts of memory, compared with the capacity of two GPUs: they fit into the larger one only.",
    )


def measure() -> SmallDrawing:
    """Draw a measurement: samples, their median, and the ceiling above them."""
    return draw_small(
        _draw_measure,
        "Samples of a benchmark as dots, a line through their median, and above them the dashed line of the ceiling.",
    )


def _draw_learn(figure: Canvas, theme: palette.Theme) -> None:
    ax, width, height = drawings.sheet(figure)
    side = (height - 16) / SEEN
    left, bottom, now = 4.0, 8.0, (3, 1)
    looks = [
        [
            (_ORANGE, 0.8)
            if (row, column) == now
            else (_BLUE, 0.55 if (row, column) < now else 0.16)
            if column <= row
            else None
            for column in range(SEEN)
        ]
        for row in range(SEEN)
    ]
    drawings.tiles(ax, left, bottom, side, looks)
    middle = bottom + (SEEN - 1 - now[0] + 0.5) * side
    edge, place = left + SEEN * side, width - 112
    drawings.arrow(ax, (edge + 8, middle), (place - 8, middle), colour=_ORANGE)
    drawings.box(ax, place, middle - 27, 78, 54, "q · k", colour=_ORANGE, size=13)
    drawings.label(ax, (edge + place) / 2, middle + 13, "one tile", size=12)


def _draw_decide(figure: Canvas, theme: palette.Theme) -> None:
    ax, _, height = drawings.sheet(figure)
    left, tall = 4.0, 30.0
    parts = ((_BLUE, 96.0), (_GREEN, 52.0), (_ORANGE, 44.0))
    for capacity, top, word in ((214.0, height - 14, "fits one GPU"), (168.0, height / 2 - 8, "not the other")):
        bottom = top - tall - 12
        x = left
        for hue, wide in parts:
            drawings.box(ax, x, bottom, wide, tall, colour=hue, strength=0.5)
            x += wide
        drawings.moment(ax, left + capacity, bottom - 8, bottom + tall + 8, dotted=False)
        drawings.label(ax, left + max(capacity, x - left) + 8, bottom + tall / 2, word, across="left", size=12)


def _draw_measure(figure: Canvas, theme: palette.Theme) -> None:
    ax, width, height = drawings.sheet(figure)
    left, right = 4.0, width - 72
    ceiling, median = height - 30, sorted(FOUND)[len(FOUND) // 2] * height
    step = (right - left - 24) / (len(FOUND) - 1)
    ax.plot([left, right], [16, 16], color=theme.faint, linewidth=1.2)
    ax.plot([left, right], [ceiling, ceiling], color=theme.ceiling, linestyle="--", linewidth=1.5)
    ax.plot([left, right], [median, median], color=theme.series[_BLUE], linewidth=2)
    places = [left + 12 + number * step for number in range(len(FOUND))]
    ax.plot(places, [share * height for share in FOUND], "o", color=theme.series[_BLUE], markersize=7, alpha=0.6)
    drawings.label(ax, right + 8, ceiling, "ceiling", across="left", size=12)
    drawings.label(ax, right + 8, median, "median", across="left", size=12)
    drawings.label(ax, (left + right) / 2, 6, "your samples", size=12)

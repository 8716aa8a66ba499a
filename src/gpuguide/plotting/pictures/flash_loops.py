"""Drawings of the loops of tiled attention: what a program owns and runs over, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

TILES, OWNED = 5, 2
"""On each side of the matrix of scores, and the one that the drawn program owns"""


@dataclass(frozen=True)
class Loop:
    """One kernel: what a program of it owns, and what it computes for each tile of scores."""

    name: str
    owns_keys: bool
    matmuls: tuple[str, ...]
    writes: str


LOOPS = (
    Loop("forward", False, ("S", "PV"), "O and L"),
    Loop("backward, first", True, ("S", "dP", "dV", "dK"), "dK and dV"),
    Loop("backward, second", False, ("S", "dP", "dQ"), "dQ"),
)


def visited(loop: Loop) -> list[tuple[int, int]]:
    """Return the tiles, by query and key, that a program visits under a causal mask."""
    if loop.owns_keys:
        return [(row, OWNED) for row in range(OWNED, TILES)]
    return [(OWNED, column) for column in range(OWNED + 1)]


def loops_over_tiles() -> Figure:
    """Draw which tiles of scores one program of each of the three kernels visits, and what it writes."""
    spoken = "; ".join(
        f"{each.name}: owns a tile of {'keys and values' if each.owns_keys else 'queries'}, computes "
        f"{', '.join(each.matmuls)} for each tile, and writes {each.writes}"
        for each in LOOPS
    )
    return show(
        lambda figure, theme: _draw_loops(figure),
        alt="Three matrices of tiles of scores, queries downwards and keys to the right, with those above the diagonal "
        "empty. In the first and the third, one program visits a row of tiles from left to right. In the second, it "
        f"visits a column from the diagonal downwards. {spoken}.",
        caption="A program owns a row of tiles, or a column. Orange tiles are those that one program visits, in the "
        "direction of the arrow; for each, it does the matmuls that are named. Dotted tiles are masked.",
        size=(WIDE, 3.1),
        narrow=(4.6, 6.6),
        name="loops-over-tiles",
        rows=[
            {"kernel": each.name, "owns": "keys" if each.owns_keys else "queries", "matmuls": len(each.matmuls),
             "tiles": len(visited(each)), "writes": each.writes}
            for each in LOOPS
        ],
    )  # fmt: skip


def _draw_loops(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    for place, loop in enumerate(LOOPS):
        if narrow:
            _draw_loop(ax, loop, 26.0, height - 26 - place * (height / 3), 22.0, beside=True)
        else:
            _draw_loop(ax, loop, 26.0 + place * (width - 6) / 3, height - 26, 24.0, beside=False)


def _draw_loop(ax: Axes, loop: Loop, left: float, top: float, side: float, *, beside: bool) -> None:
    """Draw one matrix with its upper left corner there, and words below it or on its right."""
    mine = set(visited(loop))
    looks = [
        [None if column > row else ("orange", 0.7) if (row, column) in mine else ("blue", 0.25)
         for column in range(TILES)]
        for row in range(TILES)
    ]  # fmt: skip
    bottom = top - TILES * side
    drawings.label(ax, left, top + 14, loop.name, across="left", bold=True)
    drawings.tiles(ax, left, bottom, side, looks)
    middle = (OWNED + 0.5) * side
    if loop.owns_keys:
        drawings.arrow(ax, (left + middle, top - OWNED * side - 4), (left + middle, bottom - 4), width=2)
    else:
        drawings.arrow(ax, (left + 4, top - middle), (left + (OWNED + 1) * side - 3, top - middle), width=2)
    ax.text(left - 10, (top + bottom) / 2, "queries", rotation=90, ha="center", va="center", fontsize=10)
    drawings.label(ax, left + TILES * side / 2, bottom - 12, "keys", size=10)
    words = f"{len(loop.matmuls)} matmuls: {', '.join(loop.matmuls)}\nwrites {loop.writes}"
    if beside:
        drawings.label(
            ax, left + TILES * side + 14, (top + bottom) / 2, words.replace(": ", ":\n"), across="left", size=10
        )
    else:
        drawings.label(ax, left - 14, bottom - 24, words, across="left", up="top", size=10)

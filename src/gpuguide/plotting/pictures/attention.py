"""Drawings of attention: its scores, tile by tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def causal_tiles(tiles: int = 8) -> Figure:
    """Draw the matrix of attention's scores in ``tiles`` × ``tiles`` tiles, and which of them a causal mask skips."""
    whole, half = tiles * (tiles - 1) // 2, tiles
    skipped = tiles * tiles - whole - half
    return show(
        lambda figure, theme: _draw_tiles(figure, tiles),
        alt=f"A matrix of {tiles} by {tiles} tiles, queries downwards and keys to the right. The {whole} tiles below "
        f"the diagonal are filled, the {half} on it are half filled, and the {skipped} above it are empty.",
        caption=f"The scores of attention in tiles. Under a causal mask {whole} of {tiles * tiles} tiles are computed "
        f"as they are, the {half} on the diagonal need the mask, and {skipped} are never touched.",
        size=(WIDE, 3.6),
        narrow=(4.6, 4.9),
        name="causal-tiles",
        rows=[
            {"tiles": name, "count": count}
            for name, count in (("computed", whole), ("masked", half), ("skipped", skipped))
        ],
    )


def _draw_tiles(figure: Canvas, tiles: int) -> None:
    ax, _, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    side = (min(height, 240.0) - 34) / tiles
    left, top = 34.0, height - 30
    bottom = top - tiles * side
    looks = [
        [None if column > row else ("orange", 0.75) if column == row else ("blue", 0.6) for column in range(tiles)]
        for row in range(tiles)
    ]
    drawings.tiles(ax, left, bottom, side, looks)
    right = left + tiles * side
    drawings.arrow(ax, (left, top + 9), (right, top + 9))
    drawings.label(ax, (left + right) / 2, top + 20, "keys: earlier to later tokens")
    drawings.arrow(ax, (left - 9, top), (left - 9, bottom))
    ax.text(left - 21, (top + bottom) / 2, "queries", rotation=90, ha="center", va="center")
    names = (("blue", 0.6, "computed as it is"), ("orange", 0.75, "on the diagonal:\ncomputed, then masked"), None)
    x, y = (34.0, bottom - 30) if narrow else (right + 28, top - 24)
    for entry in names:
        colour, strength, text = entry or ("", 0.0, "skipped: neither read\nnor computed")
        drawings.tile(ax, x, y - 8, 16, colour, strength)
        drawings.label(ax, x + 24, y, text, across="left")
        y -= 32 if narrow else 44

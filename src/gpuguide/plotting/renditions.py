"""A drawing as SVG for the site's schemes and widths, and as PNG for notebooks."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuguide.plotting import data, finishing, palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Draw = Callable[["Canvas", palette.Theme], None]
Size = tuple[float, float]

WIDE = 7.2
"""Inches across where there is room; the site shows them 40 em wide, and letters at most as large as its text"""
NARROW = 4.6
"""Inches across on a phone: a screen of 360 pixels shows a point of it as a pixel"""
FONTS = {"sans-serif": "system-ui, sans-serif", "monospace": "ui-monospace, monospace"}
"""What the pages are written in, by what matplotlib calls it"""


def narrow_size(size: Size) -> Size:
    """Return the size on a phone of a figure that has ``size`` elsewhere: less wide, and nearly as high."""
    return (NARROW, max(3.3, 0.92 * size[1])) if size[0] > NARROW else size


def is_narrow(figure: Canvas) -> bool:
    """Return whether a figure is being drawn for a phone, where little fits beside each other."""
    return figure.get_figwidth() < (WIDE + NARROW) / 2 - 0.5


def draw_on_canvas(draw: Draw, theme: palette.Theme, size: Size, rows: list[data.Row] | None = None) -> Canvas:
    """Return the finished figure; the settings of :func:`settings` must hold. What is drawn is added to ``rows``."""
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=size, layout="constrained")
    with palette.using(theme):
        draw(figure, theme)
        if rows is not None:
            rows.extend(data.rows_of(figure))
        finishing.finish(figure)
    return figure


def svg(draw: Draw, theme: palette.Theme, size: Size, rows: list[data.Row] | None = None) -> str:
    """Return the figure as SVG with real text; the same input gives the same bytes. ``rows`` get what is drawn."""
    import matplotlib

    with matplotlib.rc_context(settings(theme)):
        text = io.StringIO()
        figure = draw_on_canvas(draw, theme, size, rows)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return smaller(use_page_fonts(text.getvalue()))


def png(draw: Draw, size: Size) -> bytes:
    """Return the figure as PNG on white, at twice the usual resolution."""
    import matplotlib

    with matplotlib.rc_context(settings(palette.PRINT)):
        image = io.BytesIO()
        figure = draw_on_canvas(draw, palette.PRINT, size)
        figure.savefig(image, format="png", dpi=144, facecolor="white", metadata={"Software": None})
    return image.getvalue()


def use_page_fonts(text: str) -> str:
    """Return an SVG whose text names the fonts of the page, and not all that matplotlib would take."""

    def family(found: re.Match[str]) -> str:
        return f"font-family: {FONTS['monospace' if 'Mono' in found[1] else 'sans-serif']}"

    return re.sub(r"font-family: ([^;\"]*)", family, text)


def smaller(text: str) -> str:
    """Return an SVG without what a browser does not need: metadata, line breaks in paths, a hundredth of a point."""
    text = re.sub(r"\n? *<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!DOCTYPE.*?>\n?", "", text, flags=re.DOTALL)
    text = re.sub(r" ?\n(?=[MLQCHVz\"])", " ", text)
    text = re.sub(r"\n\s+(?=<)", "\n", text)
    return re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text)  # and never of its words


def settings(theme: palette.Theme) -> Any:
    """Return what matplotlib has to know of the look of all figures."""
    return {
        "font.family": "sans-serif",
        "font.size": 11,
        "axes.titlesize": 11.5,
        "axes.titlelocation": "left",
        "axes.labelsize": 11,
        "xtick.labelsize": 10.5,
        "ytick.labelsize": 10.5,
        "legend.fontsize": 10.5,
        "legend.frameon": False,
        "lines.linewidth": 2,
        "lines.markersize": 6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.ymargin": 0.1,  # room for the name of a ceiling
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "axes.edgecolor": theme.faint,
        "xtick.color": theme.faint,
        "ytick.color": theme.faint,
        "text.color": theme.text,
        "axes.labelcolor": theme.text,
        "xtick.labelcolor": theme.text,
        "ytick.labelcolor": theme.text,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "svg.fonttype": "none",
        "svg.hashsalt": "gpuguide",
    }

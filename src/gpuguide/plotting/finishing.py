"""What every figure gets when its author has drawn it: names at the lines, ticks in words, letters one can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from gpuguide.plotting.axes import readable_ticks

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation

SMALLEST = 10.0
"""Points: no letter of a figure is smaller"""
MOST_NAMES = 5
"""Of more series a legend tells the names: so many names do not stand at their lines"""
ROOM_FOR_NAMES = 5.5
"""Inches of a figure's width from which on names may stand beside the lines"""
SPAN = 0.25
"""Share of the axes' width that a line leads across, if it is one to name"""
EARLY = 0.8
"""Share of the axes' width: a line that ends before it has its name right there, and not beside the axes"""
LONG = 24
"""Letters of a name that is written smaller"""
BESIDE_LEGEND = 110
"""Points that the names of the ticks and of the axis take left of a legend, with the margins"""
ROW = 14.0
"""Points from one name to the next"""

_with_legend: WeakKeyDictionary[Axes, int] = WeakKeyDictionary()
"""How many lines at most bear their names where they end"""
_bounds: WeakKeyDictionary[Axes, list[tuple[float, Annotation]]] = WeakKeyDictionary()


def note_bound(ax: Axes, value: float, name: Annotation) -> None:
    """Note a bound whose name stands above its line."""
    _bounds.setdefault(ax, []).append((value, name))


def wants_legend(ax: Axes, most_at_lines: int) -> None:
    """Note that the series of ``ax`` are to be named when all of them are there, unless its legend is gone by then."""
    _with_legend[ax] = most_at_lines
    draw_legend(ax, collect_legend_entries(ax))


def finish(figure: Canvas) -> None:
    """Name the series, and see to it that all text is readable. Called when a figure is drawn."""
    from matplotlib.text import Text

    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            readable_ticks(axis)
    for text in figure.findobj(Text):
        text.set_fontsize(max(SMALLEST, text.get_fontsize()))
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            size = min((tick.label1.get_fontsize() for tick in axis.majorTicks), default=SMALLEST)
            axis.set_tick_params(labelsize=max(SMALLEST, size))
    if any(ax in _bounds or ax in _with_legend for ax in figure.axes):
        figure.draw_without_rendering()  # limits and sizes are known only then; once, because it takes its time
    for ax in [ax for ax in figure.axes if ax in _bounds]:
        keep_room_above(ax, max(value for value, _ in _bounds[ax]))
        for _, name in _bounds[ax]:
            move_from_curves(ax, name)
    for ax in [ax for ax in figure.axes if ax in _with_legend and ax.get_legend()]:
        name_series(ax)
    if figure.legends:
        fit_legends(figure)


def keep_room_above(ax: Axes, bound: float) -> None:
    """Raise the upper limit of ``ax`` until the name of a bound has room between it and the edge."""
    figure: Any = ax.get_figure(root=True)
    share = min(0.2, ROW / (ax.bbox.height * 72 / figure.dpi))  # a low panel keeps its height for the data
    scale = ax.yaxis.get_transform()
    low, high, at = scale.transform(np.array([*ax.get_ylim(), bound]))
    if low < at <= high and (high - at) / (high - low) < share:
        ax.set_ylim(top=float(scale.inverted().transform((at - share * low) / (1 - share))))


def move_from_curves(ax: Axes, name: Annotation) -> None:
    """Put the name of a bound at the other end of its line if fewer curves run through it there."""
    box = name.get_window_extent()
    axes = ax.get_window_extent()
    mirrored = box.translated(axes.x0 + axes.x1 - box.x0 - box.x1, 0)
    paths = [_path_of(ax, line) for line in ax.lines if line.get_transform() == ax.transData]
    points = np.concatenate([np.empty((0, 2)), *paths])
    here, there = (int(found.count_contains(points)) if len(points) else 0 for found in (box, mirrored))
    if there < here:
        to_the_end = name.get_horizontalalignment() == "left"
        name.set_horizontalalignment("right" if to_the_end else "left")
        name.xy = (0.99 if to_the_end else 0.01, name.xy[1])


def _path_of(ax: Axes, line: Line2D) -> np.ndarray:
    """Return places all along a line, in pixels."""
    corners = ax.transData.transform(np.asarray(line.get_xydata(), dtype=float))
    corners = corners[np.isfinite(corners).all(axis=1)]
    if len(corners) < 2 or line.get_linestyle() == "None":
        return corners
    places = np.linspace(0, len(corners) - 1, 20 * len(corners))
    at = np.arange(len(corners))
    return np.column_stack([np.interp(places, at, corners[:, side]) for side in (0, 1)])


# --- names -----------------------------------------------------------------------------------------------


def name_series(ax: Axes) -> None:
    """Name a few lines where they end; what is no line, and all where there is no room, gets a legend."""
    lines = lines_to_name(ax)
    others = {name: handle for name, handle in collect_legend_entries(ax).items() if name not in lines}
    figure: Any = ax.get_figure(root=True)
    if figure.get_figwidth() < ROOM_FOR_NAMES:  # what a long legend takes is added, and not taken from the axes
        rows = -(-len(others) // columns_of(ax, others)) if others else 0
        figure.set_figheight(figure.get_figheight() + max(0, rows - 2) * ROW / 72)
    draw_legend(ax, others)
    if lines:
        name_at_ends(ax, lines)


def collect_legend_entries(ax: Axes) -> dict[str, Artist]:
    """Return the names of a legend, each once."""
    entries: dict[str, Artist] = {}
    for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
        entries.setdefault(name, handle)  # the reference GPU's line stands for a contender, not another's
    return entries


def lines_to_name(ax: Axes) -> dict[str, Line2D]:
    """Return the lines whose names stand where they end, or none where a legend serves better."""
    from matplotlib.lines import Line2D

    found = {
        name: handle
        for name, handle in collect_legend_entries(ax).items()
        if isinstance(handle, Line2D) and _is_curve(ax, handle)
    }
    place = ax.get_subplotspec()
    room = place is None or place.get_gridspec().ncols == 1
    room &= ax.get_aspect() == "auto"
    room &= ax.get_figure(root=True).get_figwidth() >= ROOM_FOR_NAMES  # type: ignore[union-attr]
    return found if room and len(found) <= _with_legend.get(ax, MOST_NAMES) else {}


def _is_curve(ax: Axes, line: Line2D) -> bool:
    """Return whether a line leads across the axes from point to point, and is no bound and no mark beside others."""
    points = np.asarray(line.get_xydata())
    if len(points) == 1 and _with_legend.get(ax, MOST_NAMES) > MOST_NAMES:
        return line.get_linestyle() != "None"
    if len(points) < 2 or line.get_linestyle() == "None" or line.get_transform() != ax.transData:
        return False
    start, end = ax.transAxes.inverted().transform(ax.transData.transform([points[0], points[-1]]))[:, 0]
    return bool(abs(end - start) > SPAN)


def name_at_ends(ax: Axes, lines: dict[str, Line2D]) -> None:
    """Write the name of each line to the right of the axes, at the height where it ends, with a stroke to it."""
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.get_figure(root=True)
    height = ax.bbox.height * 72 / figure.dpi
    ends = {name: _end(ax, line) for name, line in lines.items()}
    for name in [name for name, (x, _) in ends.items() if x < EARLY]:
        ax.annotate(name, ends.pop(name), (8, 0), xycoords=ax.transAxes, textcoords="offset points", va="center")
    order = sorted(ends, key=lambda name: ends[name][1])
    heights = apart([ends[name][1] * height for name in order], ROW, height)
    beside = ax.transAxes + ScaledTranslation(14 / 72, 0, figure.dpi_scale_trans)
    for name, at in zip(order, heights, strict=True):
        colour = lines[name].get_color()
        stroke = {"arrowstyle": "-", "color": colour, "linewidth": 1.2, "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)}
        ax.annotate(
            name,
            ends[name],
            (1.0, at / height),
            xycoords=ax.transAxes,
            textcoords=beside,
            va="center",
            fontsize=SMALLEST if len(name) > LONG else None,
            arrowprops=stroke,
            annotation_clip=False,
        )


def _end(ax: Axes, line: Line2D) -> tuple[float, float]:
    """Return where a line leaves the axes on the right, as shares of their width and height."""
    points = ax.transAxes.inverted().transform(line.get_transform().transform(line.get_xydata()))
    seen = points[np.isfinite(points).all(axis=1) & (points[:, 0] <= 1.001)]
    x, y = max(seen if len(seen) else np.array([[1.0, 0.5]]), key=lambda point: point[0])
    return float(x), float(min(max(y, 0.0), 1.0))


def apart(wanted: Sequence[float], distance: float, height: float) -> list[float]:
    """Return heights near the wanted ones, which rise, at least ``distance`` apart and within ``height``.

    >>> apart([10.0, 11.0, 50.0], 12.0, 60.0)
    [4.5, 16.5, 50.0]
    """
    groups: list[list[float]] = []  # of each: the middle that its members want, and how many they are
    for each in wanted:
        groups.append([each, 1.0])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < distance * (groups[-1][1] + groups[-2][1]) / 2:
            (upper, many), (lower, few) = groups.pop(), groups.pop()
            groups.append([(upper * many + lower * few) / (many + few), many + few])
    found = [middle + distance * (place - (count - 1) / 2) for middle, count in groups for place in range(int(count))]
    over = max(0.0, found[-1] - height) if found else 0.0
    return [each - over for each in found]


# --- legends ---------------------------------------------------------------------------------------------


def draw_legend(ax: Axes, entries: dict[str, Artist]) -> None:
    """Put a legend above the axes, where it covers no data, in as many columns as fit."""
    if not entries:
        if ax.get_legend():
            ax.get_legend().remove()  # type: ignore[union-attr]
        return
    ax.legend(
        entries.values(),
        entries,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns_of(ax, entries),
        borderaxespad=0.2,
        handlelength=2.2,
        columnspacing=1.4,
    )


def fit_legends(figure: Canvas) -> None:
    """Give a legend that all panels share fewer columns where it is wider than the figure."""
    figure.draw_without_rendering()
    for legend in [each for each in figure.legends if each.get_window_extent().width > figure.bbox.width]:
        handles, names = legend.legend_handles, [text.get_text() for text in legend.get_texts()]
        legend.remove()
        columns = legend_columns(names, figure.get_figwidth() * 72 - 20)
        figure.legend([each for each in handles if each], names, loc="outside upper left", ncols=columns)


def legend_rows(ax: Axes) -> int:
    """Return how many rows the legend of ``ax`` takes, as far as its series are known."""
    entries = {name: handle for name, handle in collect_legend_entries(ax).items() if name not in lines_to_name(ax)}
    return -(-len(entries) // columns_of(ax, entries)) if entries else 0


def columns_of(ax: Axes, entries: dict[str, Artist]) -> int:
    """Return into how many columns a legend goes."""
    points = ax.get_figure(root=True).get_figwidth() * 72 - BESIDE_LEGEND  # type: ignore[union-attr]
    return legend_columns(list(entries), points)


def legend_columns(names: Sequence[str], points: float) -> int:
    """Return into how many columns the entries of a legend go if all columns together are to be that wide at most.

    A legend fills its columns one after another, and each is as wide as its widest entry.
    """
    widths = [entry_width(name) for name in names]
    for columns in range(len(names), 1, -1):
        if sum(max(column) for column in np.array_split(widths, columns)) <= points:
            return columns
    return 1


def entry_width(name: str) -> float:
    """Return the points that an entry of a legend takes: a line, its name and the distances."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=rcParams["legend.fontsize"])
    width, _, _ = text_to_path.get_text_width_height_descent(name, font, False)
    return float(width) + 4.4 * font.get_size_in_points()

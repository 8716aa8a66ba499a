"""What a figure shows, as a table to take away: one row a point, in SI units."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from gpuguide.plotting.axes import unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

Row = Mapping[str, Any]
COLUMNS = ("panel", "series", "device", "x_name", "x", "x_unit", "y_name", "y", "y_unit", "y_p25", "y_p75", "value")
"""In this order; a column that is empty throughout is left out"""

_bands: WeakKeyDictionary[Line2D, tuple[Sequence[float], Sequence[float], str]] = WeakKeyDictionary()


def note_band(line: Line2D, low: Sequence[float], high: Sequence[float], device: str = "") -> None:
    """Note the quartiles of a curve, and its device where that is not the figure's own."""
    _bands[line] = (low, high, device)


def as_csv(rows: Iterable[Row]) -> str:
    """Return rows as CSV, in the columns that they have in all; empty if there are none."""
    found = list(rows)
    names = list(dict.fromkeys(name for row in found for name, value in row.items() if value not in ("", None)))
    names.sort(key=lambda name: COLUMNS.index(name) if name in COLUMNS else len(COLUMNS))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    if names:
        writer.writeheader()
        writer.writerows({name: _format_value(row.get(name, "")) for name in names} for row in found)
    return text.getvalue()


def rows_of(figure: Canvas) -> Iterator[Row]:
    """Return what is drawn: the points of lines, the ends of bars, the cells of maps."""
    for place, ax in enumerate(figure.axes):
        panel = (ax.get_title(loc="left") or ax.get_title() or ax.get_ylabel() or str(place + 1)).replace("\n", " ")
        axes = {"panel": panel if len(figure.axes) > 1 else ""}
        axes |= {"x_name": ax.get_xlabel(), "y_name": ax.get_ylabel()}
        axes |= {"x_unit": unit_of(ax.xaxis), "y_unit": unit_of(ax.yaxis)}
        for row in (*_lines(ax), *_bars(ax), *_points(ax), *_maps(ax)):
            yield {**axes, **row, "x": _find_tick_name(ax.xaxis, row["x"]), "y": _find_tick_name(ax.yaxis, row["y"])}


def _lines(ax: Axes) -> Iterator[dict[str, Any]]:
    for line in ax.lines:
        if line.get_transform() != ax.transData:  # a bound across the axes
            continue
        low, high, device = _bands.get(line, ((), (), ""))
        quartiles = zip(low, high, strict=True) if low else None
        for x, y in np.asarray(line.get_xydata()):
            band = next(quartiles) if quartiles else ("", "")
            label = _label(line.get_label())
            yield {"series": label, "device": device, "x": x, "y": y, "y_p25": band[0], "y_p75": band[1]}


def _bars(ax: Axes) -> Iterator[dict[str, Any]]:
    from matplotlib.container import BarContainer

    for container in ax.containers:
        if isinstance(container, BarContainer):
            is_horizontal = container.orientation == "horizontal"
            for bar in container.patches:
                across, up = bar.get_x() + bar.get_width() / 2, bar.get_y() + bar.get_height() / 2
                x, y = (
                    (bar.get_width(), up) if is_horizontal else (across, bar.get_height())
                )  # sizes: in a stack it begins later
                yield {"series": _label(container.get_label()), "x": x, "y": y}


def _points(ax: Axes) -> Iterator[dict[str, Any]]:
    from matplotlib.collections import PathCollection

    for found in ax.collections:
        if isinstance(found, PathCollection):
            for x, y in np.asarray(found.get_offsets()):
                yield {"series": _label(found.get_label()), "x": x, "y": y}


def _maps(ax: Axes) -> Iterator[dict[str, Any]]:
    for image in ax.images:
        cells = np.asarray(image.get_array())
        if cells.ndim == 2:
            for (row, column), value in np.ndenumerate(cells):
                yield {"series": "", "x": column, "y": row, "value": value}


def _label(label: object) -> str:
    return "" if str(label).startswith("_") else " ".join(str(label).split())


def _find_tick_name(axis: Axis, value: Any) -> Any:
    """Return the name that stands at a place of an axis with names for ticks, else the value."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter

    formatter = axis.get_major_formatter()
    if unit_of(axis) or not isinstance(axis.get_major_locator(), FixedLocator):
        return value
    if isinstance(formatter, (FixedFormatter, FuncFormatter)):
        ticks = [float(at) for at in axis.get_majorticklocs()]
        for at, name in zip(ticks, formatter.format_ticks(ticks), strict=True):
            if math.isclose(at, float(value), abs_tol=1e-9) and name:
                return " ".join(name.split())
    return value


def _format_value(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else value

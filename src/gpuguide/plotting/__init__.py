"""Figures from records, in the site's light and dark schemes, and as PNG everywhere else; results as tables.

>>> from gpuguide import plotting
>>> def draw(figure, theme):
...     ax = figure.subplots()
...     plotting.curves(ax, "copy-size", x="working_set", metric="bandwidth")
...     plotting.log_axis(ax.xaxis, "B", "working set")
...     plotting.linear_axis(ax.yaxis, "B/s", "bandwidth")
>>> plotting.show(draw, alt="…", caption="…")  # doctest: +SKIP

Drawings that one call makes are in :mod:`~gpuguide.plotting.pictures`. matplotlib is imported when the first figure is
drawn, not before.
"""

from __future__ import annotations

from gpuguide.plotting.axes import linear_axis, log_axis
from gpuguide.plotting.figure import Figure, load_published_and_mine, show, stamp
from gpuguide.plotting.interactive import limits_to_try, map_to_try, rank_to_try, roofline_to_try, sampling_to_try
from gpuguide.plotting.marks import bars, ceiling, curves, device_label, legend, name_devices, roofline, stroke
from gpuguide.plotting.palette import DARK, LIGHT, Theme, colour, label
from gpuguide.plotting.parts import collect_rows, grouped_bars, stacked_bars
from gpuguide.plotting.ratios import Mark, ratios
from gpuguide.plotting.renditions import is_narrow
from gpuguide.plotting.tables import show_table
from gpuguide.plotting.traces import PANELS, Panel, trace, trace_panel

__all__ = [
    "DARK",
    "LIGHT",
    "PANELS",
    "Figure",
    "Mark",
    "Panel",
    "Theme",
    "bars",
    "ceiling",
    "collect_rows",
    "colour",
    "curves",
    "device_label",
    "grouped_bars",
    "is_narrow",
    "label",
    "legend",
    "limits_to_try",
    "linear_axis",
    "load_published_and_mine",
    "log_axis",
    "map_to_try",
    "name_devices",
    "rank_to_try",
    "ratios",
    "roofline",
    "roofline_to_try",
    "sampling_to_try",
    "show",
    "show_table",
    "stacked_bars",
    "stamp",
    "stroke",
    "trace",
    "trace_panel",
]

"""A GPU watched over time: one panel for each question, one below the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.trace import Trace
from gpuguide.measure import store
from gpuguide.measure import traces as kept
from gpuguide.measure.comparison import case_like
from gpuguide.measure.records import Case, Key, Record
from gpuguide.plotting import palette
from gpuguide.plotting.axes import linear_axis
from gpuguide.plotting.figure import load_published_and_mine
from gpuguide.plotting.marks import ceiling, device_label, legend, stroke

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Panel:
    """One question, and the quantities that answer it."""

    question: str
    quantities: Mapping[str, tuple[str, str]]
    """Quantity to its name in the legend and a colour of :attr:`gpuguide.plotting.palette.Theme.series`"""
    bound: str = ""
    """What the readings cannot pass, of :data:`gpuguide.hardware.quantities.BOARD`; drawn where it is near"""
    bound_label: str = ""


PANELS = {
    "utilisation": Panel(
        "Was a kernel running, and was memory busy?",
        {"gpu_utilisation": ("GPU", "blue"), "memory_utilisation": ("memory controller", "orange")},
    ),
    "activity": Panel(
        "How much of the GPU worked?",
        {
            "sm_activity": ("multiprocessors", "blue"),
            "tensor_activity": ("tensor cores", "orange"),
            "bandwidth_share": ("memory bandwidth", "green"),
        },
    ),
    "power": Panel(
        "How much power did the board draw?",
        {"power": ("over the last second", "blue"), "instant_power": ("now", "orange")},
        "power_limit",
        "power limit",
    ),
    "clock": Panel(
        "How fast was the clock?", {"sm_clock": ("multiprocessors", "green")}, "sm_clock_limit", "highest clock"
    ),
    "temperature": Panel(
        "How warm was the GPU?",
        {"temperature": ("die", "pink"), "memory_temperature": ("memory", "blue")},
        "slowdown_temperature",
        "the hardware slows down",
    ),
    "memory": Panel(
        "How much memory was taken?",
        {
            "memory_used": ("used", "blue"),
            "reserved": ("reserved", "orange"),
            "allocated": ("allocated", "green"),
        },
    ),
}
"""The questions that :func:`trace` can answer"""
USUAL = ("utilisation", "power", "clock", "temperature")
LEGEND_ROW = 18
"""Points"""
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))
"""Lines of one panel differ in more than colour"""


def trace(
    figure: Canvas,
    source: Trace | Record | str,
    *,
    panels: Sequence[str] = USUAL,
    contender: str = "nvml",
    **keys: Key,
) -> None:
    """Draw a trace over time: one panel for each question, one below the other, over the same seconds.

    A figure of ``n`` panels reads well at ``size=(5.8, 1.7 * n)``. Where the reader has measured the same case, their
    trace is drawn over it, with hollow markers, named by its device.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Empty, as :func:`gpuguide.plotting.show` hands it over.
    source : Trace, Record or str
        A trace, a record, or the name of a benchmark whose published record is meant.
    panels : sequence of str
        Names of :data:`PANELS`, from top to bottom.
    contender : str
        Whose case, if the source is a record.
    **keys
        Keys that leave one case of the record, such as ``scenario="spin"``.

    Raises
    ------
    GpuguideError
        If a panel or a case does not exist, or the trace holds nothing that a panel shows.
    """
    axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for ax, name in zip(axes, panels, strict=True):
        trace_panel(ax, source, name, contender=contender, **keys)
    axes[-1].set_xlabel("seconds")


def trace_panel(ax: Axes, source: Trace | Record | str, panel: str, *, contender: str = "nvml", **keys: Key) -> None:
    """Draw one panel of a trace; the parameters are those of :func:`trace`."""
    if panel not in PANELS:
        raise unknown("panel in gpuguide.plotting.traces.PANELS", panel, PANELS)
    chosen = PANELS[panel]
    (first, _, _), *others = found = _find_traces(source, contender, keys)
    if not any(name in first.units for name in chosen.quantities):
        raise GpuguideError(
            f"The trace of {first.device} holds none of {', '.join(chosen.quantities)}, which the panel {panel!r} "
            f"shows. It holds {', '.join(first.units)}."
        )
    for drawn, look, label in found:
        _lines(ax, drawn, chosen, look)
        if others:
            ax.plot([], [], color=palette.current().text, marker="o", label=label, **look)
    _set_bounds(ax, first, chosen)
    rows = legend(ax, at_lines=False) if len(ax.get_legend_handles_labels()[1]) > 1 else 0
    ax.set_title(chosen.question, pad=6 + LEGEND_ROW * rows)


def _find_traces(
    source: Trace | Record | str, contender: str, keys: Mapping[str, Key]
) -> list[tuple[Trace, dict[str, Any], str]]:
    """Return the traces to draw, each with how its lines look and the name of its device."""
    if isinstance(source, Trace):
        return [(source, {}, source.device)]
    published = store.load_published(source) if isinstance(source, str) else source
    case = published.case(contender, **keys)
    records = load_published_and_mine(published)
    cases: list[tuple[Record, Case | None]] = [(record, case_like(case, record)) for record in records]
    return [
        (kept.find_case_trace(record, each), stroke(record), device_label(record)) for record, each in cases if each
    ]


def _lines(ax: Axes, trace: Trace, panel: Panel, look: Mapping[str, Any]) -> None:
    theme = palette.current()
    mine = "markerfacecolor" in look
    marks = {"marker": "o", "markevery": 0.15, "markersize": 5} if mine else {}
    for (name, (label, colour)), dashes in zip(panel.quantities.items(), DASHES, strict=False):
        if name in trace.units:
            style = {**look, **marks, "linestyle": dashes, "color": theme.series[colour]}
            ax.plot(trace.seconds, trace[name], label=label, **style)


def _set_bounds(ax: Axes, trace: Trace, panel: Panel) -> None:
    """Start the vertical axis at zero, with the unit of the readings and the bound of the board, if it has one."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

    name = next(name for name in panel.quantities if name in trace.units)
    linear_axis(ax.yaxis, trace.units[name], "")
    ax.yaxis.set_major_locator(MaxNLocator(nbins=3, steps=[1, 2, 2.5, 5, 10]))
    if kept.is_share(name):
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}%"))
        ax.set_ylim(0, 1.08)
        ax.set_yticks([0, 0.5, 1])
    if trace.units[name] == "B":
        columns = trace.totals().columns
        highest = max((columns[each].most for each in panel.quantities if each in columns), default=1.0)
        ax.yaxis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(max(1.0, highest / 3)))))
    if panel.bound in trace.board:
        value = trace.board[panel.bound]
        ceiling(ax, value, panel.bound_label, faint=True, at_end=True)  # work often begins with a peak
        ax.set_ylim(0, 1.25 * value)
    ax.set_xlim(left=0)

"""Drawings of kernels and their launches: host and GPU over time, and what four kernels move against one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

LANES = {
    "launches": (2.0, (0.7,) * 6),
    "bytes": (1.0, (2.4, 2.4, 2.4, 2.4)),
    "FLOPs": (1.0, (1.6, 6.4, 1.6)),
}
"""For each limit: how long the host takes to launch a kernel, and how long each kernel runs, in any unit. An example,
not a measurement."""
WORKING = {"launches": "", "bytes": "moves bytes", "FLOPs": "multiplies"}
"""What the longest kernels do"""
OPERATIONS = ("add", "mul", "relu", "div")
ARRAYS = (("a", "b"), ("t₁", "c"), ("t₂",), ("t₃", "d"))
"""What each of the four reads"""


def schedule(limit: str) -> list[dict[str, object]]:
    """Return when the host launches each kernel of a lane, and when the GPU runs it."""
    launch, kernels = LANES[limit]
    rows: list[dict[str, object]] = []
    free = 0.0
    for number, duration in enumerate(kernels):
        launched = (number + 1) * launch
        begin = max(launched, free)
        free = begin + duration
        rows.append({"limit": limit, "kernel": number + 1, "launched": launched, "begins": begin, "ends": free})
    return rows


def three_limits() -> Figure:
    """Draw host and GPU over time for a step of each limit."""
    rows = [row for limit in LANES for row in schedule(limit)]
    return show(
        lambda figure, theme: _draw_lanes(figure),
        alt="Three pairs of lanes, host above GPU. First, launches are the limit: the host launches six kernels "
        "without a pause, and the GPU runs each for a short time and waits for the next. Second, bytes are the limit: "
        "the host has launched four kernels early, and the GPU moves bytes without a gap. Third, FLOPs are the limit: "
        "one long matmul fills most of the GPU's lane.",
        caption="Host and GPU over time in three steps, an example. If the GPU's lane has gaps, the GPU waits for "
        "launches. If it has none, the step is memory-bound or compute-bound, depending on its longest kernels.",
        size=(WIDE, 3.6),
        narrow=(4.6, 4.2),
        name="three-limits",
        rows=rows,
    )


def _draw_lanes(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    left, right, tall = 44.0, 10.0, 22.0
    longest = max(float(str(row["ends"])) for limit in LANES for row in schedule(limit))
    unit = (width - left - right) / longest
    panel = height / len(LANES)
    for index, (limit, (launch, _)) in enumerate(LANES.items()):
        bottom = height - (index + 1) * panel + 8
        drawings.label(ax, left, bottom + 2 * tall + 14, f"Limit: {limit}", across="left", bold=True)
        for name, y in (("host", bottom + tall + 5), ("GPU", bottom)):
            drawings.label(ax, left - 6, y + tall / 2, name, across="right", size=10)
        for row in schedule(limit):
            number, launched = int(str(row["kernel"])), float(str(row["launched"]))
            begins, ends = float(str(row["begins"])), float(str(row["ends"]))
            launch_span = (launched - launch, launched, str(number), "grey")
            drawings.time_line(ax, left, bottom + tall + 5, unit, [launch_span], height=tall, size=9)
            is_long = ends - begins >= 2 * launch
            text = f"{number}: {WORKING[limit]}" if is_long and not is_narrow(figure) else str(number)
            colour = {"launches": "blue", "bytes": "orange", "FLOPs": "green"}[limit]
            drawings.time_line(ax, left, bottom, unit, [(begins, ends, text, colour)], height=tall, size=9)


def four_kernels_or_one() -> Figure:
    """Draw ``relu((a + b) * c) / d`` as four kernels with trips to memory, and as one."""
    passes = sum(len(read) + 1 for read in ARRAYS)
    return show(
        lambda figure, theme: _draw_trips(figure),
        alt="Left, four kernels: add reads a and b and writes t1, mul reads t1 and c and writes t2, relu reads t2 and "
        "writes t3, div reads t3 and d and writes the result. Each arrow is a trip to memory, "
        f"{passes} in all. Right, one kernel reads a, b, c and d and writes the result, 5 trips in all.",
        caption=f"Four kernels make {passes} trips to memory, and one kernel makes 5, because the results between the "
        "operations stay in registers.",
        size=(WIDE, 3.0),
        narrow=(4.6, 5.6),
        name="four-kernels-or-one",
        rows=[
            *(
                {"kernels": 4, "kernel": name, "reads": len(read), "writes": 1}
                for name, read in zip(OPERATIONS, ARRAYS, strict=True)
            ),
            {"kernels": 1, "kernel": "add mul relu div", "reads": 4, "writes": 1},
        ],
    )


def _draw_trips(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    if is_narrow(figure):
        _trips(ax, 8, height / 2 + 8, width - 16, height / 2 - 16, OPERATIONS, ARRAYS, ("t₁", "t₂", "t₃", "out"))
        _trips(ax, 8, 8, width - 16, height / 2 - 16, ("add mul relu div",), (("a", "b", "c", "d"),), ("out",))
        return
    part = (width - 32) * 0.64
    _trips(ax, 8, 8, part, height - 16, OPERATIONS, ARRAYS, ("t₁", "t₂", "t₃", "out"))
    _trips(ax, 24 + part, 8, width - 32 - part, height - 16, ("add mul relu div",), (("a", "b", "c", "d"),), ("out",))


def _trips(
    ax: Axes,
    left: float,
    bottom: float,
    width: float,
    height: float,
    operations: tuple[str, ...],
    reads: tuple[tuple[str, ...], ...],
    writes: tuple[str, ...],
) -> None:
    tall, memory = 30.0, 34.0
    title = "4 kernels" if len(operations) > 1 else "1 kernel"
    drawings.label(ax, left + width / 2, bottom + height - 8, title, bold=True)
    drawings.box(ax, left, bottom, width, memory, "memory", colour="orange")
    top = bottom + height - 26 - tall
    step = width / len(operations)
    for number, (name, read, written) in enumerate(zip(operations, reads, writes, strict=True)):
        x = left + number * step + 4
        wide = step - 8
        drawings.box(ax, x, top, wide, tall, name, colour="blue", size=10)
        trips = [*((each, True) for each in read), (written, False)]
        for place, (each, is_read) in enumerate(trips):
            at = x + wide * (place + 0.5) / len(trips)
            ends = ((at, bottom + memory), (at, top)) if is_read else ((at, top), (at, bottom + memory))
            drawings.arrow(ax, *ends, colour="" if is_read else "green", width=1.2)
            drawings.label(ax, at + 3, (top + bottom + memory) / 2, each, across="left", size=9)

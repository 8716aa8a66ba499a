"""Drawings of what happens when a program calls a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuguide.measure import store
from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

KERNELS = 3


def stream_and_queue() -> Figure:
    """Draw kernels that the host queues and the GPU works through, and what two timers read, to scale."""
    record = store.load_published("timing-mistakes")
    submit, run = (
        record.case(name, shape="square").metrics["time"].summary.median for name in ("no-synchronize", "right")
    )
    early, late = KERNELS * submit, submit + KERNELS * run
    spoken = [format_quantity(seconds, "s") for seconds in (submit, run, late)]
    return show(
        lambda figure, theme: _draw_queue(figure, theme, submit, run),
        alt=f"Two timelines. On the first, the host submits {KERNELS} kernels, each drawn {spoken[0]} long. On the "
        f"second, the GPU runs them one after another, {spoken[1]} each. A timer that stops when the host has "
        f"submitted them reads too short a time; a timer that waits for the GPU reads {spoken[2]}.",
        caption="The host queues kernels in a stream, and the GPU runs them later. A timer that does "
        f"not synchronise stops when all kernels are queued; they are done after {spoken[2]}. Boxes are to scale: a "
        f"square matmul takes {spoken[1]} on the GPU, and the first call after a wait {spoken[0]} on the host; "
        "further calls may take less.",
        records=[record],
        size=(WIDE, 2.9),
        narrow=(4.6, 2.9),
        name="stream-and-queue",
        rows=[
            {"what": "submit one matmul after a wait", "time_s": submit},
            {"what": "run one matmul", "time_s": run},
            {"what": f"submit {KERNELS} matmuls, if each took as long", "time_s": early},
            {"what": f"until {KERNELS} matmuls are done", "time_s": late},
        ],
    )


def _draw_queue(figure: Canvas, theme: Theme, submit: float, run: float) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 40.0, 30.0
    early, late = KERNELS * submit, submit + KERNELS * run
    scale = (width - left - 10) / late
    host, gpu = height - 74, height - 166
    for name, y in (("host", host), ("GPU", gpu)):
        drawings.label(ax, left - 8, y + tall / 2, name, across="right")
        ax.plot([left, width - 6], [y - 3, y - 3], color=theme.grid, linewidth=1)
    begins = [n * submit for n in range(KERNELS)]
    starts = [submit + n * run for n in range(KERNELS)]
    drawings.time_line(ax, left, host, scale, [(at, at + submit, "", "blue") for at in begins], height=tall)
    kernels = [(at, at + run, f"kernel {n}", "orange") for n, at in enumerate(starts, 1)]
    drawings.time_line(ax, left, gpu, scale, kernels, height=tall, size=11)
    for queued, started in zip(begins, starts, strict=True):
        top, bottom = left + (queued + submit / 2) * scale, left + started * scale + 5
        drawings.arrow(ax, (top, host - 4), (bottom, gpu + tall + 2), colour="blue", width=1)
    free = "free" if is_narrow(figure) else "free for other work"
    drawings.label(ax, left + early * scale + 8, host + tall / 2, free, across="left", size=10)
    drawings.label(ax, width - 16, host - 16, "each waits in the queue", across="right", size=10)
    drawings.moment(ax, left + early * scale, host - 6, height - 30)
    drawings.moment(ax, left + late * scale, 26, gpu + tall + 6)
    unsynchronised = "without synchronising, the timer stops here"
    drawings.label(ax, left, height - 12, unsynchronised, across="left")
    drawings.extent(ax, left, left + early * scale, height - 32, "")
    synchronised = f"with synchronising, it reads {format_quantity(late, 's')}"
    drawings.extent(ax, left, left + late * scale, 30, synchronised, below=True)

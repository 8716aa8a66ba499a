"""Drawings of what a GPU's metrics count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuguide.measure import reference_gpu, store, traces
from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

# --- what utilisation counts -------------------------------------------------------------------------------

PERIODS = 3
"""Of the driver, as many as are drawn"""
BURSTS = 4
"""Kernels that are drawn in a period where the GPU pauses; in the record there are many more"""
LEAST = 1.6
"""Points: a kernel of one thread would be too thin to be seen"""


@dataclass(frozen=True)
class Lane:
    """A GPU at work: what it does, in which share of the time, and what the driver and the chip read."""

    title: str
    running: float
    """Share of the time in which it runs kernels, as it is drawn"""
    utilisation: float
    activity: float
    """Share of the multiprocessors that were busy, over all of the time"""


def what_utilisation_counts() -> Figure:
    """Draw three kinds of work over the driver's sample periods: how high, how often, and what utilisation reads."""
    lanes = [
        _lane("spin", "one thread that reads the clock", 1.0),
        _lane("bursts", "large matmuls, with pauses as long as they take", 0.5),
        _lane("products", "large matmuls without a pause", 1.0),
    ]
    words = "; ".join(
        f"{each.title}: utilisation {_share('gpu_utilisation', each.utilisation)}, multiprocessors at work "
        f"{_share('sm_activity', each.activity)}"
        for each in lanes
    )
    return show(
        lambda figure, theme: _draw(figure, theme, lanes),
        alt="Three timelines, divided into sample periods. The height of each kernel is the share of the "
        f"multiprocessors that it keeps busy. {words}.",
        caption="GPU utilisation counts whether a kernel ran, not how much of the GPU it used. The height of a "
        f"kernel is the share of the multiprocessors of {reference_gpu.word('a short')} that it keeps busy. The pauses "
        "are not to scale: a period contains many more of them.",
        records=[store.load_published("gpu-metrics")],
        size=(WIDE, 4.1),
        narrow=(4.6, 4.1),
        name="what-utilisation-counts",
        rows=[
            {"work": each.title, "gpu_utilisation": each.utilisation, "sm_activity": each.activity} for each in lanes
        ],
    )


def _lane(scenario: str, title: str, running: float) -> Lane:
    record = store.load_published("gpu-metrics")
    case = record.case("nvml", scenario=scenario)
    begun, ended = (case.measured[f"work_{word}"].summary.median for word in ("began", "ended"))
    spans = traces.find_case_trace(record, case).select_interval(begun + 1, ended).totals().columns
    return Lane(title, running, spans["gpu_utilisation"].mean, spans["sm_activity"].mean)


def _share(name: str, value: float) -> str:
    return traces.value_text(name, value, "1")


def _draw(figure: Canvas, theme: Theme, lanes: list[Lane]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, right = 8.0, width - (96 if is_narrow(figure) else 104)
    tall, apart = 38.0, 84.0
    bottoms = [height - 22 - tall - place * apart for place in range(len(lanes))]
    period = (right - left) / PERIODS
    for bottom, lane in zip(bottoms, lanes, strict=True):
        drawings.label(ax, left, bottom + tall + 12, lane.title, across="left", bold=True)
        ax.plot([left, right], [bottom, bottom], color=theme.grid, linewidth=1)
        _kernels(ax, left, bottom, tall, period, lane)
        drawings.label(ax, right + 10, bottom + 0.72 * tall, "SM activity", across="left", size=10)
        drawings.label(
            ax, right + 10, bottom + 0.3 * tall, _share("sm_activity", lane.activity), across="left", bold=True
        )
        for number in range(PERIODS + 1):
            drawings.moment(ax, left + number * period, bottom - 18, bottom + tall)
        for number in range(PERIODS):
            reads = _share("gpu_utilisation", lane.utilisation)
            drawings.label(ax, left + (number + 0.5) * period, bottom - 11, reads, bold=True)
        drawings.label(ax, right + 10, bottom - 11, "utilisation", across="left", size=10)
    words = "a sample period" if is_narrow(figure) else "a sample period of the driver, 1/6 s to 1 s"
    drawings.extent(ax, left, left + period, bottoms[-1] - 26, "")
    drawings.label(ax, left, bottoms[-1] - 40, words, across="left", size=10)


def _kernels(ax: Axes, left: float, bottom: float, tall: float, period: float, lane: Lane) -> None:
    """Draw the kernels of a lane, period by period: one that lasts, or several with pauses."""
    high = max(LEAST, tall * lane.activity / lane.running)
    pieces = 1 if lane.running == 1 else BURSTS
    step = period / pieces
    for piece in range(PERIODS * pieces):
        drawings.box(ax, left + piece * step, bottom, step * lane.running, high, colour="blue", strength=0.3)


# --- a step that waits for its data ------------------------------------------------------------------------


def step_and_its_data() -> Figure:
    """Draw what a training step takes on the host and on the GPU, as found and after two changes, to scale."""
    record = store.load_published("slow-training-step")

    def median(step: str, name: str) -> float:
        return record.case("nvml", step=step).metrics[name].summary.median

    host = median("as-found", "loading") * median("as-found", "time")
    slow, fast = median("tokenised-once", "time"), median("bf16", "time")
    rows = [
        ("as found", host, median("as-found", "time") - host),
        ("bf16 alone, predicted", host, fast),
        ("tokenised once", 0.0, slow),
        ("tokenised once, and bf16", 0.0, fast),
    ]
    words = "; ".join(f"{name}: {format_quantity(first + second, 's')}" for name, first, second in rows)
    return show(
        lambda figure, theme: _draw_steps(figure, rows),
        alt="Four bars of time, each a training step: first the host builds the batch, then the GPU computes. "
        f"{words}. In the last two the host's part is gone.",
        caption="The time of a step, as found and after two changes, to scale. While the host takes most of the step, "
        "a change to the GPU's part helps less than a change to the host's.",
        records=[record],
        size=(WIDE, 3.0),
        narrow=(4.6, 3.0),
        name="step-and-its-data",
        rows=[{"step": name, "host_s": first, "gpu_s": second} for name, first, second in rows],
    )


def _draw_steps(figure: Canvas, rows: list[tuple[str, float, float]]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall, apart = 8.0, 26.0, 52.0
    scale = (width - left - 62) / max(first + second for _, first, second in rows)
    for place, (name, host, gpu) in enumerate(rows):
        bottom = height - 22 - tall - place * apart
        drawings.label(ax, left, bottom + tall + 10, name, across="left", size=10)
        spans = [(host, host + gpu, "GPU" if gpu * scale > 30 else "", "orange")]
        if host:
            spans.insert(0, (0.0, host, "the host builds the batch", "blue"))
        drawings.time_line(ax, left, bottom, scale, spans, height=tall, size=10)
        took = format_quantity(host + gpu, "s")
        drawings.label(ax, left + (host + gpu) * scale + 8, bottom + tall / 2, took, across="left", bold=True)


# --- the same utilisation ----------------------------------------------------------------------------------


def same_utilisation() -> Figure:
    """Draw the bytes a second that one thread and a copy move, to scale, under the utilisation that both have."""
    record = store.load_published("gpu-metrics")
    names = {"chase": "one thread reads memory", "copies": "a copy fills the GPU"}
    metrics = {name: record.case("nvml", scenario=scenario).measured for scenario, name in names.items()}
    moved = {name: found["bandwidth"].summary.median for name, found in metrics.items()}
    reads = {
        name: _share("gpu_utilisation", found["gpu_utilisation"].summary.median) for name, found in metrics.items()
    }
    words = "; ".join(f"{name}: {format_quantity(rate, 'B/s')} at {reads[name]}" for name, rate in moved.items())
    return show(
        lambda figure, theme: _draw_rates(figure, moved, reads),
        alt=f"Two bars to scale: the bandwidth of a GPU, with the utilisation that its driver reports. {words}.",
        caption="nvidia-smi shows the same GPU-Util for both.",
        records=[record],
        size=(5.2, 3.5),
        narrow=(4.6, 3.3),
        name="same-utilisation",
        rows=[
            {"work": name, "gpu_utilisation": metrics[name]["gpu_utilisation"].summary.median, "bandwidth": rate}
            for name, rate in moved.items()
        ],
    )


def _draw_rates(figure: Canvas, moved: dict[str, float], reads: dict[str, str]) -> None:
    ax, width, height = drawings.sheet(figure)
    most, tall = max(moved.values()), 30.0
    for place, (name, rate) in enumerate(moved.items()):
        top = height - 6 - place * height / len(moved)
        bottom = top - 18 - tall
        drawings.label(ax, 1, top, name, across="left", up="top", size=12)
        drawings.label(ax, width - 1, top, f"GPU-Util {reads[name]}", across="right", up="top", size=12)
        drawings.box(ax, 1, bottom, width - 2, tall, strength=0.12)
        drawings.box(ax, 1, bottom, max(rate / most * (width - 2), LEAST), tall, colour="blue", strength=0.9)
        drawings.label(ax, 1, bottom - 6, format_quantity(rate, "B/s"), across="left", up="top", size=24, bold=True)

"""Drawings of what a GPU's metrics count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuguide.measure import measured_ceilings, reference_gpu, store, traces
from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.marks import legend
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
        caption="GPU utilisation counts whether a kernel ran, not its size. Height: the share of "
        f"the multiprocessors of {reference_gpu.word('a short')} that a kernel keeps busy. The pauses are not to "
        "scale.",
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
        caption="While the host takes most of a step, shorten the host's part first. The time of a step, as found and "
        "after two changes, to scale.",
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
    names = {"chase": "one thread reads memory", "copies": "the whole GPU copies memory"}
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


# --- what four counters count of the same second -----------------------------------------------------------

WARPS = 4
"""Of a multiprocessor, as many as are drawn; a real one holds more"""
PROCESSORS = 4
SECOND = (
    *[("one thread", (1, 0, 0, 0), False)] * 3,
    *[("", (0, 0, 0, 0), False)] * 2,
    *[("copy", (4, 4, 4, 4), False)] * 3,
    *[("matmul", (1, 1, 1, 1), True)] * 3,
    ("", (0, 0, 0, 0), False),
)
"""Of each twelfth of a second: the kernel, the warps on each multiprocessor, and whether tensor cores work"""


def counted() -> dict[str, list[float]]:
    """Return what each counter adds up in each slot of the drawn second, as a share of what it could be."""
    return {
        "GPU utilisation": [float(any(warps)) for _, warps, _ in SECOND],
        "SM activity": [sum(each > 0 for each in warps) / PROCESSORS for _, warps, _ in SECOND],
        "SM occupancy": [sum(warps) / (PROCESSORS * WARPS) for _, warps, _ in SECOND],
        "tensor-core activity": [float(busy) for *_, busy in SECOND],
    }


def four_counters() -> Figure:
    """Draw one second of a small GPU, and what utilisation, SM activity, occupancy and tensor activity count in it."""
    means = {name: sum(shares) / len(shares) for name, shares in counted().items()}
    words = ", ".join(f"{name} {share:.0%}" for name, share in means.items())
    return show(
        lambda figure, theme: _draw_counters(figure, theme, means),
        alt=f"Above, a grid of {PROCESSORS} multiprocessors over one second: one thread on one of them, a pause, a "
        "copy that fills all warps of all of them, and a matmul with few warps on all of them, in orange where "
        f"tensor cores work. Below, four strips show what each metric counts in each slot. Their means: {words}.",
        caption="Four metrics of the same second, and four different numbers. A made-up second of a GPU with "
        f"{PROCESSORS} multiprocessors (SMs), each with room for {WARPS} warps. Filled height: warps present; orange: "
        "tensor cores at work.",
        size=(WIDE, 4.2),
        narrow=(4.6, 4.9),
        name="four-counters",
        rows=[{"metric": name, "value": share} for name, share in means.items()],
    )


def _draw_counters(figure: Canvas, theme: Theme, means: dict[str, float]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, right = (44.0, width - 8) if narrow else (150.0, width - 60)
    slot, tall = (right - left) / len(SECOND), 26.0
    top = height - 24
    for place, (name, warps, busy) in enumerate(SECOND):
        x = left + place * slot
        if name and name != SECOND[place - 1][0]:
            drawings.label(ax, x, top + 12, name, across="left", size=10)
        hue = theme.series["orange" if busy else "blue"]
        for processor, count in enumerate(warps):
            bottom = top - (processor + 1) * (tall + 3)
            if count:
                ax.bar(x + 1, tall * count / WARPS, slot - 2, bottom, align="edge", facecolor=(hue, 0.6))
    for processor in range(PROCESSORS):
        y = top - (processor + 0.5) * (tall + 3) - 1.5
        drawings.box(ax, left, y - tall / 2, right - left, tall, strength=0.06)
        drawings.label(ax, left - 8, y, f"SM {processor}", across="right", size=10)
    top -= PROCESSORS * (tall + 3) + 12
    step = (top - 6) / len(means)
    for number, (name, shares) in enumerate(counted().items()):
        bottom = top - (number + 1) * step + 6
        high = step - (24 if narrow else 12)
        ax.plot([left, right], [bottom, bottom], color=theme.grid, linewidth=1)
        xs = left + slot * np.arange(len(shares))
        heights = high * np.array(shares)
        ax.bar(xs, heights, slot, bottom, align="edge", facecolor=(theme.series["green"], 0.5))
        spoken = f"{means[name]:.0%}"
        if narrow:
            drawings.label(ax, left, bottom + high + 9, f"{name}: {spoken}", across="left", bold=True)
        else:
            drawings.label(ax, left - 10, bottom + high / 2, name, across="right")
            drawings.label(ax, right + 10, bottom + high / 2, spoken, across="left", bold=True)


# --- six kinds of work -------------------------------------------------------------------------------------

WORKS = {
    "spin": "one thread reads the clock",
    "chase": "one thread reads memory",
    "launches": "one addition per kernel",
    "bursts": "matmuls, with pauses",
    "copies": "copies",
    "products": "matmuls",
}
READ = {"gpu_utilisation": "utilisation", "sm_activity": "SM activity", "tensor_activity": "tensor cores"}
"""Readings that are drawn for each kind of work, next to its power and the share of a ceiling that it reached"""


def readings(scenario: str) -> dict[str, tuple[float, str]]:
    """Return the bars of a kind of work: the share that each is of its whole, and the value in words."""
    record = store.load_published("gpu-metrics")
    case = record.case("nvml", scenario=scenario)
    begun, ended = (case.measured[f"work_{word}"].summary.median for word in ("began", "ended"))
    trace = traces.find_case_trace(record, case).select_interval(begun + 1, ended)
    spans = trace.totals().columns
    found = {title: (spans[name].mean, _share(name, round(spans[name].mean, 4))) for name, title in READ.items()}
    power = spans["instant_power"].mean
    found["power"] = (power / trace.board["power_limit"], traces.value_text("instant_power", power, "W"))
    gpu = measured_ceilings.load_reference()
    ceilings = {"throughput": gpu.arithmetic["bf16"].value, "bandwidth": gpu.bandwidth["copy"].value}
    done = [case.measured[name].summary.median / most for name, most in ceilings.items() if name in case.measured]
    share = max(done, default=0.0)
    found["of ceiling"] = (share, _share("sm_activity", share) if share > 0.01 else "under 1%")
    return found


def six_kinds_of_work() -> Figure:
    """Draw what the driver and the chip read of six kinds of work, and how much of a ceiling the work reached."""
    found = {words: readings(scenario) for scenario, words in WORKS.items()}
    told = "; ".join(
        f"{words}: {', '.join(f'{name} {text}' for name, (_, text) in bars.items())}" for words, bars in found.items()
    )
    return show(
        lambda figure, theme: _draw_works(figure, theme, found),
        alt=f"For each of six kinds of work, five bars, each to its own whole. {told}.",
        caption="At 100% utilisation, work reached from under 1% to 100% of a ceiling. Six kinds of work on "
        f"{reference_gpu.word('a short')}. Each bar is a share of its whole: power, of the board's limit; green, the "
        "rate of the work, of the measured ceiling.",
        records=[store.load_published("gpu-metrics")],
        size=(WIDE, 3.2),
        narrow=(4.6, 4.9),
        name="six-kinds-of-work",
        rows=[
            {"work": words, "metric": name, "share": share}
            for words, bars in found.items()
            for name, (share, _) in bars.items()
        ],
    )


def _draw_works(figure: Canvas, theme: Theme, found: dict[str, dict[str, tuple[float, str]]]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, tall, head = (4.0, 14.0, 34.0) if narrow else (172.0, 18.0, 24.0)
    names = list(next(iter(found.values())))
    column = (width - left - 4) / len(names)
    for place, name in enumerate(names):
        title = name.replace(" ", "\n", 1) if narrow else name
        drawings.label(ax, left + place * column, height - head / 2, title, across="left", size=10)
    step = (height - head) / len(found)
    for row, (words, bars) in enumerate(found.items()):
        bottom = height - head - (row + 1) * step + (8 if narrow else (step - tall) / 2)
        if narrow:
            drawings.label(ax, left, bottom + tall + 9, words, across="left", size=10, bold=True)
        else:
            drawings.label(ax, left - 10, bottom + tall / 2, words, across="right")
        for place, (name, (share, text)) in enumerate(bars.items()):
            x, whole = left + place * column, column - 8
            colour = "green" if name == "of ceiling" else "blue"
            for wide, hue, strength in ((whole, theme.faint, 0.1), (share * whole, theme.series[colour], 0.4)):
                ax.bar(x, tall, max(LEAST if share else 0, wide), bottom, align="edge", facecolor=(hue, strength))
            drawings.label(ax, x + whole - 4, bottom + tall / 2, text, across="right", size=10)


# --- three numbers for the memory --------------------------------------------------------------------------

GIB = 2**30


def memory_in_use() -> dict[str, float]:
    """Return the bytes allocated, reserved and used after two of four pieces were freed, and those of the driver."""
    record = store.load_published("gpu-metrics")
    case = record.case("nvml", scenario="memory")
    trace = traces.find_case_trace(record, case)
    steps = case.measured["step"].samples
    moment = trace.select_interval(steps[4] + 0.1, steps[5] - 0.05)
    found = {name: float(np.median(moment[name])) for name in ("allocated", "reserved", "memory_used")}
    return {**found, "driver": trace.board["driver_memory"], "total": trace.board["memory_total"]}


def memory_of_a_card() -> Figure:
    """Draw what allocated, reserved, used and free are of a card's memory, after two of four pieces were freed."""
    found = memory_in_use()
    spoken = {name: format_quantity(size, "B") for name, size in found.items()}
    return show(
        lambda figure, theme: _draw_card(figure, theme, found, spoken),
        alt="A bar of memory, divided into pieces held by tensors, pieces that were freed and stay in PyTorch's cache, "
        "the context of the process, the driver, and the free rest, which is cut off. Arrows below it show which parts "
        f"each number counts: allocated {spoken['allocated']}, reserved {spoken['reserved']}, used "
        f"{spoken['memory_used']} of {spoken['total']}.",
        caption="Allocated, reserved and used count different parts of one memory. A process that allocated four "
        "pieces and freed two of them, to scale; the free rest is cut off.",
        records=[store.load_published("gpu-metrics")],
        size=(WIDE, 2.9),
        narrow=(4.6, 2.9),
        name="memory-of-a-card",
        rows=[{"number": name, "B": size} for name, size in found.items()],
    )


def _draw_card(figure: Canvas, theme: Theme, found: dict[str, float], spoken: dict[str, str]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, tall, bottom = 6.0, 46.0, height - 76
    rest = 44.0 if narrow else 90.0
    scale = (width - 2 * left - rest) / found["memory_used"]
    piece = found["allocated"] / 2
    cached = (found["reserved"] - found["allocated"]) / 2
    context = found["memory_used"] - found["reserved"] - found["driver"]
    parts = [
        (piece, "tensor", "green", 0.5),
        (cached, "cached", "", 0.0),
        (piece, "tensor", "green", 0.5),
        (cached, "cached", "", 0.0),
        (context, "context", "blue", 0.3),
        (found["driver"], "driver", "grey", 0.3),
    ]
    x = left
    for number, (size, name, colour, strength) in enumerate(parts):
        wide = size * scale
        look = {"colour": colour, "strength": strength, "dashed": not colour}
        fits = wide > 6 * len(name) + 4
        drawings.box(ax, x, bottom, wide - 1, tall, name if fits else "", size=10, **look)  # type: ignore[arg-type]
        if not fits:
            up = bottom + tall + (8 if number % 2 else 22)
            drawings.label(ax, x + wide / 2, up, name, size=10)
            ax.plot([x + wide / 2] * 2, [bottom + tall + 1, up - 6], color=theme.faint, linewidth=1)
        x += wide
    drawings.box(ax, x, bottom, rest, tall, "free", strength=0.0, dashed=True, size=10)
    ends = {
        "reserved": ("torch.cuda.memory_reserved()", "orange", found["reserved"]),
        "memory_used": ("all that is not free (NVML)", "blue", found["memory_used"]),
    }
    lines = [f"allocated {spoken['allocated']}: torch.cuda.memory_allocated()"]
    y = bottom - 20
    for start in (0.0, piece + cached):
        begin = left + start * scale
        drawings.extent(ax, begin, begin + piece * scale, y + 8, "", colour="green")
    drawings.label(ax, left, y - 6, lines[0], across="left", size=10)
    for place, (name, (source, colour, size)) in enumerate(ends.items()):
        y = bottom - 50 - place * 36
        drawings.extent(ax, left, left + size * scale, y, "", colour=colour)
        title = "used" if name == "memory_used" else name
        drawings.label(ax, left, y - 11, f"{title} {spoken[name]}: {source}", across="left", size=10)


# --- a peak between two readings ---------------------------------------------------------------------------


def peak_between_readings() -> Figure:
    """Draw the readings of allocated memory around a short peak that falls between two of them."""
    record = store.load_published("gpu-metrics")
    case = record.case("nvml", scenario="spike")
    trace = traces.find_case_trace(record, case)
    began, over = (case.measured[name].samples[0] for name in ("spike", "spike_over"))
    peak = case.measured["peak_allocated"].samples[0]
    near = trace.select_interval(began - 0.16, over + 0.2)
    seconds, sizes = near.seconds - began, near["allocated"]
    spoken = [format_quantity(float(value), "B") for value in (sizes.max(), peak)]
    return show(
        lambda figure, theme: _draw_peak(figure, theme, seconds, sizes, over - began, peak),
        alt=f"Memory over time. Dots, one every {1000 * trace.interval:.0f} ms, are readings of allocated memory, all "
        f"at {spoken[0]}. Between two of them, a column {1000 * (over - began):.0f} ms wide reaches {spoken[1]}, which "
        "no reading shows.",
        caption=f"Readings miss a peak that falls between them. Dots: allocated memory as it was read, at most "
        f"{spoken[0]}. Column: the peak that PyTorch counted, {spoken[1]}.",
        records=[record],
        size=(WIDE, 2.6),
        narrow=(4.6, 2.6),
        name="peak-between-readings",
        rows=[{"seconds": float(at), "allocated_B": float(size)} for at, size in zip(seconds, sizes, strict=True)],
    )


def _draw_peak(
    figure: Canvas, theme: Theme, seconds: np.ndarray, sizes: np.ndarray, lasted: float, peak: float
) -> None:
    ax = figure.subplots()
    look: dict[str, Any] = {"facecolor": (theme.series["orange"], 0.4), "edgecolor": theme.series["orange"]}
    ax.bar(500 * lasted, peak / GIB, 1000 * lasted, **look)
    ax.plot(1000 * seconds, sizes / GIB, "o", color=theme.series["green"])
    ax.annotate("the peak", (1000 * lasted, peak / GIB), (8, -4), textcoords="offset points", va="top")
    ax.annotate(
        "readings", (1000 * float(seconds[-2]), float(sizes[-2]) / GIB), (0, 8), textcoords="offset points", ha="center"
    )
    ax.set_xlabel("ms since the peak began")
    ax.set_ylabel("allocated memory, GiB")
    ax.set_ylim(0, 1.1 * peak / GIB)


# --- how late the readings are -----------------------------------------------------------------------------

LATE = {
    "gpu_utilisation": ("utilisation", "blue", "-"),
    "instant_power": ("power now", "orange", (0, (4, 1.5))),
    "power": ("power, mean of a second", "pink", (0, (1, 1))),
}
EVERY = 6
"""Readings, of which one is drawn"""


def late_readings() -> Figure:
    """Draw two seconds of work with a pause between, and what utilisation and power read meanwhile."""
    record = store.load_published("gpu-metrics")
    case = record.case("nvml", scenario="stretches")
    work = list(zip(*(case.measured[f"stretch_{word}"].samples[:2] for word in ("began", "ended")), strict=True))
    trace = traces.find_case_trace(record, case).select_interval(work[0][0] - 0.5, work[-1][1] + 1)
    most = {name: float(trace[name].max()) for name in LATE}
    seconds = trace.seconds[::EVERY]
    shares = {name: trace[name][::EVERY] / most[name] for name in LATE}
    return show(
        lambda figure, theme: _draw_late(figure, theme, work, seconds, shares),
        alt="Three lines over time, each as a share of its highest reading, over two shaded stretches of work of a "
        "second each. Utilisation and the momentary power rise 0.1 to 0.3 seconds after the work begins; the power "
        "averaged over a second rises more slowly, and none returns to idle before the work has ended.",
        caption="Readings lag behind the work. Shaded: matmuls run. Each line: share of its highest reading; one "
        "reading in six.",
        records=[record],
        size=(WIDE, 2.9),
        narrow=(4.6, 3.3),
        name="late-readings",
        rows=[
            {"seconds": float(at), **{name: float(shares[name][place]) for name in LATE}}
            for place, at in enumerate(seconds)
        ],
    )


def _draw_late(
    figure: Canvas,
    theme: Theme,
    work: list[tuple[float, float]],
    seconds: np.ndarray,
    shares: dict[str, np.ndarray],
) -> None:
    ax = figure.subplots()
    for begun, ended in work:
        ax.axvspan(begun, ended, color=theme.faint, alpha=0.2, linewidth=0)
    for name, (label, colour, dashes) in LATE.items():
        ax.plot(seconds, shares[name], color=theme.series[colour], linestyle=dashes, label=label)
    ax.set_yticks([0, 0.5, 1], ["0", "50%", "100%"])
    ax.set_xlabel("seconds")
    ax.set_ylim(0, 1.08)
    legend(ax, at_lines=False)

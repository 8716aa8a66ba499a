"""Drawings of what a timer reads: first calls, pauses, caches, and the work of two matmuls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuguide.measure import measured_ceilings, reference_gpu, store
from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

FLUSH = 256 * 2**20
"""Bytes that the timer of the page overwrites before each call"""
SHAPES = {"square": (8192, 8192, 8192), "skinny": (16, 4096, 4096)}
"""Rows, inner size and columns of the matmuls of the page"""


def _median(mistake: str, shape: str, metric: str = "time") -> float:
    return store.load_published("timing-mistakes").median(mistake, metric, shape=shape)


# --- two matmuls -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """A matmul, and the times that its operations and its bytes take at the rates of the datasheet."""

    name: str
    shape: tuple[int, int, int]
    compute: float
    memory: float


def products() -> list[Product]:
    """Return the two matmuls of the page with their two times."""
    sheet = reference_gpu.sheet().figures
    peak, bandwidth = sheet["bf16_dense"].value, sheet["memory_bandwidth"].value
    found = []
    for name, (rows, inner, columns) in SHAPES.items():
        flops = 2 * rows * inner * columns
        moved = 2 * (rows * inner + inner * columns + rows * columns)  # bf16
        found.append(Product(name, (rows, inner, columns), flops / peak, moved / bandwidth))
    return found


def two_matmuls() -> Figure:
    """Draw the matrices of a square and a skinny matmul to scale, and the time of their operations and bytes."""
    found = products()
    words = "; ".join(
        f"{each.name}, {' × '.join(map(str, each.shape))}: operations {format_quantity(each.compute, 's')}, bytes "
        f"{format_quantity(each.memory, 's')}"
        for each in found
    )
    return show(
        lambda figure, theme: _draw_products(figure, theme, found),
        alt="Two matmuls, each drawn as three matrices to scale with two bars for the times of its operations and its "
        f"bytes at the rates of the datasheet. {words}. The longer bar is the roofline bound.",
        caption="The longer of two times is the roofline bound. Matrices (thin ones thickened) and bars are to scale "
        f"within a matmul, at the rates in the datasheet of {reference_gpu.word('a short')}.",
        size=(WIDE, 2.9),
        narrow=(4.6, 5.8),
        name="two-matmuls",
        rows=[{"matmul": each.name, "compute_s": each.compute, "memory_s": each.memory} for each in found],
    )


def _draw_products(figure: Canvas, theme: Theme, found: list[Product]) -> None:
    ax, width, height = drawings.sheet(figure)
    panels = (
        [(6.0, height - 4), (6.0, height / 2 - 4)] if is_narrow(figure) else [(6.0, height - 4), (270.0, height - 4)]
    )
    across = width - 12 if is_narrow(figure) else 242.0
    for (left, top), each in zip(panels, found, strict=True):
        _draw_product(ax, left, top, across, each)
    if not is_narrow(figure):
        ax.plot([258, 258], [12, height - 12], color=theme.grid, linewidth=1)


def _draw_product(ax: Axes, left: float, top: float, across: float, each: Product) -> None:
    rows, inner, columns = each.shape
    bound = "compute-bound" if each.compute > each.memory else "memory-bound"
    drawings.label(ax, left, top - 10, f"{each.name}: {bound}", across="left", bold=True)
    scale = 62 / max(each.shape)
    x, middle = left, top - 66.0
    for sign, (high, wide), colour in (
        ("", (rows, inner), "blue"),
        ("×", (inner, columns), "blue"),
        ("=", (rows, columns), "green"),
    ):
        if sign:
            drawings.label(ax, x + 9, middle, sign, size=12)
            x += 19
        tall = max(1.6, high * scale)
        drawings.box(ax, x, middle - tall / 2, wide * scale, tall, colour=colour, strength=0.35)
        drawings.label(ax, x + wide * scale / 2, middle - 42, f"{high} × {wide}", size=10)
        x += wide * scale
    scale = (across - 66) / max(each.compute, each.memory)
    bars = (("operations", each.compute, "orange"), ("bytes", each.memory, "blue"))
    for place, (name, seconds, colour) in enumerate(bars):
        bottom = top - 154 - place * 40
        drawings.label(ax, left, bottom + 26, name, across="left", size=10)
        drawings.box(ax, left, bottom, max(1.2, seconds * scale), 18, colour=colour, strength=0.45)
        words = format_quantity(seconds, "s")
        longer = seconds == max(each.compute, each.memory)
        drawings.label(ax, left + max(1.2, seconds * scale) + 6, bottom + 9, words, across="left", bold=longer)


# --- ten calls, the first of them cold ---------------------------------------------------------------------

CALLS = 10
"""Of the common benchmark that does not warm up"""


def ten_calls() -> Figure:
    """Draw ten calls of a matmul in a fresh process: the first takes most of the time that the benchmark divides."""
    first, mean, right = (
        _median("no-warm-up", "square", "first_call"),
        _median("no-warm-up", "square"),
        _median("right", "square"),
    )
    spoken = [format_quantity(seconds, "s") for seconds in (first, mean, right)]
    return show(
        lambda figure, theme: _draw_calls(figure, first, mean, right),
        alt=f"A bar of time for {CALLS} calls in a fresh process. The first takes {spoken[0]} of it, the nine others "
        f"the small rest. Below, to the same scale, the reported mean, {spoken[1]}, and the true time of a call, "
        f"{spoken[2]}.",
        caption="Without warm-up, the first call takes most of the measured time. Ten calls of the square matmul in a "
        "fresh process, to scale, medians.",
        records=[store.load_published("timing-mistakes")],
        size=(WIDE, 1.9),
        narrow=(4.6, 1.9),
        name="ten-calls",
        rows=[
            {"what": "first call", "time_s": first},
            {"what": f"mean of {CALLS} calls", "time_s": mean},
            {"what": "a call after warm-up", "time_s": right},
        ],
    )


def _draw_calls(figure: Canvas, first: float, mean: float, right: float) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 6.0, 30.0
    scale = (width - 2 * left) / max(CALLS * mean, first + (CALLS - 1) * right)
    bottom = height - 54
    drawings.label(ax, left, height - 12, f"{CALLS} calls, then one division by {CALLS}", across="left", bold=True)
    words = f"first call: {format_quantity(first, 's')}"
    drawings.box(ax, left, bottom, first * scale, tall, words, colour="pink", strength=0.35)
    rest = (CALLS * mean - first) / (CALLS - 1)
    for place in range(CALLS - 1):
        x = left + (first + place * rest) * scale
        drawings.box(ax, x, bottom, max(1.0, rest * scale - 0.8), tall, colour="green", strength=0.6)
    nine = "nine warm calls"
    drawings.label(ax, width - left, bottom - 10, nine, across="right", size=10)
    for place, (name, seconds, colour) in enumerate(
        (("reported as one call", mean, "pink"), ("true time of one call", right, "green"))
    ):
        y = 32 - place * 25
        drawings.box(ax, left, y, seconds * scale, 18, colour=colour, strength=0.5)
        words = f"{name}: {format_quantity(seconds, 's')}"
        drawings.label(ax, left + mean * scale + 8, y + 9, words, across="left")


# --- a pause before a short call ---------------------------------------------------------------------------


def pause_before_a_call() -> Figure:
    """Draw a short kernel between two events, after other work and after a pause, when the GPU waits for the host."""
    run, queue = _median("right", "skinny"), _median("no-synchronize", "skinny")
    read, late = _median("cold-clock", "skinny"), _median("cold-clock", "skinny", "launch")
    flush = FLUSH / measured_ceilings.load_reference().bandwidth["copy"].value
    spoken = [format_quantity(seconds, "s") for seconds in (run, read, late)]
    return show(
        lambda figure, theme: _draw_pause(figure, theme, run, queue, read, late, flush),
        alt="Two pairs of timelines, to scale. Above, the host queues a call while the GPU still overwrites a buffer; "
        f"the kernel takes {spoken[0]} right after the first event. Below, after a second of "
        f"idling, the host takes {spoken[2]} to queue the call, the GPU passes the first event and waits, and the "
        f"events read {spoken[1]}.",
        caption="After a pause, events also count the GPU's wait for the host. The skinny matmul, to scale; the "
        "overwriting calculated (below: not drawn), the kernel timed in a CUDA graph.",
        records=[store.load_published("timing-mistakes"), store.load_published("ceilings")],
        size=(WIDE, 3.6),
        narrow=(4.6, 3.6),
        name="pause-before-a-call",
        rows=[
            {"after": "other work", "host_s": queue, "events_s": run},
            {"after": "one idle second", "host_s": late, "events_s": read},
        ],
    )


def _draw_pause(figure: Canvas, theme: Theme, run: float, queue: float, read: float, late: float, flush: float) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 44.0, 24.0
    scale = (width - left - 12) / read
    titles = ("right after other work", "after one idle second")
    spans = ((0.0, queue, flush, flush + run), (0.0, late, 0.0, read))
    for place, (title, (begun, queued, first, last)) in enumerate(zip(titles, spans, strict=True)):
        top = height - 10 - place * height / 2
        host, gpu = top - 42, top - 74
        drawings.label(ax, 6, top - 2, title, across="left", bold=True)
        for name, y in (("host", host), ("GPU", gpu)):
            drawings.label(ax, left - 7, y + tall / 2, name, across="right", size=10)
            ax.plot([left, width - 6], [y - 2, y - 2], color=theme.grid, linewidth=1)
        words = f"queues the call: {format_quantity(queued, 's')}" if place else ""
        drawings.time_line(ax, left, host, scale, [(begun, queued, words, "blue")], height=tall, size=10)
        if not place:
            drawings.label(ax, left + queued * scale + 6, host + tall / 2, "queues the call", across="left", size=10)
            drawings.time_line(ax, left, gpu, scale, [(0, flush, "overwrites a buffer", "grey")], height=tall, size=10)
        else:
            wide = (read - run) * scale
            drawings.box(ax, left, gpu, wide, tall, "waits, between the events", dashed=True, strength=0.0, size=10)
        drawings.time_line(ax, left, gpu, scale, [(last - run, last, "", "orange")], height=tall)
        for at in (first, last):
            drawings.moment(ax, left + at * scale, gpu - 12, gpu + tall + 4, dotted=False)
        words = f"{'between the events' if place else 'the kernel'}: {format_quantity(last - first, 's')}"
        side = "left" if not place else "right"
        x = left + (first * scale if not place else last * scale)
        drawings.label(ax, x, gpu - 19, words, across=side)  # type: ignore[arg-type]
    drawings.label(ax, left + (flush + run) * scale + 8, height - 84 + tall / 2, "the kernel", across="left", size=10)


# --- a matrix that stays in the cache ----------------------------------------------------------------------


def matrix_in_the_cache() -> Figure:
    """Draw the same call repeated, with its matrix left in L2, and with other data read between the calls."""
    near, far = (_median(name, "skinny", "bandwidth") for name in ("inside-l2", "right"))
    cache = reference_gpu.sheet().figures["l2"].value
    _, inner, columns = SHAPES["skinny"]
    matrix = 2.0 * inner * columns
    spoken = [format_quantity(rate, "B/s") for rate in (near, far)]
    return show(
        lambda figure, theme: _draw_cache(figure, near, far, matrix / cache),
        alt="Two rows of three boxes: GPU memory, L2 cache and the multiprocessors. In the upper row the matrix, which "
        f"fills {matrix / cache:.0%} of the cache, is still in it from the call before, and arrives at {spoken[0]}. In "
        "the lower row other data has been read in between and fills the cache, so the matrix comes from memory "
        f"at {spoken[1]}.",
        caption="A repeated call finds its matrix in L2, unlike a real model. The skinny matmul's matrix takes "
        f"{format_quantity(matrix, 'B')}, drawn to scale in a cache of {format_quantity(cache, 'B')}. Arrows are as "
        "thick as the measured bandwidth.",
        records=[store.load_published("timing-mistakes")],
        size=(WIDE, 3.3),
        narrow=(4.6, 3.6),
        name="matrix-in-the-cache",
        rows=[{"matrix": "left in L2", "bandwidth": near}, {"matrix": "read from memory", "bandwidth": far}],
    )


def _draw_cache(figure: Canvas, near: float, far: float, share: float) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    wide, tall = (76.0, 74.0) if narrow else (124.0, 74.0)
    gap = (width - 12 - 3 * wide) / 2
    lefts = [6 + place * (wide + gap) for place in range(3)]
    thick = 14 / near
    rows = (("called again and again", near), ("other data read in between", far))
    for place, (title, rate) in enumerate(rows):
        top = height - 10 - place * height / 2
        bottom = top - 14 - tall
        drawings.label(ax, 6, top, title, across="left", bold=True)
        for x, name in zip(lefts, ("GPU memory", "L2 cache", "SMs"), strict=True):
            drawings.box(ax, x, bottom, wide, tall, strength=0.06)
            drawings.label(ax, x + wide / 2, bottom - 9, name, size=10)
        matrix: dict[str, Any] = {"colour": "blue", "strength": 0.5, "size": 10}
        drawings.box(ax, lefts[0] + wide / 2 - 26, bottom + 22, 52, 30, "matrix", **matrix)
        middle = bottom + 37
        words = format_quantity(rate, "B/s")
        if place == 0:
            drawings.box(ax, lefts[1], bottom, wide, tall * share, "matrix", **matrix)
        else:
            drawings.box(ax, lefts[1], bottom, wide, tall, "other data", colour="grey", strength=0.3, size=10)
            end = (lefts[1] - 3, middle)
            drawings.arrow(ax, (lefts[0] + wide / 2 + 28, middle), end, colour="blue", width=rate * thick)
        start, end = (lefts[1] + wide + 3, middle), (lefts[2] - 3, middle)
        drawings.arrow(ax, start, end, colour="blue", width=rate * thick)
        beside, above = (start[0] + end[0]) / 2, bottom + tall - (18 if narrow else 12)
        drawings.label(ax, beside, above, words.replace(" ", "\n") if narrow else words, up="bottom", bold=True)


# --- what of a datasheet was reached -----------------------------------------------------------------------

PROMISED = {
    "read": ("memory_bandwidth", "blue"),
    "copy": ("memory_bandwidth", "blue"),
    "bf16": ("bf16_dense", "orange"),
    "bf16 sustained": ("bf16_dense", "orange"),
    "fp16": ("fp16_dense", "orange"),
    "tf32": ("tf32_dense", "orange"),
    "fp32": ("fp32", "orange"),
    "fp8": ("fp8_dense", "orange"),
    "host": ("pcie_per_direction", "green"),
}
"""Measured ceilings, the figures of the datasheet that they are shares of, and their colours"""


def share_of_the_datasheet() -> Figure:
    """Draw each measured ceiling as a share of what the datasheet states, with both rates."""
    sheet = reference_gpu.sheet().figures
    rows: list[dict[str, Any]] = []
    for name, (key, _) in PROMISED.items():
        best, unit = measured_ceilings.find_quoted_ceiling(name)
        rows.append({"ceiling": name, "measured": best.value, "datasheet": sheet[key].value, "unit": unit})
    words = {str(row["ceiling"]): _share_in_words(row["measured"], row["datasheet"], row["unit"]) for row in rows}
    shares = [row["measured"] / row["datasheet"] for row in rows]
    return show(
        lambda figure, _: _draw_shares(figure, shares, words),
        alt="One bar for each ceiling, as long as its share of the datasheet. "
        f"{'; '.join(f'{name} {each}' for name, each in words.items())}.",
        caption="Measured rate as a share of the stated one. Blue: memory; orange: arithmetic; green: PCIe, by its "
        "specification.",
        records=[store.load_published("ceilings")],
        size=(WIDE, 3.3),
        narrow=(4.6, 3.3),
        name="share-of-the-datasheet",
        rows=rows,
    )


def _share_in_words(measured: float, promised: float, unit: str) -> str:
    reached, stated = (format_quantity(rate, unit) for rate in (measured, promised))
    if reached.split()[1] == stated.split()[1]:
        reached = reached.split()[0]
    return f"{measured / promised:.0%}: {reached} of {stated}"


def _draw_shares(figure: Canvas, shares: list[float], words: dict[str, str]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, step = 104.0, (height - 8) / len(words)
    across = width - left - 8
    for place, (name, share) in enumerate(zip(words, shares, strict=True)):
        bottom = height - 4 - (place + 1) * step
        drawings.label(ax, left - 8, bottom + step / 2, name, across="right")
        drawings.box(ax, left, bottom + 3, share * across, step - 6, colour=PROMISED[name][1], strength=0.28)
        drawings.label(ax, left + 8, bottom + step / 2, words[name], across="left")
    drawings.moment(ax, left + across, 4, height - 4)

"""Drawings of a GPU's memories: how wide their pipes are, how long a word takes, and what it takes to fill a pipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuguide.measure import reference_gpu, store
from gpuguide.measure.records import Record
from gpuguide.plotting import drawings
from gpuguide.plotting.axes import tick
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

REGISTERS = 2**18
"""Bytes of registers in a multiprocessor: 65,536 of 32 bits, on every GPU since compute capability 3.5

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""
OPERANDS = 3 * 4
"""Bytes that a multiply-add of three fp32 numbers takes from registers"""
NEAR, MIDDLE, FAR = 2**16, 2**23, 2**30
"""Bytes of the working sets whose latencies are shown: of one multiprocessor, of the L2 cache, and of no cache"""
CHUNK = 16
"""Bytes that a thread loads at once"""
SMALL_TRANSFER = 4096
"""Bytes of a small copy from the host. Medians of 4 to 64 KiB scatter by some microseconds."""


@dataclass(frozen=True)
class Memory:
    """A memory, and how fast what is above it reads from it."""

    name: str
    size: str
    colour: str
    bandwidth: float = 0.0
    """B/s"""
    latency: float | None = None
    """Seconds until one load arrives, where that was measured"""
    word: str = "a load"
    """What takes the latency"""


def _medians(record: Record, contender: str, metric: str) -> dict[int, float]:
    return {int(x): summary.median for x, summary in record.series(contender, x="working_set", metric=metric)}


# --- the memories, and the pipes between them --------------------------------------------------------------


def memories_of_a_gpu() -> Figure:
    """Draw the memories from the registers down to the host's, with pipes as wide as what flows through them."""
    names = ("ceilings", "memory-hierarchy", "memory-latency", "transfer-size")
    ceilings, rates, waits, transfers = map(store.load_published, names)
    memories = _memories(ceilings, rates, waits, transfers)
    measured = memories[1:]
    words = "; ".join(f"from {_name_in_sentence(each)} {_speed(each).replace(chr(10), ', ')}" for each in measured)
    return show(
        lambda figure, theme: _draw_memories(figure, theme, memories),
        alt="The memories of a GPU below each other, joined by pipes whose width is their bandwidth: registers under "
        "the arithmetic units, shared memory, L2 cache, GPU memory and, behind a hair-thin link, host memory. "
        f"Measured: {words}. Derived: from registers {_speed(memories[0]).splitlines()[0]}.",
        caption=f"The memories of {reference_gpu.word('a short')}, joined by pipes whose width shows their bandwidth. "
        "Only the link to the host is drawn too wide, because it would be invisible if drawn to scale. The rate of the "
        "registers is derived: it is the rate at which the fp32 arithmetic of a large matmul reads its operands. All "
        "other rates are measured. The time of a load is how long one thread waits for it. The time of a copy from the "
        "host is that of a small copy, including the work of Python and the driver.",
        records=[ceilings, rates, waits, transfers],
        size=(WIDE, 6.3),
        narrow=(4.6, 6.3),
        name="memories-of-a-gpu",
        rows=[
            {"memory": each.name, "size": each.size, "bandwidth_B_per_s": each.bandwidth, "latency_s": each.latency}
            for each in memories
        ],
    )


def _memories(ceilings: Record, rates: Record, waits: Record, transfers: Record) -> list[Memory]:
    sheet = {name: figure.value for name, figure in reference_gpu.sheet().figures.items()}
    processors = round(sheet["sms"])
    near = _medians(rates, "shared", "bandwidth")
    in_l2 = [rate for size, rate in _medians(rates, "l2", "bandwidth").items() if size <= sheet["l2"]]
    return [
        Memory("Registers", f"{tick(REGISTERS, 'B')} × {processors}", "violet", _operands(ceilings)),
        Memory(
            "Shared memory",
            f"{max(near) / processors / 2**10:.0f} KiB × {processors} used",
            "green",
            max(near.values()),
            _medians(waits, "shared", "time")[NEAR],
        ),
        Memory("L2 cache", tick(sheet["l2"], "B"), "blue", max(in_l2), _medians(waits, "l2", "time")[MIDDLE]),
        Memory(
            "GPU memory",
            f"{sheet['memory'] / 1e9:.0f} GB",
            "orange",
            _medians(rates, "l2", "bandwidth")[FAR],
            _medians(waits, "l2", "time")[FAR],
        ),
        Memory(
            "Host memory",
            "behind PCI Express",
            "pink",
            ceilings.case("h2d-pinned").metrics["bandwidth"].summary.median,
            transfers.case("h2d-pinned", bytes=SMALL_TRANSFER).metrics["time"].summary.median,
            "a copy",
        ),
    ]


def _operands(ceilings: Record) -> float:
    """Return the bytes a second that fp32 multiply-adds take from registers; each counts as two operations."""
    return float(ceilings.case("matmul-fp32").metrics["throughput"].summary.median) / 2 * OPERANDS


def _speed(memory: Memory) -> str:
    rate = format_quantity(memory.bandwidth, "B/s")
    return rate + (f"\n{format_quantity(memory.latency, 's')} {memory.word}" if memory.latency else "\nderived")


def _name_in_sentence(memory: Memory) -> str:
    return memory.name if memory.name.startswith(("GPU", "L2")) else memory.name.lower()


def _draw_memories(figure: Canvas, theme: Theme, memories: list[Memory]) -> None:
    ax, _, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, across, tall = (60.0, 156.0, 38.0) if narrow else (64.0, 236.0, 38.0)
    levels = len(memories) + 1
    pipe = (height - 12 - levels * tall) / (levels - 1)
    widest = max(each.bandwidth for each in memories)
    tops = [height - 6 - place * (tall + pipe) for place in range(levels)]
    drawings.box(ax, left, tops[0] - tall, across, tall, "Arithmetic units")
    for top, each in zip(tops[1:], memories, strict=True):
        drawings.box(ax, left, top - tall, across, tall, f"{each.name}\n{each.size}", colour=each.colour, strength=0.18)
        wide = max(0.8, (across - 12) * each.bandwidth / widest)
        start, colour = left + (across - wide) / 2, theme.series[each.colour]
        ax.fill_between([start, start + wide], top + 1, top + pipe - 1, color=colour, linewidth=0)
        beside, middle = left + across + 12, top + pipe / 2
        drawings.label(ax, beside, middle, _speed(each), across="left")
        if not narrow:
            took = format_quantity(FAR / each.bandwidth, "s")
            drawings.label(ax, beside + 114, middle, f"1 GiB in {took}", across="left", size=10)
    for place, (last, name) in enumerate(((2, "multiprocessor"), (3, "chip"), (4, "GPU"))):
        drawings.bracket(ax, left - 8 - 17 * place, tops[last] - tall + 2, height - 8, name)


# --- how long one word takes -------------------------------------------------------------------------------


def wait_for_a_word() -> Figure:
    """Draw how long a thread waits for one word of each memory of the GPU, to scale, and a small copy from the host.

    The copy is as the host sees it, so Python, the driver and the copy engine are in it. How long a thread waits for a
    word of pinned host memory that it reads itself was not measured.
    """
    waits, transfers = store.load_published("memory-latency"), store.load_published("transfer-size")
    places = (("shared", NEAR, "green"), ("l1", NEAR, "sky"), ("l2", MIDDLE, "blue"), ("l2", FAR, "orange"))
    names = ("shared memory", "L1 cache", "L2 cache", "GPU memory")
    spans = [
        (name, _medians(waits, contender, "time")[size], colour)
        for name, (contender, size, colour) in zip(names, places, strict=True)
    ]
    host = transfers.case("h2d-pinned", bytes=SMALL_TRANSFER).metrics["time"].summary.median
    said = ", ".join(f"{format_quantity(seconds, 's')} for {name}" for name, seconds, _ in spans)
    times = host / spans[-1][1]
    return show(
        lambda figure, theme: _draw_waits(figure, theme, spans, host),
        alt=f"Bars for the time that one thread waits: {said}. A last bar, for a small copy from the host, leaves "
        f"the drawing; to scale, it would be {times:.0f} times as long as the bar for GPU memory.",
        caption="How long a thread waits for one word, to scale. The last bar is not a thread's wait: it is the "
        "time of a small copy from the host until the host knows that the copy is done, including the work of Python "
        f"and the driver. To scale, it would be about {times:.0f} times as long as the bar above it.",
        records=[waits, transfers],
        size=(WIDE, 2.9),
        narrow=(4.6, 2.9),
        name="wait-for-a-word",
        rows=[{"from": name, "time_s": seconds} for name, seconds, _ in [*spans, ("host memory", host, "")]],
    )


def _draw_waits(figure: Canvas, theme: Theme, spans: list[tuple[str, float, str]], host: float) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall, room = 106.0, 22.0, 56.0
    step = (height - 16) / (len(spans) + 1)
    scale = (width - left - room) / spans[-1][1]
    for place, (name, seconds, colour) in enumerate(spans):
        bottom = height - 8 - (place + 1) * step + (step - tall) / 2
        drawings.label(ax, left - 8, bottom + tall / 2, name, across="right")
        drawings.time_line(ax, left, bottom, scale, [(0, seconds, "", colour)], height=tall)
        said = format_quantity(seconds, "s")
        drawings.label(ax, left + seconds * scale + 6, bottom + tall / 2, said, across="left")
    bottom = 8 + (step - tall) / 2
    drawings.label(ax, left - 8, bottom + tall / 2, "host memory", across="right")
    hue = theme.series["pink"]
    ax.fill_between([left, width - 18], bottom, bottom + tall, color=hue, alpha=0.3, linewidth=0)
    drawings.arrow(ax, (width - 24, bottom + tall / 2), (width - 2, bottom + tall / 2), colour="pink", width=2)
    drawings.label(
        ax, (left + width) / 2, bottom + tall / 2, f"a copy: {format_quantity(host, 's')}, as the host sees it"
    )


# --- a pipe that is nearly empty, and a full one -----------------------------------------------------------


def bytes_under_way() -> Figure:
    """Draw the way from a GPU's memory as a pipe: with one load in it, and filled."""
    rates, waits = store.load_published("memory-hierarchy"), store.load_published("memory-latency")
    rate, wait = _medians(rates, "l2", "bandwidth")[FAR], _medians(waits, "l2", "time")[FAR]
    spoken = {
        "long": format_quantity(wait, "s"),
        "wide": format_quantity(rate, "B/s"),
        "alone": format_quantity(CHUNK / wait, "B/s"),
        "full": format_quantity(rate * wait, "B"),
    }
    return show(
        lambda figure, theme: _draw_pipes(figure, theme, spoken),
        alt=f"Two pipes from GPU memory to the multiprocessors, {spoken['long']} long and {spoken['wide']} wide. In "
        f"the first, one dot is in flight: the {CHUNK} bytes of one thread, which gets {spoken['alone']}. The second "
        f"is full of dots: {spoken['full']} are in flight.",
        caption=f"A memory is a pipe as long as its latency and as wide as its bandwidth. One thread that waits for "
        f"each {CHUNK} bytes before it requests the next gets {spoken['alone']}. The full rate needs at least "
        f"{spoken['full']} in flight at once. The number of dots in the full pipe has no meaning.",
        records=[rates, waits],
        size=(WIDE, 3.3),
        narrow=(4.6, 3.3),
        name="bytes-under-way",
        rows=[
            {"what": "latency of GPU memory", "value": wait, "unit": "s"},
            {"what": "bandwidth of GPU memory", "value": rate, "unit": "B/s"},
            {"what": f"rate of one thread with {CHUNK} bytes under way", "value": CHUNK / wait, "unit": "B/s"},
            {"what": "bytes under way at the full rate", "value": rate * wait, "unit": "B"},
        ],
    )


def _draw_pipes(figure: Canvas, theme: Theme, spoken: dict[str, str]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, right, tall = 66.0, width - 92, 58.0
    upper, lower = height - 30 - tall, 34.0
    hue = theme.series["orange"]
    titles = (f"{CHUNK} bytes at a time: {spoken['alone']}", f"{spoken['full']} at a time: {spoken['wide']}")
    for bottom, title in zip((upper, lower), titles, strict=True):
        for edge in (bottom, bottom + tall):
            ax.plot([left, right], [edge, edge], color=theme.text, linewidth=1.4)
        drawings.label(ax, left, bottom + tall + 14, title, across="left")
        drawings.label(ax, left - 8, bottom + tall / 2, "GPU\nmemory", across="right")
        drawings.label(ax, right + 8, bottom + tall / 2, "multi-\nprocessors", across="left")
    middle, at = upper + tall / 2, left + 0.6 * (right - left)
    ax.scatter([at], [middle], s=30, color=hue, linewidths=0)
    drawings.arrow(ax, (at + 8, middle), (at + 44, middle), colour="orange")
    columns = 18 if narrow else 34
    gap = (right - left - 16) / (columns - 1)
    places = [(left + 8 + column * gap, lower + 9 + row * 10) for column in range(columns) for row in range(5)]
    ax.scatter([x for x, _ in places], [y for _, y in places], s=16, color=hue, linewidths=0)
    drawings.extent(ax, left, right, lower - 10, f"on the way for {spoken['long']}", below=True)

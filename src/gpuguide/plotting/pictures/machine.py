"""Drawings of a GPU: what it is made of, and what happens when a program calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuguide.measure import reference_gpu, store
from gpuguide.measure.records import Record
from gpuguide.measure.units import format_quantity
from gpuguide.plotting import drawings
from gpuguide.plotting.axes import tick
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

REGISTERS = 2**18
"""Bytes of registers in a multiprocessor: 65,536 of 32 bits, on every GPU since compute capability 3.5

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""
FAR = 2**30
"""Bytes of a working set that no cache holds"""


# --- the memories of a GPU ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """A memory, and how fast the one above it reads from it."""

    name: str
    size: str
    colour: str
    bandwidth: float = 0.0
    """B/s"""
    latency: float | None = None
    """Seconds until one load arrives, where that was measured"""


def memories_of_a_gpu() -> Figure:
    """Draw the memories from the registers down to the host's, with pipes as wide as what flows through them."""
    ceilings, rates, waits = map(store.published, ("ceilings", "memory-hierarchy", "memory-latency"))
    memories = _memories(ceilings, rates, waits)
    widest, narrowest = memories[1], memories[-1]
    ratio = widest.bandwidth / narrowest.bandwidth
    words = "; ".join(f"from {each.name.lower()} {_speed(each).replace(chr(10), ', ')}" for each in memories[1:])
    return show(
        lambda figure, theme: _draw_memories(figure, theme, memories),
        alt="The memories of a GPU below each other, joined by pipes whose width is their bandwidth: registers, "
        f"shared memory, L2 cache, GPU memory and, behind a hair-thin link, host memory. Measured: {words}.",
        caption=f"The memories of {reference_gpu.word('a short')}, each pipe as wide as its bandwidth. The widest "
        f"carries {ratio:.0f} times what the link to the host does. The times are those of one load that waits for "
        "the one before.",
        records=[ceilings, rates, waits],
        size=(WIDE, 5.6),
        narrow=(4.6, 5.6),
        name="memories-of-a-gpu",
        rows=[
            {"memory": each.name, "size": each.size, "bandwidth_B_per_s": each.bandwidth, "latency_s": each.latency}
            for each in memories[1:]
        ],
    )


def _memories(ceilings: Record, rates: Record, waits: Record) -> list[Memory]:
    sheet = {name: figure.value for name, figure in reference_gpu.sheet().figures.items()}
    processors = round(sheet["sms"])
    near = _medians(rates, "shared", "bandwidth")
    in_l2 = [rate for size, rate in _medians(rates, "l2", "bandwidth").items() if size <= sheet["l2"]]
    link = ceilings.case("h2d-pinned").metrics["bandwidth"].summary.median
    return [
        Memory("Registers", f"{tick(REGISTERS, 'B')} × {processors}", "violet"),
        Memory(
            "Shared memory",
            f"{max(near) / processors / 2**10:.0f} KiB × {processors} used",
            "green",
            max(near.values()),
            min(_medians(waits, "shared", "time").values()),
        ),
        Memory(
            "L2 cache",
            tick(sheet["l2"], "B"),
            "blue",
            max(in_l2),
            min(_medians(waits, "l2", "time").values()),
        ),
        Memory(
            "GPU memory",
            f"{sheet['memory'] / 1e9:.0f} GB",
            "orange",
            _medians(rates, "l2", "bandwidth")[FAR],
            _medians(waits, "l2", "time")[FAR],
        ),
        Memory("Host memory", "behind PCI Express", "pink", link),
    ]


def _medians(record: Record, contender: str, metric: str) -> dict[int, float]:
    return {int(x): summary.median for x, summary in record.series(contender, x="working_set", metric=metric)}


def _speed(memory: Memory) -> str:
    rate = format_quantity(memory.bandwidth, "B/s")
    return rate + (f"\n{format_quantity(memory.latency, 's')} a load" if memory.latency else "")


def _draw_memories(figure: Canvas, theme: Theme, memories: list[Memory]) -> None:
    ax, _, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, across, tall = (64.0, 148.0, 42.0) if narrow else (92.0, 190.0, 42.0)
    pipe = (height - 12 - len(memories) * tall) / (len(memories) - 1)
    widest = max(each.bandwidth for each in memories)
    tops = [height - 6 - place * (tall + pipe) for place in range(len(memories))]
    for top, each in zip(tops, memories, strict=True):
        drawings.box(ax, left, top - tall, across, tall, f"{each.name}\n{each.size}", colour=each.colour, strength=0.18)
        if not each.bandwidth:
            continue
        wide = max(0.6, (across - 12) * each.bandwidth / widest)
        start, colour = left + (across - wide) / 2, theme.series[each.colour]
        ax.fill_between([start, start + wide], top + 1, top + pipe - 1, color=colour, linewidth=0)
        beside, middle = left + across + 14, top + pipe / 2
        drawings.label(ax, beside, middle, _speed(each), across="left")
        if not narrow:
            took = format_quantity(FAR / each.bandwidth, "s")
            drawings.label(ax, beside + 110, middle, f"1 GiB in {took}", across="left")
    for place, (last, name) in enumerate(((1, "multiprocessor"), (2, "chip"), (3, "GPU"))):
        drawings.bracket(ax, left - 12 - 18 * place, tops[last] - tall + 2, height - 8, name)


# --- a stream and its queue --------------------------------------------------------------------------------

KERNELS = 3


def stream_and_queue() -> Figure:
    """Draw kernels that the host queues and the GPU works off, and what two timers read, to scale."""
    record = store.published("timing-mistakes")
    submit, run = (
        record.case(name, shape="square").metrics["time"].summary.median for name in ("no-synchronize", "right")
    )
    early, late = KERNELS * submit, submit + KERNELS * run
    spoken = [format_quantity(seconds, "s") for seconds in (submit, run, early, late)]
    return show(
        lambda figure, theme: _draw_queue(figure, theme, submit, run),
        alt=f"Two lines of time. On the first the host submits {KERNELS} kernels in {spoken[0]} each. On the second "
        f"the GPU runs them one after another, {spoken[1]} each. A timer that stops when the host has submitted them "
        f"reads {spoken[2]}; one that waits for the GPU reads {spoken[3]}.",
        caption="The host puts kernels into a stream's queue, and the GPU works them off later. A timer that does not "
        f"synchronise stops when all are queued, after {spoken[2]}; their work ends after {spoken[3]}. The boxes are "
        "as long as the measured times of a square product of matrices.",
        records=[record],
        size=(WIDE, 2.9),
        narrow=(4.6, 2.9),
        name="stream-and-queue",
        rows=[
            {"what": "submit one product", "time_s": submit},
            {"what": "run one product", "time_s": run},
            {"what": f"read by a timer without synchronising, {KERNELS} products", "time_s": early},
            {"what": f"until {KERNELS} products are done", "time_s": late},
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
    unsynchronised = f"without synchronising, the timer reads {format_quantity(early, 's')}"
    drawings.label(ax, left, height - 12, unsynchronised, across="left")
    drawings.extent(ax, left, left + early * scale, height - 32, "")
    synchronised = f"with synchronising, it reads {format_quantity(late, 's')}"
    drawings.extent(ax, left, left + late * scale, 30, synchronised, below=True)

"""Drawings of links: the way of a byte, what links carry to scale, and what overlaps with what over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpuguide.hardware import links
from gpuguide.measure import reference_gpu, store
from gpuguide.measure.records import Record
from gpuguide.plotting import drawings, palette
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.marks import legend
from gpuguide.plotting.parts import grouped_bars
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

LARGE, LARGEST = 2**28, 2**32
"""Bytes of the copies whose rates are shown: between host and GPU, and between GPUs"""
NETWORK = "infiniband-ndr"
"""The link between machines that is drawn, by its id in the table of links"""


def _host(record: Record, way: str, direction: str = "h2d") -> float:
    """Return the B/s of a large copy between host and GPU."""
    return record.median(way, "bandwidth", size=LARGE, direction=direction)


def _peer(record: Record, direction: str = "one") -> float:
    """Return the B/s of a large copy between two GPUs, of whoever copies faster."""
    return max(record.median(name, "bandwidth", size=LARGEST, direction=direction) for name in record.contenders)


# --- the way of a byte ---------------------------------------------------------------------------------------


def way_of_a_byte() -> Figure:
    """Draw which way a byte takes from a host's memory to a GPU, to another GPU and to another machine."""
    host, peers = store.load_published("host-device-copy"), store.load_published("peer-copy")
    network = links.get(NETWORK)
    ways = {"pageable": _host(host, "pageable"), "pcie": _host(host, "pinned"), "nvlink": _peer(peers)}
    ways["network"] = network.per_direction.value
    pageable, pcie, nvlink, wire = (format_quantity(rate, "B/s") for rate in ways.values())
    return show(
        lambda figure, _: _draw_way(figure, ways),
        alt="Boxes for memories, joined by pipes whose width is their rate in one direction. In the host: pageable "
        f"memory and a pinned buffer. A core copies from one to the other, and the whole path to the GPU then carries "
        f"{pageable}. From the pinned buffer the copy engine of GPU 0 fetches over PCIe, {pcie}. From GPU 0 to GPU 1 "
        f"over NVLink {nvlink}. Dashed, from GPU 0 to a network adapter and to another machine, {wire} by data sheet.",
        caption="The path of a byte. The width of a pipe is its rate in one direction. Only the path from "
        "pageable memory passes through a CPU core. Rates are those of large copies, measured on "
        f"{reference_gpu.word('a short')} or on two of them. The rate of the network ({network.name}) is from the "
        "data sheet; we did not measure it.",
        records=[host, peers],
        size=(WIDE, 4.2),
        narrow=(4.6, 4.2),
        name="way-of-a-byte",
        rows=[{"way": name, "bandwidth_B_per_s": rate} for name, rate in ways.items()],
    )


STEPS = ("a core of the host copies", "the copy engine fetches", "engine or kernel writes", "the adapter sends")


def _draw_way(figure: Canvas, ways: dict[str, float]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    said = {name: format_quantity(rate, "B/s") for name, rate in ways.items()}
    wide = {name: 26 * rate / ways["nvlink"] for name, rate in ways.items()}
    across, tall = (96.0, 44.0) if narrow else (132.0, 44.0)
    first, other = (102.0, width - 82) if narrow else (184.0, width - 8 - across)
    start, middle, last = 12 + across - (22 if narrow else 14), first + across / 2, width - 8 - other
    between = (first + across + other) / 2
    top, gpus, foot = height - 34 - tall, 116.0, 12.0
    drawings.box(ax, 4, top - 10, first + across + 4, tall + 38, strength=0.04)
    drawings.label(ax, 12, height - 15, "host", across="left", bold=True)
    drawings.box(ax, 12, top, start - 12, tall, "pageable\nmemory", colour="sky", strength=0.3)
    drawings.box(ax, first, top, across, tall, "pinned\nbuffer", colour="blue", strength=0.3)
    drawings.box(ax, first, gpus, across, tall, "GPU 0\nmemory", colour="orange", strength=0.3)
    drawings.box(ax, other, gpus, last, tall, "GPU 1\nmemory", colour="orange", strength=0.3)
    drawings.box(ax, first, foot, across, tall, "network\nadapter", dashed=True, strength=0.06)
    drawings.box(ax, other, foot, last, tall, "another\nmachine", dashed=True, strength=0.06)
    _pipe(ax, (start, first), top + tall / 2, wide["pageable"], "sky")
    _pipe(ax, (gpus + tall, top), middle, wide["pcie"], "blue", upright=True)
    _pipe(ax, (first + across, other), gpus + tall / 2, wide["nvlink"], "orange")
    _pipe(ax, (foot + tall, gpus), middle, wide["network"], "grey", upright=True)
    _pipe(ax, (first + across, other), foot + tall / 2, wide["network"], "grey")
    drawings.label(ax, (start + first) / 2, top + tall / 2 + 10, "1" if narrow else "1  core", size=10)
    half = (gpus + tall + top - 10) / 2
    drawings.label(ax, middle + 10, half, f"2  PCIe\n{said['pcie']}", across="left")
    drawings.label(ax, middle - 10, half, f"1 + 2  pageable\n{said['pageable']}", across="right")
    drawings.label(ax, between, gpus + tall / 2 + 24, "3 NVLink", size=10)
    drawings.label(ax, between, gpus + tall / 2 - 24, said["nvlink"], size=10)
    drawings.label(ax, between, foot + tall / 2 + 11, "4 wire", size=10)
    drawings.label(ax, between, foot + tall / 2 - 11, format_quantity(ways["network"], "B/s", 2), size=10)
    drawings.label(ax, middle - 10, (foot + tall + gpus) / 2, "4  data sheet,\nnot measured", across="right", size=10)
    for place, step in enumerate(() if narrow else STEPS, 1):
        at = height - 15 - 16 * (place - 1)
        drawings.label(ax, first + across + 22, at, f"{place}  {step}", across="left", size=10)


def _pipe(
    ax: Axes, ends: tuple[float, float], middle: float, wide: float, colour: str, *, upright: bool = False
) -> None:
    """Draw a pipe between two ends, ``wide`` points across."""
    along, across = (ends[0] + 1.5, ends[1] - 1.5), (middle - wide / 2, middle + wide / 2)
    (left, right), (low, high) = (across, along) if upright else (along, across)
    ax.fill_between([left, right], low, high, color=palette.current().series[colour], linewidth=0)


# --- two ways to another machine -----------------------------------------------------------------------------

STATIONS = (
    ("GPU\nmemory", "orange", False), ("host\nbuffer", "blue", True),
    ("kernel's\nbuffer", "sky", True), ("network\nadapter", "grey", False),
)  # fmt: skip
"""Where bytes are on their way out of a machine, and whether that is a copy which RDMA leaves out"""


def ways_to_the_network() -> Figure:
    """Draw which copies a byte takes out of a machine through the operating system, and by RDMA."""
    return show(
        lambda figure, _: _draw_ways_out(figure),
        alt="Two rows of boxes. Above, over TCP through the operating system: GPU memory, a buffer of the host, the "
        "kernel's buffer, the network adapter, with a copy by the copy engine, a copy by a core and a fetch between "
        "them. Below, by GPUDirect RDMA: one arrow from GPU memory to the network adapter. In both a core of the host "
        "says what to send.",
        caption="Two ways out of a machine: through the operating system, and straight from GPU memory. The second "
        "leaves out the host's memory and a core's copies, though in most libraries a core still says what to send. "
        "Both exist over InfiniBand and over Ethernet. Drawn from documentation, not measured.",
        size=(WIDE, 2.5),
        narrow=(4.6, 2.5),
        name="ways-to-the-network",
        rows=[{"place": name.replace("\n", " "), "rdma": "no" if copied else "yes"} for name, _, copied in STATIONS],
    )


def _draw_ways_out(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    across, tall = (58.0, 38.0) if narrow else (84.0, 38.0)
    gap = (width - 16 - 4 * across) / 3
    xs = [8 + place * (across + gap) for place in range(4)]
    upper, lower = height - 26 - tall, 10.0
    drawings.label(ax, 8, height - 11, "TCP, through the operating system", across="left", bold=True)
    for x, (name, colour, copied) in zip(xs, STATIONS, strict=True):
        for y in (upper,) if copied else (upper, lower):
            drawings.box(ax, x, y, across, tall, name, colour=colour, strength=0.3, size=10)
    for x, word in zip(xs, ("engine", "core", "adapter"), strict=False):
        drawings.arrow(ax, (x + across + 2, upper + tall / 2), (x + across + gap - 2, upper + tall / 2), width=1.2)
        drawings.label(ax, x + across + gap / 2, upper - 9, word, size=10)
    drawings.label(ax, 8, lower + tall + 14, "GPUDirect RDMA", across="left", bold=True)
    y = lower + tall / 2
    drawings.arrow(ax, (xs[0] + across + 2, y), (xs[3] - 2, y), colour="green", width=2)
    drawings.label(ax, width / 2, y + 10, "the adapter fetches over PCIe", size=10)


# --- links to scale ------------------------------------------------------------------------------------------


class Bar(NamedTuple):
    """One link in one direction, in B/s: as printed, and as measured where it was."""

    name: str
    promise: float
    measured: float | None
    colour: str


def links_to_scale() -> Figure:
    """Draw what memory and links carry in one direction as bars on one scale, promise and measurement."""
    host, peers, ceilings = map(store.load_published, ("host-device-copy", "peer-copy", "ceilings"))
    sheet = {name: figure.value for name, figure in reference_gpu.sheet().figures.items()}
    bars = [
        Bar("GPU memory", sheet["memory_bandwidth"], ceilings.median("copy", "bandwidth"), "orange"),
        Bar("NVLink 4", sheet["nvlink_per_direction"], _peer(peers), "orange"),
        Bar("PCIe 5.0 x16", sheet["pcie_per_direction"], _host(host, "pinned"), "blue"),
        Bar("InfiniBand NDR", links.get(NETWORK).per_direction.value, None, "grey"),
        Bar("100 Gbit Ethernet", links.get("ethernet-100").per_direction.value, None, "grey"),
    ]
    said = "; ".join(f"{each.name} {_both(each)}" for each in bars)
    return show(
        lambda figure, _: _draw_bars(figure, bars),
        alt=f"Five bars on one scale: the rate of the GPU's memory, and those of four links in one direction. {said}. "
        "The memory's bar fills the width, NVLink's fills about a tenth of it, and the others are slivers.",
        caption="Rates of memory and of links in one direction, to scale. The outline is the data-sheet rate and the "
        f"filled part what was measured on {reference_gpu.word('a short')} or two of them. The memory's rate counts "
        "bytes read plus bytes written; network ports were not measured.",
        records=[host, peers, ceilings],
        size=(WIDE, 3.0),
        narrow=(4.6, 4.0),
        name="links-to-scale",
        rows=[
            {"link": each.name, "promise_B_per_s": each.promise, "measured_B_per_s": each.measured or ""}
            for each in bars
        ],
    )


def _both(bar: Bar) -> str:
    stated = f"{format_quantity(bar.promise, 'B/s')} by data sheet"
    return f"{stated}, {format_quantity(bar.measured, 'B/s')} measured" if bar.measured else stated


def _draw_bars(figure: Canvas, bars: list[Bar]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left = 12.0 if narrow else 128.0
    step = (height - 8) / len(bars)
    thick = 20.0
    scale = (width - left - 12) / bars[0].promise
    for place, each in enumerate(bars):
        top = height - 4 - place * step
        bottom = top - thick - (20 if narrow else (step - thick) / 2)
        long = each.promise * scale
        drawings.box(ax, left, bottom, long, thick, colour=each.colour, strength=0.1)
        if each.measured:
            drawings.box(ax, left, bottom, each.measured * scale, thick, colour=each.colour, strength=0.6)
        if narrow:
            drawings.label(ax, left, bottom + thick + 9, f"{each.name}: {_both(each)}", across="left", size=10)
            continue
        drawings.label(ax, left - 10, bottom + thick / 2, each.name, across="right")
        drawings.label(ax, left + (long if place else 2) + 8, bottom + thick / 2, _both(each), across="left", size=10)


# --- the ring over time --------------------------------------------------------------------------------------

PIECE = 8 * 2**20
"""Bytes of a buffer of the ring: :data:`gpuguide.interconnect.copies.PIECE`"""
BUFFERS = "ABCD"
SHOWN = 7


def ring_over_time() -> Figure:
    """Draw, to scale, how cores fill pinned buffers while the copy engine fetches those that were filled before."""
    record = store.load_published("host-device-copy")
    fetch, turn, alone = (PIECE / _host(record, way) for way in ("pinned", "staged", "pageable"))
    spoken = [format_quantity(seconds, "s") for seconds in (fetch, turn, alone)]
    return show(
        lambda figure, _: _draw_ring(figure, fetch, turn, alone),
        alt="Three timelines. On the first the cores fill the buffers A, B, C, D and then A again. On the second "
        f"the copy engine fetches each once it is full, {spoken[0]} a piece; a new piece begins every {spoken[1]}. On "
        f"the third the driver copies one piece of pageable memory, {spoken[2]}.",
        caption=f"Pieces of 8 MiB on their way to the GPU, to scale. Through the ring, one arrives every {spoken[1]}, "
        f"of which the link needs {spoken[0]}; copied by the driver, a piece of pageable memory takes {spoken[2]}. "
        "These times are shares of copies of 256 MiB. That the cores are always busy is assumed, not measured.",
        records=[record],
        size=(WIDE, 2.3),
        narrow=(4.6, 2.3),
        name="ring-over-time",
        rows=[
            {"what": "the link for a piece", "time_s": fetch},
            {"what": "a piece through the ring", "time_s": turn},
            {"what": "a pageable piece, by the driver", "time_s": alone},
        ],
    )


def _draw_ring(figure: Canvas, fetch: float, turn: float, alone: float) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 76.0, 28.0
    pieces = min(SHOWN, int(alone / turn))
    scale = (width - left - 12) / max(alone, turn * pieces + fetch)
    lines = {"cores": height - 36, "engine": height - 82, "driver": height - 146}
    for name, y in lines.items():
        drawings.label(ax, left - 8, y + tall / 2, name, across="right", size=10)
    filled = [(place * turn, (place + 1) * turn, BUFFERS[place % 4], "blue") for place in range(pieces)]
    fetched = [
        ((place + 1) * turn, (place + 1) * turn + fetch, BUFFERS[place % 4], "orange") for place in range(pieces)
    ]
    drawings.time_line(ax, left, lines["cores"], scale, filled, height=tall, size=11)
    drawings.time_line(ax, left, lines["engine"], scale, fetched, height=tall, size=11)
    words = f"a piece of pageable memory: {format_quantity(alone, 's')}"
    drawings.time_line(ax, left, lines["driver"], scale, [(0.0, alone, words, "grey")], height=tall, size=11)
    x = left + turn * scale
    drawings.arrow(ax, (x, lines["cores"] - 2), (x, lines["engine"] + tall + 2), colour="blue", width=1)
    drawings.label(ax, x, lines["engine"] - 10, f"{format_quantity(fetch, 's')} each", across="left", size=10)


# --- layers that come over the link ----------------------------------------------------------------------------

LAYERS, DRAWN = 32, 4
"""Of the 7B shape, and of them in the drawing"""
FEW, MANY = 512, 8192
"""Tokens of a pass in the two panels"""


def offloaded_layers_over_time() -> Figure:
    """Draw, to scale, how the next layer comes over the link while one computes, for few tokens and for many."""
    record = store.load_published("offload")
    copy = record.median("copy-only", "time", tokens=FEW) / LAYERS
    panels = {tokens: record.median("resident", "time", tokens=tokens) / LAYERS for tokens in (FEW, MANY)}
    spoken = {tokens: format_quantity(seconds, "s") for tokens, seconds in panels.items()}
    return show(
        lambda figure, _: _draw_offload(figure, copy, panels),
        alt=f"Two pairs of timelines. In each the link brings layers one after another, {format_quantity(copy, 's')} "
        f"for each, and the GPU computes a layer once it is there. With {FEW} tokens a layer computes for "
        f"{spoken[FEW]}, a small part of the next layer's copy; with {MANY} tokens for {spoken[MANY]}.",
        caption="Layers in the shape of Llama 2 7B that arrive over PCIe, to scale. The link is almost never idle, so "
        f"a pass takes as long as its copies plus the last layer. Each layer arrives in {format_quantity(copy, 's')}; "
        f"it computes for {spoken[FEW]} with {FEW} tokens and for {spoken[MANY]} with {MANY}.",
        records=[record],
        size=(WIDE, 3.1),
        narrow=(4.6, 3.1),
        name="offloaded-layers-over-time",
        rows=[
            {"what": "copy of a layer", "tokens": "", "time_s": copy},
            *({"what": "a layer computes", "tokens": tokens, "time_s": each} for tokens, each in panels.items()),
        ],
    )


def _draw_offload(figure: Canvas, copy: float, panels: dict[int, float]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 72.0, 24.0
    scale = (width - left - 12) / ((DRAWN + 1) * max(copy, *panels.values()))
    step = (height - 8) / len(panels)
    for place, (tokens, compute) in enumerate(panels.items()):
        top = height - 4 - place * step
        drawings.label(ax, left, top - 9, f"{tokens} tokens", across="left", bold=True)
        rows = {"link": top - 24 - tall, "computing": top - 32 - 2 * tall}
        for name, y in rows.items():
            drawings.label(ax, left - 8, y + tall / 2, name, across="right", size=10)
        pace = max(copy, compute)
        copies = [(n * pace, n * pace + copy, f"layer {n}", "blue") for n in range(DRAWN)]
        inside = compute * scale > 14
        words = "layer {}" if compute * scale > 40 else "{}" if inside else ""
        done = [(copy + n * pace, copy + n * pace + compute, words.format(n), "orange") for n in range(DRAWN)]
        drawings.time_line(ax, left, rows["link"], scale, copies, height=tall, size=10)
        drawings.time_line(ax, left, rows["computing"], scale, done, height=tall, size=10)
        for n in () if inside else range(DRAWN):
            x = left + (copy + n * pace + compute) * scale + 4
            drawings.label(ax, x, rows["computing"] + tall / 2, str(n), across="left", size=10)


# --- a layer divided among two GPUs ----------------------------------------------------------------------------

ONE, SEVERAL = 1, 1024
"""Tokens of the two panels"""
DIVIDED = {
    ONE: {"one-after-the-other": "two, NCCL", "one-shot": "two, one-shot"},
    SEVERAL: {"one-after-the-other": "two, NCCL", "overlapped": "two, in chunks"},
}
"""Of each panel, the ways to add up and what they are called"""


def layer_on_two_gpus() -> Figure:
    """Draw, to scale, a layer on one GPU and divided among two, with what adding up takes."""
    record = store.load_published("tensor-parallel-layer")
    panels = {
        tokens: {name: record.median(name, "time", tokens=tokens) for name in ("one-gpu", "compute-only", *ways)}
        for tokens, ways in DIVIDED.items()
    }
    told = "; ".join(
        f"{tokens} token{'s' * (tokens > 1)}: one GPU {format_quantity(times['one-gpu'], 's')}, "
        + ", ".join(
            f"two GPUs ({words.removeprefix('two, ')}) {format_quantity(times[name], 's')}"
            for name, words in DIVIDED[tokens].items()
        )
        for tokens, times in panels.items()
    )
    return show(
        lambda figure, _: _draw_layer(figure, panels),
        alt="Bars of time for a feed-forward layer, on one GPU and divided among two, in two panels. Those of two GPUs "
        f"consist of the half that each computes and of the additional time of the all-reduce. {told}.",
        caption="A feed-forward layer as wide as those of Llama 3 70B on one GPU and on two, to scale within each "
        "panel. Orange is the half that each of two GPUs computes, pink is the additional time of the all-reduce. For "
        "one token, our one-shot all-reduce takes less time than NCCL's. In chunks (green), the all-reduce overlaps "
        "with computation, but the smaller matmuls are slower.",
        records=[record],
        size=(WIDE, 3.6),
        narrow=(4.6, 3.6),
        name="layer-on-two-gpus",
        rows=[
            {"tokens": tokens, "what": name, "time_s": seconds}
            for tokens, times in panels.items()
            for name, seconds in times.items()
        ],
    )


def _draw_layer(figure: Canvas, panels: dict[int, dict[str, float]]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 92.0, 22.0
    step = (height - 6) / len(panels)
    for place, (tokens, times) in enumerate(panels.items()):
        top = height - 4 - place * step
        drawings.label(ax, left, top - 9, f"{tokens} token{'s' * (tokens > 1)}", across="left", bold=True)
        whole, half = times["one-gpu"], times["compute-only"]
        scale = (width - left - 12) / whole
        lines = {"one GPU": [(0.0, whole, format_quantity(whole, "s"), "grey")]}
        for name, words in DIVIDED[tokens].items():
            parts = [(0.0, half, "", "orange"), (half, times[name], "", "pink")]
            lines[words] = [(0.0, times[name], "", "green")] if name == "overlapped" else parts
        for row, (words, spans) in enumerate(lines.items()):
            y = top - 22 - tall - row * (tall + 8)
            drawings.label(ax, left - 8, y + tall / 2, words, across="right", size=10)
            drawings.time_line(ax, left, y, scale, spans, height=tall, size=10)
            end = spans[-1][1]
            if row:
                said = f"{format_quantity(end, 's')}, {significant(whole / end, 3)} ×"
                drawings.label(ax, left + end * scale + 6, y + tall / 2, said, across="left", size=10)


# --- what a second GPU gains over two links --------------------------------------------------------------------

TOKENS = (256, 1024, 4096, 16384)
MESSAGE_OF_A_TOKEN = 2 * 8192
"""Bytes that each of two GPUs sends: bf16, hidden size of Llama 3 70B"""


def gains_over(record: Record, host: Record) -> dict[int, tuple[float, float]]:
    """Return how many times as fast two GPUs are as one: measured over NVLink, and computed at most over PCIe."""
    each_way = _host(host, "pinned", "both") / 2
    gains = {}
    for tokens in TOKENS:
        one, half, two = (
            record.median(name, "time", tokens=tokens) for name in ("one-gpu", "compute-only", "one-after-the-other")
        )
        gains[tokens] = one / two, one / (half + MESSAGE_OF_A_TOKEN * tokens / each_way)
    return gains


def gain_over_two_links() -> Figure:
    """Draw how many times as fast two GPUs compute a layer as one does, over NVLink and over PCIe."""
    record, host = store.load_published("tensor-parallel-layer"), store.load_published("host-device-copy")
    gains = gains_over(record, host)
    told = "; ".join(f"{tokens:,} tokens: {over:.2f} and {least:.2f}" for tokens, (over, least) in gains.items())

    def draw(figure: Canvas, theme: palette.Theme) -> None:
        ax = figure.subplots()
        rows = {f"{tokens:,} tokens": both for tokens, both in gains.items()}
        grouped_bars(ax, rows, {"NVLink, measured": "orange", "PCIe, at most": "blue"}, unit="1", label="times as fast")
        ax.axvline(1, color=theme.ceiling, linestyle=(0, (6, 2)), linewidth=1.5)
        legend(ax)

    return show(
        draw,
        alt="Two bars for each number of tokens: how many times as fast two GPUs compute a layer as one GPU, over "
        f"NVLink, measured, and over PCIe, at most, computed without overlap. A dashed line marks one GPU. NVLink "
        f"and PCIe: {told}.",
        caption="Over NVLink, a second GPU gains more than over PCIe (computed, without overlap).",
        records=[record, host],
        size=(WIDE, 3.2),
        narrow=(4.6, 3.6),
        name="gain-over-two-links",
        rows=[
            {"tokens": tokens, "nvlink_times": over, "pcie_at_most_times": least}
            for tokens, (over, least) in gains.items()
        ],
    )

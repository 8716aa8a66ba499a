"""Drawings of attention scheduled by hand: stages and their barriers, who has the memory, and which matmuls are done.

Times are a model's, in clock cycles, as in :mod:`gpuguide.plotting.pictures.attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.pictures.attention import EXPONENTIALS_PER_CLOCK, HEAD_DIM, KEYS, OPERATIONS_PER_CLOCK, TILE
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# --- stages and their barriers -----------------------------------------------------------------------------

LOAD, COMPUTE = 1.0, 1.4
"""Of one tile, in any unit"""
TILES = 5
STAGE_COLOURS = ("blue", "orange")
Span = tuple[float, float]


def schedule_stages(stages: int) -> tuple[list[Span], list[Span]]:
    """Return from when to when each tile is copied and computed with, if a copy needs a stage that is free.

    >>> schedule_stages(1)[0][:2]
    [(0.0, 1.0), (2.4, 3.4)]
    """
    copies, work = list[Span](), list[Span]()
    for tile in range(TILES):
        free = work[tile - stages][1] if tile >= stages else 0.0
        start = max(free, copies[-1][1] if copies else 0.0)
        copies.append((start, start + LOAD))
        begin = max(copies[-1][1], work[-1][1] if work else 0.0)
        work.append((begin, begin + COMPUTE))
    return copies, work


def stages_and_barriers() -> Figure:
    """Draw copies and computing over time with one stage and with two, and the barriers that each waits for."""
    found = {stages: schedule_stages(stages) for stages in (1, 2)}
    ends = {stages: work[-1][1] for stages, (_, work) in found.items()}
    return show(
        lambda figure, theme: _draw_stages(figure, found),
        alt="Two timelines of copies and of the groups that compute. With one stage, each copy waits until the groups "
        "are done with the tile before, so copies and computing alternate. With two stages, the copy of the next tile "
        "runs while the groups compute, and the groups never wait after the first tile. An arrow marked full leads "
        "from the end of a copy to the computing, and one marked free from there to the next copy into the same stage. "
        f"{TILES} tiles take {ends[1]:.1f} units with one stage and {ends[2]:.1f} with two.",
        caption="With two stages, the next tile is copied while one is used. A colour is a stage; numbers are tiles. "
        "Solid arrows are arrivals at the barrier full, dotted ones at free. A sketch, not a measurement.",
        size=(WIDE, 3.5),
        narrow=(4.6, 3.5),
        name="stages-and-barriers",
        rows=[
            {"stages": stages, "tile": tile, "copied_from": copy[0], "computed_from": work[0], "done": work[1]}
            for stages, (copies, works) in found.items()
            for tile, (copy, work) in enumerate(zip(copies, works, strict=True))
        ],
    )


def _draw_stages(figure: Canvas, found: dict[int, tuple[list[Span], list[Span]]]) -> None:
    ax, width, height = drawings.sheet(figure)
    left = 58.0
    scale = (width - left - 8) / max(work[-1][1] for _, work in found.values())
    top, tall, gap = height, 24.0, 34.0
    for stages, (copies, works) in found.items():
        words = f"{stages} stage{'s' * (stages > 1)}"
        drawings.label(ax, 4, top - 12, words, across="left", bold=True)
        upper, lower = top - 28 - tall, top - 28 - 2 * tall - gap
        for y, name, spans in ((upper, "copies", copies), (lower, "groups", works)):
            drawings.label(ax, left - 6, y + tall / 2, name, across="right", size=10)
            drawings.time_line(ax, left, y, scale, [
                (*span, str(tile), STAGE_COLOURS[tile % stages]) for tile, span in enumerate(spans)
            ], height=tall)  # fmt: skip
        for tile in range(TILES):
            colour = STAGE_COLOURS[tile % stages]
            x = left + scale * copies[tile][1]
            drawings.arrow(ax, (x, upper - 1), (max(x, left + scale * works[tile][0]) + 3, lower + tall + 2),
                           colour=colour, width=1.2)  # fmt: skip
            if tile + stages < TILES:
                start, end = works[tile][1], copies[tile + stages][0]
                _dotted(ax, (left + scale * start, lower + tall + 1), (left + scale * end + 4, upper - 2), colour)
        if stages == 1:
            x = left + scale * (copies[0][1] + works[0][1]) / 2
            drawings.label(ax, left + scale * copies[0][1] - 4, lower + tall + gap / 2, "full", across="right", size=10)
            drawings.label(ax, x, lower + tall + gap / 2, "free", across="center", size=10)
        top -= height / 2


def _dotted(ax: Axes, start: Span, end: Span, colour: str) -> None:
    from gpuguide.plotting import palette

    look = {"arrowstyle": "-|>", "color": palette.current().series[colour], "linestyle": ":", "linewidth": 1.2,
            "shrinkA": 0, "shrinkB": 0}  # fmt: skip
    ax.annotate("", end, start, arrowprops=look)


# --- overlap within one group ------------------------------------------------------------------------------


def overlap_in_a_group() -> Figure:
    """Draw the matmuls and the exponentials of one group, waiting for both matmuls or only for the scores."""
    product = 2 * TILE * KEYS * HEAD_DIM / OPERATIONS_PER_CLOCK
    powers = TILE * KEYS / EXPONENTIALS_PER_CLOCK
    found = {
        "wait(0): softmax after both": _group(product, powers, overlapped=False),
        "wait(1): softmax during PV": _group(product, powers, overlapped=True),
    }
    ends = [max(span[1] for span in tensor) for tensor, _ in found.values()]
    return show(
        lambda figure, theme: _draw_group(figure, found, ends),
        alt="Two timelines of one warpgroup, each with the tensor cores above and the softmax below. With wait(0), the "
        "softmax of a tile begins after the scores of that tile and the output of the tile before. With wait(1), it "
        "begins right after the scores, while the other matmul is running. Three tiles take "
        f"{ends[0]:.0f} and {ends[1]:.0f} cycles.",
        caption="Waiting only for the scores lets the softmax overlap. One warpgroup with 64 queries, tiles of 128 "
        "keys, and heads of 128. S2 and P2V are the two matmuls of tile 2. A model of one group, in cycles; with two, "
        "overlap gains little.",
        size=(WIDE, 3.2),
        narrow=(4.6, 3.2),
        name="overlap-in-a-group",
        rows=[
            {"schedule": name, "unit": unit, "what": what, "from_cycle": start, "to_cycle": end}
            for name, lanes in found.items()
            for unit, spans in zip(("tensor cores", "softmax"), lanes, strict=True)
            for start, end, what, _ in spans
        ],
    )


def _group(product: float, powers: float, *, overlapped: bool) -> tuple[list[tuple[float, float, str, str]], ...]:
    """Return the spans of the tensor cores and of the softmax for three tiles."""
    tensor = [(0.0, product, "S1", "blue")]
    softmax = [(product, product + powers, "exp 1", "blue")]
    for tile, colour in ((2, "orange"), (3, "green")):
        start = max(softmax[-1][1], tensor[-1][1])
        before = softmax[-1][3]
        tensor += [(start, start + product, f"S{tile}", colour),
                   (start + product, start + 2 * product, f"P{tile - 1}V", before)]  # fmt: skip
        begin = start + (1 if overlapped else 2) * product
        softmax.append((begin, begin + powers, f"exp {tile}", colour))
    last = max(softmax[-1][1], tensor[-1][1])
    tensor.append((last, last + product, "P3V", "green"))
    return tensor, softmax


def _draw_group(
    figure: Canvas, found: dict[str, tuple[list[tuple[float, float, str, str]], ...]], ends: list[float]
) -> None:
    ax, width, height = drawings.sheet(figure)
    left = 82.0
    scale, top = (width - left - 8) / max(ends), height
    for (name, lanes), end in zip(found.items(), ends, strict=True):
        drawings.label(ax, 4, top - 12, f"{name}: {end:.0f} cycles", across="left", bold=True)
        for row, (unit, spans) in enumerate(zip(("tensor cores", "softmax"), lanes, strict=True)):
            y = top - 50 - 31 * row
            drawings.label(ax, left - 6, y + 12, unit, across="right", size=10)
            drawings.time_line(ax, left, y, scale, spans, height=24)
        top -= height / 2


# --- registers and shared memory ---------------------------------------------------------------------------

REGISTERS = 65_536
"""Of a multiprocessor of compute capability 9.0"""
SHARED = 227
"""KiB that one program may have there"""
GROUP_THREADS = 128
LAUNCHED, ASKED = (168, 168, 168), (240, 240, 24)
"""Registers of a thread in each group: two that compute, and the padded one that loads"""


def memory_of_a_program() -> Figure:
    """Draw how one program divides the registers and the shared memory of a multiprocessor."""
    names = ("group 1", "group 2", "loader")
    tile = 2 * TILE * HEAD_DIM * 2 // 1024
    keys = KEYS * HEAD_DIM * 2 // 1024
    shared = [(f"queries {n}", tile, "blue") for n in (1, 2)]
    shared += [(f"{name} {n}", keys, hue) for name, hue in (("keys", "green"), ("values", "orange")) for n in (1, 2)]
    used = sum(size for _, size, _ in shared)
    parts = {
        "registers at launch": [
            (f"{name}\n{each}", each * GROUP_THREADS, "grey") for name, each in zip(names, LAUNCHED, strict=True)
        ],
        "registers after setmaxnreg": [
            (f"{name}\n{each}" if each > 100 else str(each), each * GROUP_THREADS, hue)
            for name, each, hue in zip(names, ASKED, ("blue", "orange", "grey"), strict=True)
        ],
        f"shared memory: {used} of {SHARED} KiB": [(f"{text}\n{size} KiB", size, hue) for text, size, hue in shared],
    }  # fmt: skip
    return show(
        lambda figure, theme: _draw_memory(figure, parts),
        alt="Three bars. At launch, each of three groups of 128 threads has 168 registers per thread. Afterwards, the "
        f"two groups that compute have 240 each, and the one that loads has 24. Below, shared memory: two pairs of "
        f"query tiles, two stages of keys and two of values, {tile} KiB each, {used} of {SHARED} KiB.",
        caption="One program fills the multiprocessor, so no second one fits. Registers per thread of each group, and "
        "tiles in shared memory with heads of 128 in 16 bits; to scale. Dashed: what is left.",
        size=(WIDE, 3.1),
        narrow=(4.6, 3.3),
        name="memory-of-a-program",
        rows=[
            {"where": where, "part": " ".join(text.split()), "size": size}
            for where, each in parts.items()
            for text, size, _ in each
        ],
    )


def _draw_memory(figure: Canvas, parts: dict[str, list[tuple[str, int, str]]]) -> None:
    ax, width, height = drawings.sheet(figure)
    across, row = width - 16, height / len(parts)
    for place, (title, boxes) in enumerate(parts.items()):
        top = height - place * row
        drawings.label(ax, 8, top - 11, title, across="left", bold=True)
        whole, x = SHARED if "shared" in title else REGISTERS, 8.0
        drawings.box(ax, 8, top - row + 6, across, row - 26, dashed=True, strength=0.03)
        for text, size, colour in boxes:
            words = text.replace(" KiB", "").replace("queries", "Q").replace("keys", "K").replace("values", "V")
            long = text if not is_narrow(figure) or "KiB" not in text else words
            drawings.box(
                ax, x, top - row + 6, across * size / whole, row - 26, long, colour=colour, strength=0.3, size=10
            )
            x += across * size / whole


# --- the matmuls of the backward pass ----------------------------------------------------------------------

BACKWARD = {
    "Triton, kernel 1: owns keys": ("S", "dP", "dV", "dK"),
    "Triton, kernel 2: owns queries": ("S", "dP", "dQ"),
    "Gluon, one kernel: owns keys": ("S", "dP", "dV", "dK", "dQ"),
}
NOT_ONCE = ("S", "dP")


def five_matmuls_or_seven() -> Figure:
    """Draw the matmuls of two kernels for the backward pass, and those of one kernel that adds to dQ in memory."""
    return show(
        lambda figure, theme: _draw_backward(figure),
        alt="Three rows of boxes, one for each matmul. Triton's first kernel owns keys and computes S, dP, dV and dK. "
        "Its second kernel owns queries and computes S and dP again, and dQ. The Gluon kernel owns keys and computes "
        "all five once. Its share of dQ is added to a sum in the GPU's memory.",
        caption="Scores and dP are computed once or twice. Orange boxes are the matmuls that two kernels both do. A "
        "kernel that owns keys cannot own dQ, so it adds its share in memory.",
        size=(WIDE, 2.9),
        narrow=(4.6, 3.0),
        name="five-matmuls-or-seven",
        rows=[{"kernel": name, "matmul": each} for name, parts in BACKWARD.items() for each in parts],
    )


def _draw_backward(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    row, across = height / len(BACKWARD), min(74.0, (width - 92) / 5)
    for place, (name, parts) in enumerate(BACKWARD.items()):
        top = height - place * row
        drawings.label(ax, 8, top - 11, name, across="left", bold=True)
        for number, text in enumerate(parts):
            twice = text in NOT_ONCE and name.startswith("Triton")
            colour = "orange" if twice else "blue"
            drawings.box(
                ax, 8 + number * across, top - row + 10, across - 6, row - 32, text, colour=colour, strength=0.3
            )
        if len(parts) == 5:
            start, y = 8 + 5 * across - 4, top - row + 10 + (row - 32) / 2
            drawings.arrow(ax, (start, y), (start + 24, y), colour="blue")
            drawings.label(ax, start + 28, y, "added\nin memory", across="left", size=10)

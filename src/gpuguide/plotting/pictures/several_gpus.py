"""Drawings of queries beyond one GPU: rows that are exchanged, totals that are added, pieces that are spilled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# --- a group-by over two GPUs, in two ways -----------------------------------------------------------------

Row = tuple[int, int]
"""A key and a value"""
ROWS: tuple[tuple[Row, ...], ...] = (
    ((0, 2), (1, 5), (1, 4), (0, 1), (1, 2), (0, 3)),
    ((1, 3), (0, 6), (0, 2), (1, 1), (0, 1), (1, 4)),
)
"""Of each GPU"""
COLOURS = ("blue", "orange")
"""Of each key"""
GPUS = len(ROWS)


@dataclass(frozen=True)
class Stage:
    """What each GPU holds at a moment of a group-by."""

    name: str
    held: tuple[tuple[Row, ...], ...]
    crossing: int = 0
    """Rows or totals that each GPU then sends to the other"""


def add_up(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return the sum of each key, in the order of the keys."""
    return tuple((key, sum(v for k, v in rows if k == key)) for key in sorted({key for key, _ in rows}))


def shuffle() -> tuple[Stage, ...]:
    """Return the stages of the group-by that sends each row to the GPU that owns its key, which is key mod GPUs."""
    sent = tuple(tuple(sorted(rows, key=lambda row: row[0] % GPUS)) for rows in ROWS)
    received = tuple(tuple(row for rows in sent for row in rows if row[0] % GPUS == gpu) for gpu in range(GPUS))
    crossing = max(sum(row[0] % GPUS != gpu for row in rows) for gpu, rows in enumerate(ROWS))
    return (
        Stage("rows", ROWS),
        Stage("by owner", sent, crossing),
        Stage("received", received),
        Stage("totals", tuple(map(add_up, received))),
    )


def group_first() -> tuple[Stage, ...]:
    """Return the stages of the group-by in which each GPU adds up its own rows, and then the totals are added."""
    own = tuple(map(add_up, ROWS))
    total = add_up(tuple(row for totals in own for row in totals))
    return Stage("rows", ROWS), Stage("own totals", own, len(own[0])), Stage("totals", (total,) * GPUS)


def shuffle_or_group_first() -> Figure:
    """Draw a group-by over two GPUs in two ways: rows go to the owner of their key, or totals are added."""
    ways = {"Shuffle: rows cross": shuffle(), "Group first: totals cross": group_first()}
    rows_sent, totals_sent = (max(stage.crossing for stage in stages) for stages in ways.values())
    told = " and ".join(str(value) for _, value in group_first()[-1].held[0])
    return show(
        lambda figure, _: _draw_ways(figure, ways),
        alt=f"Two GPUs with {len(ROWS[0])} rows of two keys each, in two panels. In a shuffle, each GPU puts its rows "
        f"in order of their owners and sends {rows_sent} of them to the other GPU. Each then has all rows of one key "
        f"and adds them up. Grouped first, each GPU adds up its own rows by key and sends {totals_sent} totals to the "
        f"other. Both give the sums {told}.",
        caption="A sum by key over two GPUs. Each tile is a row and its colour is the key. In the shuffle, what "
        "crosses the link grows with the rows. Grouped first, it grows with the groups.",
        size=(WIDE, 3.2),
        narrow=(4.6, 6.0),
        name="shuffle-or-group-first",
        rows=[
            {"way": way, "stage": stage.name, "gpu": gpu, "key": key, "value": value}
            for way, stages in ways.items()
            for stage in stages
            for gpu, rows in enumerate(stage.held)
            for key, value in rows
        ],
    )


def _draw_ways(figure: Canvas, ways: Mapping[str, tuple[Stage, ...]]) -> None:
    ax, width, height = drawings.sheet(figure)
    left = 8.0
    for place, (title, stages) in enumerate(ways.items()):
        if is_narrow(figure):
            _draw_way(ax, left, (1 - place) * height / 2, width - 20, height / 2, title, stages)
        else:
            wide = width * len(stages) / sum(map(len, ways.values()))
            _draw_way(ax, left, 0.0, wide - 20, height, title, stages)
            left += wide


def _draw_way(
    ax: Axes, left: float, bottom: float, wide: float, tall: float, title: str, stages: tuple[Stage, ...]
) -> None:
    """Draw a column of tiles for each stage and GPU, and arrows between the stages."""
    top, across = bottom + tall - 14, 30.0
    gpu_tall = (tall - 42) / GPUS
    step = (wide - 34 - across) / (len(stages) - 1)
    middles = [top - 28 - (gpu + 0.5) * gpu_tall for gpu in range(GPUS)]
    drawings.label(ax, left, top, title, across="left", bold=True)
    for gpu, middle in enumerate(middles):
        drawings.label(ax, left, middle, f"GPU\n{gpu}", across="left", size=10)
    for number, stage in enumerate(stages):
        x = left + 34 + number * step
        drawings.label(ax, x + across / 2, top - 19, stage.name, size=10)
        for held, middle in zip(stage.held, middles, strict=True):
            _draw_held(ax, x, middle, across, gpu_tall - 8, held, sums="totals" in stage.name)
        if number + 1 < len(stages):
            _draw_step(ax, x + across + 3, x + step - 3, middles, stage.crossing)


def _draw_held(
    ax: Axes, x: float, middle: float, across: float, tall: float, held: tuple[Row, ...], sums: bool
) -> None:
    side = min(20.0, tall / 2) if sums else tall / len(ROWS[0])
    y = middle + len(held) * side / 2
    for key, value in held:
        y -= side
        drawings.bar(ax, x, y + 1, across, side - 2, COLOURS[key], 0.3)
        if sums:
            drawings.label(ax, x + across / 2, y + side / 2, str(value), size=10)


def _draw_step(ax: Axes, start: float, end: float, middles: list[float], crossing: int) -> None:
    """Draw what a step does on each GPU, and in colour what crosses the link, with how much each GPU sends."""
    for middle in middles:
        drawings.arrow(ax, (start, middle), (end, middle), colour="grey")
    if crossing:
        upper, lower = middles
        drawings.arrow(ax, (start, upper - 8), (end, lower + 8), colour="pink", width=2.2)
        drawings.arrow(ax, (start, lower + 8), (end, upper - 8), colour="pink", width=2.2)
        drawings.label(ax, (start + end) / 2, upper + 10, f"{crossing} each", size=10)


# --- pieces through a plan ---------------------------------------------------------------------------------

PIECES = (("read", 2), ("wait", 1), ("run", 1))
"""Pieces of a file that are on the GPU at one time, by what happens to them"""
FILE_PIECES, KEPT, SPILLED = 8, 4, 3


def pieces_and_spilling(share: float = 0.8) -> Figure:
    """Draw pieces of files on their way through a GPU, which moves what it must keep to the host above a share.

    Parameters
    ----------
    share : float
        Of the GPU's memory; by default cudf-polars' own.
    """
    told = ", ".join(f"{name} {count}" for name, count in PIECES)
    return show(
        lambda figure, _: _draw_pieces(figure, share),
        alt=f"Four boxes. A file of {FILE_PIECES} row groups. A GPU's memory with a few pieces ({told}) and {KEPT} "
        f"exchanged pieces that are kept. The host's memory with {SPILLED} spilled pieces, with arrows both ways to "
        "the kept ones. And the result.",
        caption="How a query streams: it reads pieces of a few row groups. A group-by with few groups keeps only its "
        f"totals. A sort and a group-by with many groups keep exchanged pieces, and above {share:.0%} of the "
        "GPU's memory (the default), pieces are spilled to the host and fetched again.",
        size=(WIDE, 3.0),
        narrow=(4.6, 4.6),
        name="pieces-and-spilling",
        rows=[
            {"place": "file", "what": "row groups", "pieces": FILE_PIECES},
            *({"place": "GPU", "what": name, "pieces": count} for name, count in PIECES),
            {"place": "GPU", "what": "kept", "pieces": KEPT},
            {"place": "host", "what": "spilled", "pieces": SPILLED},
        ],
    )


def _draw_pieces(figure: Canvas, share: float) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    top, low = height - 22, 8.0
    host_tall = 62.0
    file_wide, result_wide = (58.0, 52.0) if narrow else (84.0, 76.0)
    gap = 26.0 if narrow else 40.0
    gpu_left = 8 + file_wide + gap
    gpu_wide = width - gpu_left - gap - result_wide - 8
    gpu_low = low + host_tall + 44
    drawings.label(ax, 8 + file_wide / 2, top + 10, "files", bold=True)
    tall = (top - gpu_low) / FILE_PIECES
    for index in range(FILE_PIECES):
        read = index < 3
        drawings.bar(ax, 8, top - (index + 1) * tall + 2, file_wide, tall - 4, "blue", 0.12 if read else 0.35)
    drawings.label(ax, 8 + file_wide / 2, gpu_low - 14, "row groups", size=10)
    drawings.label(ax, gpu_left + gpu_wide / 2, top + 10, "GPU memory", bold=True)
    drawings.box(ax, gpu_left, gpu_low, gpu_wide, top - gpu_low, strength=0.05)
    middle = (top + gpu_low) / 2
    drawings.arrow(ax, (8 + file_wide + 3, middle), (gpu_left - 3, middle))
    drawings.arrow(ax, (gpu_left + gpu_wide + 3, middle), (gpu_left + gpu_wide + gap - 3, middle))
    result_low = middle - 22
    drawings.box(ax, width - 8 - result_wide, result_low, result_wide, 44, "result", colour="green")
    inner = gpu_wide - 16
    _draw_stripe(ax, gpu_left + 8, middle + 10, inner, (top - middle) - 18, PIECES)
    kept_tall = middle - gpu_low - 12
    drawings.label(ax, gpu_left + 8, middle - 8, "kept until all are read", across="left", size=10)
    each = inner / KEPT
    for index in range(KEPT):
        drawings.bar(ax, gpu_left + 8 + index * each, gpu_low + 6, each - 4, kept_tall - 14, "violet", 0.35)
    drawings.box(ax, gpu_left, low, gpu_wide, host_tall, strength=0.05)
    drawings.label(ax, gpu_left + 8, low + host_tall - 12, "host memory", across="left", bold=True)
    for index in range(SPILLED):
        drawings.bar(ax, gpu_left + 8 + index * each, low + 6, each - 4, host_tall - 30, "violet", 0.15)
    down, up = gpu_left + 0.22 * gpu_wide, gpu_left + 0.62 * gpu_wide
    drawings.arrow(ax, (down, gpu_low - 3), (down, low + host_tall + 3), colour="violet")
    drawings.arrow(ax, (up, low + host_tall + 3), (up, gpu_low - 3), colour="violet")
    between = (gpu_low + low + host_tall) / 2
    words = f"above\n{share:.0%}" if narrow else f"above {share:.0%}"
    drawings.label(ax, down + 6, between, words, across="left", size=10)
    drawings.label(ax, up + 6, between, "fetched\nagain" if narrow else "fetched again", across="left", size=10)


def _draw_stripe(
    ax: Axes, left: float, bottom: float, wide: float, tall: float, parts: tuple[tuple[str, int], ...]
) -> None:
    """Draw a box for each piece, with the name of what happens to it."""
    each = wide / sum(count for _, count in parts)
    for name, count in parts:
        for _ in range(count):
            drawings.box(ax, left + 1, bottom, each - 4, tall, name, colour="blue", strength=0.3, size=9.5)
            left += each

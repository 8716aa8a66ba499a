"""Drawings of training: the way of a batch from text to the GPU, and the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuguide.measure import measured_ceilings
from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

BATCH, SEQ_LEN = 64, 512
"""Of the drawn batch: sequences, and tokens that the model reads of each"""
PLACES = (
    ("text", "read once", ""),
    ("token file", "uint16", "file"),
    ("windows", "int64", "batch"),
    ("pinned buffer", "int64", "batch"),
    ("GPU", "int64", "batch"),
)
"""Where a batch's tokens are, in which format, and which bytes that makes"""
MOVES = ("tokenise", "gather", "copy", "DMA")
TURNS = 3
"""Steps of the drawn time line"""
COUNTS = (64, 16, 4)
"""Targets of the drawn micro-batches"""


def way_of_a_batch() -> Figure:
    """Draw where the tokens of a batch lie on their way to the GPU, and when the next batch takes it."""
    window = BATCH * (SEQ_LEN + 1)
    sizes = {"": "", "file": format_quantity(2 * window, "B"), "batch": format_quantity(8 * window, "B")}
    seconds = 8 * window / measured_ceilings.load_reference().bandwidth["host"].value
    copied = format_quantity(seconds, "s")
    return show(
        lambda figure, theme: _draw_way(figure, sizes, copied),
        alt="Five boxes from left to right: text, token file in 16 bits, windows in 64 bits, a pinned buffer, the GPU. "
        f"A batch has {sizes['file']} in the file and {sizes['batch']} from there on, and the copy to the GPU takes "
        f"{copied} at the measured rate of the link. Below, a line of time: while the GPU computes a step, a thread "
        "gathers the batch of the next one and copies it to the pinned buffer.",
        caption=f"The way of a batch of 64 windows of 513 tokens. The last copy takes {copied} at the measured rate; "
        "a thread prepares the next batch while the GPU computes.",
        size=(WIDE, 2.5),
        narrow=(4.6, 4.0),
        name="way-of-a-batch",
        rows=[
            {"place": place, "format": kind, "bytes": {"": "", "file": 2 * window, "batch": 8 * window}[size]}
            for place, kind, size in PLACES
        ],
    )


def _draw_way(figure: Canvas, sizes: Mapping[str, str], copied: str) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    if narrow:
        _draw_places_below(ax, width, height, sizes, copied)
    else:
        _draw_places_beside(ax, width, height, sizes, copied)
    left, tall = 62.0, 22.0
    side = (width - left - 10) / TURNS
    for row, name in enumerate(("GPU", "thread")):
        y = 40 - 32 * row
        drawings.label(ax, 8, y + tall / 2, name, across="left", size=10)
        for turn in range(TURNS):
            x = left + turn * side
            if name == "GPU":
                drawings.box(ax, x, y, side - 3, tall, f"step {turn + 1}", colour="green", strength=0.3, size=10)
            else:
                drawings.box(ax, x, y, 0.5 * side, tall, f"batch {turn + 2}", colour="orange", strength=0.3, size=10)


def _draw_places_beside(ax: Axes, width: float, height: float, sizes: Mapping[str, str], copied: str) -> None:
    side, tall = 74.0, 46.0
    gap = (width - 20 - len(PLACES) * side) / (len(PLACES) - 1)
    y = height - tall - 24
    for number, (place, kind, size) in enumerate(PLACES):
        x = 10 + number * (side + gap)
        colour = "green" if place == "GPU" else "orange" if number > 1 else "blue"
        name = place.removesuffix(" buffer")
        drawings.box(ax, x, y, side, tall, f"{name}\n{kind}", colour=colour, size=10)
        drawings.label(ax, x + side / 2, y - 9, sizes[size], size=10)
        if number < len(MOVES):
            drawings.arrow(ax, (x + side, y + tall / 2), (x + side + gap, y + tall / 2))
            text = f"{MOVES[number]}, {copied}" if MOVES[number] == "DMA" else MOVES[number]
            drawings.label(ax, x + side + gap / 2, y + tall + 12, text, size=10)


def _draw_places_below(ax: Axes, width: float, height: float, sizes: Mapping[str, str], copied: str) -> None:
    side, tall, pitch = 112.0, 24.0, 44.0
    for number, (place, kind, size) in enumerate(PLACES):
        y = height - 32 - number * pitch
        colour = "green" if place == "GPU" else "orange" if number > 1 else "blue"
        drawings.box(ax, 10, y, side, tall, place, colour=colour, size=10)
        drawings.label(ax, side + 22, y + tall / 2, f"{kind}, {sizes[size]}".rstrip(", "), across="left", size=10)
        if number < len(MOVES):
            drawings.arrow(ax, (10 + side / 2, y), (10 + side / 2, y + tall - pitch))
            text = f"{MOVES[number]}, {copied}" if MOVES[number] == "DMA" else MOVES[number]
            drawings.label(ax, 10 + side / 2 + 10, y - (pitch - tall) / 2, text, across="left", size=10)


def micro_batches_of_a_step() -> Figure:
    """Draw three micro-batches of one step, and the weight of a target with each of two divisors."""
    total, share = sum(COUNTS), len(COUNTS)
    weights = ", ".join(f"1/{share * count} in the micro-batch of {count}" for count in COUNTS)
    return show(
        lambda figure, theme: _draw_micro_batches(figure),
        alt=f"Three micro-batches with {', '.join(map(str, COUNTS))} targets are added to one gradient, for one step. "
        f"Divided by all targets, each target has the weight 1/{total}. In the mean of means it has {weights}.",
        caption=f"Three micro-batches of one step. Divided by all {total} targets, each target counts the same; in the "
        f"mean of means, a target of the shortest micro-batch counts {COUNTS[0] // COUNTS[-1]} times as much as one of "
        "the longest.",
        size=(WIDE, 2.5),
        narrow=(4.6, 2.9),
        name="micro-batches-of-a-step",
        rows=[
            {"targets": count, "divided by all targets": f"1/{total}", "mean of means": f"1/{share * count}"}
            for count in COUNTS
        ],
    )


def _draw_micro_batches(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    columns = (0.5, 0.78) if narrow else (0.56, 0.78)
    size = 10 if narrow else 11
    for at, name in zip(columns, ("by all\ntargets", "mean of\nmeans"), strict=True):
        drawings.label(ax, at * width, height - 20, name, size=size, bold=True)
    drawings.label(ax, 10, height - 20, "targets", across="left", size=size, bold=True)
    longest, tall, pitch = (0.3 if narrow else 0.38) * width, 22.0, 34.0
    for number, count in enumerate(COUNTS):
        y = height - 66 - number * pitch
        text = str(count) if count > COUNTS[-1] else ""
        drawings.box(ax, 10, y, longest * count / COUNTS[0], tall, text, colour="blue", size=size)
        if not text:
            drawings.label(ax, 18 + longest * count / COUNTS[0], y + tall / 2, str(count), across="left", size=size)
        for at, divisor in zip(columns, (sum(COUNTS), len(COUNTS) * count), strict=True):
            drawings.label(ax, at * width, y + tall / 2, f"each 1/{divisor}", size=size)
    y = height - 66 - len(COUNTS) * pitch
    words = "one gradient" if narrow else "added: one gradient, one step"
    drawings.label(ax, 10, y + tall / 2, words, across="left", size=size)
    for at, name, colour in zip(columns, ("equal", "not equal"), ("green", "orange"), strict=True):
        drawings.box(ax, at * width - 40, y, 80, tall, name, colour=colour, size=size)

"""Drawings of adapters: thin matrices beside frozen ones, to scale; the two orders in which layers store weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

INPUTS, OUTPUTS, RANK = 768, 2304, 16
"""Of GPT-2's ``c_attn``, and the rank of the adapter that is drawn"""
PARTS = ("queries", "keys", "values")
COLOURS = ("blue", "orange", "green")


def adapter_beside_weights() -> Figure:
    """Draw a frozen matrix and the two thin ones that are trained beside it, to scale."""
    frozen, thin = INPUTS * OUTPUTS, RANK * (INPUTS + OUTPUTS)
    return show(
        _draw_adapter,
        alt=f"An input of {INPUTS} numbers takes two ways to an output of {OUTPUTS}. The upper one leads through the "
        f"frozen matrix W, a large block. The lower one leads through A, a line {RANK} numbers thick, and B, a line as "
        "thin, and is multiplied by alpha over rank. The two are added.",
        caption=f"A layer with an adapter of rank {RANK}, to scale: the frozen matrix has {frozen:,} weights, the two "
        f"thin ones that are trained have {thin:,}.",
        size=(WIDE, 3.7),
        narrow=(4.6, 3.4),
        name="adapter-beside-weights",
        rows=[
            {"matrix": "W", "rows": OUTPUTS, "columns": INPUTS, "weights": frozen, "trained": "no"},
            {"matrix": "A", "rows": RANK, "columns": INPUTS, "weights": RANK * INPUTS, "trained": "yes"},
            {"matrix": "B", "rows": OUTPUTS, "columns": RANK, "weights": RANK * OUTPUTS, "trained": "yes"},
        ],
    )


def _draw_adapter(figure: Canvas, theme: Theme) -> None:
    ax, width, height = drawings.sheet(figure)
    scale = (120 if is_narrow(figure) else 150) / OUTPUTS  # points a number
    wide, high, thin = INPUTS * scale, OUTPUTS * scale, RANK * scale
    left, right = 40.0, width - 44
    middle = (left + right) / 2
    upper, lower = height - 24 - high / 2, 36.0
    start, end = (left, (upper + lower) / 2), (right, (upper + lower) / 2)
    drawings.box(ax, middle - wide / 2, upper - high / 2, wide, high, "W", colour="", strength=0.3)
    drawings.label(ax, middle + wide / 2 + 8, upper + high / 2 - 8, "frozen", across="left", size=10)
    down, up = middle - 0.22 * (right - left), middle + 0.2 * (right - left)
    drawings.box(ax, down - wide / 2, lower - thin / 2, wide, thin, colour="green", strength=1.0)
    drawings.label(ax, down, lower - 14, "A, trained", size=10)
    drawings.box(ax, up - thin / 2, lower - 16, thin, high, colour="green", strength=1.0)
    drawings.label(ax, up + 6, lower - 12, "B, trained", across="left", size=10)
    drawings.label(ax, start[0] - 4, start[1], "x", across="right", bold=True)
    drawings.label(ax, end[0] + 14, end[1], "y", across="left", bold=True)
    drawings.label(ax, end[0] + 4, end[1], "+", bold=True, size=13)
    drawings.arrow(ax, start, (middle - wide / 2 - 3, upper))
    drawings.arrow(ax, (middle + wide / 2 + 3, upper + 0.3 * high), (end[0] - 2, end[1] + 8))
    drawings.arrow(ax, start, (down - wide / 2 - 3, lower + 2), colour="green")
    drawings.arrow(ax, (down + wide / 2 + 3, lower), (up - thin / 2 - 3, lower), colour="green")
    drawings.label(ax, (down + wide / 2 + up) / 2, lower - 12, f"{RANK} numbers", size=10)
    drawings.arrow(ax, (up + thin / 2 + 3, lower), (end[0] - 4, end[1] - 6), colour="green")
    drawings.label(ax, (up + right) / 2 + 8, (lower + end[1]) / 2 - 8, "× α / r", across="left", size=10)


def weights_in_two_orders() -> Figure:
    """Draw how ``nn.Linear`` and ``Conv1D`` store one matrix, with queries, keys and values in it."""
    third = OUTPUTS // 3
    rows = [
        {
            "layer": name,
            "rows": shape[0],
            "columns": shape[1],
            "the queries are": "the upper third" if name == "nn.Linear" else "the left third",
            "numbers of each part": third,
        }
        for name, shape in (("nn.Linear", (OUTPUTS, INPUTS)), ("Conv1D", (INPUTS, OUTPUTS)))
    ]
    return show(
        _draw_orders,
        alt=f"Two blocks with the same numbers. nn.Linear: {OUTPUTS} rows of {INPUTS}, tall, with queries, keys and "
        f"values below each other. Conv1D: {INPUTS} rows of {OUTPUTS}, wide, with the three beside each other.",
        caption="One matrix in two orders. An adapter's product B A is (out, in), as nn.Linear has it; for Conv1D it "
        "has to be turned.",
        size=(WIDE, 2.6),
        narrow=(4.6, 2.6),
        name="weights-in-two-orders",
        rows=rows,
    )


def _draw_orders(figure: Canvas, theme: Theme) -> None:
    ax, width, height = drawings.sheet(figure)
    scale = (126 if is_narrow(figure) else 138) / OUTPUTS
    narrow, long = INPUTS * scale, OUTPUTS * scale
    left, bottom = 0.2 * width - narrow / 2, 14.0
    drawings.label(ax, left + narrow / 2, height - 12, "nn.Linear: (out, in)", bold=True)
    for place, (part, colour) in enumerate(zip(PARTS, COLOURS, strict=True)):
        y = bottom + long - (place + 1) * long / 3
        drawings.box(ax, left, y, narrow, long / 3, part, colour=colour, strength=0.3, size=10)
    left, bottom = 0.68 * width - long / 2, bottom + (long - narrow) / 2
    drawings.label(ax, left + long / 2, height - 12, "Conv1D: (in, out)", bold=True)
    for place, (part, colour) in enumerate(zip(PARTS, COLOURS, strict=True)):
        drawings.box(ax, left + place * long / 3, bottom, long / 3, narrow, part, colour=colour, strength=0.3, size=10)

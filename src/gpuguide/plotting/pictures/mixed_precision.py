"""Drawings of mixed precision: which format each part of a step has, and an update that rounding removes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.pictures.precision import LAYOUTS
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

# --- one step ----------------------------------------------------------------------------------------------

FORWARD = (
    ("weights", True),
    ("copies of\nweights", False),
    ("matmuls", False),
    ("residual,\nnorms, loss", True),
)
BACKWARD = (
    ("gradients of\nmatmuls", False),
    ("gradients\nof weights", True),
    ("unscale,\nthen clip", True),
    ("AdamW,\nmoments", True),
)
"""What a step makes, and whether it is in fp32"""


def formats_in_a_step() -> Figure:
    """Draw the parts of a training step under autocast, each in its format."""
    wide, short = (
        [text.replace("\n", " ") for text, in_fp32 in (*FORWARD, *BACKWARD) if in_fp32 is which]
        for which in (True, False)
    )
    return show(
        lambda figure, theme: _draw_step(figure),
        alt="A training step as eight boxes in a circle: weights, their 16-bit copies, matmuls, the residual stream "
        "with norms and loss, then back: gradients of matmuls, gradients of weights, unscaling and clipping, AdamW, "
        f"which updates the weights. In fp32: {', '.join(wide)}. In 16 bits: {', '.join(short)}.",
        caption="What is stored in fp32 under autocast. Blue is fp32, and orange is bf16 or fp16. The upper row "
        "is the forward pass. With fp16, the loss is scaled before the lower row.",
        size=(WIDE, 3.0),
        narrow=(4.6, 3.0),
        name="formats-in-a-step",
        rows=[
            {"part": text.replace("\n", " "), "format": "fp32" if in_fp32 else "16 bits"}
            for text, in_fp32 in (*FORWARD, *BACKWARD)
        ],
    )


def _draw_step(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    gap = 18.0 if is_narrow(figure) else 34.0
    across, tall = (width - 16 - 3 * gap) / 4, 52.0
    upper, lower = height - 30 - tall, height - 58 - 2 * tall - 14
    drawings.label(ax, 8, height - 12, "forward", across="left", bold=True)
    drawings.label(ax, width - 8, lower - 16, "backward, then the optimizer", across="right", bold=True)
    places = [8 + number * (across + gap) for number in range(4)]
    for place, (text, in_fp32) in zip(places, FORWARD, strict=True):
        _part(ax, place, upper, across, tall, text, in_fp32)
    for place, (text, in_fp32) in zip(reversed(places), BACKWARD, strict=True):
        _part(ax, place, lower, across, tall, text, in_fp32)
    for place in places[:-1]:
        drawings.arrow(ax, (place + across + 2, upper + tall / 2), (place + across + gap - 2, upper + tall / 2))
        drawings.arrow(ax, (place + across + gap - 2, lower + tall / 2), (place + across + 2, lower + tall / 2))
    right, left = places[-1] + across / 2, places[0] + across / 2
    drawings.arrow(ax, (right, upper - 2), (right, lower + tall + 2))
    drawings.arrow(ax, (left, lower + tall + 2), (left, upper - 2))
    middle = (upper + lower + tall) / 2
    drawings.label(ax, right - 8, middle, "× scale (fp16)", across="right", size=10)
    drawings.label(ax, left + 8, middle, "update", across="left", size=10)


def _part(ax: Axes, left: float, bottom: float, across: float, tall: float, text: str, in_fp32: bool) -> None:
    words = f"{text}\n{'fp32' if in_fp32 else '16 bits'}"
    drawings.box(ax, left, bottom, across, tall, words, colour="blue" if in_fp32 else "orange", strength=0.25, size=10)


# --- an update that is lost --------------------------------------------------------------------------------

WEIGHT, UPDATE = 1.0, 0.003


def round_to_format(value: float, name: str) -> float:
    """Return the number of a format that is nearest to a normal number.

    >>> round_to_format(1.003, "bf16"), round_to_format(0.997, "bf16")
    (1.0, 0.99609375)
    """
    gap = 2.0 ** (math.floor(math.log2(abs(value))) - LAYOUTS[name].mantissa_bits)
    return round(value / gap) * gap


def update_that_rounds_away() -> Figure:
    """Draw the bf16 numbers around 1, and where an update of a weight up and down ends."""
    up, down = (round_to_format(WEIGHT + sign * UPDATE, "bf16") for sign in (1, -1))
    return show(
        lambda figure, theme: _draw_update(figure, theme, up, down),
        alt=f"The bf16 numbers near 1 on a line: the gap is {2.0**-7:.4f} above 1 and {2.0**-8:.4f} below. From 1, an "
        f"update of +{UPDATE} leads to {WEIGHT + UPDATE}, which is rounded back to {up:g}. An update of -{UPDATE} "
        f"leads to {WEIGHT - UPDATE}, which is rounded to {down:.4f}.",
        caption=f"In bf16, a weight of 1 loses an update of +{UPDATE}. Ticks are all bf16 numbers of this range. "
        "Solid arrows are updates, dotted ones are the rounding.",
        size=(WIDE, 1.9),
        narrow=(4.6, 2.0),
        name="update-that-rounds-away",
        rows=[
            {"weight": WEIGHT, "update": sign * UPDATE, "stored_bf16": stored} for sign, stored in ((1, up), (-1, down))
        ],
    )


def _draw_update(figure: Canvas, theme: Theme, up: float, down: float) -> None:
    ax, width, _ = drawings.sheet(figure)
    low, high, y = 1 - 1.4 * 2.0**-7, 1 + 1.4 * 2.0**-7, 44.0
    scale = (width - 24) / (high - low)

    def at(value: float) -> float:
        return 12 + (value - low) * scale

    ax.plot([12, width - 12], [y, y], color=theme.ceiling, linewidth=1.4)
    numbers = [1 - n * 2.0**-8 for n in range(3)] + [1 + 2.0**-7]
    for value in numbers:
        ax.plot([at(value)] * 2, [y - 7, y + 7], color=theme.ceiling, linewidth=1.6)
        drawings.label(ax, at(value), y - 18, f"{value:.4f}".rstrip("0").rstrip("."), size=10)
    drawings.label(ax, width - 10, 8, "bf16 numbers", across="right", size=10)
    for sign, stored, colour in ((1, up, "orange"), (-1, down, "blue")):
        end, level = WEIGHT + sign * UPDATE, y + 34
        drawings.arrow(ax, (at(WEIGHT), level), (at(end), level), colour=colour, width=2)
        side: Literal["left", "right"] = "left" if sign > 0 else "right"
        words = f"+{UPDATE}: back to 1" if stored == WEIGHT else f"−{UPDATE}: to {stored:.4f}"
        drawings.label(ax, at(end) + 6 * sign, level + 15, words, across=side, size=10, bold=True)
        look = {"arrowstyle": "-|>", "color": theme.series[colour], "linestyle": ":", "linewidth": 1.6}
        ax.annotate("", (at(stored), y + 8), (at(end), level - 2), arrowprops=look)
    ax.plot([at(WEIGHT)] * 2, [y + 7, y + 42], color=theme.ceiling, linewidth=1, linestyle=":")

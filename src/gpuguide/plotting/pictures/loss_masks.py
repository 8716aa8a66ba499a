"""Drawings of what a mean counts: which targets of two micro-batches, each with which weight; and where a loss lies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

LENGTH, COUNTED = 12, (12, 3)
"""Targets of a micro-batch, and how many of the first and of the second count"""


def targets_that_count() -> Figure:
    """Draw two micro-batches with their masked targets, and the weight of each target in two kinds of means."""
    whole = sum(COUNTED)
    weights = {
        "mean of means": [1 / (len(COUNTED) * count) for count in COUNTED],
        "sum divided once": [1 / whole for _ in COUNTED],
    }
    over = weights["mean of means"][1] / weights["mean of means"][0]
    return show(
        lambda figure, theme: _draw_targets(figure, weights),
        alt=f"Two micro-batches of {LENGTH} targets. In the first, {COUNTED[0]} count; in the second, {COUNTED[1]}, "
        "and the others are −100. Below, a bar for the weight of each target. In the mean of means, a target of the "
        f"second micro-batch weighs {over:.0f} times as much as one of the first. If the sum is divided once, all "
        "targets weigh the same.",
        caption=f"A mean of means overweights sparse micro-batches. Of {LENGTH} targets each, {COUNTED[0]} and "
        f"{COUNTED[1]} count, and the dashed ones are −100. The height of a bar is the weight of its target; with "
        f"a mean of means, {over:.0f} times as much in the second micro-batch.",
        size=(WIDE, 2.9),
        narrow=(4.6, 2.9),
        name="targets-that-count",
        rows=[
            {"mean": name, "micro_batch": place + 1, "targets": COUNTED[place], "weight_of_each": weight}
            for name, each in weights.items()
            for place, weight in enumerate(each)
        ],
    )


def _draw_targets(figure: Canvas, weights: Mapping[str, list[float]]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, gap = (66.0 if is_narrow(figure) else 118.0), 14.0
    side = (width - left - gap - 8) / (2 * LENGTH)
    top, tall, most = height - 24, min(side, 20.0), max(max(each) for each in weights.values())
    rows = {"targets": top - tall}
    rows |= {name: top - tall - 74 * (place + 1) for place, name in enumerate(weights)}
    for name, y in rows.items():
        words = name.replace(" of ", " of\n").replace("divided ", "\ndivided\n") if is_narrow(figure) else name
        drawings.label(ax, left - 8, y + (tall / 2 if name == "targets" else 14), words, across="right")
    for batch, count in enumerate(COUNTED):
        start, colour = left + batch * (LENGTH * side + gap), ("blue", "orange")[batch]
        drawings.label(ax, start, height - 10, f"micro-batch {batch + 1}", across="left", bold=True)
        for place in range(LENGTH):
            counts, x = place < count, start + place * side
            drawings.box(ax, x, rows["targets"], side - 2, tall, colour=colour if counts else "", dashed=not counts,
                         strength=0.4 if counts else 0.0)  # fmt: skip
            for name, each in weights.items():
                if counts:
                    high = 56 * each[batch] / most
                    drawings.box(ax, x, rows[name], side - 2, high, colour=colour, strength=0.5)


def where_losses_lie(losses: Mapping[str, float] | None = None) -> Figure:
    """Draw losses in nats on one line, each with what gives it.

    Parameters
    ----------
    losses : mapping of str to float, optional
        What was trained, or compared with what, to its loss; by default only what follows from the vocabulary.
    """
    losses = losses or {"untrained: ln 2048": math.log(2048), "sure and right": 0.0}
    ordered = dict(sorted(losses.items(), key=lambda each: each[1]))
    spoken = "; ".join(f"{name}: {loss:.2f}" for name, loss in ordered.items())
    return show(
        lambda figure, theme: _draw_line(figure, theme, ordered),
        alt=f"Losses on a line in nats, from low to high. {spoken}.",
        caption="Losses of some mistakes. Nats per token, with this site's vocabulary of 2048 tokens. Green: right "
        "targets; orange: wrong ones; blue: formulas.",
        size=(WIDE, 0.8 + 0.33 * len(ordered)),
        narrow=(4.6, 0.8 + 0.33 * len(ordered)),
        name="where-losses-lie",
        rows=[{"what": name, "loss_nats": loss} for name, loss in ordered.items()],
    )


def _draw_line(figure: Canvas, theme: Theme, losses: Mapping[str, float]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, bottom = 18.0, 34.0
    scale = (width - left - 40) / max(losses.values())
    ax.plot([left, width - 22], [bottom, bottom], color=theme.ceiling, linewidth=1.4)
    for nats in range(0, int(max(losses.values())) + 1, 2):
        x = left + nats * scale
        ax.plot([x, x], [bottom - 4, bottom], color=theme.ceiling, linewidth=1.2)
        drawings.label(ax, x, bottom - 12, str(nats), size=10)
    drawings.label(ax, width - 8, bottom - 26, "loss, nats per token", across="right", size=10)
    step = (height - bottom - 16) / len(losses)
    for row, (name, loss) in enumerate(losses.items()):
        x, y = left + loss * scale, bottom + (row + 1) * step
        right = x < width / 2
        colour = theme.series["green" if "right" in name else "blue" if "untrained" in name else "orange"]
        ax.plot([x, x], [bottom, y], color=colour, linewidth=1.2, linestyle=":")
        ax.plot([x], [y], "o", color=colour, markersize=6)
        words = f"{name}, {loss:.2f}"
        drawings.label(ax, x + (8 if right else -8), y, words, across="left" if right else "right", size=10)

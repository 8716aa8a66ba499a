"""Drawings of training memory: its parts over one step, and the holes of PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuguide.costs import memory, presets
from gpuguide.plotting import drawings
from gpuguide.plotting.axes import linear_axis
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE
from gpuguide.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

COLOURS = {
    "weights": "blue",
    "optimizer": "green",
    "gradients": "orange",
    "copies": "sky",
    "activations": "violet",
    "logits": "ochre",
    "temporary": "grey",
}
"""Parts of memory from the bottom of a stack, with the colours that the calculator gives them"""
STEP = memory.Setup(batch=4, seq_len=2048, optimizer="adamw-fused")
"""The drawn step of Llama 3.2 1B"""
CHANGES: Mapping[str, Any] = {"loss": "chunked", "precision": "bf16", "optimizer": "adamw-8bit", "checkpointing": True}
DRAWN = {
    "loss, backward": "loss",
    "last layer, backward": "last layer,\nbackward",
    "first layer, backward": "first layer,\nbackward",
    "optimizer": "optimizer\nstep",
}
"""Moments of the cost model that are drawn, and their ticks"""
LABELS = {
    "weights": (0.8, "weights"),
    "optimizer": (0.8, "optimizer states"),
    "gradients": (3.35, "gradients"),
    "activations": (1.35, "activations"),
    "logits": (1.15, "logits"),
}
"""Where the name of a part stands, in moments from the left"""
SEGMENT = 20
"""GiB of the drawn segment"""
IN_USE = ((0, 5), (8, 4), (15, 3))
"""Where each tensor begins, and its size"""
ASKED = 7
"""Of a request that no hole serves, though the holes together are larger"""


def parts_over_a_step() -> Figure:
    """Draw the predicted parts of memory over one step, and the total after three changes as a dashed line."""
    shape = presets.shape("llama-3.2-1b")
    plain, changed = memory.predict(shape, STEP), memory.predict(shape, replace(STEP, **CHANGES))
    stacks = {part: _drawn_sizes(plain, part) for part in COLOURS}
    after = [sum(sizes) for sizes in zip(*(_drawn_sizes(changed, part) for part in COLOURS), strict=True)]
    before, lowered = format_bytes(plain.total), format_bytes(changed.total)

    def draw(figure: Canvas, theme: Theme) -> None:
        from matplotlib.ticker import MultipleLocator

        ax = figure.subplots()
        at = np.arange(len(DRAWN) + 1)
        bottom = np.zeros(len(at))
        for part, sizes in stacks.items():
            top = bottom + sizes
            hue = theme.series[COLOURS[part]]
            ax.fill_between(at, bottom, top, color=(hue, 0.3), linewidth=0)
            ax.plot(at, top, color=hue, linewidth=1)
            if part in LABELS:
                x, name = LABELS[part]
                middle = (np.interp(x, at, bottom) + np.interp(x, at, top)) / 2
                ax.annotate(name, (x, middle), ha="center", va="center")
            bottom = top
        ax.plot(at, after, color=theme.text, linestyle="--", linewidth=1.5)
        for x, y, text in ((1, plain.total, f"peak: {before}"), (2.9, after[3], f"with 3 changes: {lowered}")):
            ax.annotate(text, (x, y), (0, 5), textcoords="offset points", ha="center", va="bottom")
        ax.set_xticks(at, ["start", *DRAWN.values()])
        ax.set_xlim(0, len(DRAWN))
        linear_axis(ax.yaxis, "B", "memory")
        ax.yaxis.set_major_locator(MultipleLocator(8 * 2**30))
        ax.set_ylim(top=1.15 * plain.total)

    return show(
        draw,
        alt="Stacked areas over one step. Weights and optimizer states are level. Activations grow in the forward pass "
        "and shrink in the backward pass, while gradients grow. Logits exist at the loss only, where the peak is "
        f"{before}. A dashed line lies below: the total after three changes, {lowered} at its peak.",
        caption=f"Memory of Llama 3.2 1B over one step of 4 × 2048 tokens, predicted. Dashed: with the loss in chunks, "
        f"8-bit optimizer states and checkpointing, the peak is {lowered} instead of {before}.",
        size=(WIDE, 3.0),
        narrow=(4.6, 3.4),
        name="parts-over-a-step",
        rows=[
            {"moment": moment, **{part: sizes[at] for part, sizes in stacks.items()}, "after three changes": after[at]}
            for at, moment in enumerate(["start", *DRAWN])
        ],
    )


def _drawn_sizes(prediction: memory.MemoryPrediction, part: str) -> list[float]:
    """Return the bytes of a part before a step and at each drawn moment; workspace counts as temporary."""
    moments = {moment.name: moment.parts for moment in prediction.moments}
    sizes = [moments["optimizer"][part] if part in ("weights", "optimizer") else 0.0]
    sizes += [moments[name][part] for name in DRAWN]
    if part == "temporary":
        sizes = [size + moments["optimizer"]["workspace"] for size in sizes]
    return sizes


def holes_of_segment() -> Figure:
    """Draw a segment with tensors and holes, and a request that fits into none of them."""
    ends = [start + size for start, size in IN_USE]
    starts = [*(start for start, _ in IN_USE[1:]), SEGMENT]
    holes = [start - end for end, start in zip(ends, starts, strict=True)]

    def draw(figure: Canvas, theme: Theme) -> None:
        ax, width, height = drawings.sheet(figure)
        left, tall = 8.0, 34.0
        scale = (width - 2 * left) / (SEGMENT + sum(holes))
        upper, lower = height - tall - 22, 6.0
        names = {
            upper: f"a segment of {SEGMENT} GiB: no hole has {ASKED} GiB",
            lower: "an expandable segment maps the holes at its end",
        }
        for row, name in names.items():
            drawings.label(ax, left, row + tall + 11, name, across="left", size=10)
            for start, size in IN_USE:
                drawings.box(ax, left + start * scale, row, size * scale, tall, f"{size} GiB", colour="blue", size=10)
        for end, hole in zip(ends, holes, strict=True):
            drawings.box(ax, left + end * scale, upper, hole * scale, tall, str(hole), dashed=True, size=10)
        for row, fails in ((upper, True), (lower, False)):
            place = left + SEGMENT * scale
            drawings.box(
                ax,
                place,
                row,
                ASKED * scale,
                tall,
                f"{ASKED} GiB",
                colour="orange",
                dashed=fails,
                size=10,
            )

    return show(
        draw,
        alt=f"Two rows. In the first, a segment of {SEGMENT} GiB has three tensors of "
        f"{', '.join(str(size) for _, size in IN_USE)} GiB with holes of {', '.join(map(str, holes))} GiB between and "
        f"behind them, and a request of {ASKED} GiB fits into no hole. In the second, the holes' memory is at the end "
        "of the segment, and the request fits there.",
        caption="Fragmentation: a tensor needs one range of addresses, so a request can fail although more than it "
        "asks for is unused. An expandable segment moves unused memory to its end.",
        size=(WIDE, 1.75),
        narrow=(4.6, 1.75),
        name="holes-of-segment",
        rows=[{"tensor": start, "size": size} for start, size in IN_USE],
    )

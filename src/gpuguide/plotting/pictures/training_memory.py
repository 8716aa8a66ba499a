"""Drawings of training memory: its parts over one step, and the holes of PyTorch's allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

SEGMENT = 20
"""GiB of the drawn segment"""
IN_USE = ((0, 5), (8, 4), (15, 3))
"""Where each tensor begins, and its size"""
ASKED = 7
"""Of a request that no hole serves, though the holes together are larger"""


def parts_over_a_step() -> Figure:
    """Draw the parts of memory over one step: what stays, what grows and shrinks, and the highest moment."""
    moments = ("start", "layers forward", "loss", "last layer back", "first layer back", "step")
    parts = {
        "weights and averages": (6, 6, 6, 6, 6, 6),
        "gradients": (0, 0, 0, 0.5, 2, 2),
        "activations": (0, 3.5, 4, 3.8, 0.6, 0),
        "logits": (0, 0, 4, 0, 0, 0),
    }

    def draw(figure: Canvas, theme: Theme) -> None:
        ax = figure.subplots()
        colours = [theme.series[name] for name in ("blue", "orange", "violet", "ochre")]
        ax.stackplot(range(len(moments)), list(parts.values()), labels=parts, colors=colours)
        ax.set_xticks(range(len(moments)), [moment.replace(" ", "\n") for moment in moments])
        ax.set_yticks([])
        ax.set_ylabel("memory")
        ax.legend(loc="upper right", fontsize=9)

    return show(
        draw,
        alt="Stacked areas over one step. Weights and averages are level. Activations grow through the forward pass "
        "and shrink through the backward pass, while gradients grow. Logits are there at the loss only: the peak.",
        caption="The moments of a step, not to scale: what stays, what comes and goes, and the peak at the loss.",
        size=(WIDE, 2.6),
        narrow=(4.6, 3.0),
        name="parts-over-a-step",
        rows=[
            {"moment": moment, **{part: sizes[at] for part, sizes in parts.items()}}
            for at, moment in enumerate(moments)
        ],
    )


def holes_of_segment() -> Figure:
    """Draw a segment with tensors and holes, and a request that fits into none of them."""
    ends = [0, *(start + size for start, size in IN_USE)]
    starts = [start for start, _ in IN_USE[1:]] + [SEGMENT]
    holes = [start - end for end, start in zip(ends[1:], starts, strict=True)]

    def draw(figure: Canvas, theme: Theme) -> None:
        ax, width, height = drawings.sheet(figure)
        left, tall = 8.0, 34.0
        scale = (width - 2 * left) / SEGMENT
        top = height - tall - 20
        drawings.label(ax, width / 2, height - 8, f"one segment of {SEGMENT} GiB, reserved by PyTorch", size=10)
        for start, size in IN_USE:
            drawings.box(ax, left + start * scale, top, size * scale, tall, f"tensor\n{size} GiB")
        for end, hole in zip(ends[1:], holes, strict=True):
            drawings.box(ax, left + end * scale, top, hole * scale, tall, f"hole\n{hole} GiB", colour="")
        drawings.box(ax, left, 8, ASKED * scale, tall, f"request: {ASKED} GiB", colour="")
        drawings.label(
            ax, left + (ASKED + 6) * scale, 8 + tall / 2, f"{sum(holes)} GiB are free; no hole has {ASKED}", size=10
        )

    return show(
        draw,
        alt=f"A segment of {SEGMENT} GiB with three tensors of {', '.join(str(size) for _, size in IN_USE)} GiB and "
        f"holes of {', '.join(map(str, holes))} GiB between and behind them. Below, a request of {ASKED} GiB, which is "
        "larger than each hole and smaller than all of them together.",
        caption="Fragmentation: a tensor needs one piece of addresses, so a request can fail while more than it asks "
        "for is reserved and unused.",
        size=(WIDE, 2.4),
        narrow=(4.6, 2.4),
        name="holes-of-segment",
        rows=[{"tensor": start, "size": size} for start, size in IN_USE],
    )

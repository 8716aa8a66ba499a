"""Drawings of gradients: what the forward pass of a block keeps, and where the backward pass uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuguide.plotting import drawings, palette
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PARTS = (
    ("norm", "x̂, 1/σ, y"),
    ("attention", "Q, K, V, P, O"),
    ("+", ""),
    ("norm", "x̂, 1/σ, y"),
    ("feed-\nforward", "GELU's\nin and out"),
    ("+", ""),
)
"""Parts of a pre-norm block in the order of the forward pass, and what each keeps"""
WIDTHS = {"norm": 1.0, "attention": 1.5, "+": 0.5, "feed-\nforward": 1.2}
TALL = 30.0


def forward_and_backward() -> Figure:
    """Draw a transformer block forward and backward, with what is kept between the two passes."""
    return show(
        lambda figure, theme: _draw_passes(figure),
        alt="Two lanes. Forward, from left to right, a block is norm, attention, addition, norm, feed-forward, "
        "addition, and then comes the loss. Backward, the same parts are passed from right to left. Between the lanes "
        "is what each part keeps: the normalised input of a norm, Q, K, V, P and O of attention, the input and output "
        "of GELU. The additions keep nothing. In both lanes, a line leads past norm and attention, and another past "
        "norm and feed-forward.",
        caption="One transformer block. Each part keeps what its derivative needs (orange). An addition keeps nothing "
        "and passes the gradient on to both of its inputs (green).",
        size=(WIDE, 2.9),
        narrow=(4.6, 3.2),
        name="forward-and-backward",
        rows=[{"part": part.replace("-\n", "-"), "keeps": kept.replace("\n", " ")} for part, kept in PARTS],
    )


def _draw_passes(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    size, gap, margin = (8.5, 11.0, 4.0) if narrow else (11.0, 22.0, 10.0)
    loss = 30.0 if narrow else 44.0
    unit = (width - 2 * margin - loss - (len(PARTS) + 1) * gap) / sum(WIDTHS[part] for part, _ in PARTS)
    forward, backward = height - 40 - TALL, 34.0
    middle = (forward + backward + TALL) / 2
    x, splits = margin + gap, list[float]()
    drawings.label(ax, margin, height - 4, "forward", across="left", up="top", size=size, bold=True)
    drawings.label(ax, margin, 4, "backward", across="left", up="bottom", size=size, bold=True)
    for part, kept in PARTS:
        wide = WIDTHS[part] * unit
        is_addition = part == "+"
        for bottom in (forward, backward):
            drawings.box(ax, x, bottom, wide, TALL, part, colour="green" if is_addition else "blue", size=size)
        drawings.arrow(ax, (x - gap, forward + TALL / 2), (x, forward + TALL / 2), colour="blue")
        drawings.arrow(ax, (x, backward + TALL / 2), (x - gap, backward + TALL / 2), colour="pink")
        if is_addition:
            _go_past(ax, splits.pop(), x + wide / 2, forward, backward)
        else:
            if not splits:
                splits.append(x - gap / 2)
            centre = x + wide / 2
            drawings.arrow(ax, (centre, forward), (centre, middle + TALL / 2), width=1.0)
            drawings.arrow(ax, (centre, middle - TALL / 2), (centre, backward + TALL), width=1.0)
            spare = 0.7 * gap
            text = kept.replace(", ", " ") if narrow else kept
            drawings.box(
                ax, x - spare / 2, middle - TALL / 2, wide + spare, TALL, text, colour="orange", size=size - 0.5
            )
        x += wide + gap
    drawings.arrow(ax, (x - gap, forward + TALL / 2), (x, forward + TALL / 2), colour="blue")
    drawings.arrow(ax, (x, backward + TALL / 2), (x - gap, backward + TALL / 2), colour="pink")
    drawings.box(ax, x, backward, loss, forward + TALL - backward, "loss", size=size)


def _go_past(ax: Axes, split: float, addition: float, forward: float, backward: float) -> None:
    """Draw the residual connection around a part: above the forward lane, below the backward lane."""
    colour = palette.current().series["green"]
    top, low = forward + TALL + 14, backward - 14
    lane_up, lane_down = forward + TALL / 2, backward + TALL / 2
    ax.plot([split, split, addition], [lane_up, top, top], color=colour, linewidth=1.5)
    drawings.arrow(ax, (addition, top), (addition, forward + TALL), colour="green")
    ax.plot([addition, addition, split], [backward, low, low], color=colour, linewidth=1.5)
    drawings.arrow(ax, (split, low), (split, lane_down), colour="green")

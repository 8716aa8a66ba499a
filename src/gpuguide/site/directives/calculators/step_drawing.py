"""Memory over the moments of a step, as a drawing: parts as stacked areas, the capacity as a line, the peak ringed.

The calculator's script ``memory-over-step.js`` stacks the same way and draws what a reader fills in; the drawing here
is what stands there without scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gpuguide.costs import memory
from gpuguide.costs.memory import MemoryPrediction
from gpuguide.units import format_bytes

ORDER = (
    "weights",
    "optimizer",
    "cache",
    "workspace",
    "gradients",
    "copies",
    "activations",
    "logits",
    "temporary",
)
"""Parts from the bottom: those that stay over the whole step first, so that the others move on level ground"""
MOMENT_WORDS: Mapping[str, str] = {
    "loss, forward": "the loss",
    "loss, backward": "the loss's backward pass",
    "head, backward": "the head's backward pass",
    "last layer, backward": "the last layer's backward pass",
    "first layer, backward": "the first layer's backward pass",
    "embedding, backward": "the embedding's backward pass",
    "optimizer": "the optimizer's step",
    "widest layer": "the widest layer",
    "logits": "the logits",
}
"""Each moment of the cost model, as a sentence calls it"""
LEVEL = 0.36
"""How much of a moment's width is level to either side of its middle; between moments the drawing only joins them"""
WIDTH, HEIGHT = 700, 310
LEFT, RIGHT, TOP, BOTTOM = 62, 692, 34, 262


@dataclass(frozen=True)
class Stack:
    """The parts of each moment on top of each other.

    Parameters
    ----------
    parts : mapping
        Name of a part, the lowest first, to where it begins and ends in each moment, in bytes. Parts that no moment
        needs are left out.
    totals, above : tuple of float
        Bytes of each moment, and how many of them are beyond the capacity.
    peak : int
        Index of the highest moment.
    """

    parts: Mapping[str, tuple[tuple[float, float], ...]]
    totals: tuple[float, ...]
    above: tuple[float, ...]
    peak: int


def stack(prediction: MemoryPrediction, capacity: float) -> Stack:
    """Return the parts of each moment on top of each other, in :data:`ORDER`."""
    grounds = [0.0] * len(prediction.moments)
    parts = {}
    for part in ORDER:
        sizes = [moment.parts[part] for moment in prediction.moments]
        if any(sizes):
            tops = [ground + size for ground, size in zip(grounds, sizes, strict=True)]
            parts[part] = tuple(zip(grounds, tops, strict=True))
            grounds = tops
    return Stack(
        parts,
        tuple(grounds),
        tuple(max(0.0, total - capacity) for total in grounds),
        prediction.moments.index(prediction.highest),
    )


def describe(prediction: MemoryPrediction, index: int, capacity: float) -> str:
    """Return the sentence about one moment: its memory, its two largest parts, and how it stands to the capacity."""
    moment = prediction.moments[index]
    largest = sorted((part for part in ORDER if moment.parts[part]), key=lambda part: -moment.parts[part])[:2]
    parts = " and ".join(f"{memory.PART_NAMES[part]} {format_bytes(moment.parts[part])}" for part in largest)
    peak = ", the peak" if moment is prediction.highest else ""
    over = moment.total - capacity
    where = f"{format_bytes(abs(over))} {'above' if over > 0 else 'below'} the capacity"
    return f"At {MOMENT_WORDS[moment.name]}{peak}: {format_bytes(moment.total)}, of which {parts}; {where}."


def figure(prediction: MemoryPrediction, capacity: float, gpu: str) -> str:
    """Return the drawing with the names of its parts and a caption, as HTML: its colours are in the stylesheet."""
    stacked = stack(prediction, capacity)
    caption = f"<strong>Memory over one step.</strong> {escape(describe(prediction, stacked.peak, capacity))}"
    return (
        f'<figure class="gg-drawing gg-step-figure">{_draw(prediction, stacked, capacity, gpu)}{_legend(stacked)}'
        f"<figcaption>{caption} Between the moments the drawing only joins them.</figcaption></figure>"
    )


def _draw(prediction: MemoryPrediction, stacked: Stack, capacity: float, gpu: str) -> str:
    count = len(stacked.totals)
    column = (RIGHT - LEFT) / count
    top = 1.14 * max(*stacked.totals, capacity)

    def y(size: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * size / top

    def middle(index: int) -> float:
        return LEFT + (index + 0.5) * column

    def edge(sizes: Sequence[float]) -> list[str]:
        """Return the points of a line that is level at each moment."""
        sides = (-LEVEL * column, LEVEL * column)
        return [f"{middle(at) + side:.1f},{y(size):.1f}" for at, size in enumerate(sizes) for side in sides]

    def text(x: float, height: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{height:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

    ground = f"M{LEFT},{y(0):.1f}H{RIGHT}"
    pieces = [f'<path class="gg-grid" d="{ground}"/>', text(LEFT - 8, y(0) + 4, "0", "end")]
    for part, spans in stacked.parts.items():
        points = edge([high for _, high in spans]) + edge([low for low, _ in spans])[::-1]
        pieces.append(f'<polygon style="fill:var(--gg-part-{part})" points="{" ".join(points)}"/>')
    line = y(capacity)
    pieces.append(f'<path class="gg-step-capacity" d="M{LEFT},{line:.1f}H{RIGHT}"/>')
    high = stacked.totals[stacked.peak]
    x, to_the_right = middle(stacked.peak), stacked.peak < count / 2
    pieces.append(
        text(
            RIGHT if to_the_right else LEFT,
            line - 7,
            f"{gpu}: {format_bytes(capacity)}",
            "end" if to_the_right else "start",
        )
    )
    pieces.append(f'<circle class="gg-step-ring" cx="{x:.1f}" cy="{y(high):.1f}" r="7"/>')
    pieces.append(
        text(
            x + (14 if to_the_right else -14),
            y(high) - 10,
            f"peak: {format_bytes(high)}",
            "start" if to_the_right else "end",
        )
    )
    for index, moment in enumerate(prediction.moments):
        for row, word in enumerate(moment.name.split(", ")):
            pieces.append(text(middle(index), BOTTOM + 20 + 17 * row, word))
    label = escape(f"Memory over one step: {describe(prediction, stacked.peak, capacity)}")
    return (
        f'<svg class="gg-step" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(pieces)}</svg>'
    )


def _legend(stacked: Stack) -> str:
    """Return the parts that the drawing shows, each with its colour, the uppermost first."""
    parts = reversed(list(stacked.parts))
    names = (
        f'<li><span class="gg-swatch gg-part-{part}"></span>{escape(memory.PART_NAMES[part])}</li>' for part in parts
    )
    return f'<ul class="gg-step-parts">{"".join(names)}</ul>'

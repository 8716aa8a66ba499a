"""Drawings of where a loss's time goes: its matmuls, and the passes over the logits between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuguide.measure import measured_ceilings, store
from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.pictures.losses import SHAPE
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

Step = tuple[str, int]
"""A matmul, or the bytes that a pass moves for each logit"""
METHODS: dict[str, tuple[str, Sequence[Step]]] = {
    "gpuguide": ("in chunks, exponentials from the matmul", (("logits", 0), ("hidden", 0), ("head", 0))),
    "liger": ("Liger", (("logits", 0), ("pass", 4), ("hidden", 0), ("head", 0))),
    "torch-compile": ("compiled", (("logits", 0), ("loss", 2), ("grad", 4), ("hidden", 0), ("head", 0))),
}


def passes_over_the_logits() -> Figure:
    """Draw the steps of three losses to scale, as the ceilings predict them, with the measured time of each."""
    record, ceilings = store.load_published("linear-cross-entropy"), measured_ceilings.load_reference()
    tokens, hidden, vocab = SHAPE.values()
    matmul = 2 * tokens * hidden * vocab / ceilings.arithmetic["bf16"].value
    a_byte = tokens * vocab / ceilings.bandwidth["copy"].value
    steps = {
        name: [(text, a_byte * moved if moved else matmul, bool(moved)) for text, moved in parts]
        for name, (_, parts) in METHODS.items()
    }
    measured = {name: record.case(name, **SHAPE).metrics["time"].summary.median for name in METHODS}
    titles = {
        name: f"{METHODS[name][0]}: predicted {format_quantity(sum(each[1] for each in parts), 's')}, "
        f"measured {format_quantity(measured[name], 's')}"
        for name, parts in steps.items()
    }
    return show(
        lambda figure, theme: _draw(figure, theme, steps, measured, titles),
        alt="Three timelines. Each matmul is a blue box, and each pass over the logits an orange one. The loss in "
        "chunks has three matmuls and no pass, Liger's has a pass that reads and writes the logits, the compiled loss "
        "has two passes. A dashed line marks the measured time. "
        f"{'; '.join(titles.values())}.",
        caption="Three matmuls, and passes over the logits (orange). Boxes sum all chunks, predicted from the "
        f"ceilings; small chunks slow Liger's matmuls. Dashed: measured ({tokens:,} tokens of GPT-2).",
        records=[record],
        size=(WIDE, 2.7),
        narrow=(4.6, 2.9),
        name="passes-over-the-logits",
        rows=[
            {"loss": name, "step": text, "predicted_s": seconds, "measured_whole_s": measured[name]}
            for name, parts in steps.items()
            for text, seconds, _ in parts
        ],
    )


def _draw(
    figure: Canvas,
    theme: Theme,
    steps: dict[str, list[tuple[str, float, bool]]],
    measured: dict[str, float],
    titles: dict[str, str],
) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    scale = (width - 24) / max(measured.values())
    row, y = height / len(steps), height
    for name, parts in steps.items():
        y -= row
        start = 8.0
        title = titles[name].replace("exponentials from the matmul", "fused") if narrow else titles[name]
        drawings.label(ax, start, y + row - 12, title, across="left", size=10 if narrow else 11)
        for text, seconds, is_pass in parts:
            across = scale * seconds
            words = text if across > 5.4 * len(text) else ""
            colour = "orange" if is_pass else "blue"
            drawings.box(ax, start, y + 10, across, row - 36, words, colour=colour, strength=0.3, size=10)
            start += across
        x = 8 + scale * measured[name]
        ax.plot([x, x], [y + 4, y + row - 22], "--", color=theme.ceiling, linewidth=1.6)

"""Drawings of fine-tuning: thin matrices beside frozen ones, the two orders of weights, and what each way trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
        "has to be transposed.",
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


# --- which parts are trained --------------------------------------------------------------------------

LAYERS = 3


@dataclass(frozen=True)
class WeightColumn:
    """A way, as it is drawn."""

    title: str
    trained: int
    """Layers that are trained, counted from the head"""
    reached: int
    """Layers that the gradient passes"""
    new_head: bool = False
    thin: bool = False
    """Thin matrices beside all layers are trained"""
    embedding: bool = False
    text: str = "text"
    prompt: str = ""
    """What stands before the text"""


COLUMNS = (
    WeightColumn("examples\nin prompt", 0, 0, prompt="solved"),
    WeightColumn("new head", 0, 0, new_head=True),
    WeightColumn("last layers", 1, 1),
    WeightColumn("soft\nprompt", 0, LAYERS, prompt="vectors"),
    WeightColumn("LoRA", 0, LAYERS, thin=True),
    WeightColumn("all weights", LAYERS, LAYERS, embedding=True),
)


def parts_that_are_trained() -> Figure:
    """Draw a model six times: orange is trained, grey is frozen, and an arrow shows how far down the gradient goes."""
    return show(
        _draw_parts,
        alt="A model six times, each a stack: the text and its embedding below, three layers, the head on top. Orange "
        "is trained, grey is frozen, and an arrow from the head shows how deep the gradient goes. With examples in the "
        "prompt nothing is trained, and there is no arrow. With a new head only that is trained, and the arrow ends "
        "there. With the last layers, here one of three, it ends below them. A soft prompt, vectors before the text, "
        "is trained at the bottom, so the arrow passes all frozen layers. So it does with LoRA, thin matrices beside "
        "each layer, and where all weights are trained.",
        caption="What is trained, in orange, and what is frozen, in grey. The arrow is the gradient: it has to reach "
        "the lowest part that is trained. A soft prompt is a small part and lies deepest.",
        size=(WIDE, 3.6),
        narrow=(4.6, 6.4),
        name="parts-that-are-trained",
        rows=[
            {"way": column.title.replace("\n", " "), "layers_trained": column.trained, "layers_passed": column.reached}
            for column in COLUMNS
        ],
    )


def _draw_parts(figure: Canvas, theme: Theme) -> None:
    ax, width, height = drawings.sheet(figure)
    beside = 3 if is_narrow(figure) else len(COLUMNS)
    across, down = width / beside, height / (len(COLUMNS) // beside)
    for place, column in enumerate(COLUMNS):
        left, top = (place % beside) * across, height - (place // beside) * down
        _draw_column(ax, column, left, top, across, down)


def _draw_column(ax: Axes, column: WeightColumn, left: float, top: float, across: float, down: float) -> None:
    tall = (down - 58) / (LAYERS + 3)
    wide, x = across - 24, left + 4
    drawings.label(ax, x + wide / 2, top - 22, column.title, bold=True, size=10.5)
    bottom = top - down + 10
    _draw_input(ax, column, x, bottom, wide, tall - 5)
    places = [bottom + (level + 1) * tall for level in range(LAYERS + 2)]
    _part(ax, x, places[0], wide, tall - 5, "embedding", trained=column.embedding)
    for layer in range(LAYERS):
        trained = layer >= LAYERS - column.trained
        room = 14 if column.thin else 0
        _part(ax, x, places[layer + 1], wide - room, tall - 5, "layer", trained=trained)
        if column.thin:
            drawings.box(ax, x + wide - 10, places[layer + 1], 10, tall - 5, colour="orange", strength=0.6)
    _part(ax, x, places[-1], wide, tall - 5, "head", trained=column.new_head or column.embedding)
    if column.new_head or column.reached:
        deepest = bottom if column.prompt else places[0] if column.embedding else places[LAYERS + 1 - column.reached]
        beyond = x + wide + 8
        drawings.arrow(ax, (beyond, places[-1] + tall - 5), (beyond, deepest), colour="orange", width=1.8)


def _draw_input(ax: Axes, column: WeightColumn, x: float, bottom: float, wide: float, tall: float) -> None:
    if not column.prompt:
        drawings.label(ax, x + wide / 2, bottom + tall / 2, column.text, size=10)
        return
    part = wide * 0.66
    trained = column.prompt == "vectors"
    _part(ax, x, bottom, part, tall, column.prompt, trained=trained)
    drawings.label(ax, x + (wide + part) / 2 + 2, bottom + tall / 2, column.text, size=10)


def _part(ax: Axes, x: float, bottom: float, wide: float, tall: float, text: str, *, trained: bool) -> None:
    drawings.box(
        ax, x, bottom, wide, tall, text, colour="orange" if trained else "", strength=0.5 if trained else 0.12, size=10
    )

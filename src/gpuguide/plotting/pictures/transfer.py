"""Drawings of transfer learning: which parts of a model each way trains, and how far down its gradient goes."""

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

LAYERS = 3


@dataclass(frozen=True)
class Column:
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
    Column("examples\nin prompt", 0, 0, prompt="solved"),
    Column("new head", 0, 0, new_head=True),
    Column("last layers", 1, 1),
    Column("soft\nprompt", 0, LAYERS, prompt="vectors"),
    Column("LoRA", 0, LAYERS, thin=True),
    Column("all weights", LAYERS, LAYERS, embedding=True),
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
        "the lowest part that is trained. A soft prompt is the smallest of these parts and lies deepest.",
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


def _draw_column(ax: Axes, column: Column, left: float, top: float, across: float, down: float) -> None:
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


def _draw_input(ax: Axes, column: Column, x: float, bottom: float, wide: float, tall: float) -> None:
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

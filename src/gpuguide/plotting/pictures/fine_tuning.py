"""Drawings of fine-tuning: thin matrices beside frozen ones, the two orders of weights, and what each way trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

WIDTH, RANK = 768, 16
"""Of a square matrix of GPT-2, the ``c_proj`` of its attention, and the rank of the adapter that is drawn"""
INPUTS, OUTPUTS = WIDTH, 3 * WIDTH
"""Of GPT-2's ``c_attn``, which holds three such matrices"""
PARTS = ("queries", "keys", "values")
COLOURS = ("blue", "orange", "green")


def adapter_beside_weights() -> Figure:
    """Draw a frozen matrix, and beside it the one that the product of two thin ones fills, to scale."""
    frozen, thin = WIDTH * WIDTH, 2 * RANK * WIDTH
    return show(
        _draw_adapter,
        alt=f"Two squares of {WIDTH} by {WIDTH}, added. The first is W, frozen. The second is dashed and faint: along "
        f"its left side stands B, a strip {RANK} numbers wide, and along its upper side lies A, as thin. Both are "
        "trained, and their product fills the square: a row of B and a column of A meet in one of its cells. It is "
        "multiplied by alpha over rank.",
        caption=f"Two strips of rank {RANK} have {thin / frozen:.0%} as many weights as the square that their product "
        f"fills. To scale: W has {frozen:,} weights, A and B together {thin:,}.",
        size=(WIDE, 3.2),
        narrow=(4.6, 2.75),
        name="adapter-beside-weights",
        rows=[
            {"matrix": "W", "rows": WIDTH, "columns": WIDTH, "weights": frozen, "trained": "no"},
            {"matrix": "A", "rows": RANK, "columns": WIDTH, "weights": RANK * WIDTH, "trained": "yes"},
            {"matrix": "B", "rows": WIDTH, "columns": RANK, "weights": RANK * WIDTH, "trained": "yes"},
        ],
    )


def _draw_adapter(figure: Canvas, theme: Theme) -> None:
    ax, width, _ = drawings.sheet(figure)
    narrow = is_narrow(figure)
    side, between, gap = (108.0, 62.0, 5.0) if narrow else (150.0, 96.0, 7.0)
    thin = side * RANK / WIDTH
    left, bottom = (width - 2 * side - between - thin - gap) / 2, 34.0
    ghost, top, middle = left + side + between + thin + gap, bottom + side, bottom + side / 2
    strip_of_b, strip_of_a = ghost - gap - thin, top + gap
    drawings.box(ax, left, bottom, side, side, f"W\n{WIDTH} × {WIDTH}\nfrozen", strength=0.3)
    drawings.label(ax, left + side + (between - 14) / 2, middle, "+  α/r ×", size=11 if narrow else 13)
    drawings.box(ax, ghost, bottom, side, side, colour="green", strength=0.1, dashed=True)
    drawings.box(ax, strip_of_b, bottom, thin, side, colour="green", strength=1.0)
    drawings.box(ax, ghost, strip_of_a, side, thin, colour="green", strength=1.0)
    drawings.label(ax, ghost + side / 2, bottom + 0.36 * side, f"B A\n{WIDTH} × {WIDTH}")
    _draw_cell_of_product(ax, theme, (strip_of_b, ghost + 0.7 * side), (bottom + 0.74 * side, strip_of_a), thin)
    drawings.label(ax, ghost + side / 2, strip_of_a + thin + 11, f"A, trained: {RANK} × {WIDTH}", size=10)
    drawings.label(ax, strip_of_b, bottom - 12, f"B, trained: {WIDTH} × {RANK}", across="left", size=10)
    drawings.label(ax, left, top + 15, "y = W x + α/r · B (A x)", across="left", size=10 if narrow else 11, bold=True)


def _draw_cell_of_product(
    ax: Axes, theme: Theme, across: tuple[float, float], up: tuple[float, float], thin: float
) -> None:
    """Draw how a row of B, at the left, and a column of A, above, meet in a cell of their product."""
    cell: dict[str, Any] = {"color": theme.series["orange"], "linewidth": 1.3, "linestyle": (0, (2, 2))}
    middle = (across[1] + thin, up[0] + thin)
    ax.plot([across[0] + thin, middle[0] - thin], [middle[1]] * 2, **cell)
    ax.plot([middle[0]] * 2, [up[1], middle[1] + thin], **cell)
    for x, y, wide, high in (
        (across[0], middle[1] - thin / 2, thin, thin),
        (middle[0] - thin / 2, up[1], thin, thin),
        (middle[0] - thin, middle[1] - thin, 2 * thin, 2 * thin),
    ):
        drawings.box(ax, x, y, wide, high, colour="orange", strength=1.0)


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
        f"values one below another. Conv1D: {INPUTS} rows of {OUTPUTS}, wide, with the three side by side.",
        caption="One matrix in two layouts. An adapter's product B A is (out, in), as nn.Linear has it; for Conv1D it "
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
        alt="Six copies of a model, each a stack of the text and its embedding, three layers and the head on top. "
        "Orange is trained, grey is frozen, and an arrow from the head shows how deep the gradient goes. With "
        "examples in the prompt, nothing is trained, and there is no arrow. With a new head, only the head is "
        "trained, and the arrow ends there. With the last layers, here one of three, it ends below them. A soft "
        "prompt, vectors before the text, is trained at the bottom, so the arrow passes all frozen layers. The same "
        "holds for LoRA, low-rank matrices alongside each layer, and for training all weights.",
        caption="What is trained, in orange, and what is frozen, in grey. The arrow is the gradient: it has to reach "
        "the lowest part that is trained. A soft prompt is small, but the gradient passes all layers to reach it.",
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


# --- features that are kept ----------------------------------------------------------------------------------

STEPS = 3


def features_kept() -> Figure:
    """Draw the steps that train a new head: with the frozen model in each of them, and with features kept."""
    lines = {
        "the model runs in every step": ("model", "head") * STEPS,
        "the model runs once": ("model", *("head",) * STEPS),
    }
    return show(
        lambda figure, theme: _draw_features(figure, lines),
        alt=f"Two timelines of {STEPS} training steps. Above, the frozen model runs before the head in every step. "
        "Below, the model runs once, its features are kept, and each step trains only the head, so it ends earlier.",
        caption="With kept features, the frozen model runs once per example. Grey is the frozen model, orange the "
        "head that is trained. A sketch, not to scale: a step of the head takes microseconds.",
        size=(WIDE, 2.3),
        narrow=(4.6, 2.3),
        name="features-kept",
        rows=[
            {"line": name, "step": place, "runs": what}
            for name, parts in lines.items()
            for place, what in enumerate(parts)
        ],
    )


def _draw_features(figure: Canvas, lines: dict[str, tuple[str, ...]]) -> None:
    ax, width, height = drawings.sheet(figure)
    short = (width - 16) / (STEPS * 4.2)
    for row, (name, parts) in enumerate(lines.items()):
        top = height - row * height / 2
        drawings.label(ax, 8, top - 12, name, across="left", bold=True)
        x, y, tall = 8.0, top - 60, 36.0
        for what in parts:
            across = short * (3 if what == "model" else 1)
            words = "frozen model" if what == "model" else "head"
            colour, strength = ("", 0.12) if what == "model" else ("orange", 0.5)
            drawings.box(
                ax, x, y, across - 3, tall, words if across > 30 else "", colour=colour, strength=strength, size=10
            )
            x += across
            if what == "model" and row == 1:
                drawings.label(ax, x - 4, y - 11, "features kept", across="right", size=10)

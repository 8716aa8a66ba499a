"""Drawings of a token's way: from text to the next token, and the shift that keeps a softmax from overflowing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

LAYERS, HIDDEN, VOCAB = 12, 768, 50257
"""GPT-2's blocks, the size of its hidden state, and its vocabulary (A. Radford et al., 2019)"""
BLOCK = 12 * HIDDEN**2 + 13 * HIDDEN
"""Parameters of a block: attention, MLP, and two norms, with their biases"""
PIECES = {"The": 464, " capital": 3139, " of": 286, " France": 4881, " is": 318}
"""A text, cut as GPT-2's tokenizer cuts it, and the number of each token"""
ELEMENT, INTEGER = 2, 8
"""Bytes of a bf16 number, and of a token's number in PyTorch"""
SKETCH = (0.4, -1.1, 1.3, 0.9, -1.6, 2.6, -0.8, 1.8, -1.3, 0.6)
"""Logits for the sketch of a row; the probabilities beside them are their softmax"""
DRAWN = 7
"""The place in the sketch that is drawn: not the likeliest"""


# --- from text to the next token ---------------------------------------------------------------------------


def from_text_to_token() -> Figure:
    """Draw GPT-2's way from a text to the next token, with the shape and the bytes of what moves at each step."""
    moved = _what_moves()
    words = "; ".join(f"{name}: {shape}, {format_quantity(size, 'B')}" for name, shape, size in moved)
    weights = [format_quantity(size, "B") for name, _, size in moved if name.startswith("weights")]
    return show(
        _draw_way,
        alt="A text, cut into five tokens, becomes five numbers, then five vectors, which pass through the blocks. "
        "Only the vector of the last token is used further: the head turns it into logits, some above and some below "
        "zero; softmax makes them probabilities; one token is drawn and appended to the text, and the loop repeats. "
        f"What moves: {words}.",
        caption="How GPT-2 small gets from a text to its next token, in bf16. The data that change are small, but each "
        f"step also reads the weights of all blocks ({weights[0]}) and of the head ({weights[1]}).",
        size=(WIDE, 6.6),
        narrow=(4.6, 6.6),
        name="from-text-to-token",
        rows=[{"what": name, "shape": shape, "size_B": size} for name, shape, size in moved],
    )


def _what_moves() -> list[tuple[str, str, int]]:
    count = len(PIECES)
    return [
        ("tokens", f"{count}", count * INTEGER),
        ("vectors", f"{count} × {HIDDEN}", count * HIDDEN * ELEMENT),
        ("weights of the blocks", f"{LAYERS} × {BLOCK}", LAYERS * BLOCK * ELEMENT),
        ("hidden state", f"{HIDDEN}", HIDDEN * ELEMENT),
        ("weights of the head", f"{VOCAB} × {HIDDEN}", VOCAB * HIDDEN * ELEMENT),
        ("logits", f"{VOCAB}", VOCAB * ELEMENT),
        ("probabilities", f"{VOCAB}", VOCAB * ELEMENT),
        ("next token", "1", INTEGER),
    ]


def _draw_way(figure: Canvas, theme: Theme) -> None:
    ax, _, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, step = 8.0, (39.0 if narrow else 62.0)
    across = len(PIECES) * step
    middles = [left + (place + 0.5) * step for place in range(len(PIECES))]
    last, beside = middles[-1], left + across + (26 if narrow else 34)
    size = {name: (shape, format_quantity(amount, "B")) for name, shape, amount in _what_moves()}
    top = height - 6
    weights = "weights" if narrow else "weights, read each time"

    def note(y: float, what: str, *lines: str, bold: bool = False) -> None:
        drawings.label(ax, beside, y + (7 if lines else 0), what, across="left", bold=bold)
        if lines:
            drawings.label(ax, beside, y - 8, ", ".join(lines), across="left", size=10)

    for middle, (text, number) in zip(middles, PIECES.items(), strict=True):
        new: dict[str, Any] = {"colour": "blue", "strength": 0.12, "size": 10}
        drawings.box(ax, middle - step / 2 + 1.5, top - 26, step - 3, 24, text.strip(), **new)
        drawings.arrow(ax, (middle, top - 27), (middle, top - 45), width=1)
        drawings.box(ax, middle - step / 2 + 1.5, top - 70, step - 3, 24, str(number), **new)
        drawings.arrow(ax, (middle, top - 71), (middle, top - 89), width=1)
        _vector(ax, middle, top - 124, theme)
        drawings.arrow(ax, (middle, top - 126), (middle, top - 144), width=1)
        _vector(ax, middle, top - 240, theme, faint=middle != last)
    note(top - 14, "tokens" if narrow else "text, cut into tokens")
    note(top - 58, "numbers" if narrow else "each token's number", size["tokens"][1])
    note(top - 107, "vectors" if narrow else "embedding: a vector for each", size["vectors"][0], size["vectors"][1])
    drawings.box(ax, left, top - 186, across, 41, f"{LAYERS} blocks", colour="orange", strength=0.22)
    note(top - 166, weights, size["weights of the blocks"][1], bold=True)
    for middle in middles:
        drawings.arrow(ax, (middle, top - 187), (middle, top - 204), width=1)
    note(
        top - 222,
        "hidden state" if narrow else "hidden state of the last token",
        size["hidden state"][0],
        size["hidden state"][1],
    )
    drawings.arrow(ax, (last, top - 242), (last, top - 258))
    drawings.box(ax, left, top - 300, across, 41, f"head: {VOCAB} × {HIDDEN}", colour="orange", strength=0.22)
    note(top - 280, weights, size["weights of the head"][1], bold=True)
    drawings.arrow(ax, (left + across / 2, top - 302), (left + across / 2, top - 316))
    _row(ax, left, across, top - 348, SKETCH, theme, "blue")
    note(top - 338, f"{VOCAB} logits", size["logits"][1])
    drawings.arrow(ax, (left + across / 2, top - 368), (left + across / 2, top - 382))
    powers = [math.exp(each) for each in SKETCH]
    _row(ax, left, across, top - 417, [2.6 * each / max(powers) for each in powers], theme, "green", DRAWN)
    note(top - 400, "probabilities" if narrow else "probabilities, by softmax", size["probabilities"][1])
    place = left + (DRAWN + 0.5) * across / len(SKETCH)
    drawings.arrow(ax, (place, top - 419), (place, top - 434))
    drawings.box(ax, place - 40, top - 459, 80, 24, "next token", colour="pink", strength=0.2, size=10)
    note(top - 447, "drawn" if narrow else "drawn, appended, and again")
    _back(ax, theme, (place + 41, top - 447), left + across + 12, (left + across, top - 14))


def _vector(ax: Axes, middle: float, bottom: float, theme: Theme, *, faint: bool = False) -> None:
    """Draw a vector as an upright strip of cells."""
    from matplotlib.patches import Rectangle

    hue, cells = theme.series["blue"], 1 if faint else 3
    for cell in range(cells):
        tall, strength = 36 / cells, 0.06 if faint else 0.35 + 0.13 * cell
        look: dict[str, Any] = {"edgecolor": hue, "linewidth": 0.7, "linestyle": ":" if faint else "-"}
        ax.add_patch(Rectangle((middle - 5, bottom + tall * cell), 10, tall, facecolor=(hue, strength), **look))


def _row(
    ax: Axes,
    left: float,
    across: float,
    zero: float,
    heights: Sequence[float],
    theme: Theme,
    colour: str,
    mark: int = -1,
) -> None:
    """Draw numbers as bars on a line at ``zero``."""
    wide = across / len(heights)
    middles = [left + (place + 0.5) * wide for place in range(len(heights))]
    hues = [theme.series["pink" if place == mark else colour] for place in range(len(heights))]
    ax.bar(middles, [10 * each for each in heights], bottom=zero, width=0.7 * wide, color=hues, linewidth=0)
    ax.plot([left, left + across], [zero, zero], color=theme.faint, linewidth=1)


def _back(ax: Axes, theme: Theme, start: drawings.Place, right: float, end: drawings.Place) -> None:
    """Draw the way of the new token back to the end of the text, along the right of what it passed."""
    across, up = [start[0], right, right], [start[1], start[1], end[1]]
    ax.plot(across, up, color=theme.series["pink"], linewidth=1.5)
    drawings.arrow(ax, (right, end[1]), end, colour="pink")


# --- softmax, with the largest logit moved to zero ---------------------------------------------------------

LARGEST_FP16 = math.log(65504)
"""The logit above which exp leaves the range of fp16"""
FURTHEST, NEAREST = -5.4, 13.2
"""Ends of the line on which logits are drawn"""


def softmax_on_a_line(
    logits: Sequence[float] = (11.4, 9.4, 7.3), tokens: Sequence[str] = ("read", "open", "te")
) -> Figure:
    """Draw logits on a line before and after the largest is moved to zero, and the power of each.

    Parameters
    ----------
    logits : sequence of float
        The largest first, between the limit of fp16 and 13, and none more than 5 below it.
    tokens : sequence of str
        Their names.
    """
    largest = logits[0]
    powers = [math.exp(each - largest) for each in logits]
    shifted = ", ".join(
        f"{name} from {each:.1f} to {each - largest:.1f}" for name, each in zip(tokens, logits, strict=True)
    )
    return show(
        lambda figure, theme: _draw_line(figure, theme, logits, tokens),
        alt=f"A line of numbers. Above {LARGEST_FP16:.1f} it is shaded: there exp overflows in fp16, and the largest "
        f"logit lies in this range. All logits are shifted by the same distance: {shifted}. Bars show exp of the "
        f"shifted logits: {', '.join(f'{power:.2f}' for power in powers)}.",
        caption="Safe softmax shifts all logits by the same amount so that the largest is zero and no exponential "
        "exceeds one. The differences between the logits do not change.",
        size=(WIDE, 2.7),
        narrow=(4.6, 2.9),
        name="softmax-on-a-line",
        rows=[
            {"token": name, "logit": each, "moved": each - largest, "power": power}
            for name, each, power in zip(tokens, logits, powers, strict=True)
        ],
    )


def _draw_line(figure: Canvas, theme: Theme, logits: Sequence[float], tokens: Sequence[str]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, unit = 8.0, (width - 16) / (NEAREST - FURTHEST)
    line, tall = 46.0, 62.0

    def place_of(value: float) -> float:
        return left + (value - FURTHEST) * unit

    red = theme.series["red"]
    ax.fill_between([place_of(LARGEST_FP16), width - 2], line, height - 6, color=(red, 0.14), linewidth=0)
    drawings.arrow(ax, (left, line), (width - 2, line), width=1)
    for tick in range(-4, 13, 2):
        ax.plot([place_of(tick), place_of(tick)], [line - 4, line], color=theme.ceiling, linewidth=1)
        drawings.label(ax, place_of(tick), line - 12, str(tick).replace("-", "−"), size=10)
    largest = logits[0]
    for place, (name, value) in enumerate(zip(tokens, logits, strict=True)):
        start, end, power = place_of(value), place_of(value - largest), math.exp(value - largest)
        level = line + tall + 22 + 17 * place
        ax.plot([start, start], [line, level], color=theme.faint, linewidth=1, linestyle=":")
        ax.plot([end, end], [line + tall * power + 15, level], color=theme.faint, linewidth=1, linestyle=":")
        ax.plot([start], [line], "o", color=theme.series["blue"], markersize=8)
        drawings.arrow(ax, (start, level), (end, level), colour="blue", width=1)
        ax.bar([end], [tall * power], bottom=line, width=13, color=theme.series["green"], linewidth=0)
        drawings.label(ax, start, level + 8, name, size=10)
        drawings.label(ax, end, line + tall * power + 8, f"{power:.2g}" if power < 1 else "1", size=10)
    drawings.label(ax, place_of(0), 14, "powers, at most one", size=10)
    drawings.label(ax, width - 2, 14, "logits as they come", across="right", size=10)
    words = "exp overflows\nin fp16" if not is_narrow(figure) else "fp16\noverflows"
    drawings.label(ax, width - 5, height - 22, words, across="right", size=10)

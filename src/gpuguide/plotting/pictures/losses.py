"""Drawings of losses: what one token costs, which token is the target, what the gradient does, and a loss in chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuguide.measure import store
from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

CANDIDATES = ("0", "len", "1", "4", "x")
CHANCES = (0.22, 0.17, 0.13, 0.05, 0.01)
SENTENCE = ("for", " i", " in", " range", "(", "len")


def visible(token: str) -> str:
    """Return a token as drawings show it: a space as ␣, the end of a line as ↵."""
    return token.replace(" ", "␣").replace("\n", "↵")


def _token(ax: Axes, x: float, y: float, text: str, **look: Any) -> None:
    ax.text(x, y, visible(text), family="monospace", fontsize=11, va="center", **look)


# --- surprise, and its gradient ----------------------------------------------------------------------------


def surprise_of_a_token(
    tokens: Sequence[str] = CANDIDATES, chances: Sequence[float] = CHANCES, came: str = "len", before: str = ""
) -> Figure:
    """Draw the probabilities that a model gave to some tokens, and what each would cost in bits.

    Parameters
    ----------
    tokens, chances : sequence
        Tokens and their probabilities, from likely to unlikely.
    came : str
        The one of them that came.
    before : str
        The text that the model has read.
    """
    bits = [-math.log2(chance) for chance in chances]
    at = list(tokens).index(came)
    asked = f"After {before.strip()!r}, the" if before else "The"
    spoken = ", ".join(f"{token.strip()!r} {p:.2g}" for token, p in zip(tokens, chances, strict=True))
    return show(
        lambda figure, theme: _draw_surprise(figure, theme, tokens, chances, bits, at),
        alt=f"Two columns of bars, one row per token. Left: the probability that the model gave the token: {spoken}. "
        f"Right: the surprise at the token; the longer the left bar, the shorter the right one. {came!r} is the token "
        f"that came, with {bits[at]:.1f} bits.",
        caption=f"The surprise at a token. {asked} model spreads its probability over all tokens. The surprise at a "
        "token is the number of times that 1 must be halved to reach the token's probability: one bit for each "
        "halving. Lines in the bars mark whole bits; orange is the token that came.",
        size=(WIDE, 0.75 + 0.34 * len(tokens)),
        narrow=(4.6, 0.75 + 0.34 * len(tokens)),
        name="surprise-of-a-token",
        rows=[
            {"token": visible(token), "probability": p, "bits": b}
            for token, p, b in zip(tokens, chances, bits, strict=True)
        ],
    )


def _draw_surprise(
    figure: Canvas, theme: Theme, tokens: Sequence[str], chances: Sequence[float], bits: Sequence[float], at: int
) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, beside = (52.0, 40.0) if narrow else (84.0, 44.0)
    across = (width - left - 2 * beside - 16) / 2
    second = left + across + beside
    top, tall = height - 40, 24.0
    most = math.ceil(max(bits))
    for start, title in ((left, "probability"), (second, "surprise in bits")):
        drawings.label(ax, start, height - 12, title, across="left", bold=True)
    for row, (token, chance, bit) in enumerate(zip(tokens, chances, bits, strict=True)):
        y, colour, strength = top - row * tall, "orange" if row == at else "blue", 0.55 if row == at else 0.3
        _token(ax, left - 8, y, token, ha="right", weight="bold" if row == at else "normal")
        one, other = across * chance / max(chances), across * bit / most
        drawings.box(ax, left, y - 8, max(one, 1), 16, colour=colour, strength=strength)
        drawings.label(ax, left + one + 5, y, f"{chance:.2g}", across="left", size=10)
        drawings.box(ax, second, y - 8, other, 16, colour=colour, strength=strength)
        for halving in range(1, math.ceil(bit)):
            x = second + halving * across / most
            ax.plot([x, x], [y - 8, y + 8], color=theme.series[colour], linewidth=0.8)
        drawings.label(ax, second + other + 5, y, f"{bit:.1f}", across="left", size=10, bold=row == at)


def gradient_of_the_loss(
    tokens: Sequence[str] = CANDIDATES, chances: Sequence[float] = CHANCES, came: str = "len"
) -> Figure:
    """Draw the gradient of a loss: what was predicted, less what came. Parameters as in the other drawing."""
    at = list(tokens).index(came)
    slopes = [chance - (row == at) for row, chance in enumerate(chances)]
    spoken = ", ".join(f"{token.strip()!r} {slope:+.2g}" for token, slope in zip(tokens, slopes, strict=True))
    return show(
        lambda figure, theme: _draw_gradient(figure, theme, tokens, chances, slopes, at),
        alt="Three columns of bars, one row per token: the predicted probability, a one for the token that came, and "
        f"their difference, the gradient: {spoken}. A step against the gradient raises the logit of {came!r} and "
        "lowers the others.",
        caption="The gradient of the loss with respect to the logits is the prediction minus one at the target. A step "
        f"against it (arrows) raises the logit of {came!r} and lowers all others in proportion to their probability.",
        size=(WIDE, 0.75 + 0.34 * len(tokens)),
        narrow=(4.6, 0.75 + 0.34 * len(tokens)),
        name="gradient-of-the-loss",
        rows=[
            {"token": visible(token), "predicted": p, "came": int(row == at), "gradient": slope}
            for row, (token, p, slope) in enumerate(zip(tokens, chances, slopes, strict=True))
        ],
    )


def _draw_gradient(
    figure: Canvas, theme: Theme, tokens: Sequence[str], chances: Sequence[float], slopes: Sequence[float], at: int
) -> None:
    ax, width, height = drawings.sheet(figure)
    left, gap = (46.0, 16.0) if is_narrow(figure) else (84.0, 34.0)
    across = (width - left - 2 * gap - 40) / 4  # of what is one
    top, tall = height - 40, 24.0
    columns = left, left + across + gap, left + 2 * (across + gap)
    for x, title in zip(columns, ("predicted", "− came", "= gradient"), strict=True):
        drawings.label(ax, x, height - 12, title, across="left", bold=True)
    drawings.label(ax, width - 4, height - 12, "step", across="right", bold=True)
    zero = columns[2] + across
    for x in (*columns[:2], zero):
        ax.plot([x, x], [top - tall * (len(tokens) - 0.5), top + 12], color=theme.faint, linewidth=1)
    for row, (token, chance, slope) in enumerate(zip(tokens, chances, slopes, strict=True)):
        y = top - row * tall
        _token(ax, left - 8, y, token, ha="right", weight="bold" if row == at else "normal")
        drawings.box(ax, left, y - 8, max(across * chance, 1), 16, colour="blue", strength=0.35)
        if row == at:
            drawings.box(ax, columns[1], y - 8, across, 16, colour="orange", strength=0.5)
        colour = "orange" if slope < 0 else "blue"
        start = zero + min(0.0, across * slope)
        drawings.box(ax, start, y - 8, max(across * abs(slope), 1), 16, colour=colour, strength=0.5)
        beside = zero + max(0.0, across * slope) + 6
        drawings.label(ax, beside, y, f"{slope:+.2g}".replace("-", "−"), across="left", size=10, bold=row == at)
        x, by = width - 14, 8.0 if slope < 0 else -8.0
        drawings.arrow(ax, (x, y - by), (x, y + by), colour=colour)


# --- targets -----------------------------------------------------------------------------------------------


def targets_shifted_by_one(tokens: Sequence[str] = SENTENCE) -> Figure:
    """Draw a text as inputs and as targets, which are the same tokens one place earlier."""
    inputs, targets = tokens[:-1], tokens[1:]
    return show(
        lambda figure, theme: _draw_shift(figure, theme, inputs, targets),
        alt=f"Two rows of {len(inputs)} tokens. Inputs: {' '.join(map(visible, inputs))}. Targets, below them: "
        f"{' '.join(map(visible, targets))}. Each target is the next input, one place to the left.",
        caption="Inputs and targets are one text, shifted by one token. At each position, the model has read the "
        "inputs up to there and has to predict the target below. Dotted lines connect the same token.",
        size=(WIDE, 1.75),
        narrow=(4.6, 1.75),
        name="targets-shifted-by-one",
        rows=[{"input": visible(one), "target": visible(other)} for one, other in zip(inputs, targets, strict=True)],
    )


def _draw_shift(figure: Canvas, theme: Theme, inputs: Sequence[str], targets: Sequence[str]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, gap, tall = 62.0, 5.0 if is_narrow(figure) else 26.0, 28.0
    across = (width - left - 6) / len(inputs) - gap
    rows = {"inputs": (height - 42, inputs, "blue"), "targets": (height - 116, targets, "orange")}
    for name, (y, tokens, colour) in rows.items():
        drawings.label(ax, left - 8, y + tall / 2, name, across="right")
        for place, token in enumerate(tokens):
            x = left + place * (across + gap)
            drawings.box(ax, x, y, across, tall, colour=colour, strength=0.18)
            _token(ax, x + across / 2, y + tall / 2, token, ha="center")
    upper, lower = rows["inputs"][0] - 3, rows["targets"][0] + tall + 3
    for place in range(len(inputs)):
        x = left + place * (across + gap) + across / 2
        drawings.arrow(ax, (x, upper), (x, lower))
        if place:
            before = x - gap - across
            ax.plot([x - 6, before + 6], [upper, lower], ":", color=theme.series["grey"], linewidth=1.4)


# --- a loss in chunks --------------------------------------------------------------------------------------

SHAPE = {"tokens": 32768, "hidden": 768, "vocab": 50304}
"""GPT-2's head with a large batch, in bf16"""
CHUNK = 8192


def _bytes(*sizes: int) -> str:
    return format_quantity(2 * math.prod(sizes), "B")


def loss_in_chunks() -> Figure:
    """Draw how head and loss are computed a chunk of positions at a time."""
    tokens, hidden, vocab = SHAPE.values()
    sizes = {
        "hidden states": _bytes(tokens, hidden),
        "head": _bytes(vocab, hidden),
        "all logits": _bytes(tokens, vocab),
        "logits of a chunk": _bytes(CHUNK, vocab),
    }
    return show(
        lambda figure, theme: _draw_chunks(figure, theme, sizes),
        alt="Hidden states stand on the left and the head above. Where they cross lie the logits, of which only the "
        "rows of one chunk exist. From these rows arrows lead to the right, into the same rows of the gradient of the "
        f"hidden states, and down, where they are added to the gradient of the head. In bf16 all logits would take "
        f"{sizes['all logits']}, those of a chunk take {sizes['logits of a chunk']}.",
        caption="Head and loss, a chunk of positions at a time. Step 1 multiplies a chunk of hidden states by the "
        "head. Step 2 computes the loss and overwrites the logits with their gradient. Step 3 turns it into the "
        "gradient of the hidden states, and step 4 adds to that of the head. The next chunk uses the same memory. "
        f"Sizes: {tokens:,} tokens of GPT-2 in bf16.",
        size=(WIDE, 4.5),
        narrow=(4.6, 4.3),
        name="loss-in-chunks",
        rows=[{"tensor": name, "size": size} for name, size in sizes.items()],
    )


def _draw_chunks(figure: Canvas, theme: Theme, sizes: dict[str, str]) -> None:
    ax, width, height = drawings.sheet(figure)
    thin, gap = (40.0, 38.0) if is_narrow(figure) else (64.0, 58.0)
    flat, low = 34.0, 52.0
    left, right = 14.0, width - 14 - thin
    middle, across = left + thin + gap, width - 28 - 2 * thin - 2 * gap
    bottom = 18 + flat + low
    top = height - 22 - flat - 30
    part = (top - bottom) / 3.4
    chunk = top - 1.6 * part
    drawings.box(ax, middle, bottom, across, top - bottom, dashed=True, strength=0.04)
    never = f"never in memory:\nall logits, {sizes['all logits']}"
    drawings.label(ax, middle + across * 0.42, bottom + (chunk - bottom) / 2, never)
    words = f"logits of a chunk, then\ntheir gradient: {sizes['logits of a chunk']}"
    drawings.box(ax, middle, chunk, across, part, words, colour="green", strength=0.22)
    drawings.label(ax, middle + across / 2, chunk + part + 12, "2", bold=True)
    for x, title, colour in ((left, "hidden\nstates", "blue"), (right, "their\ngradient", "orange")):
        drawings.box(ax, x, bottom, thin, top - bottom, colour=colour, strength=0.08)
        drawings.box(ax, x, chunk, thin, part, colour=colour, strength=0.4)
        drawings.label(ax, x + thin / 2, top + 16, title)
    drawings.label(ax, left + thin / 2, bottom - 10, sizes["hidden states"], size=10)
    head, gradient = top + 30, 18.0
    drawings.box(ax, middle, head, across, flat, f"head, {sizes['head']}", colour="blue", strength=0.25)
    drawings.box(ax, middle, gradient, across, flat, "gradient of the head", colour="orange", strength=0.25)
    y, x = chunk + part / 2, middle + across / 2
    drawings.arrow(ax, (left + thin + 4, y), (middle - 4, y), colour="blue", width=2)
    drawings.arrow(
        ax, (middle + across * 0.2, head - 3), (middle + across * 0.2, chunk + part + 3), colour="blue", width=2
    )
    drawings.arrow(ax, (middle + across + 4, y), (right - 4, y), colour="orange", width=2)
    drawings.arrow(
        ax, (middle + across * 0.88, chunk - 3), (middle + across * 0.88, gradient + flat + 3), colour="orange", width=2
    )
    drawings.label(ax, left + thin + gap / 2, y + 12, "1", bold=True)
    drawings.label(ax, middle + across + gap / 2, y + 12, "3", bold=True)
    drawings.label(ax, middle + across * 0.88 + 10, bottom - 22, "4", across="left", bold=True)


PEERS = {"torch-eager": "eager PyTorch", "torch-compile": "compiled", "gpuguide": "in chunks"}
STEPS = 8
"""Product, to fp32, log-softmax, loss; backward of the loss, of the log-softmax, to bf16, two products"""
TENSORS = (  # of the usual way: its name, from which step to which, bytes a logit, and what lies below it
    ("logits", 0, 2, 2, 0),
    ("logits in fp32", 1, 4, 4, 4),
    ("log-probabilities in fp32", 2, 6, 4, 0),
    ("their gradient", 4, 6, 4, 4),
    ("gradient of the logits", 5, 7, 4, 8),
    ("in bf16", 6, 8, 2, 0),
)


def memory_of_a_loss() -> Figure:
    """Draw which tensors of the size of the logits exist when, in the usual way, compiled and in chunks."""
    record = store.load_published("linear-cross-entropy")
    peaks = {
        name: record.case(contender, **SHAPE).metrics["peak_memory"].summary.median for contender, name in PEERS.items()
    }
    spoken = "; ".join(f"{name} {format_quantity(peak, 'B')}" for name, peak in peaks.items())
    return show(
        lambda figure, theme: _draw_memory(figure, theme, peaks),
        alt="Three timelines, in which each tensor of the size of the logits is a box as high as its bytes, from the "
        "step that makes it to the one that needs it last. Eager PyTorch holds up to three fp32 tensors at once, the "
        f"compiled loss one in bf16, the loss in chunks a quarter of that. Measured peaks: {spoken}.",
        caption="Which tensors are in memory at which step. Heights are bytes; steps are not to scale. Numbers: "
        f"measured peaks of extra memory with {SHAPE['tokens']:,} tokens of GPT-2.",
        records=[record],
        size=(WIDE, 4.6),
        narrow=(4.6, 4.6),
        name="memory-of-a-loss",
        rows=[{"loss": name, "extra_memory_B": peak} for name, peak in peaks.items()],
    )


def _draw_memory(figure: Canvas, theme: Theme, peaks: dict[str, float]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, unit = 12.0, 13.0  # points a byte of each logit
    step = (width - left - 12) / STEPS
    names = [f"{name}: {format_quantity(peak, 'B')} at its peak" for name, peak in peaks.items()]
    base = height - 28 - 12 * unit
    drawings.label(ax, left, height - 12, names[0], across="left", bold=True)
    for text, first, last, high, below in TENSORS:
        words = text.replace(" in fp32", "\nin fp32").replace("gradient of the", "gradient of\nthe")
        place = left + first * step, base + below * unit
        drawings.box(ax, *place, (last - first) * step, high * unit, words, colour="blue", size=10)
    for row, (name, steps, size, colour) in enumerate(((names[1], 8, 2.0, "orange"), (names[2], 4, 0.5, "green"))):
        y = base - (46 + 2 * unit + row * 46)
        drawings.label(ax, left, y + size * unit + 12, name, across="left", bold=True)
        drawings.box(ax, left, y, steps * step, size * unit, colour=colour, strength=0.3)
    drawings.label(ax, left + 4.2 * step, y + 2, "its gradients are ready", across="left", size=10)
    drawings.extent(ax, left, left + 4 * step, 20, "forward pass", below=True)
    drawings.extent(ax, left + 4 * step, left + 8 * step, 20, "backward pass", below=True)

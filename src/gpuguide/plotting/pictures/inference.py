"""Drawings of writing: what passes through a model in prefill and in decode, and what a step's kernels wait for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gpuguide.measure import store
from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_bytes, format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

PROMPT = ("for", " i", " in", " range", "(")
"""Tokens of a prompt, as the tokenizer of the model that comes with the library cuts it"""
WRITTEN = ("len", "(", "self", "._")
"""The tokens that this model writes after it, the most likely one each time"""
LAYERS, HIDDEN, VOCAB, ELEMENT = 8, 256, 2048, 2
"""Of that model, and the bytes of a number in 16 bits"""
MATRICES = 12 * HIDDEN * HIDDEN
"""Weights in the matrices of one of its layers"""
READ = ELEMENT * (LAYERS * (MATRICES + 13 * HIDDEN) + 2 * HIDDEN + VOCAB * HIDDEN)
"""Bytes of weights that every pass reads: matrices, biases and norms of the layers, the last norm, and the head"""
CACHED = 2 * LAYERS * HIDDEN * ELEMENT
"""Bytes of keys and values that a token leaves behind"""


# --- a token's way -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForwardPass:
    """One pass through the model."""

    name: str
    taken: tuple[str, ...]
    """Tokens that go in"""
    written: str
    """The token that comes out"""
    cached: int
    """Tokens in the cache after it"""


def passes() -> list[ForwardPass]:
    """Return the prefill of the example and the decode steps that follow it."""
    found = [ForwardPass("prefill", PROMPT, WRITTEN[0], len(PROMPT))]
    for number, (taken, written) in enumerate(pairwise(WRITTEN), 1):
        found.append(ForwardPass(f"step {number}", (taken,), written, len(PROMPT) + number))
    return found


def prefill_and_decode() -> Figure:
    """Draw a prompt's tokens that go through a model at once, those it writes one by one, and the cache that grows."""
    found = passes()
    ways = "; ".join(
        f"{one.name}: {len(one.taken)} in, {one.written.strip()!r} out, {one.cached} in the cache" for one in found
    )
    read = format_quantity(READ, "B")
    return show(
        lambda figure, theme: _draw_passes(figure, theme, found),
        alt=f"Four passes from left to right, each a box of weights of the same height. {ways}. What comes out of a "
        "pass goes into the next. Below, a row of tiles for the keys and values grows by one tile per step.",
        caption=f"Prefill takes all tokens of the prompt at once; each decode step takes one, the token that was "
        f"generated last. Every pass reads all weights ({read} of the small model on this page, in 16 bits), and each "
        f"token leaves {format_bytes(CACHED)} of keys and values in the cache, which all later steps read.",
        size=(WIDE, 4.3),
        narrow=(4.6, 4.6),
        name="prefill-and-decode",
        rows=[
            {"pass": one.name, "tokens_in": len(one.taken), "token_out": one.written.strip(), "read_B": READ,
             "cached_tokens": one.cached, "cache_B": one.cached * CACHED}
            for one in found
        ],
    )  # fmt: skip


def _draw_passes(figure: Canvas, theme: Theme, found: list[ForwardPass]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, gap = (6.0, 9.0) if narrow else (8.0, 26.0)  # on a phone a token has little more room than its letters
    one = (width - 2 * left - 3 * gap) / (7.7 if narrow else 6.4)
    widths = [width - 2 * left - 3 * gap - 3 * one, one, one, one]
    base, tall = 150.0, height - 238
    x = left
    for number, (this, wide) in enumerate(zip(found, widths, strict=True)):
        drawings.label(ax, x + wide / 2, height - 12, this.name, bold=True)
        drawings.label(
            ax, x + wide / 2, height - 28, "all at once" if not number else "one" if narrow else "one token", size=10
        )
        colour = "blue"
        drawings.box(ax, x, base, wide, tall, colour=colour, strength=0.2)
        words = "layers and head:\nall weights are read" if not number else "all of\nthem\nagain"
        drawings.label(ax, x + wide / 2, base + tall / 2, words, size=10)
        _tokens_in(ax, x, wide, base, this)
        out = base + tall + 22
        drawings.arrow(ax, (x + wide / 2, base + tall), (x + wide / 2, out - 1), colour="orange")
        drawings.box(ax, x + wide / 2 - 17, out, 34, 20, this.written.strip(), colour="orange", strength=0.45, size=10)
        if number < len(found) - 1:
            aim = x + wide + gap + widths[number + 1] / 2
            edge = x + wide + gap / 2
            ax.plot([x + wide / 2 + 17, edge, edge], [out + 10, out + 10, base - 39], color=theme.series["orange"])
            drawings.arrow(ax, (edge, base - 39), (aim - 17, base - 39), colour="orange", width=1.2)
        _cache(ax, x, wide, this, narrow=narrow)
        x += wide + gap


def _tokens_in(ax: Axes, x: float, wide: float, base: float, this: ForwardPass) -> None:
    """Draw the tokens that go into a pass, side by side."""
    count = len(this.taken)
    each = min(46.0, wide / count) if count > 1 else 34.0
    start = x + (wide - count * each) / 2
    for place, token in enumerate(this.taken):
        middle = start + (place + 0.5) * each
        drawings.box(
            ax, middle - each / 2 + 1, base - 49, each - 2, 20, token.strip(), colour="orange", strength=0.2, size=10
        )
        drawings.arrow(ax, (middle, base - 28), (middle, base - 1), colour="orange", width=1.2)


def _cache(ax: Axes, x: float, wide: float, this: ForwardPass, *, narrow: bool) -> None:
    """Draw a tile for each token in the cache, those of this pass strong, with what they take."""
    side, across = (8.0 if narrow else 10.0), 4
    new = len(this.taken)
    start = x + wide / 2 - across * side / 2
    for place in range(this.cached):
        row, column = divmod(place, across)
        strength = 0.85 if place >= this.cached - new else 0.3
        drawings.tile(ax, start + column * side, 58 - row * side, side - 1.5, "green", strength)
    drawings.arrow(ax, (x + wide / 2, 98), (x + wide / 2, 72), colour="green", width=1.2)
    drawings.label(ax, x + wide / 2, 30, f"{this.cached} tokens" if narrow else f"cache: {this.cached} tokens", size=10)
    drawings.label(ax, x + wide / 2, 14, format_bytes(this.cached * CACHED), size=10)


# --- the kernels of a step -----------------------------------------------------------------------------------

RUNGS = {
    "hf-dynamic": "launched one by one",
    "torch-compile": "compiled, in a CUDA graph",
    "gpuguide": "fused, in a CUDA graph",
}
"""Three ways of writing that were measured, from slow to fast"""
SHOWN: dict[str, int | bool | str] = {
    "model": "gpt2-small",
    "batch": 1,
    "weights": "bf16",
    "prompt": 64,
    "new_tokens": 256,
}


def kernels_of_a_step() -> Figure:
    """Draw the kernels of a decode step as the host launches them, in a graph, and fused, with measured times."""
    record, ceilings = store.load_published("decode"), store.load_published("ceilings")
    times = {name: 1 / record.median(name, "throughput", **SHOWN) for name in RUNGS}
    words = [f"{RUNGS[name]}: {format_quantity(seconds, 's')}" for name, seconds in times.items()]
    launch = ceilings.median("launch", "time")
    static = 1 / record.median("hf-static", "throughput", **SHOWN)
    return show(
        lambda figure, theme: _draw_rungs(figure, theme, times),
        alt="Three timelines with the kernels of a decode step. Launched one by one, short kernels have wide gaps "
        "in which the GPU waits for the host. In a CUDA graph the same kernels follow one another closely. Fused, they "
        f"are only a few. A token takes: {'; '.join(words)}.",
        caption="What the GPU does in a decode step of GPT-2 small for one sequence. A sketch with measured times "
        "per token, prefill included: transformers in the first row, our own loop in the others. Compiled with a "
        f"static cache, transformers takes {format_quantity(static, 's')}. A launch takes the host "
        f"{format_quantity(launch, 's')}. A graph shortens the gaps; fusion reduces the number of kernels.",
        records=[record, ceilings],
        size=(WIDE, 2.8),
        narrow=(4.6, 2.8),
        name="kernels-of-a-step",
        rows=[{"way": RUNGS[name], "time_of_a_token_s": seconds} for name, seconds in times.items()],
    )


def _draw_rungs(figure: Canvas, theme: Theme, times: dict[str, float]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, right, tall = 50.0, width - (10 if narrow else 96), 20.0
    slot = (right - left) / 9
    tops = [height - 12, height - 100, height - 156]
    lanes = [height - 74, height - 136, height - 192]
    for (name, words), top, lane in zip(RUNGS.items(), tops, lanes, strict=True):
        spoken = format_quantity(times[name], "s")
        drawings.label(ax, 8, top, words, across="left", bold=True)
        if narrow:
            drawings.label(ax, width - 8, top, spoken, across="right", bold=True)
        else:
            drawings.label(ax, right + 12, (top + lane) / 2, f"{spoken}\na token", across="left")
        drawings.label(ax, left - 8, lane + tall / 2, "GPU", across="right", size=10)
        ax.plot([left, right], [lane - 3, lane - 3], color=theme.grid, linewidth=1)
    host = lanes[0] + tall + 8
    drawings.label(ax, left - 8, host + tall / 2, "host", across="right", size=10)
    for number in range(8):
        x, begin = left + number * slot, left + (number + 0.9) * slot
        drawings.box(ax, x, host, slot - 1, tall, colour="blue", strength=0.3)
        drawings.arrow(ax, (begin, host - 1), (begin + 2, lanes[0] + tall + 1), colour="blue", width=0.8)
        drawings.box(ax, begin, lanes[0], slot * 0.28, tall, colour="orange", strength=0.5)
        drawings.box(ax, left + number * slot * 0.34, lanes[1], slot * 0.28, tall, colour="orange", strength=0.5)
    x = left
    for wide in (0.5, 0.3, 0.4):
        drawings.box(ax, x, lanes[2], wide * slot, tall, colour="green", strength=0.5)
        x += wide * slot + 2
    drawings.label(ax, left + slot * 3, lanes[1] + tall / 2, "the host launches once", across="left", size=10)
    drawings.label(ax, x + 8, lanes[2] + tall / 2, "fewer kernels, the same weights", across="left", size=10)

"""Drawings of writing: what passes through a model in prefill and in decode, and what a step's kernels wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gpuguide.measure import measured_ceilings, reference_gpu, store
from gpuguide.plotting import drawings
from gpuguide.plotting.axes import log_axis
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.marks import legend, roofline
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
        caption="Prefill takes the whole prompt at once; each decode step takes one token. Every pass reads all "
        f"weights ({read} of this page's small model in 16 bits) and the cache, to which each token adds "
        f"{format_bytes(CACHED)}.",
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
    "hf-dynamic": "transformers, uncompiled",
    "torch-compile": "our loop, in a CUDA graph",
    "gpuguide": "fused kernels, in a CUDA graph",
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
        caption="A graph shortens the gaps between kernels; fusion reduces their number. A sketch of a decode step of "
        "GPT-2 small for one sequence, with measured times per token, prefill included. Compiled with a static cache, "
        f"transformers takes {format_quantity(static, 's')}. A launch takes the host {format_quantity(launch, 's')}.",
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


# --- passes on the roofline --------------------------------------------------------------------------------

SEVEN = "llama-7b-shape"
SEVENS_WEIGHTS = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
"""Weights in its matrices"""
PREFILLS = (64, 512, 4096)
DECODES = (1, 32, 128)
"""Tokens of the prompts, and sequences of the decode steps"""
Work = Mapping[tuple[str, int], tuple[float, float]]
"""FLOPs and bytes of a pass, by ``"prefill"`` or ``"decode"`` and its number of tokens or sequences"""


@dataclass(frozen=True)
class Pass:
    """A measured pass: FLOPs for each byte that it has to move, and FLOPs a second."""

    kind: str
    count: int
    intensity: float
    throughput: float


def measured_passes(work: Work) -> list[Pass]:
    """Return the passes of which ``work`` knows the FLOPs and bytes, as fast as our engine ran them in bf16."""
    found = []
    for (kind, count), (flops, moved) in work.items():
        if kind == "prefill":
            record = store.load_published("prefill")
            seconds = record.median("gpuguide", "time", model=SEVEN, batch=1, prompt=count)
        else:
            seconds = _step(SEVEN, "bf16", count)
        found.append(Pass(kind, count, flops / moved, flops / seconds))
    return found


def work_of_matrices() -> Work:
    """Return FLOPs and bytes of the matrices of Llama 2 7B alone, two of each for a weight, without attention."""
    passes = [("prefill", tokens) for tokens in PREFILLS] + [("decode", batch) for batch in DECODES]
    return {(kind, count): (2.0 * SEVENS_WEIGHTS * count, 2.0 * SEVENS_WEIGHTS) for kind, count in passes}


def _step(model: str, weights: str, batch: int) -> float:
    record = store.load_published("decode")
    keys: dict[str, Any] = {"model": model, "batch": batch, "weights": weights}
    return record.median("gpuguide", "step", prompt=64, new_tokens=256, **keys)


def passes_on_the_roofline(work: Work | None = None) -> Figure:
    """Draw measured prefills and decode steps of a 7B model under the measured ceilings.

    Parameters
    ----------
    work : mapping, optional
        FLOPs and bytes of each pass; by default those of the matrices alone.
    """
    gpu = measured_ceilings.load_reference()
    bandwidth, peak = gpu.bandwidth["read"].value, gpu.arithmetic["bf16"].value
    found = measured_passes(work or work_of_matrices())
    words = "; ".join(
        f"{each.kind} {each.count}: {each.intensity:.0f} FLOP/B, {format_quantity(each.throughput, 'FLOP/s')}"
        for each in found
    )
    return show(
        lambda figure, theme: _draw_roofline(figure, theme, bandwidth, peak, found),
        alt="A roofline, with a slope for the bandwidth of reads and a flat part for bf16 matmuls, and two series of "
        f"points below it. {words}.",
        caption="Decode lies below the slope, long prefills below the flat part. Measured passes of our engine in the "
        f"shape of Llama 2 7B in bf16 on {reference_gpu.word('a short')}. Numbers: tokens of the prompt, or sequences "
        "in a decode step.",
        records=[store.load_published(name) for name in ("prefill", "decode", "ceilings")],
        size=(WIDE, 3.6),
        narrow=(4.6, 3.8),
        name="passes-on-the-roofline",
        rows=[
            {"pass": each.kind, "tokens_or_sequences": each.count, "FLOP_per_B": each.intensity,
             "FLOP_per_s": each.throughput}
            for each in found
        ],
    )  # fmt: skip


def _draw_roofline(figure: Canvas, theme: Theme, bandwidth: float, peak: float, found: list[Pass]) -> None:
    ax = figure.subplots()
    roofline(ax, bandwidth=bandwidth, throughput=peak, label="measured ceilings", intensity=(0.5, 10_000))
    for kind, hue, marker in (("decode", "orange", "s"), ("prefill", "blue", "o")):
        points = [each for each in found if each.kind == kind]
        style: Any = {"color": theme.series[hue], "marker": marker, "linestyle": "none", "label": kind}
        ax.plot([each.intensity for each in points], [each.throughput for each in points], **style)
        for each in points:
            beside: Any = {"textcoords": "offset points", "ha": "left", "va": "top"}
            ax.annotate(str(each.count), (each.intensity, each.throughput), (6, -3), **beside)
    log_axis(ax.xaxis, "1", "FLOP per byte")
    log_axis(ax.yaxis, "FLOP/s", "throughput")
    ax.set_xlim(0.5, 10_000)
    legend(ax, at_lines=False)


# --- what a cache saves ------------------------------------------------------------------------------------

PROMPT_TOKENS, NEW_TOKENS = 4, 6


def tokens_passed(cached: bool) -> list[tuple[int, int]]:
    """Return of each pass the first token that goes through the layers, and how many tokens the text has then."""
    lengths = range(PROMPT_TOKENS, PROMPT_TOKENS + NEW_TOKENS)
    return [(length - 1 if cached and length > PROMPT_TOKENS else 0, length) for length in lengths]


def tokens_through_the_layers() -> Figure:
    """Draw which tokens go through the layers in each pass, without a cache and with one."""
    counts = {cached: sum(length - first for first, length in tokens_passed(cached)) for cached in (False, True)}
    return show(
        lambda figure, _: _draw_triangles(figure, counts),
        alt=f"Two triangles of tiles, a row for each of {NEW_TOKENS} passes and a column for each token. Without a "
        f"cache all tiles are full, {counts[False]} in all. With a cache, the first row and the last tile of each "
        f"other row are full, {counts[True]} in all; of the others only keys and values are read.",
        caption=f"A KV cache avoids recomputing old tokens. Prompt of {PROMPT_TOKENS}, and "
        f"{NEW_TOKENS} new ones. Orange: goes through all layers. Pale green: its keys and values are read.",
        size=(WIDE, 2.5),
        narrow=(4.6, 2.1),
        name="tokens-through-the-layers",
        rows=[
            {"cache": "yes" if cached else "no", "pass": number, "tokens_passed": length - first}
            for cached in (False, True)
            for number, (first, length) in enumerate(tokens_passed(cached), 1)
        ],
    )


def _draw_triangles(figure: Canvas, counts: dict[bool, int]) -> None:
    ax, width, height = drawings.sheet(figure)
    columns = PROMPT_TOKENS + NEW_TOKENS
    side = min((width - 30) / 2 / columns, (height - 46) / NEW_TOKENS)
    for panel, cached in enumerate((False, True)):
        left = 8 + panel * width / 2
        title = f"{'with' if cached else 'without'} a cache: {counts[cached]}"
        drawings.label(ax, left, height - 12, title, across="left", bold=True)
        looks: list[list[tuple[str, float] | None]] = []
        for first, length in tokens_passed(cached):
            looks.append([*[("green", 0.25)] * first, *[("orange", 0.6)] * (length - first)])
        drawings.tiles(ax, left, height - 28 - side * len(looks), side, looks)
    drawings.label(ax, 8, 9, "each row is a pass, each column a token", across="left", size=10)


# --- steps and their bounds --------------------------------------------------------------------------------

STEPS = (
    ("GPT-2 small", "gpt2-small", 1, ("bf16",)),
    ("Llama 3.2 1B shape", "llama-1b-shape", 1, ("bf16", "int8", "int4")),
    ("Llama 2 7B shape", SEVEN, 1, ("bf16", "int8", "int4")),
    ("7B shape, 32 sequences", SEVEN, 32, ("bf16", "int8", "int4")),
)
"""Title, model of the record, sequences, and formats of the weights"""


@dataclass(frozen=True)
class Step:
    """A measured decode step of our kernels, and its roofline bound, if that is known. Both in seconds."""

    title: str
    weights: str
    measured: float
    bound: float = 0.0

    @property
    def words(self) -> str:
        """The measured time, with the share of it that the bound takes."""
        share = f" ({self.bound / self.measured:.0%})" if self.bound else ""
        return format_quantity(self.measured, "s") + share


def steps_and_their_bounds(bound: Callable[[str, str, int], float] | None = None) -> Figure:
    """Draw decode steps by model, format and batch, each with the part of it that is its roofline bound.

    Parameters
    ----------
    bound : callable, optional
        Returns the roofline bound of a model of the record, a format and a batch; by default none is drawn.
    """
    steps = [
        Step(title, weights, _step(model, weights, batch), bound(model, weights, batch) if bound else 0.0)
        for title, model, batch, formats in STEPS
        for weights in formats
    ]
    words = "; ".join(f"{each.title}, {each.weights}: {each.words}" for each in steps)
    return show(
        lambda figure, _: _draw_steps(figure, steps),
        alt="Bars of time for decode steps. The dark part of each is its roofline bound, and its share is given in "
        f"brackets. {words}.",
        caption="For one sequence, int8 and int4 shorten the step. For 32, int8 does not. One decode step of our "
        "kernels, without prefill, for one sequence except in the last group. Dark, and in brackets: the roofline "
        "bound.",
        records=[store.load_published("decode"), store.load_published("ceilings")],
        size=(WIDE, 4.1),
        narrow=(4.6, 4.1),
        name="steps-and-their-bounds",
        rows=[
            {"model": each.title, "weights": each.weights, "bound_s": each.bound or "", "step_s": each.measured}
            for each in steps
        ],
    )


def _draw_steps(figure: Canvas, steps: Sequence[Step]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 46.0, 16.0
    scale = (width - left - 104) / max(each.measured for each in steps)
    down = (height - 4) / (len(steps) + 0.95 * len(STEPS))
    y, title = height - 2.0, ""
    for each in steps:
        if each.title != title:
            title = each.title
            y -= 0.95 * down
            drawings.label(ax, 6, y + 4, title, across="left", bold=True)
        y -= down
        drawings.label(ax, left - 8, y + tall / 2, each.weights, across="right", size=10)
        drawings.box(ax, left, y, each.measured * scale, tall, colour="blue", strength=0.15)
        if each.bound:
            drawings.box(ax, left, y, each.bound * scale, tall, colour="blue", strength=0.6)
        drawings.label(ax, left + each.measured * scale + 7, y + tall / 2, each.words, across="left")

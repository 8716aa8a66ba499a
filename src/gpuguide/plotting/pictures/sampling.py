"""Drawings of a draw: what each setting cuts off, how tokens race, and what a sampler reads to find a few of many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from gpuguide.measure import reference_gpu, store
from gpuguide.plotting import drawings, palette
from gpuguide.plotting.axes import log_axis
from gpuguide.plotting.figure import Figure, note, show
from gpuguide.plotting.marks import legend
from gpuguide.plotting.parts import grouped_bars, stacked_bars
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

EXAMPLE = {"mat": 2.4, "sofa": 1.7, "floor": 1.2, "bed": 0.7, "roof": 0.2, "moon": -0.6, "tax": -1.0, "of": -1.4}
"""Made-up logits of the token after "The cat sat on the", in falling order"""
TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 6, 0.95, 0.2
"""Settings of which each cuts something off in the example"""
RANDOM_NUMBER = 0.7
EXPONENTIAL = {"mat": 1.16, "sofa": 0.21, "floor": 0.32}
"""Exponentially distributed random numbers, for a race in which not the favourite wins"""


# --- from a distribution to a token ------------------------------------------------------------------------


@dataclass(frozen=True)
class FilterStage:
    """The distribution before a setting looks at it, and how many tokens, from the first, are left after it."""

    name: str
    says: str
    shares: tuple[float, ...]
    kept: int


def stages() -> list[FilterStage]:
    """Return what temperature, top-k, top-p and min-p do to the example, in this order, and what is left."""
    logits = np.array(list(EXAMPLE.values()))
    sharpened = logits / TEMPERATURE
    found = [
        FilterStage("the model's own", "eight of its tokens", _shares(logits), len(logits)),
        FilterStage(f"temperature {TEMPERATURE}", "the likely grow", _shares(sharpened), len(logits)),
    ]
    found.append(FilterStage(f"top-k {TOP_K}", "the first six", found[-1].shares, TOP_K))
    left = _shares(sharpened[:TOP_K])
    nucleus = int((np.cumsum(left) - left < TOP_P).sum())
    found.append(FilterStage(f"top-p {TOP_P}", f"until they reach {TOP_P}", left, nucleus))
    left = _shares(sharpened[:nucleus])
    likely = int((np.array(left) >= MIN_P * left[0]).sum())
    found.append(FilterStage(f"min-p {MIN_P}", "a fifth of the first", left, likely))
    left = _shares(sharpened[:likely])
    return [*found, FilterStage("the draw", f"{RANDOM_NUMBER} points to a token", left, likely)]


def _shares(logits: np.ndarray) -> tuple[float, ...]:
    powers = np.exp(logits - logits.max())
    return tuple(float(power) for power in powers / powers.sum())


def cut_and_draw() -> Figure:
    """Draw a distribution as a strip, what each setting cuts off it, and the random number that points to a token."""
    found = stages()
    drawn = list(EXAMPLE)[int((np.cumsum(found[-1].shares) < RANDOM_NUMBER).sum())]
    cuts = "; ".join(f"{stage.name} leaves {stage.kept}" for stage in found[2:-1])
    return show(
        lambda figure, theme: _draw_stages(figure, theme, found),
        alt=f"Six strips below each other, cut into tokens as wide as their probabilities. {cuts.capitalize()} of "
        f"{len(EXAMPLE)} tokens. What is left fills the last strip, where an arrow at {RANDOM_NUMBER} points to "
        f"{drawn!r}.",
        caption="One token is drawn. Temperature reshapes the strip. Each of the three cuts then removes tokens from "
        "the right (dashed), and the rest is stretched to the whole strip. A random number points to a token; the "
        "wider a token is, the more often it is hit. (Made-up logits.)",
        size=(WIDE, 4.3),
        narrow=(4.6, 5.7),
        name="cut-and-draw",
        rows=[
            {"stage": stage.name, "token": token, "probability": share, "kept": "yes" if place < stage.kept else "no"}
            for stage in found
            for place, (token, share) in enumerate(zip(EXAMPLE, stage.shares, strict=False))
        ],
    )


def _draw_stages(figure: Canvas, theme: Theme, found: list[FilterStage]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, tall = (10.0, 28.0) if narrow else (150.0, 30.0)
    across = width - left - 12
    step = (height - 40) / len(found)
    for number, stage in enumerate(found):
        bottom = height - (number + 1) * step + (2 if narrow else (step - tall) / 2)
        if narrow:
            drawings.label(ax, left, bottom + tall + 10, f"{stage.name}: {stage.says}", across="left")
        else:
            drawings.label(ax, left - 14, bottom + tall / 2 + 7, stage.name, across="right", bold=True)
            drawings.label(ax, left - 14, bottom + tall / 2 - 8, stage.says, across="right", size=10)
        _strip(ax, left, bottom, across, tall, stage)
        if stage.name.startswith("top-p"):
            drawings.moment(ax, left + TOP_P * across, bottom - 5, bottom + tall + 5)
        if stage.name.startswith("min-p"):
            start = left + sum(stage.shares[: stage.kept]) * across
            needed = MIN_P * stage.shares[0] * across
            ax.plot([start - needed, start], [bottom - 5, bottom - 5], color=theme.series["orange"], linewidth=3)
            drawings.label(ax, start - needed - 5, bottom - 6, "must be this wide", across="right", size=10)
    bottom = height - len(found) * step + (2 if narrow else (step - tall) / 2)
    x = left + RANDOM_NUMBER * across
    drawings.arrow(ax, (x, bottom - 26), (x, bottom - 1), colour="orange", width=2)
    drawings.label(ax, x - 8, bottom - 20, f"random number {RANDOM_NUMBER}", across="right")
    for place, text in ((0.0, "0"), (1.0, "1")):
        drawings.label(ax, left + place * across, bottom - 10, text, size=10)


def _strip(ax: Axes, left: float, bottom: float, across: float, tall: float, stage: FilterStage) -> None:
    x = left
    for place, (token, share) in enumerate(zip(EXAMPLE, stage.shares, strict=False)):
        wide, kept = share * across, place < stage.kept
        text = token if wide > 7 * len(token) + 5 else ""
        look = {"strength": 0.5 - 0.05 * place, "colour": "blue"} if kept else {"strength": 0.0, "colour": ""}
        drawings.box(ax, x + 0.5, bottom, max(wide - 1, 0.5), tall, text, dashed=not kept, **look)  # type: ignore[arg-type]
        x += wide


# --- the race ----------------------------------------------------------------------------------------------


def race_of_the_tokens() -> Figure:
    """Draw how long each token waits: an exponential random number over its probability. The first one is drawn."""
    shares = dict(zip(EXAMPLE, stages()[-1].shares, strict=False))
    times = {token: EXPONENTIAL[token] / share for token, share in shares.items()}
    first = min(times, key=lambda token: times[token])
    words = "; ".join(f"{token}: {EXPONENTIAL[token]} / {shares[token]:.2f} = {times[token]:.2f}" for token in shares)
    return show(
        lambda figure, theme: _draw_race(figure, shares, times, first),
        alt=f"Three lanes, one for each token that was kept, as long as the token waits. {words}. {first!r} is first.",
        caption="A race draws a token. The waiting time of each token is an exponential random number divided by its "
        "probability, and the token with the shortest time is drawn. So each token is drawn exactly as often as its "
        "probability says.",
        size=(WIDE, 2.7),
        narrow=(4.6, 3.2),
        name="race-of-the-tokens",
        rows=[
            {"token": token, "probability": shares[token], "random": EXPONENTIAL[token], "time": times[token]}
            for token in shares
        ],
    )


def _draw_race(figure: Canvas, shares: Mapping[str, float], times: Mapping[str, float], first: str) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, tall = (10.0, 22.0) if narrow else (190.0, 30.0)
    scale = (width - left - (70 if narrow else 90)) / max(times.values())
    head = 24.0
    step = (height - head - 34) / len(times)
    drawings.label(ax, 10, height - 14, "random number / probability = waiting time", across="left", bold=True)
    for number, (token, time) in enumerate(times.items()):
        bottom = height - head - (number + 1) * step + (4 if narrow else (step - tall) / 2)
        sum_of = f"{EXPONENTIAL[token]} / {shares[token]:.2f} = {time:.2f}"
        if narrow:
            drawings.label(ax, left, bottom + tall + 10, f"{token}:  {sum_of}", across="left")
        else:
            drawings.label(ax, left - 14, bottom + tall / 2, f"{token}   {sum_of}", across="right")
        won = token == first
        drawings.box(ax, left, bottom, time * scale, tall, colour="orange" if won else "blue", strength=0.45)
        if won:
            drawings.label(ax, left + time * scale + 10, bottom + tall / 2, "first: drawn", across="left", bold=True)
    if not narrow:  # there it would cross the words
        drawings.moment(ax, left + times[first] * scale, 24, height - head - 4)
    drawings.arrow(ax, (left, 16), (width - 50, 16), width=1)
    drawings.label(ax, width - 44, 16, "time", across="left", size=10)


# --- what a chain of functions moves -----------------------------------------------------------------------

CHAIN = {
    "temperature": 2.0,
    "top-k": 4.5,
    "sort": 28.0,
    "top-p": 10.0,
    "softmax": 2.0,
    "draw": 7.0,
}
"""What each function of the chain of transformers reads and writes at least, in reads of the fp32 logits

The page *Draw a token in one read of the logits* counts them.
"""
OF_SMALL_PARTS = 2 / 64 + 50 / 2004
"""The same of what our sampler moves beside its one read, for a vocabulary of 128256

A maximum for each group of 64 is written and read, and 50 of the 2004 groups are read once more.
"""


def chain_and_one_read() -> Figure:
    """Draw to scale what a chain of functions moves for one row of logits, and what the sampler of the site moves."""
    total, ours = sum(CHAIN.values()), 1 + OF_SMALL_PARTS
    words = ", ".join(f"{name} {reads:g}" for name, reads in CHAIN.items())
    return show(
        lambda figure, theme: _draw_chain(figure, theme, total, ours),
        alt=f"Two bars to scale, in units of one read of a row of logits. With several rows, a chain of functions "
        f"moves at least {total:g} for each: {words}. One read with a second look at a few groups moves {ours:.2f}.",
        caption=f"Bytes moved to draw one token, in units of one read of its row of logits. With several rows, a chain "
        f"of separate functions moves at least {total:g} times their bytes; little more than one read is enough. "
        "Calculated, not measured.",
        size=(WIDE, 2.9),
        narrow=(4.6, 3.3),
        name="chain-and-one-read",
        rows=[{"part": name, "reads": reads} for name, reads in [*CHAIN.items(), ("one read", ours)]],
    )


def _draw_chain(figure: Canvas, theme: Theme, total: float, ours: float) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, tall = 10.0, 40.0
    scale = (width - 2 * left) / total
    top = height - 34
    what = "a chain of functions" if narrow else "a chain of functions, each reading and writing whole rows"
    drawings.label(ax, left, height - 14, what, across="left")
    x, lifted = left, 0
    for name, reads in CHAIN.items():
        wide = reads * scale
        strong = name == "sort"
        drawings.box(ax, x + 0.5, top - tall, wide - 1, tall, colour="pink", strength=0.5 if strong else 0.25)
        if wide > 8 * len(name):
            drawings.label(ax, x + wide / 2, top - tall / 2, f"{name}\n{reads:g}")
        else:
            deep = 14 + 15 * (lifted == 0) if narrow else 14
            ax.plot([x + wide / 2] * 2, [top - tall, top - tall - deep + 6], color=theme.series["pink"], linewidth=1)
            short = "temp." if name == "temperature" and narrow else name
            at_edge = x < left + 20
            place = x if at_edge else x + wide / 2
            side = "left" if at_edge else "center"
            drawings.label(ax, place, top - tall - deep, f"{short} {reads:g}", across=side, size=10)  # type: ignore[arg-type]
            lifted += 1
        x += wide
    drawings.label(ax, width - left, height - 14, f"{total:g} reads", across="right", bold=True)
    base = 26.0
    drawings.label(ax, left, base + tall + 14, "one read, then a second look at a few groups", across="left")
    drawings.box(ax, left, base, ours * scale, tall, colour="green", strength=0.6)
    drawings.label(ax, left + ours * scale + 10, base + tall / 2, f"{ours:.2f} reads", across="left", bold=True)
    drawings.extent(ax, left + 10 * scale * 2, left + 10 * scale * 3, base - 6, "", colour="")
    drawings.label(ax, left + 10 * scale * 3 + 8, base - 6, "ten reads", across="left", size=10)


# --- the two kernels ---------------------------------------------------------------------------------------

VOCAB, GROUP, K = 128256, 64, 50
SHOWN = 26
"""Groups that are drawn, of some two thousand"""
CHOSEN = 5


def two_kernels() -> Figure:
    """Draw the sampler's two kernels: the largest logit of each group, and a second look at the groups it points to."""
    groups = -(-VOCAB // GROUP)
    row, maxima, again = (4 * count / 1024 for count in (VOCAB, groups, K * GROUP))
    heights = 0.25 + 0.75 * np.random.default_rng(7).beta(1.6, 3.2, SHOWN)
    bound = float(np.sort(heights)[-CHOSEN])
    return show(
        lambda figure, theme: _draw_kernels(figure, theme, heights, bound, (row, maxima, again), groups),
        alt=f"Above, a row of {VOCAB} logits cut into groups of {GROUP}; the first kernel reads all, {row:.0f} KiB, "
        f"and writes the largest of each, {maxima:.0f} KiB, drawn as bars. A dashed line is the k-th largest of them; "
        f"few bars reach it. Below, the second kernel reads only their groups again, {again:.1f} KiB, and one token "
        "comes out.",
        caption=f"The two kernels that draw a token with a top-k of {K}. Only the first reads the row ({row:.0f} KiB). "
        "No logit that top-k keeps lies below the k-th largest of the group maxima, so the second reads only the few "
        "groups whose maximum reaches it.",
        size=(WIDE, 4.6),
        narrow=(4.6, 4.6),
        name="two-kernels",
        rows=[
            {"what": "read by the first kernel", "KiB": row},
            {"what": "written: the largest of each group", "KiB": maxima},
            {"what": "read again by the second kernel", "KiB": again},
        ],
    )


def _draw_kernels(
    figure: Canvas, theme: Theme, heights: np.ndarray, bound: float, sizes: tuple[float, float, float], groups: int
) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    row, maxima, again = sizes
    left = 12.0
    side = (width - 2 * left) / len(heights)
    chosen = heights >= bound

    top = height - 22
    drawings.label(ax, left, height - 12, f"a row of logits: {groups} groups of {GROUP}", across="left", bold=True)
    xs = left + side * np.arange(len(heights))
    fills = [(theme.series["green"], 0.6) if each else (theme.faint, 0.35) for each in chosen]
    ax.bar(xs, 22, side - 2, top - 26, align="edge", color=fills)
    first = top - 62
    drawings.arrow(ax, (width / 2, top - 30), (width / 2, first + 4), width=2)
    drawings.label(ax, width / 2 - 10, top - 46, f"kernel 1 reads all: {row:.0f} KiB", across="right")
    drawings.label(ax, width / 2 + 10, top - 46, f"writes {maxima:.0f} KiB", across="left")

    tall = 78.0
    floor = first - 6 - tall
    ax.bar(xs, heights * tall, side - 2, floor, align="edge", color=fills)
    ax.plot(
        [left - 4, width - left + 2],
        [floor + bound * tall] * 2,
        color=theme.ceiling,
        linestyle=(0, (6, 2)),
        linewidth=1.4,
    )
    drawings.label(ax, left, floor - 11, "the largest logit of each group", across="left")
    words = "bound: the k-th largest" if narrow else "dashed: the bound, the k-th largest of these"
    drawings.label(ax, width - left, floor - 11, words, across="right")

    below = floor - 60
    places = [left + (place + 0.5) * side for place in np.flatnonzero(chosen)]
    wide = 40.0 if narrow else 62.0
    gap = 8.0
    start = (width - len(places) * (wide + gap)) / 2
    for number, x in enumerate(places):
        target = start + number * (wide + gap) + wide / 2
        drawings.arrow(ax, (x, floor - 20), (target, below + 24), colour="green", width=1)
        drawings.box(ax, target - wide / 2, below, wide, 22, colour="green", strength=0.3)
        for logit in range(3 if number % 2 else 2):
            drawings.tile(ax, target - wide / 2 + 5 + logit * (wide - 18) / 2, below + 7, 8, "orange", 0.9)
    reads = f"kernel 2 reads these again: {again:.1f} KiB"
    drawings.label(ax, left, below - 12, reads, across="left")
    candidates = "candidates" if narrow else "candidates: logits that reach the bound"
    beside = width - left - (76 if narrow else 236)
    drawings.tile(ax, beside, below - 16, 8, "orange", 0.9)
    drawings.label(ax, beside + 13, below - 12, candidates, across="left")

    names = ("compare\nall pairs", "keep by\nsettings", "race", "token")
    across = (width - 2 * left - 3 * 26) / 4
    for number, name in enumerate(names):
        begins = left + number * (across + 26)
        last = number == len(names) - 1
        drawings.box(ax, begins, 10, across, 36, name, colour="orange", strength=0.5 if last else 0.16)
        if number:
            drawings.arrow(ax, (begins - 24, 28), (begins - 2, 28))
    drawings.arrow(ax, (left + across / 2, below - 20), (left + across / 2, 48), colour="orange")


# --- where random numbers come from ------------------------------------------------------------------------

REQUESTS = ("A", "B", "C")
STEPS = 2


def numbers_drawn() -> list[dict[str, str]]:
    """Return which random number each step of request A gets: alone and in a batch, from a generator and by seed."""
    rows = []
    for step in range(STEPS):
        in_batch = step * len(REQUESTS) + 1
        rows.append({"source": "generator", "step": str(step), "alone": f"r{step + 1}", "in a batch": f"r{in_batch}"})
    for step in range(STEPS):
        own = f"A, {step}"
        rows.append({"source": "seed and step", "step": str(step), "alone": own, "in a batch": own})
    return rows


def random_numbers_of_a_batch() -> Figure:
    """Draw which random numbers a request gets from a generator with a state, and from its own seed and step."""
    words = "; ".join(
        f"{row['source']}, step {row['step']}: {row['alone']} alone, {row['in a batch']} in a batch"
        for row in numbers_drawn()
    )
    return show(
        lambda figure, theme: _draw_numbers(figure, theme),
        alt="Two tables of tiles, each with a row for request A alone and one for each of three requests in a batch, "
        "over two steps. From one generator, requests take its numbers in turn, so A gets others in the batch. From "
        f"seed and step, A gets the same. {words}.",
        caption="From a generator, a request's numbers depend on its neighbours. Each tile: the numbers of one draw. "
        "Orange: request A.",
        size=(WIDE, 2.6),
        narrow=(4.6, 4.7),
        name="random-numbers-of-a-batch",
        rows=numbers_drawn(),
    )


def _draw_numbers(figure: Canvas, theme: Theme) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    titles = ("one generator for the batch", "a number from seed and step")
    across = width - 16 if narrow else width / 2 - 20
    for panel, title in enumerate(titles):
        left = 8.0 if narrow or not panel else width / 2 + 12
        top = height - 10 - (panel * height / 2 if narrow else 0)
        drawings.label(ax, left, top, title, across="left", bold=True)
        begin = left + 76
        wide = (across - 76) / STEPS
        for step in range(STEPS):
            drawings.label(ax, begin + (step + 0.5) * wide, top - 22, f"step {step}", size=10)
        for row, request in enumerate(("A", *REQUESTS)):
            y = top - 56 - row * 28 - (12 if row else 0)
            name = f"{request} alone" if not row else request
            drawings.label(ax, begin - 10, y + 12, name, across="right", size=10)
            for step in range(STEPS):
                place = step + 1 if not row else step * len(REQUESTS) + row
                text = f"{request}, {step}" if panel else f"r{place}"
                colour = "orange" if request == "A" else "grey"
                strength = 0.4 if request == "A" else 0.15
                drawings.box(
                    ax, begin + step * wide + 3, y, wide - 6, 24, text, colour=colour, strength=strength, size=10
                )
        drawings.bracket(ax, left + 22, top - 56 - 3 * 28 - 12, top - 56 - 28 + 12, "batch")
    if not narrow:
        ax.plot([width / 2 - 4] * 2, [10, height - 10], color=theme.grid, linewidth=1)


# --- how long a draw takes ---------------------------------------------------------------------------------

CUTS = {"top-k-top-p": "top-k 50, top-p 0.9", "top-p": "top-p 0.9", "min-p": "min-p 0.05", "plain": "no cut"}
SAMPLERS = {"transformers": "transformers", "torch-graph": "PyTorch", "gpuguide": "sample_token"}
BATCHES = (1, 256)
WORDS = 128256
"""Of the vocabulary"""


def time_of_a_draw(sampler: str, batch: int, cut: str) -> float:
    """Return the median seconds of one draw; the usual settings have a benchmark of their own."""
    if cut == "top-k-top-p":
        name = {"torch-graph": "torch-topk-graph"}.get(sampler, sampler)
        return store.load_published("sample-token").median(name, "time", logits="flat", batch=batch, vocab=WORDS)
    record = store.load_published("sample-token-settings")
    return record.median(sampler, "time", settings=cut, batch=batch, vocab=WORDS)


def times_of_a_draw() -> Figure:
    """Draw how long three samplers take with four cuts, for one sequence and for many, next to one read."""
    rows = [
        {"sequences": batch, "cut": CUTS[cut], "sampler": SAMPLERS[name], "time_s": time_of_a_draw(name, batch, cut)}
        for batch in BATCHES
        for cut in CUTS
        for name in SAMPLERS
    ]
    words = "; ".join(
        f"{row['cut']}, {row['sampler']}: {format_quantity(time_of_a_draw(name, BATCHES[-1], cut), 's')}"
        for (cut, name), row in zip(product(CUTS, SAMPLERS), rows[-len(CUTS) * len(SAMPLERS) :], strict=True)
    )
    return show(
        lambda figure, theme: _draw_times(figure, theme),
        alt=f"Two panels, for one sequence and for {BATCHES[-1]}. In each, four cuts with three bars, one for each "
        f"sampler, on a logarithmic scale. With {BATCHES[-1]}: {words}.",
        caption=f"Of these three, our sampler is the fastest with every cut. Time of one draw from {WORDS:,} random "
        f"logits on {reference_gpu.word('a short')}, at temperature 0.8. The functions of transformers are "
        "launched one by one; the others are in a CUDA graph.",
        size=(WIDE, 3.4),
        narrow=(4.6, 5.6),
        name="times-of-a-draw",
        rows=rows,
    )


def _draw_times(figure: Canvas, theme: Theme) -> None:
    for benchmark in ("sample-token", "sample-token-settings"):
        note(store.load_published(benchmark), [*SAMPLERS, "torch-topk-graph"])
    narrow = is_narrow(figure)
    panels = figure.subplots(2, 1) if narrow else figure.subplots(1, 2, sharey=True)
    for ax, batch in zip(panels, BATCHES, strict=True):
        for number, (name, label_of_it) in enumerate(SAMPLERS.items()):
            style = palette.style(name)
            times = [time_of_a_draw(name, batch, cut) for cut in CUTS]
            places = np.arange(len(CUTS)) + 0.27 * (number - 1)
            ax.barh(places, times, 0.24, color=theme.series[style.colour], label=label_of_it)
            for place, seconds in zip(places, times, strict=True):
                text = format_quantity(seconds, "s", 2)
                ax.annotate(text, (seconds, place), (4, 0), textcoords="offset points", va="center", fontsize=10)
        ax.set_yticks(range(len(CUTS)), CUTS.values())
        ax.set_ylim(len(CUTS) - 0.5, -0.5)
        log_axis(ax.xaxis, "s", "")
        ax.set_xlim(2e-6, 0.4)
        ax.set_xticks([1e-5, 1e-3, 1e-1])
        ax.grid(axis="y", visible=False)
        ax.set_title("1 sequence" if batch == 1 else f"{batch} sequences")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", ncols=3)


# --- how many reads a draw takes ---------------------------------------------------------------------------

VOCABULARIES = {"GPT-2": 50304, "Llama 3": 128256, "Gemma 3": 262144}
REPLAYED = {"torch-topk-graph": "top-k first", "flashinfer": "FlashInfer", "gpuguide": "ours"}
MANY = 256
"""Sequences of the comparison of vocabularies"""


def seconds_of_a_draw(sampler: str, sequences: int, vocab: int) -> float:
    """Return the median seconds of one draw from flat logits with the usual settings."""
    return store.load_published("sample-token").median(sampler, "time", logits="flat", batch=sequences, vocab=vocab)


def seconds_of_a_read(sequences: int, vocab: int) -> float:
    """Return how long one read of the fp32 logits takes at the speed of a copy."""
    return 4 * sequences * vocab / store.load_published("ceilings").median("copy", "bandwidth")


def reads_by_vocabulary() -> Figure:
    """Draw how many reads of the logits a draw takes, for three vocabularies and three samplers."""
    reads = {
        name: [seconds_of_a_draw(name, MANY, vocab) / seconds_of_a_read(MANY, vocab) for vocab in VOCABULARIES.values()]
        for name in REPLAYED
    }
    told = "; ".join(f"{REPLAYED[name]} {', '.join(f'{each:.2f}' for each in found)}" for name, found in reads.items())

    def draw(figure: Canvas, theme: Theme) -> None:
        ax = figure.subplots()
        columns = zip(*reads.values(), strict=True)
        rows = {f"{name}\n{vocab:,}": found for (name, vocab), found in zip(VOCABULARIES.items(), columns, strict=True)}
        colours = {REPLAYED[name]: palette.style(name).colour for name in reads}
        grouped_bars(ax, rows, colours, unit="1", label="time, in reads of the logits")
        ax.axvline(1, color=theme.ceiling, linestyle=(0, (6, 2)), linewidth=1.5)
        legend(ax)

    return show(
        draw,
        alt=f"Bars for the vocabularies of {', '.join(VOCABULARIES)}, one for each of three samplers, in units of the "
        f"time of one read, with a dashed line there. {told}.",
        caption=f"Relative to one read, large vocabularies take less time. For {MANY} sequences, divided by the time "
        "of one read (dashed).",
        records=[store.load_published("sample-token"), store.load_published("ceilings")],
        size=(WIDE, 3.5),
        narrow=(4.6, 3.9),
        name="reads-by-vocabulary",
        rows=[
            {"vocabulary": vocab, "sampler": REPLAYED[name], "reads": each}
            for name, found in reads.items()
            for vocab, each in zip(VOCABULARIES.values(), found, strict=True)
        ],
    )


# --- one read, and the rest of a draw ----------------------------------------------------------------------

DRAWS = ((1, "Llama 3"), (8, "Llama 3"), (64, "Llama 3"), (MANY, "Llama 3"), (MANY, "GPT-2"), (MANY, "Gemma 3"))
"""Sequences and vocabulary of the bars"""


def read_and_rest() -> Figure:
    """Draw the time of our sampler as one read and the rest, for several batches and vocabularies."""
    rows = {}
    for sequences, name in DRAWS:
        read = seconds_of_a_read(sequences, VOCABULARIES[name])
        rows[f"{sequences}, {name}"] = (read, seconds_of_a_draw("gpuguide", sequences, VOCABULARIES[name]) - read)
    told = "; ".join(
        f"{name}: {format_quantity(read, 's')} and {format_quantity(rest, 's')}" for name, (read, rest) in rows.items()
    )

    def draw(figure: Canvas, theme: Theme) -> None:
        ax = figure.subplots()
        parts = {"one read": "blue", "the rest": "green"}
        stacked_bars(ax, rows, parts, unit="s", label="time of one draw")
        ax.set_ylabel("sequences, vocabulary")
        legend(ax)

    return show(
        draw,
        alt=f"A bar for each batch and vocabulary, made of the time of one read of the logits and the rest. {told}.",
        caption=f"For {MANY} sequences, the rest hardly depends on the vocabulary. One read: at the speed of a copy.",
        records=[store.load_published("sample-token"), store.load_published("ceilings")],
        size=(WIDE, 3.3),
        narrow=(4.6, 3.6),
        name="read-and-rest",
        rows=[{"draw": name, "read_s": read, "rest_s": rest} for name, (read, rest) in rows.items()],
    )


# --- a row in pieces ---------------------------------------------------------------------------------------

PROGRAMS = 4


def numbers_of_the_pieces() -> list[tuple[tuple[float, ...], float, float]]:
    """Return the logits of each piece of the example's row, the largest of them, and the sum of exponentials."""
    wide = len(EXAMPLE) // PROGRAMS
    logits = list(EXAMPLE.values())
    pieces = [tuple(logits[wide * number : wide * (number + 1)]) for number in range(PROGRAMS)]
    return [(piece, max(piece), float(np.exp(np.array(piece) - max(piece)).sum())) for piece in pieces]


def pieces_of_a_row() -> Figure:
    """Draw how programs share the softmax of a row: each reads a piece, and gives the others two numbers."""
    found = numbers_of_the_pieces()
    highest = max(largest for _, largest, _ in found)
    whole = sum(total * float(np.exp(largest - highest)) for _, largest, total in found)
    told = "; ".join(f"{', '.join(map(str, piece))}: {largest}, {total:.2f}" for piece, largest, total in found)
    return show(
        lambda figure, _: _draw_pieces(figure, found, highest, whole),
        alt=f"A row of {len(EXAMPLE)} logits is divided among {PROGRAMS} programs. Each finds the largest logit of its "
        f"piece and the sum of exponentials relative to it ({told}). Arrows lead from all of them to the numbers of "
        f"the row, {highest} and {whole:.2f}, and from there to the probabilities, which each program writes.",
        caption="Each program reads its piece once and shares two numbers. The logits are made up.",
        size=(WIDE, 3.5),
        narrow=(4.6, 3.5),
        name="pieces-of-a-row",
        rows=[
            {"program": number, "logits": " ".join(map(str, piece)), "largest": largest, "sum": total}
            for number, (piece, largest, total) in enumerate(found)
        ],
    )


def _draw_pieces(
    figure: Canvas, found: list[tuple[tuple[float, ...], float, float]], highest: float, whole: float
) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, gap, tall = 8.0, 8.0 if narrow else 16.0, 28.0
    across = (width - 2 * left - (PROGRAMS - 1) * gap) / PROGRAMS
    top, middle, shared, foot = height - 52, height - 116, height - 178, 8.0
    for number, (piece, largest, total) in enumerate(found):
        x = left + number * (across + gap)
        centre = x + across / 2
        name = f"program {number}"
        drawings.label(ax, centre, height - 12, name, bold=True, size=10 if narrow else 11)
        side = across / len(piece)
        for place, logit in enumerate(piece):
            drawings.box(ax, x + place * side + 1, top, side - 2, tall, f"{logit:.1f}", colour="blue", strength=0.3)
            share = float(np.exp(logit - highest)) / whole
            words = f"{share:.2f}" if side > 30 else f"{share:.2f}"[1:]
            drawings.box(ax, x + place * side + 1, foot, side - 2, tall, words, colour="blue", strength=0.3)
        numbers = f"max {largest:.1f}\nsum {total:.2f}"
        drawings.arrow(ax, (centre, top - 2), (centre, middle + tall + 8), width=1.2)
        drawings.box(ax, x + 3, middle - 4, across - 6, tall + 8, numbers, colour="orange", strength=0.3)
        drawings.arrow(ax, (centre, middle - 6), (centre, shared + tall + 2), colour="orange", width=1.2)
        drawings.arrow(ax, (centre, shared - 2), (centre, foot + tall + 2), width=1.2)
    words = f"the row: max {highest:.1f}, sum {whole:.2f}"
    drawings.box(ax, left, shared, width - 2 * left, tall, words, colour="orange", strength=0.5)
    for y, says in ((top - 12, "reads"), (shared - 14, "writes")):
        drawings.label(ax, left + across / 2 + 6, y, says, across="left", size=10)

"""Drawings of collectives: what ranks have before and after, the two phases of a ring, and sums during backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

RANKS = 3
COLOURS = ("blue", "orange", "green")
"""Of what comes from each rank; what is a sum over all has the colour violet"""
EVERYONE = -1
"""In place of a rank: the sum over all ranks"""
Part = tuple[int, int]
"""From which rank, and which piece of its message"""
Held = list[list[Part]]
"""What each rank has"""


# --- six collectives -----------------------------------------------------------------------------------------


def _own() -> Held:
    """Return all pieces of each rank's own message."""
    return [[(rank, piece) for piece in range(RANKS)] for rank in range(RANKS)]


def _sums() -> list[Part]:
    return [(EVERYONE, piece) for piece in range(RANKS)]


def six() -> dict[str, tuple[Held, Held]]:
    """Return what each rank has before and after each collective."""
    own = _own()
    return {
        "broadcast": (own, [own[0]] * RANKS),
        "reduce": (own, [_sums(), *own[1:]]),
        "all-reduce": (own, [_sums()] * RANKS),
        "all-gather": ([[own[rank][rank]] for rank in range(RANKS)], [[own[r][r] for r in range(RANKS)]] * RANKS),
        "reduce-scatter": (own, [[part] for part in _sums()]),
        "all-to-all": (own, [[own[other][rank] for other in range(RANKS)] for rank in range(RANKS)]),
    }


def six_collectives() -> Figure:
    """Draw what three ranks have before and after each of the six collectives."""
    return show(
        lambda figure, theme: _draw_six(figure),
        alt="Six pairs of tables with a row for each of three ranks. Broadcast: all rows become the first one. "
        "Reduce: the first row becomes the sums. All-reduce: all rows become the sums. All-gather: from one piece a "
        "rank to all pieces on each. Reduce-scatter: each rank has one piece of the sums. All-to-all: rows become "
        "columns.",
        caption="What three ranks have before and after each collective. Each colour is a rank's own message in "
        "pieces 0 to 2, and Σ is a sum over all ranks.",
        size=(WIDE, 3.1),
        narrow=(4.6, 4.8),
        name="six-collectives",
        rows=[
            {"collective": name, "moment": moment, "rank": rank, "has": " ".join(_text(part) for part in row)}
            for name, tables in six().items()
            for moment, held in zip(("before", "after"), tables, strict=True)
            for rank, row in enumerate(held)
        ],
    )


def _text(part: Part) -> str:
    rank, piece = part
    return f"Σ{piece}" if rank == EVERYONE else f"{'abc'[rank]}{piece}"


def _draw_six(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    columns = 2 if is_narrow(figure) else 3
    rows = 6 // columns
    wide, tall = width / columns, height / rows
    side = min((wide - 46) / (2 * RANKS), (tall - 40) / RANKS)
    for place, (name, (before, after)) in enumerate(six().items()):
        left, top = (place % columns) * wide + 8, height - (place // columns) * tall
        drawings.label(ax, left, top - 12, name, across="left", bold=True)
        lower = top - 26 - RANKS * side
        _draw_held(ax, left, lower, side, before)
        second = left + RANKS * side + 28
        drawings.arrow(ax, (second - 24, lower + RANKS * side / 2), (second - 5, lower + RANKS * side / 2))
        _draw_held(ax, second, lower, side, after)


def _draw_held(ax: Axes, left: float, bottom: float, side: float, held: Held) -> None:
    """Draw a table: a row for each rank, and in it a bar for pieces that come from one rank."""
    for rank, row in enumerate(held):
        y, x = bottom + (RANKS - 1 - rank) * side, left
        for source, pieces in groupby(row, key=lambda part: part[0]):
            texts = [_text(part) for part in pieces]
            colour = "violet" if source == EVERYONE else COLOURS[source]
            wide = len(texts) * side
            drawings.bar(ax, x, y, wide - 2, side - 2, colour, 0.25)
            drawings.label(ax, x + wide / 2 - 1, y + side / 2 - 1, "  ".join(texts), size=10)
            x += wide


# --- the ring ------------------------------------------------------------------------------------------------


def ring_states(ranks: int) -> list[list[list[int]]]:
    """Return how many summands each part of each rank has: before the first step of a ring, and after each."""
    states = [[[1] * ranks for _ in range(ranks)]]
    for step in range(2 * (ranks - 1)):
        state = [list(row) for row in states[-1]]
        for rank in range(ranks):
            part = (rank - step) % ranks
            state[(rank + 1) % ranks][part] = states[-1][rank][part] + (step < ranks - 1)
        states.append(state)
    return states


def ring_in_two_phases(ranks: int = RANKS) -> Figure:
    """Draw how many ranks' parts have been added up in each place after every step of a ring."""
    states = ring_states(ranks)
    steps = len(states) - 1
    return show(
        lambda figure, theme: _draw_states(figure, states),
        alt=f"{steps + 1} tables side by side, with a row for each of {ranks} ranks and a column for each part. At the "
        f"start each place holds one summand. In each of the first {ranks - 1} steps one part of each rank gains one, "
        f"until each rank has one complete sum of {ranks}. In the last {ranks - 1} steps the complete sums go around "
        "until all places hold them.",
        caption=f"A ring of {ranks} ranks: how many summands each part has after each step. In each "
        "step every rank sends one part to the next rank, and the last one to the first.",
        size=(WIDE, 1.7),
        narrow=(4.6, 3.4),
        name="ring-in-two-phases",
        rows=[
            {"step": step, "rank": rank, "part": part, "summands": count}
            for step, state in enumerate(states)
            for rank, row in enumerate(state)
            for part, count in enumerate(row)
        ],
    )


def _draw_states(figure: Canvas, states: Sequence[Sequence[Sequence[int]]]) -> None:
    ax, width, height = drawings.sheet(figure)
    ranks = len(states[0])
    lines = 2 if is_narrow(figure) else 1
    columns = -(-len(states) // lines)
    wide, tall = (width - 16) / columns, height / lines
    side = min((wide - 16) / ranks, (tall - 44) / ranks)
    for step, state in enumerate(states):
        left, top = 8 + (step % columns) * wide, height - (step // columns) * tall
        phase = "start" if step == 0 else f"{step}: scatter" if step < ranks else f"{step}: gather"
        drawings.label(ax, left, top - 13, phase, across="left", size=10, bold=True)
        for rank, row in enumerate(state):
            y = top - 28 - (rank + 1) * side
            for part, count in enumerate(row):
                colour, strength = ("violet", 0.4) if count == ranks else ("blue", 0.12 * count)
                drawings.bar(ax, left + part * side, y, side - 2, side - 2, colour, strength)
                drawings.label(ax, left + (part + 0.5) * side - 1, y + side / 2 - 1, str(count), size=10)


# --- sums during the backward pass -----------------------------------------------------------------------------

FORWARD, LAYERS, LAYER, SUM = 6.0, 4, 3.0, 1.8
"""Of the drawn step, in any unit: the forward pass, layers, the backward pass of each, the sum of its gradients"""
Span = tuple[float, float, str, str]


def after_backward() -> tuple[list[Span], list[Span]]:
    """Return what a GPU computes and what the link carries, if sums follow the backward pass."""
    end = FORWARD + LAYERS * LAYER
    sums = [(end + place * SUM, end + (place + 1) * SUM, "Σ", "orange") for place in range(LAYERS)]
    return _compute(), sums


def in_buckets() -> tuple[list[Span], list[Span]]:
    """Return what a GPU computes and what the link carries, if each sum starts when its gradients are there."""
    ready = [FORWARD + (place + 1) * LAYER for place in range(LAYERS)]
    return _compute(), [(begin, begin + SUM, "Σ", "orange") for begin in ready]


def _compute() -> list[Span]:
    layers = [
        (FORWARD + place * LAYER, FORWARD + (place + 1) * LAYER, f"layer {LAYERS - place}", "blue")
        for place in range(LAYERS)
    ]
    return [(0.0, FORWARD, "forward", ""), *layers]


def backward_with_buckets() -> Figure:
    """Draw the time line of a step whose all-reduces follow the backward pass, and of one where they run during it."""
    lines = {"All-reduce after the backward pass": after_backward(), "All-reduce in buckets": in_buckets()}
    return show(
        lambda figure, theme: _draw_lines(figure, lines),
        alt="Two time lines, each of what a GPU computes and what the link carries. In the first, forward pass and "
        "backward pass of all layers are followed by four all-reduces, and all of their time is exposed. In the second "
        "each all-reduce starts when its layer's gradients are complete, while the next layer computes, and only the "
        "last one is exposed.",
        caption="Σ is the all-reduce of one layer's gradients. After the backward pass all of them are exposed. In "
        "buckets, at best only the last one is. Lengths are chosen for clarity, not measured.",
        size=(WIDE, 2.8),
        narrow=(4.6, 3.0),
        name="backward-with-buckets",
        rows=_rows_of(lines),
    )


MATRIX, ROWS = 4.4, 2.2
"""The all-reduce of the gradient of a tied embedding, and the all-gather of its rows"""


def tied_as_one() -> tuple[list[Span], list[Span]]:
    """Return what a GPU computes and a link carries, if the gradient of a tied embedding is complete at the end."""
    compute, sums = in_buckets()
    end = compute[-1][1]
    return compute, [*sums[:-1], (end, end + SUM, "Σ", "orange"), (end + SUM, end + SUM + MATRIX, "matrix", "violet")]


def tied_in_two_parts() -> tuple[list[Span], list[Span]]:
    """Return what a GPU computes and a link carries, if the head's part goes first and the looked-up rows last."""
    compute, sums = in_buckets()
    spans, free = [(FORWARD, FORWARD + MATRIX, "head", "violet")], FORWARD + MATRIX
    for begin, _, text, colour in sums:
        free = max(begin, free)
        spans.append((free, free + SUM, text, colour))
        free += SUM
    return compute, [*spans, (free, free + ROWS, "rows", "violet")]


def tied_embedding() -> Figure:
    """Draw the time line of a step with a tied embedding, whose gradient is all-reduced as one or in two parts."""
    lines = {"Embedding as one gradient": tied_as_one(), "Head and rows apart": tied_in_two_parts()}
    return show(
        lambda figure, theme: _draw_lines(figure, lines),
        alt="Two time lines, each of what a GPU computes and what the link carries. In the first, the gradient of the "
        "whole matrix is all-reduced after the backward pass. In the second, the head's part is all-reduced at its "
        "beginning, and after it only the rows follow, so that less is exposed.",
        caption="A tied embedding's gradient as one, and with the head's part and the looked-up rows apart. The head's "
        "part is complete before the gradients of the layers. Lengths are chosen for clarity, not measured.",
        size=(WIDE, 2.8),
        narrow=(4.6, 3.0),
        name="tied-embedding",
        rows=_rows_of(lines),
    )


Lines = Mapping[str, tuple[Sequence[Span], Sequence[Span]]]


def _rows_of(lines: Lines) -> list[dict[str, str | float]]:
    return [
        {"variant": variant, "line": line, "from": begin, "to": end, "what": what}
        for variant, both in lines.items()
        for line, spans in zip(("GPU", "link"), both, strict=True)
        for begin, end, what, _ in spans
    ]


def _draw_lines(figure: Canvas, lines: Lines) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = (36.0, 22.0)
    computed = FORWARD + LAYERS * LAYER
    scale = (width - left - 8) / max(sums[-1][1] for _, sums in lines.values())
    for place, (title, (compute, sums)) in enumerate(lines.items()):
        top = height - 14 - place * (height - 8) / 2
        drawings.label(ax, left, top, title, across="left", bold=True, size=10)
        if is_narrow(figure):  # a layer is too narrow for its name
            compute = [(begin, end, text.removeprefix("layer "), colour) for begin, end, text, colour in compute]
        for line, spans, y in (("GPU", compute, top - 36), ("link", sums, top - 62)):
            drawings.label(ax, left - 4, y + tall / 2, line, across="right", size=10)
            drawings.time_line(ax, left, y, scale, spans, height=tall, size=9)
        ends = (left + computed * scale, left + sums[-1][1] * scale)
        drawings.extent(ax, *ends, top - 69, "exposed", below=True)


# --- unequally many tokens -----------------------------------------------------------------------------------

SEQUENCES = (3, 1)
"""Of each rank"""


def weights() -> dict[str, list[list[float]]]:
    """Return by how much each rank's sequences count: in the mean of the ranks' means, and in the mean over tokens."""
    ranks = len(SEQUENCES)
    return {
        "mean of means": [[1 / ranks / count] * count for count in SEQUENCES],
        "mean over all tokens": [[1 / sum(SEQUENCES)] * count for count in SEQUENCES],
    }


def unequal_tokens() -> Figure:
    """Draw by how much each sequence counts in the two means over ranks with unequally many."""
    return show(
        lambda figure, theme: _draw_weights(figure),
        alt="Two stripes of four boxes for four equally long sequences, as wide as each counts. In the mean of means "
        "the three of rank 0 count a sixth each, and the one of rank 1 a half. In the mean over all tokens each counts "
        "a quarter.",
        caption="How much each of four equally long sequences counts in the averaged gradient, three of them on rank 0 "
        "and one on rank 1.",
        size=(WIDE, 1.5),
        narrow=(4.6, 1.6),
        name="unequal-tokens",
        rows=[
            {"mean": mean, "rank": rank, "sequence": place, "weight": weight}
            for mean, by_rank in weights().items()
            for rank, row in enumerate(by_rank)
            for place, weight in enumerate(row)
        ],
    )


def _draw_weights(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    for place, (mean, by_rank) in enumerate(weights().items()):
        top = height - 12 - place * height / 2
        drawings.label(ax, 8, top, mean, across="left", bold=True, size=10)
        spans, begin = [], 0.0
        for rank, row in enumerate(by_rank):
            for weight in row:
                text = f"1/{round(1 / weight)}" if is_narrow(figure) else f"rank {rank}: 1/{round(1 / weight)}"
                spans.append((begin, begin + weight, text, COLOURS[rank]))
                begin += weight
        drawings.time_line(ax, 8, top - 36, width - 16, spans, height=24)


# --- ranks that call different collectives ---------------------------------------------------------------------

CALLS = (("all-reduce", "broadcast", "all-reduce"), ("all-reduce", "all-reduce", ""))
"""Of each rank, in order: rank 0 evaluates in between and broadcasts the result, which rank 1 does not expect"""


def mismatched_calls() -> Figure:
    """Draw the collectives that two ranks call, of which the second ones do not belong together."""
    return show(
        lambda figure, theme: _draw_calls(figure),
        alt="Two rows of collectives, one for each of two ranks. Both ranks call an all-reduce first. Then rank 0 "
        "calls a broadcast and rank 1 an all-reduce: they do not match, and everything after them waits.",
        caption="Rank 0 calls a broadcast that rank 1 does not call. NCCL pairs calls by their order, so the second "
        "calls of the two ranks meet.",
        size=(WIDE, 1.4),
        narrow=(4.6, 1.4),
        name="mismatched-calls",
        rows=[
            {"rank": rank, "call": place + 1, "collective": name}
            for rank, names in enumerate(CALLS)
            for place, name in enumerate(names)
            if name
        ],
    )


def _draw_calls(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 50.0, 28.0
    wide = (width - left - 8) / len(CALLS[0])
    for place, names in enumerate(zip(*CALLS, strict=True)):
        middle = left + (place + 0.5) * wide
        drawings.label(ax, middle, height - 12, f"call {place + 1}", size=10, bold=True)
        matches = len(set(names)) == 1
        for rank, name in enumerate(names):
            y = height - 28 - tall - rank * (tall + 8)
            colour = "green" if matches else "orange" if place == 1 else ""
            drawings.box(ax, left + place * wide, y, wide - 8, tall, name, colour=colour, dashed=not name, size=10)
    for rank in range(len(CALLS)):
        y = height - 28 - tall / 2 - rank * (tall + 8)
        drawings.label(ax, left - 6, y, f"rank {rank}", across="right", size=10)

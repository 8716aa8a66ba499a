"""Drawings of attention: its scores, tile by tile, what is kept of them, and what a GPU does at the same time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

TILE, HEAD_DIM = 64, 128
"""Queries, and keys, of a tile, and numbers in a row of it, as the kernel for heads of 128 has them"""

# --- what moves --------------------------------------------------------------------------------------------


def tile_traffic() -> Figure:
    """Draw what moves between a GPU's memory and the multiprocessor that owns a tile of queries."""
    rows, scores = 2 * TILE * HEAD_DIM, 4 * TILE * TILE
    sizes = {"queries": rows, "keys and values": 2 * rows, "scores": scores, "output": rows}
    spoken = {name: format_quantity(size, "B") for name, size in sizes.items()}
    return show(
        lambda figure, theme: _draw_traffic(figure, spoken),
        alt="On the left the memory of the GPU with queries, keys, values and output, each cut into tiles. On the "
        f"right a multiprocessor. It reads one tile of queries once, {spoken['queries']}, and then the tiles of keys "
        f"and values one after another, {spoken['keys and values']} per step. It computes a tile of scores, "
        f"{spoken['scores']}, which never leaves it, updates the state of each query, and writes a tile of output.",
        caption="Attention one tile at a time, as one multiprocessor computes it. Only queries, keys, values and "
        "output move between it and memory; each tile of scores is overwritten by the next.",
        size=(WIDE, 3.3),
        narrow=(4.6, 3.4),
        name="tile-traffic",
        rows=[{"tile": name, "size_B": size} for name, size in sizes.items()],
    )


def _draw_traffic(figure: Canvas, sizes: dict[str, str]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    memory, chip = (112.0, 186.0) if narrow else (150.0, 300.0)
    bottom, tall = 8.0, height - 36
    for left, right, name in ((6.0, memory, "GPU memory"), (chip, width - 6, "one multiprocessor")):
        drawings.box(ax, left, bottom, right - left, tall, strength=0.08)
        drawings.label(ax, (left + right) / 2, height - 16, name, bold=True)
    side, step = (tall - 44) / 8, (memory - 18) / 4
    tops = (("Q", 2, "blue"), ("K", None, "green"), ("V", None, "green"), ("O", 2, "orange"))
    for place, (name, chosen, colour) in enumerate(tops):
        looks = [[(colour, 0.75 if chosen in (None, row) else 0.15)] for row in range(8)]
        x = 12 + place * step + (step - side) / 2
        drawings.tiles(ax, x, bottom + 14, side, looks)
        drawings.label(ax, x + side / 2, bottom + 14 + 8 * side + 12, name)
    inside, across = chip + 6, width - 18 - chip
    high = (tall - 40) / 3
    boxes = (
        (f"tile of queries\n{sizes['queries']}, stays", "blue", False),
        (f"tile of scores, {sizes['scores']}:\ncomputed, then dropped", "red", True),
        ("maximum, sum, output\nof each query, so far", "orange", False),
    )
    middles = []
    for place, (text, colour, dashed) in enumerate(boxes):
        y = bottom + tall - 10 - high - place * (high + 10)
        drawings.box(ax, inside, y, across, high, text, colour=colour, dashed=dashed, size=10 if narrow else 11)
        middles.append(y + high / 2)
    ways = (("once", "blue", False), ("tile after tile", "green", False), ("once", "orange", True))
    for (text, colour, back), y in zip(ways, middles, strict=True):
        ends = (memory + 4, y), (chip + 5, y)
        drawings.arrow(ax, *(reversed(ends) if back else ends), colour=colour, width=3 if text != "once" else 1.5)
        for line, part in enumerate(reversed(text.split(" ", 1) if narrow else [text])):
            drawings.label(ax, (memory + chip) / 2, y + 8 + 13 * line, part, up="bottom", size=10)
    if not narrow:
        loads = f"{sizes['keys and values']} per step"
        drawings.label(ax, (memory + chip) / 2, middles[1] - 8, loads, up="top", size=10)


# --- what is kept ------------------------------------------------------------------------------------------

SCORES = ((1.0, 3.0), (5.0, 2.0), (4.0, 0.0))
VALUES = ((10.0, 20.0), (30.0, 40.0), (50.0, 60.0))
"""Of one query, block after block, with values of one number each"""
SCORE_PASSES = {"plain": 6, "causal": 8}
"""How often standard attention reads or writes the scores, as :func:`gpuguide.attention.cost.score_passes` counts it"""


@dataclass(frozen=True)
class SoftmaxStep:
    """What an online softmax keeps of one query."""

    maximum: float
    factor: float
    """What the sums before were multiplied by"""
    total: float
    output: float
    """The sum of the values, each times its power; divided by the total it is the output"""


def online_softmax() -> Figure:
    """Draw how maximum, sum and output of one query change, block of keys after block.

    On the site a reader steps through the tiles, and changes scores, tiles and mask.
    """
    states = list(_states())
    last = states[-1]
    spoken = "; ".join(
        f"after scores {first:g} and {second:g} the maximum is {each.maximum:g}, the sum {each.total:.3g} and the "
        f"output sum {each.output:.3g}"
        + (f", the old sums having been multiplied by {each.factor:.2g}" if place else "")
        for place, ((first, second), each) in enumerate(zip(SCORES, states, strict=True))
    )
    return show(
        lambda figure, theme: _draw_states(figure, states),
        alt=f"Three blocks of two scores each, and the state after each: {spoken}. At the end the output sum divided "
        f"by the sum is {last.output / last.total:.3g}.",
        caption="The running state of one query, whose six scores belong to the values 10 to 60. A larger maximum "
        "shrinks both sums by the same factor; if the maximum stays, the factor is 1. The result is exact.",
        size=(WIDE, 3.0),
        narrow=(4.6, 4.9),
        name="online-softmax",
        rows=[{"block": place, **vars(each)} for place, each in enumerate(states, 1)],
        interactive={
            "kind": "online-softmax",
            "scores": [score for block in SCORES for score in block],
            "values": [value for block in VALUES for value in block],
            "tile": len(SCORES[0]),
            "head_dim": HEAD_DIM,
            "element_size": 2,
            "score_passes": SCORE_PASSES,
        },
    )


def _states() -> Iterator[SoftmaxStep]:
    maximum, total, output = -math.inf, 0.0, 0.0
    for scores, values in zip(SCORES, VALUES, strict=True):
        higher = max(maximum, *scores)
        factor = math.exp(maximum - higher)
        powers = [math.exp(score - higher) for score in scores]
        total = factor * total + sum(powers)
        output = factor * output + sum(power * value for power, value in zip(powers, values, strict=True))
        maximum = higher
        yield SoftmaxStep(maximum, factor, total, output)


def _draw_states(figure: Canvas, states: list[SoftmaxStep]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    wide, tall, side = 116.0, 58.0, 28.0
    places = [
        (150.0, height - 72 - 100 * place) if narrow else (8 + place * (width - 16 - wide) / 2, 66.0)
        for place in range(3)
    ]
    for place, ((x, y), scores, state) in enumerate(zip(places, SCORES, states, strict=True)):
        left, bottom = (20.0, y + 10) if narrow else (x + wide / 2 - side, y + tall + 34)
        drawings.label(ax, left + side, bottom + side + 11, f"scores of block {place + 1}", size=10)
        for number, score in enumerate(scores):
            drawings.box(
                ax, left + number * side, bottom, side - 2, side - 2, f"{score:g}", colour="blue", strength=0.3
            )
        ends = ((left + 2 * side + 4, y + tall / 2), (x - 3, y + tall / 2)) if narrow else None
        drawings.arrow(ax, *(ends or ((x + wide / 2, bottom - 5), (x + wide / 2, y + tall + 3))), colour="blue")
        text = f"maximum {state.maximum:g}\nsum {state.total:.2f}\noutput sum {state.output:.1f}"
        drawings.box(ax, x, y, wide, tall, text, colour="orange")
        if place:
            before_x, before_y = places[place - 1]
            if narrow:
                drawings.arrow(ax, (x + wide / 2, before_y - 3), (x + wide / 2, y + tall + 3), colour="orange")
            else:
                drawings.arrow(ax, (before_x + wide + 3, y + tall / 2), (x - 3, y + tall / 2), colour="orange")
            at = (x + wide / 2 + 8, y + tall + 21) if narrow else ((before_x + wide + x) / 2, y + tall / 2 + 14)
            drawings.label(ax, *at, f"sums × {state.factor:.2g}", across="left" if narrow else "center", size=10)
    x, y = places[-1]
    result = f"output = {states[-1].output:.1f} / {states[-1].total:.2f} = {states[-1].output / states[-1].total:.1f}"
    drawings.arrow(ax, (x + wide / 2, y - 3), (x + wide / 2, y - 28), colour="orange")
    drawings.label(ax, x + wide, y - 40, result, across="right", bold=True)


# --- what is skipped ---------------------------------------------------------------------------------------


def causal_tiles(tiles: int = 8) -> Figure:
    """Draw the matrix of attention's scores in ``tiles`` × ``tiles`` tiles, and which of them a causal mask skips."""
    whole, half = tiles * (tiles - 1) // 2, tiles
    skipped = tiles * tiles - whole - half
    return show(
        lambda figure, theme: _draw_tiles(figure, tiles),
        alt=f"A matrix of {tiles} by {tiles} tiles, queries downwards and keys to the right. The {whole} tiles below "
        f"the diagonal are filled, the {half} on it are half filled, and the {skipped} above it are empty.",
        caption=f"The scores of attention in tiles. Under a causal mask, {whole} of {tiles * tiles} tiles are computed "
        f"without a mask, the {half} on the diagonal need the mask, and {skipped} are skipped.",
        size=(WIDE, 3.6),
        narrow=(4.6, 4.9),
        name="causal-tiles",
        rows=[
            {"tiles": name, "count": count}
            for name, count in (("computed", whole), ("masked", half), ("skipped", skipped))
        ],
    )


def _draw_tiles(figure: Canvas, tiles: int) -> None:
    ax, _, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    side = (min(height, 240.0) - 34) / tiles
    left, top = 34.0, height - 30
    bottom = top - tiles * side
    looks = [
        [None if column > row else ("orange", 0.75) if column == row else ("blue", 0.6) for column in range(tiles)]
        for row in range(tiles)
    ]
    drawings.tiles(ax, left, bottom, side, looks)
    right = left + tiles * side
    drawings.arrow(ax, (left, top + 9), (right, top + 9))
    drawings.label(ax, (left + right) / 2, top + 20, "keys: earlier to later tokens")
    drawings.arrow(ax, (left - 9, top), (left - 9, bottom))
    ax.text(left - 21, (top + bottom) / 2, "queries", rotation=90, ha="center", va="center")
    names = (("blue", 0.6, "computed, not masked"), ("orange", 0.75, "on the diagonal:\ncomputed, then masked"), None)
    x, y = (34.0, bottom - 30) if narrow else (right + 28, top - 24)
    for entry in names:
        colour, strength, text = entry or ("", 0.0, "skipped: neither read\nnor computed")
        drawings.tile(ax, x, y - 8, 16, colour, strength)
        drawings.label(ax, x + 24, y, text, across="left")
        y -= 32 if narrow else 44


# --- what goes on at the same time -------------------------------------------------------------------------

OPERATIONS_PER_CLOCK = 4096
"""Of 16-bit products, in a multiprocessor of compute capability 9.0: four tensor cores with 512 multiply-adds each"""
EXPONENTIALS_PER_CLOCK = 16
"""As :data:`gpuguide.attention.cost.EXPONENTIALS_PER_CLOCK`, which needs PyTorch"""
KEYS = 128
"""In a tile of the schedule by hand"""
Span = tuple[float, float, str, str]


def overlapped_schedule() -> Figure:
    """Draw matmuls and exponentials on one multiprocessor: a program that waits, and two groups that take turns."""
    product = 2 * TILE * KEYS * HEAD_DIM / OPERATIONS_PER_CLOCK
    powers = TILE * KEYS / EXPONENTIALS_PER_CLOCK
    waiting, taking_turns = _waiting(product, powers), _taking_turns(product, powers)
    busy = 2 * product / (2 * product + powers)
    return show(
        lambda figure, theme: _draw_schedule(figure, product, waiting, taking_turns),
        alt="Two time lines of one multiprocessor. Top: one program computes scores, exponentials and output, "
        f"one after another, and the tensor cores are busy {busy:.0%} of the time. Bottom: one warp loads keys and "
        "values ahead of time, and two groups of warps take turns. While one group computes its exponentials, the "
        "tensor cores compute matmuls of the other, without a gap.",
        caption="Matmuls and exponentials on one multiprocessor, in clock cycles. For 64 queries, 128 keys and heads "
        f"of 128, a matmul takes at least {product:.0f} cycles, and the exponentials {powers:.0f}. A program by "
        f"itself keeps the tensor cores busy {busy:.0%} of the time. A model, not a measurement.",
        size=(WIDE, 3.9),
        narrow=(4.6, 3.9),
        name="overlapped-schedule",
        rows=[
            {"schedule": name, "unit": unit, "what": what, "from_cycle": start, "to_cycle": end}
            for name, rows in (("one program waits", waiting), ("two groups in turn", taking_turns))
            for unit, spans in rows.items()
            for start, end, what, _ in spans
        ],
    )


def _waiting(product: float, powers: float) -> dict[str, list[Span]]:
    """Return what each unit does for one program, each of whose steps needs the one before."""
    tensor, special, now = list[Span](), list[Span](), product
    while now < 9 * product:
        tensor.append((now, now + product, "S", "blue"))
        special.append((now + product, now + product + powers, "exp", "blue"))
        now += product + powers
        tensor.append((now, now + product, "PV", "blue"))
        now += product
    return {"tensor cores": tensor, "exponentials": special}


def _taking_turns(product: float, powers: float) -> dict[str, list[Span]]:
    """Return what each unit does for two groups: scores of the next tile, then weights times values of this one."""
    tensor, special = list[Span](), list[Span]()
    colours = ("blue", "orange")
    now = product
    for colour in colours:
        tensor.append((now, now + product, "S", colour))
        now += product
        special.append((now, now + powers, "exp", colour))
    while now < 10 * product:
        for colour in colours:
            tensor += [(now, now + product, "S", colour), (now + product, now + 2 * product, "PV", colour)]
            special.append((now + product, now + product + powers, "exp", colour))
            now += 2 * product
    half = product / 2
    begins = ((0.0, "K"), (0.5, "V"), (1.0, "K"), (1.5, "V"), (3.0, "K"), (6.0, "K"), (7.0, "V"), (10.0, "K"))
    loads = [(at * product, at * product + half, name, "grey") for at, name in begins]
    return {"loads": loads, "tensor cores": tensor, "exponentials": special}


def _draw_schedule(
    figure: Canvas, product: float, waiting: dict[str, list[Span]], taking_turns: dict[str, list[Span]]
) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left = 76.0 if narrow else 90.0
    end = 10 * product
    scale = (width - left - 6) / end
    y = _draw_rows(ax, height - 14, left, scale, end, waiting, "One program: each step waits for the one before")
    words = "One warp loads, two groups take turns" if narrow else "One warp loads, two groups of warps take turns"
    y = _draw_rows(ax, y - 16, left, scale, end, taking_turns, words)
    names = (("first group", "blue"), ("second group", "orange"))
    for place, (name, colour) in enumerate(names):
        drawings.tile(ax, left + 100 * place, y - 10, 10, colour, 0.5)
        drawings.label(ax, left + 100 * place + 16, y - 5, name, across="left", size=10)
    drawings.label(ax, width - 6, y - 5, "time →" if narrow else "time in clock cycles →", across="right", size=10)


def _draw_rows(
    ax: Axes, top: float, left: float, scale: float, end: float, rows: dict[str, list[Span]], title: str
) -> float:
    """Draw the units under each other, and return where the last of them ends."""
    drawings.label(ax, 4, top - 4, title, across="left", bold=True)
    y, tall = top - 44, 24.0
    for name, spans in rows.items():
        drawings.label(ax, left - 6, y + tall / 2, name, across="right", size=10)
        inside = [(start, min(stop, end), text, colour) for start, stop, text, colour in spans if start < end]
        drawings.time_line(ax, left, y, scale, inside, height=tall)
        y -= tall + 7
    return y + 7

"""Drawings of a server for language models: who has which row of a batch, a cycle of guesses, pages that are shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# --- rows of a batch over time -----------------------------------------------------------------------------

ANSWERS = (10, 40, 10, 20, 30, 10, 40, 20)
"""Tokens of each answer, in the order in which the requests are taken; an example"""
ROWS = 4
FOLLOWED = 4
"""The request, counted from 0, whose wait is drawn: the first that finds no row free"""
TO_TRY: dict[str, Any] = {
    "median_prompt": 32,
    "median_text": 16,
    "longest": 96,
    "prefill_token": 1 / 16,
    "chunk": 16,
    "rates": (0.05, 0.1, 0.2, 0.5),
    "rows": 4,
    "spread": 1.0,
    "policy": "static",
}
"""Of the model on the site: tokens of prompts and texts, decode steps that a token of a prompt takes, prompt tokens of
a chunk, requests a step, and what the controls are set to at first. An example, not a measurement"""
TRIED = 32
"""Requests of the model"""


@dataclass(frozen=True)
class Turn:
    """What a request gets: a row, from one step to another."""

    row: int
    start: int
    finish: int
    freed: int
    """When another request may take the row"""


def turns(continuous: bool) -> list[Turn]:
    """Return the turn of each request, when rows are filled again at once or when all of a batch are done."""
    given: list[Turn] = []
    free = [0] * ROWS
    for number, tokens in enumerate(ANSWERS):
        if continuous:
            row = free.index(min(free))
            start = free[row]
            end = start + tokens
        else:
            row, start = number % ROWS, free[number % ROWS]
            first = number - row
            end = start + max(ANSWERS[first : first + ROWS])
        given.append(Turn(row, start, start + tokens, end))
        free[row] = end
    return given


def slots_over_time() -> Figure:
    """Draw the rows of a batch over time, refilled when all are done and refilled one by one.

    On the site a reader chooses rows, arrivals, lengths and policy of a longer example, with prefill.
    """
    static, continuous = turns(continuous=False), turns(continuous=True)
    steps = [max(turn.freed for turn in each) for each in (static, continuous)]
    used = [sum(ANSWERS) / (ROWS * count) for count in steps]
    waits = [each[FOLLOWED].start for each in (static, continuous)]
    name = FOLLOWED + 1
    return show(
        lambda figure, theme: _draw_slots(figure, (static, continuous), steps, used),
        alt=f"{len(ANSWERS)} requests in {ROWS} rows, drawn over time twice. Above, in static batches, short answers "
        f"leave their rows idle until the longest is done: {steps[0]} steps, in which {used[0]:.0%} of rows generate. "
        f"Below, with continuous batching, each row takes the next request at once: {steps[1]} steps, {used[1]:.0%}. "
        f"Request {name} waits {waits[0]} steps above and {waits[1]} below.",
        caption="The same requests in static batches and with continuous batching. A row is the place of one sequence "
        "in the batch; a box is a request, as long as its answer; dashed: computed for no request. Orange: request "
        f"{name}, which finds none of the {ROWS} rows free. Derived, not measured.",
        size=(WIDE, 4.5),
        narrow=(4.6, 4.7),
        name="slots-over-time",
        rows=[
            {"batching": kind, "request": number + 1, "row": turn.row + 1, "start": turn.start, "finish": turn.finish,
             "freed": turn.freed}
            for kind, each in (("static", static), ("continuous", continuous))
            for number, turn in enumerate(each)
        ],
        interactive={"kind": "batching", "draws": _draws(), "followed": FOLLOWED} | TO_TRY,
    )  # fmt: skip


def _draws() -> list[list[float]]:
    """Return what chance gives each request: its prompt and its answer, normally distributed, and the gap before it.

    The site stretches them by spread and rate, so that every setting and policy gets the same requests.
    """
    generator = np.random.default_rng(4)
    columns = generator.normal(size=TRIED), generator.normal(size=TRIED), generator.exponential(size=TRIED)
    return np.round(np.stack(columns, axis=1), 3).tolist()


def _draw_slots(
    figure: Canvas, panels: tuple[Sequence[Turn], Sequence[Turn]], steps: Sequence[int], used: Sequence[float]
) -> None:
    ax, width, height = drawings.sheet(figure)
    left, foot = 12.0, 24.0
    scale = (width - 2 * left) / max(steps)
    step = (height - foot - 6) / 2
    tall = (step - 52) / ROWS
    for place, (given, title) in enumerate(zip(panels, ("static batches", "continuous batching"), strict=True)):
        top = height - 6 - place * step
        drawings.label(ax, left, top - 9, title, across="left", bold=True)
        what = "used" if is_narrow(figure) else "of the rows generate"
        words = f"{steps[place]} steps, {used[place]:.0%} {what}"
        drawings.label(ax, width - left, top - 9, words, across="right")
        floor = top - 22 - ROWS * tall
        _rows(ax, given, left, floor, scale, tall)
        wait = left + given[FOLLOWED].start * scale
        drawings.moment(ax, wait, floor - 18, floor - 2)
        drawings.arrow(ax, (left, floor - 10), (wait, floor - 10), colour="orange", width=1.2, both=True)
        drawings.label(ax, wait + 6, floor - 11, f"request {FOLLOWED + 1} waits", across="left", size=10)
    drawings.arrow(ax, (left, 10), (width - 56, 10), width=1)
    drawings.label(ax, width - left, 10, "steps", across="right", size=10)


def _rows(ax: Axes, given: Sequence[Turn], left: float, floor: float, scale: float, tall: float) -> None:
    for number, turn in enumerate(given):
        bottom = floor + (ROWS - 1 - turn.row) * tall
        colour = "orange" if number == FOLLOWED else "blue"
        drawings.box(
            ax, left + turn.start * scale, bottom, (turn.finish - turn.start) * scale - 1, tall - 3, str(number + 1),
            colour=colour, strength=0.35,
        )  # fmt: skip
        if turn.freed > turn.finish:
            start = left + turn.finish * scale
            drawings.box(ax, start, bottom, (turn.freed - turn.finish) * scale - 1, tall - 3, dashed=True, strength=0.0)


# --- a cycle of guesses --------------------------------------------------------------------------------------

GUESSED = ("in", "range", "(", "10")
"""What the draft writes after ``for i``; an example"""
WANTED = ("in", "range", "(", "len", "(")
"""What the target would have written at each of these places, and behind the last guess"""


def count_accepted() -> int:
    """Return how many guesses stand before the first that differs."""
    pairs = zip(GUESSED, WANTED, strict=False)
    return next((place for place, (guess, wanted) in enumerate(pairs) if guess != wanted), len(GUESSED))


def cycle_of_guesses() -> Figure:
    """Draw what a cycle of speculative decoding does: draft, one pass of the target, accept up to the first error."""
    count = count_accepted()
    gained = " ".join(WANTED[: count + 1])
    return show(
        lambda figure, theme: _draw_cycle(figure, count),
        alt=f"A draft model guesses {len(GUESSED)} tokens one after another: {' '.join(GUESSED)}. The target checks "
        f"all in one pass and would have generated: {' '.join(WANTED)}. The first {count} agree and are accepted. At "
        f"the next place the target's own token is taken, and its tokens after that are of no use. The cycle gives "
        f"{count + 1} tokens: {gained}.",
        caption=f"A cycle of speculative decoding, after the text {'“for i”'}. The draft model takes one step "
        "per guess; the target model checks all in one pass, which also gives the right token after the last accepted "
        "guess.",
        size=(WIDE, 3.0),
        narrow=(4.6, 3.1),
        name="cycle-of-guesses",
        rows=[
            {"place": place + 1, "guess": guess, "target": wanted, "kept": "yes" if place <= count else "no"}
            for place, (guess, wanted) in enumerate(zip([*GUESSED, ""], WANTED, strict=True))
        ],
    )


def _draw_cycle(figure: Canvas, count: int) -> None:
    ax, width, height = drawings.sheet(figure)
    left, gap, tall = 12.0, 8.0, 30.0
    wide = (width - 2 * left + gap) / len(WANTED) - gap
    xs = [left + place * (wide + gap) for place in range(len(WANTED))]
    top = height - 14
    drawings.label(ax, left, top, "the draft guesses, a step for each token", across="left")
    first = top - 14 - tall
    for place, guess in enumerate(GUESSED):
        drawings.box(ax, xs[place], first, wide, tall, guess, colour="sky", strength=0.3)
        if place:
            drawings.arrow(ax, (xs[place] - gap - 2, first + tall / 2), (xs[place] + 2, first + tall / 2), width=1)
    middle = first - 26 - tall
    for place in range(len(GUESSED)):
        x = xs[place] + wide / 2
        drawings.arrow(ax, (x, first - 2), (x, middle + tall + 2), width=1)
    drawings.box(ax, left, middle, width - 2 * left, tall, "one pass of the target", colour="blue", strength=0.3)
    last = middle - 26 - tall
    for place, wanted in enumerate(WANTED):
        x = xs[place] + wide / 2
        drawings.arrow(ax, (x, middle - 2), (x, last + tall + 2), width=1)
        colour = "green" if place < count else "orange" if place == count else ""
        drawings.box(
            ax, xs[place], last, wide, tall, wanted, colour=colour, strength=0.4 if colour else 0.0, dashed=not colour
        )
    words = [
        (xs[0], xs[count] - gap, "accepted"),
        (xs[count], xs[count] + wide, "its own"),
        (xs[count + 1], xs[-1] + wide, "of no use"),
    ]
    for start, end, text in words:
        if end > start:
            drawings.label(ax, (start + end) / 2, last - 11, text, size=10)


# --- pages that two prompts share ------------------------------------------------------------------------------

PAGE = 64
"""Tokens of a page of our cache"""
COMMON = 128
"""Tokens with which both prompts begin: whole pages"""
OWN = {"A": 100, "B": 40}
"""Tokens of each request behind these"""
PLACES = {"common": (3, 7), "A": (2, 5), "B": (6,)}
"""Pages that they happen to have, of those that are drawn"""
DRAWN = 8


def pages_held() -> dict[str, list[int]]:
    """Return the pages of each request, in order."""
    return {name: [*PLACES["common"], *PLACES[name]] for name in OWN}


def shared_pages() -> Figure:
    """Draw the tables of two requests and the pages of the cache that these point to."""
    held = pages_held()
    alone = sum(len(pages) for pages in held.values())
    together = len({page for pages in held.values() for page in pages})
    tables = ". ".join(f"Request {name} has pages {', '.join(map(str, pages))}" for name, pages in held.items())
    return show(
        lambda figure, theme: _draw_pages(figure, held),
        alt=f"A row of {DRAWN} pages of the cache, above and below it the tables of two requests. {tables}. The pages "
        f"{' and '.join(map(str, PLACES['common']))} are in both tables. Together they take {together} pages instead "
        f"of {alone}.",
        caption=f"Two requests whose prompts begin with the same {COMMON} tokens. A page holds {PAGE} tokens; a table "
        f"says which pages a request has, in order. The common beginning is prefilled and stored once, so both "
        f"together take {together} pages instead of {alone}. Dashed pages are free.",
        size=(WIDE, 3.1),
        narrow=(4.6, 3.3),
        name="shared-pages",
        rows=[
            {"request": name, "place": place + 1, "page": page, "shared": "yes" if page in PLACES["common"] else "no"}
            for name, pages in held.items()
            for place, page in enumerate(pages)
        ],
    )


def _draw_pages(figure: Canvas, held: dict[str, list[int]]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, tall, cell = 12.0, 34.0, 26.0
    wide = (width - 2 * left) / DRAWN
    middle = (height - tall) / 2
    colours = dict.fromkeys(PLACES["common"], "green")
    colours |= dict.fromkeys(PLACES["A"], "blue") | dict.fromkeys(PLACES["B"], "orange")
    if not narrow:
        drawings.label(ax, left + 2, middle + tall + 12, "pages of the cache", across="left", size=10)
    for page in range(1, DRAWN + 1):
        colour = colours.get(page, "")
        drawings.box(
            ax, left + (page - 1) * wide + 2, middle, wide - 4, tall, str(page), colour=colour,
            strength=0.35 if colour else 0.0, dashed=not colour,
        )  # fmt: skip
    for name, pages in held.items():
        above = name == "A"
        bottom = height - 8 - cell if above else 8.0
        own = OWN[name]
        words = f"request {name}: {COMMON} + {own}" + ("" if narrow else " tokens")
        across = cell + 8
        start = width - left - len(pages) * across if narrow else (width - len(pages) * across) / 2 + 60
        drawings.label(ax, start - 10, bottom + cell / 2, words, across="right")
        for place, page in enumerate(pages):
            x = start + place * across
            drawings.box(ax, x, bottom, cell, cell, str(page), colour=colours[page], strength=0.15, size=10)
            target = left + (page - 0.5) * wide
            ends = (bottom - 1, middle + tall + 1) if above else (bottom + cell + 1, middle - 1)
            drawings.arrow(ax, (x + cell / 2, ends[0]), (target, ends[1]), colour=colours[page], width=1)

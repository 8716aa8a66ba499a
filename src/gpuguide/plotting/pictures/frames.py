"""Drawings of dataframes: what the copy to a GPU costs, and what a group-by, a join, a sort and that copy do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from gpuguide.measure import reference_gpu, store
from gpuguide.plotting import drawings, palette
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE
from gpuguide.units import format_quantity, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

ROWS = 10**8
HOSTS = {"pandas": "pandas", "polars": "Polars", "duckdb": "DuckDB"}
OPERATIONS = {"filter": "filter", "groupby": "group-by", "join": "join", "sort": "sort"}

# --- the way of a frame to the GPU and back ------------------------------------------------------------------


@dataclass(frozen=True)
class Journey:
    """How long an operation takes on the host, and on the GPU with the frame's copies. All in seconds."""

    title: str
    host: str
    """The fastest contender there"""
    host_seconds: float
    there: float
    work: float
    back: float

    @property
    def gpu_seconds(self) -> float:
        """The copy there, the work and the copy back."""
        return self.there + self.work + self.back


def frame_to_the_gpu() -> Figure:
    """Draw the way of a frame's columns to a GPU and back, and to scale what it costs beside the work."""
    speed, copies = store.load_published("dataframe"), store.load_published("frame-transfer")
    journeys = [_journey(operation) for operation in OPERATIONS]
    plain, ring = (copies.median(name, "time", rows=ROWS) for name in ("from-pandas", "gpuguide-staged"))
    told = "; ".join(
        f"{each.title}: {HOSTS[each.host]} {format_quantity(each.host_seconds, 's')}, GPU "
        f"{format_quantity(each.there, 's')} there, {format_quantity(each.work, 's')} of work, "
        f"{format_quantity(each.back, 's')} back"
        for each in journeys
    )
    return show(
        lambda figure, theme: _draw_journeys(figure, theme, journeys, plain, ring),
        alt="Above, three boxes: host memory, pinned buffers and GPU memory, with arrows from each to the next. Below, "
        "two bars for each of four operations on a hundred million rows, with lengths in proportion to their times. "
        f"{told}.",
        caption="The copies take far longer than the work itself. A frame of a hundred million rows in the host's "
        "memory, processed there (upper bars, best library) or on the GPU (lower bars). Grey: cuDF's own copies there "
        f"and back, as differences of times. Orange: the work on {reference_gpu.word('a short')}. The ring is the "
        "faster copy described below. Reading a file is not timed.",
        records=[speed, copies],
        size=(WIDE, 4.75),
        narrow=(4.6, 4.75),
        name="frame-to-the-gpu",
        rows=[
            {
                "operation": each.title,
                "host": HOSTS[each.host],
                "host_s": each.host_seconds,
                "there_s": each.there,
                "work_s": each.work,
                "back_s": each.back,
            }
            for each in journeys
        ],
    )


def _journey(operation: str) -> Journey:
    record = store.load_published("dataframe")

    def seconds(contender: str, transfer: str = "none") -> float:
        return record.median(contender, "time", op=operation, rows=ROWS, transfer=transfer)

    best = min(HOSTS, key=seconds)
    none, there, both = (seconds("cudf", transfer) for transfer in ("none", "in", "in-out"))
    return Journey(OPERATIONS[operation], best, seconds(best), there - none, none, both - there)


def _draw_journeys(figure: Canvas, theme: Theme, journeys: Sequence[Journey], plain: float, ring: float) -> None:
    ax, width, height = drawings.sheet(figure)
    _draw_way(ax, width, height - 8, plain, ring)
    left, thick = 12.0, 11.0
    scale = (width - left - 14) / max(max(each.host_seconds, each.gpu_seconds) for each in journeys)
    top = height - 132
    for each in journeys:
        host = palette.style(each.host)
        copying = format_quantity(each.there + each.back, "s")
        text = (
            f"{HOSTS[each.host]} {format_quantity(each.host_seconds, 's')}, "
            f"GPU {format_quantity(each.work, 's')} + copies {copying}"
        )
        drawings.label(ax, left, top, each.title, across="left", bold=True)
        drawings.label(ax, left + 68, top, text, across="left", size=10)
        bars = [[(each.host_seconds, host.colour, 0.75)]]
        bars.append([(each.there, "grey", 0.3), (each.work, "orange", 0.95), (each.back, "grey", 0.3)])
        y = top - 20
        for parts in bars:
            x = left
            for seconds, colour, strength in parts:
                drawings.box(ax, x, y, max(0.8, seconds * scale), thick, colour=colour, strength=strength)
                x += seconds * scale
            y -= thick + 2
        top -= 52
    del theme


def _draw_way(ax: Axes, width: float, top: float, plain: float, ring: float) -> None:
    tall, across, gap = 40.0, 0.24 * width, 0.12 * width
    names = (("host memory\na frame", "blue"), ("pinned\nbuffers", "green"), ("GPU memory\ncolumns", "orange"))
    places = [6 + number * (across + gap) for number in range(len(names))]
    for x, (name, colour) in zip(places, names, strict=True):
        drawings.box(ax, x, top - tall, across, tall, name, colour=colour)
    y = top - tall / 2
    for x in places[:-1]:
        drawings.arrow(ax, (x + across + 3, y), (x + across + gap - 3, y))
    for x, text in zip(places, ("copy", "link"), strict=False):
        drawings.label(ax, x + across + gap / 2, y + 12, text, size=10)
    file, into = top - tall - 42, places[-1] + across / 2
    drawings.box(ax, 6, file, across, 26, "Parquet file", dashed=True)
    ax.plot([6 + across + 3, into], [file + 13, file + 13], color=palette.current().ceiling, linewidth=1.5)
    drawings.arrow(ax, (into, file + 12.3), (into, top - tall - 3))
    drawings.label(ax, 6 + across + 8, file + 23, "as stored, unpacked on the GPU", across="left", size=10)
    ways = f"cudf.from_pandas {format_quantity(plain, 's')}, ring of buffers {format_quantity(ring, 's')}"
    drawings.label(ax, 6, file - 14, f"2 GB: {ways}", across="left", size=10)


# --- a hash table of row numbers -----------------------------------------------------------------------------

KEYS = ("ann", "bob", "ann", "cy", "bob", "ann")
VALUES = (2, 5, 1, 4, 3, 6)
SLOTS = {"ann": 3, "bob": 8, "cy": 10}
"""Where the hash of each key lands, of two slots a row"""


def group_by_in_a_table() -> Figure:
    """Draw a group-by: each row finds its key's slot in a table of row numbers, and adds its value there."""
    first = {key: KEYS.index(key) for key in SLOTS}
    sums = {key: sum(v for k, v in zip(KEYS, VALUES, strict=True) if k == key) for key in SLOTS}
    told = "; ".join(f"{key}, first in row {first[key]}, has the sum {sums[key]}" for key in SLOTS)
    return show(
        lambda figure, _: _draw_group_by(figure, first, sums),
        alt=f"A frame of {len(KEYS)} rows with a key and a value, a table of {2 * len(KEYS)} slots, and an array of "
        f"{len(KEYS)} sums. Every row points to the slot of its key, and the slot to the sum of the row that it "
        f"names: {told}. The other slots and sums stay empty.",
        caption="A group-by in cuDF. The hash of a key leads to a slot, the slot holds the number of a row with that "
        "key, and values are added up at that row's place. The number of rows sets the size of the table and, unless "
        "there are few groups, of the sums, because the number of groups is not known beforehand.",
        size=(WIDE, 3.9),
        narrow=(4.6, 3.9),
        name="group-by-in-a-table",
        rows=[{"key": key, "slot": SLOTS[key], "row": first[key], "sum": sums[key]} for key in SLOTS],
    )


COLOURS = {"ann": "blue", "bob": "orange", "cy": "green"}


def _draw_group_by(figure: Canvas, first: dict[str, int], sums: dict[str, int]) -> None:
    ax, width, height = drawings.sheet(figure)
    top, rows, slots = height - 36, 36.0, 18.0
    wide = 0.2 * width
    frame, table, found = 8.0, 0.42 * width, 0.78 * width
    _titles(ax, height - 14, ((frame, wide, "frame"), (table, 44, "slots"), (found, wide, "sums")))
    for row, (key, value) in enumerate(zip(KEYS, VALUES, strict=True)):
        y = top - (row + 1) * rows
        drawings.box(ax, frame, y + 5, wide, rows - 10, f"{row}: {key} {value}", colour=COLOURS[key])
        start = (frame + wide + 3, y + rows / 2)
        slot = top - (SLOTS[key] + 0.5) * slots
        drawings.arrow(ax, start, (table - 3, slot), colour=COLOURS[key], width=1)
    by_slot = {slot: key for key, slot in SLOTS.items()}
    for slot in range(2 * len(KEYS)):
        y, key = top - (slot + 1) * slots, by_slot.get(slot, "")
        text = str(first[key]) if key else ""
        drawings.box(ax, table, y + 1.5, 44, slots - 3, text, colour=COLOURS.get(key, ""), dashed=not key)
    for row in range(len(KEYS)):
        y = top - (row + 1) * rows
        key = next((key for key, place in first.items() if place == row), "")
        text = f"{row}: {sums[key]}" if key else ""
        drawings.box(ax, found, y + 5, wide, rows - 10, text, colour=COLOURS.get(key, ""), dashed=not key)
        if key:
            slot = top - (SLOTS[key] + 0.5) * slots
            drawings.arrow(ax, (table + 47, slot), (found - 3, y + rows / 2), colour=COLOURS[key], width=1)
    drawings.label(ax, (frame + wide + table) / 2, height - 14, "hash", size=10)
    drawings.label(ax, (table + 44 + found) / 2, height - 14, "row", size=10)
    drawings.label(ax, width / 2, 10, "dashed: set up, searched at the end, never used", size=10)


def _titles(ax: Axes, y: float, columns: Sequence[tuple[float, float, str]]) -> None:
    for left, wide, text in columns:
        drawings.label(ax, left + wide / 2, y, text, bold=True)


# --- a join in two steps -------------------------------------------------------------------------------------

LEFT = ("bob", "eve", "ann", "bob")
RIGHT = ("ann", "bob", "bob")


def join_in_two_steps() -> Figure:
    """Draw a join: each row counts its partners, a running sum gives it its place, and then it writes its pairs."""
    partners = [[place for place, key in enumerate(RIGHT) if key == wanted] for wanted in LEFT]
    counts = [len(each) for each in partners]
    places = [sum(counts[:row]) for row in range(len(LEFT))]
    pairs = [(row, other) for row, found in enumerate(partners) for other in found]
    return show(
        lambda figure, _: _draw_join(figure, counts, places, pairs),
        alt=f"Four columns. The keys of {len(LEFT)} rows: {', '.join(LEFT)}. How many partners each has in the other "
        f"table: {', '.join(map(str, counts))}. Where its pairs begin: {', '.join(map(str, places))}. And "
        f"{len(pairs)} pairs of row numbers: {', '.join(map(str, pairs))}.",
        caption=f"A join on the GPU, against a second table with the keys {', '.join(RIGHT)}. No row knows where to "
        "write before all have counted, so each row counts its pairs first and writes them second.",
        size=(WIDE, 3.1),
        narrow=(4.6, 3.1),
        name="join-in-two-steps",
        rows=[
            {"row": row, "key": key, "partners": counts[row], "first_pair": places[row]} for row, key in enumerate(LEFT)
        ],
    )


def _draw_join(figure: Canvas, counts: Sequence[int], places: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
    ax, width, height = drawings.sheet(figure)
    top, tall = height - 46, 30.0
    wide, gap = 0.165 * width, 0.1 * width
    xs = [8 + column * (wide + gap) for column in range(4)]
    headers = ("rows", "1. count", "2. place", "3. write")
    _titles(ax, height - 16, [(x, wide, text) for x, text in zip(xs, headers, strict=True)])
    for row, key in enumerate(LEFT):
        y = top - (row + 1) * tall
        colour = COLOURS.get(key, "")
        begins = str(places[row]) if counts[row] else ""
        for x, text in zip(xs, (f"{row}: {key}", str(counts[row]), begins), strict=False):
            drawings.box(ax, x, y + 3, wide, tall - 6, text, colour=colour, dashed=not counts[row])
        if counts[row]:
            drawings.arrow(ax, (xs[0] + wide + 3, y + tall / 2), (xs[1] - 3, y + tall / 2), width=1)
    for place, (row, other) in enumerate(pairs):
        y = top - (place + 1) * tall
        colour = COLOURS[LEFT[row]]
        drawings.box(ax, xs[3], y + 3, wide, tall - 6, f"{row}, {other}", colour=colour)
        start = (xs[2] + wide + 3, top - (row + 0.5) * tall)
        drawings.arrow(ax, start, (xs[3] - 3, y + tall / 2), colour=colour, width=1)
    drawings.label(ax, (xs[1] + wide + xs[2]) / 2, top - 2 * tall, "add\nup", size=10)
    drawings.label(ax, width / 2, 16, f"the last place plus its count: {sum(counts)} pairs in all", size=10)


# --- the passes of a radix sort ------------------------------------------------------------------------------

NUMBERS = ("31", "12", "03", "20", "11", "32", "02", "13")
DIGITS = ("blue", "orange", "green", "pink")


def radix_sort_passes() -> Figure:
    """Draw a radix sort of two-digit numbers: by the last digit first, then by the one before."""
    steps = [list(NUMBERS)]
    for digit in (1, 0):
        steps.append(sorted(steps[-1], key=itemgetter(digit)))
    told = "; ".join(", ".join(each) for each in steps)
    return show(
        lambda figure, _: _draw_passes(figure, steps),
        alt=f"Three columns of {len(NUMBERS)} numbers with two digits each, and lines from each number to its place in "
        f"the next column: {told}. The last is in order.",
        caption="A radix sort compares no numbers. Each pass orders them by one digit and keeps the order of numbers "
        "with equal digits, so all are in order after a pass for the last digit and one for the first.",
        size=(WIDE, 3.7),
        narrow=(4.6, 3.7),
        name="radix-sort-passes",
        rows=[{"pass": number, "numbers": " ".join(each)} for number, each in enumerate(steps)],
    )


def _draw_passes(figure: Canvas, steps: Sequence[Sequence[str]]) -> None:
    ax, width, height = drawings.sheet(figure)
    top, tall, wide = height - 44, 26.0, 44.0
    xs = [16.0, width / 2 - wide / 2, width - 16 - wide]
    for x, text in zip(xs, ("as it came", "by last digit", "by first digit"), strict=True):
        middle = min(max(x + wide / 2, 44.0), width - 46)
        drawings.label(ax, middle, height - 18, text, bold=True)
    for column, step in enumerate(steps):
        for row, number in enumerate(step):
            y = top - (row + 1) * tall
            colour = DIGITS[int(number[1 if column < len(steps) - 1 else 0])]
            drawings.box(ax, xs[column], y + 2, wide, tall - 4, number, colour=colour, strength=0.3)
            if column + 1 < len(steps):
                moved = DIGITS[int(number[1 - column])]
                end = top - (steps[column + 1].index(number) + 0.5) * tall
                drawings.arrow(
                    ax,
                    (xs[column] + wide + 3, y + tall / 2),
                    (xs[column + 1] - 3, end),
                    colour=moved,
                    width=1,
                )


# --- the bytes of a sort key ---------------------------------------------------------------------------------

NUMBER, MARK = 8, 8
"""Bytes of a double or an int64, and of the mark for NaN with its padding"""
SORT_KEYS = {"float64": ("the double", "mark for NaN, padding"), "int64": ("the integer",)}
"""What the key of each type consists of; a pass of the sort takes one byte"""


def bytes_of_a_sort_key() -> Figure:
    """Draw the bytes of cuDF's sort keys for doubles and for integers, one pass for each byte."""
    passes = {name: NUMBER + MARK * (len(parts) - 1) for name, parts in SORT_KEYS.items()}
    return show(
        lambda figure, _: _draw_sort_keys(figure, passes),
        alt=f"Two rows of numbered bytes. The key of a float64 has {passes['float64']}: "
        f"{NUMBER} of the double, and {MARK} of the mark for NaN and padding. "
        f"The key of an int64 has {passes['int64']}.",
        caption=f"Sorting float64 takes {passes['float64']} passes, and int64 {passes['int64']}. cuDF makes one pass "
        "for each byte of the key's size.",
        size=(WIDE, 2.0),
        narrow=(4.6, 2.0),
        name="bytes-of-a-sort-key",
        rows=[{"type": name, "parts": " + ".join(SORT_KEYS[name]), "passes": count} for name, count in passes.items()],
    )


def _draw_sort_keys(figure: Canvas, passes: dict[str, int]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 8.0, 26.0
    side = (width - 2 * left) / max(passes.values())
    for row, (name, count) in enumerate(passes.items()):
        top = height - 8 - row * 70
        drawings.label(ax, left, top - 6, f"{name}: {count} passes", across="left", bold=True)
        for byte in range(count):
            colour = "orange" if byte < NUMBER else "grey"
            x = left + byte * side
            drawings.box(ax, x + 1, top - 20 - tall, side - 2, tall, str(byte + 1), colour=colour, strength=0.3)
        for part, words in enumerate(SORT_KEYS[name]):
            middle = left + (NUMBER * part + (NUMBER if not part else MARK) / 2) * side
            drawings.label(ax, middle, top - 30 - tall, words, size=10)


# --- the ring of pinned buffers ------------------------------------------------------------------------------

BUFFERS = "ABCD"
PIECE = 8 * 2**20
"""Bytes of a buffer: :data:`gpuguide.dataframes.transfer.PIECE`"""
FILL = 0.8
"""Of a fetch: in a trace of one copy on the reference GPU a fill took this much of the time of a fetch"""


def ring_of_buffers() -> Figure:
    """Draw, to scale, how the cores fill pinned buffers while the GPU fetches those that were filled before."""
    copies, ceilings = store.load_published("frame-transfer"), store.load_published("ceilings")
    fetch, pageable = (PIECE / ceilings.median(name, "bandwidth") for name in ("h2d-pinned", "h2d-pageable"))
    whole = copies.median("gpuguide-staged", "time", rows=ROWS)
    pieces = whole * copies.median("gpuguide-staged", "bandwidth", rows=ROWS) / PIECE
    spoken = [format_quantity(seconds, "s") for seconds in (fetch, pageable, whole, pieces * fetch)]
    times = significant(pageable / fetch, 2)
    return show(
        lambda figure, _: _draw_ring(figure, fetch, pageable),
        alt="Three lines of time. On the first the cores fill the buffers A, B, C and D and then A again. On the "
        f"second the GPU fetches each, one after another without a pause, in {spoken[0]}, while the cores fill the "
        f"next. On the third the driver copies one piece of the same size from pageable memory in {spoken[1]}.",
        caption=f"Pieces of 8 MiB on their way to the GPU, to scale. The link needs {spoken[0]} for a piece; a "
        f"pageable copy takes {spoken[1]}, {times} times as long. All pieces of a hundred million rows need "
        f"{spoken[3]} on the link, and the whole copy took {spoken[2]}.",
        records=[copies, ceilings],
        size=(WIDE, 2.2),
        narrow=(4.6, 2.2),
        name="ring-of-buffers",
        rows=[
            {"what": "the link for a piece", "time_s": fetch},
            {"what": "the driver's copy of a pageable piece", "time_s": pageable},
            {"what": "the link for all pieces", "time_s": pieces * fetch},
            {"what": "the whole copy", "time_s": whole},
        ],
    )


def _draw_ring(figure: Canvas, fetch: float, pageable: float) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 76.0, 28.0
    scale = (width - left - 12) / pageable
    lines = {"cores fill": height - 36, "GPU fetches": height - 82, "driver": height - 142}
    for name, y in lines.items():
        drawings.label(ax, left - 8, y + tall / 2, name, across="right", size=10)
    filled, fetched, ends = [], [], [0.0]
    for number in range(int(pageable / fetch - FILL)):
        begins, name = number * FILL * fetch, BUFFERS[number % len(BUFFERS)]
        ready = begins + FILL * fetch
        filled.append((begins, ready, name, "blue"))
        start = max(ready, ends[-1])
        fetched.append((start, start + fetch, name, "orange"))
        ends.append(start + fetch)
    drawings.time_line(ax, left, lines["cores fill"], scale, filled, height=tall, size=11)
    drawings.time_line(ax, left, lines["GPU fetches"], scale, fetched, height=tall, size=11)
    one = [(0.0, pageable, f"a piece of pageable memory: {format_quantity(pageable, 's')}", "grey")]
    drawings.time_line(ax, left, lines["driver"], scale, one, height=tall, size=11)
    x = left + FILL * fetch * scale
    drawings.arrow(ax, (x, lines["cores fill"] - 2), (x, lines["GPU fetches"] + tall + 2), colour="blue", width=1)

"""Drawings of where dataframes spend their time: the proxy of cudf.pandas, copies by size, and a script's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuguide.measure import citation, reference_gpu, store
from gpuguide.plotting import drawings
from gpuguide.plotting.axes import log_axis
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.marks import legend
from gpuguide.plotting.pictures.frames import HOSTS, OPERATIONS
from gpuguide.plotting.renditions import WIDE, is_narrow
from gpuguide.units import format_quantity, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from gpuguide.plotting.palette import Theme

MILLION = 10**6
LOOKS = {"filter": ("blue", "o"), "groupby": ("orange", "s"), "join": ("green", "^"), "sort": ("pink", "D")}
"""Colour and marker of each operation"""


def seconds(contender: str, operation: str, rows: int, transfer: str = "none") -> float:
    """Return the median time of an operation."""
    record = store.load_published("dataframe")
    return record.median(contender, "time", op=operation, rows=rows, transfer=transfer)


# --- the proxy of cudf.pandas ------------------------------------------------------------------------------


def proxy_and_fallback() -> Figure:
    """Draw three calls through cudf.pandas: on the GPU, on the host after a copy, and on the GPU after another."""
    rows = 100 * MILLION
    none, there, both = (seconds("cudf", "sort", rows, transfer) for transfer in ("none", "in", "in-out"))
    copies = {"to the host": both - there, "to the GPU": there - none}
    words = "; ".join(f"{name}: {format_quantity(each, 's')}" for name, each in copies.items())
    return show(
        lambda figure, theme: _draw_proxy(figure, theme, copies),
        alt="Two lanes, GPU memory above and host memory below. A call that cuDF can do runs in the upper lane. For a "
        "call that it cannot do, an arrow copies the frame to the lower lane, where pandas does the work; the next "
        f"call on the GPU needs a copy back up. Copies of a hundred million rows: {words}.",
        caption="A fallback to pandas can add a copy each way, without a message. Times: to_arrow and from_arrow "
        "of a hundred million rows, by a sort's differences.",
        records=[store.load_published("dataframe")],
        size=(WIDE, 2.1),
        narrow=(4.6, 2.1),
        name="proxy-and-fallback",
        rows=[{"copy": name, "time_s": each} for name, each in copies.items()],
    )


def _draw_proxy(figure: Canvas, theme: Theme, copies: dict[str, float]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 56.0 if is_narrow(figure) else 96.0, 42.0
    wide = (width - left - 8) / 5  # three calls, and a column for each copy
    up, down = height - 48, height - 140
    for name, y in (("GPU\nmemory", up), ("host\nmemory", down)):
        drawings.label(ax, left - 8, y + tall / 2, name, across="right", size=10)
        ax.plot([left, width - 4], [y - 4, y - 4], color=theme.grid, linewidth=1)
    calls = (("filter", up, "cuDF", "orange"), ("apply", down, "pandas", "pink"), ("sort", up, "cuDF", "orange"))
    for place, (name, y, engine, colour) in enumerate(calls):
        x = left + 2 * place * wide
        drawings.box(ax, x, y, wide, tall, f"{name}\n{engine}", colour=colour, strength=0.3, size=10)
    first, second = left + wide, left + 3 * wide
    drawings.arrow(ax, (first + 4, up + tall / 2), (first + wide - 4, down + tall / 2), colour="grey", width=3)
    drawings.arrow(ax, (second + 4, down + tall / 2), (second + wide - 4, up + tall / 2), colour="grey", width=3)
    words = [f"copied\n{name}\n{format_quantity(each, 's')}" for name, each in copies.items()]
    drawings.label(ax, first + 0.4 * wide, down + tall / 2, words[0], across="right", size=10)
    drawings.label(ax, second + 0.6 * wide, down + tall / 2, words[1], across="left", size=10)


# --- cudf.pandas against pandas ----------------------------------------------------------------------------

SIZES = tuple(10**power for power in range(4, 9))


def pandas_and_its_proxy() -> Figure:
    """Draw how many times as fast cudf.pandas is as pandas, by operation and number of rows."""
    gains = {
        operation: [
            citation.ratio(f"dataframe/pandas/cudf-pandas:time op={operation} rows={rows} transfer=none").value
            for rows in SIZES
        ]
        for operation in OPERATIONS
    }
    words = "; ".join(
        f"{OPERATIONS[name]}: {significant(each[0], 2)} times with ten thousand rows, {significant(each[-1], 2)} with "
        "a hundred million"
        for name, each in gains.items()
    )
    return show(
        lambda figure, theme: _draw_gains(figure, theme, gains),
        alt="Four rising lines on logarithmic axes: times as fast as pandas against the number of rows, with a dashed "
        f"line at 1. {words}.",
        caption="At 10,000 rows, cudf.pandas is mostly slower; at a million, it wins. Times as fast as pandas, which "
        "mostly uses one thread, with the frame in GPU memory.",
        records=[store.load_published("dataframe")],
        size=(WIDE, 3.3),
        name="pandas-and-its-proxy",
    )


def _draw_gains(figure: Canvas, theme: Theme, gains: dict[str, list[float]]) -> None:
    ax = figure.subplots()
    for operation, each in gains.items():
        hue, marker = LOOKS[operation]
        ax.plot(SIZES, each, color=theme.series[hue], marker=marker, label=OPERATIONS[operation])
    ax.axhline(1, color=theme.ceiling, linestyle="--", linewidth=1.5)
    log_axis(ax.xaxis, "1", "rows")
    log_axis(ax.yaxis, "1", "times as fast as pandas")
    ax.set_xticks([10**4, 10**6, 10**8], ["10⁴", "10⁶", "10⁸"])
    legend(ax)


# --- a million rows, by what limits them -------------------------------------------------------------------


def times_of_a_million_rows(least: Mapping[str, Mapping[str, float]] | None = None) -> Figure:
    """Draw what a million rows take on the host, next to what they take at the rates of a memory and a link.

    Parameters
    ----------
    least : mapping, optional
        Of each operation, the seconds of a million rows by what limits them, such as ``"link, pinned"``.
    """
    rows = 100 * MILLION
    bars = {
        operation: {
            **(least or {}).get(operation, {}),
            "host, measured": min(seconds(name, operation, rows) for name in HOSTS) / (rows / MILLION),
        }
        for operation in OPERATIONS
    }
    words = "; ".join(
        f"{OPERATIONS[name]}, {what}: {format_quantity(value, 's')}"
        for name, each in bars.items()
        for what, value in each.items()
    )
    return show(
        lambda figure, theme: _draw_million(figure, theme, bars),
        alt=f"Bars of time for a million rows, for four operations. {words}.",
        caption="A pageable copy alone takes longer than the host's filter. Time of a million rows, without overheads, "
        "on a logarithmic axis: reading and writing GPU memory, the copy over the link, and the best library on the "
        "host (a hundredth of its time for a hundred million).",
        records=[store.load_published("dataframe"), store.load_published("ceilings")],
        size=(WIDE, 3.7),
        narrow=(4.6, 4.1),
        name="times-of-a-million-rows",
        rows=[
            {"operation": OPERATIONS[name], "where": what, "time_s": value}
            for name, each in bars.items()
            for what, value in each.items()
        ],
    )


def _draw_million(figure: Canvas, theme: Theme, bars: dict[str, dict[str, float]]) -> None:
    ax = figure.subplots()
    names = list(dict.fromkeys(name for each in bars.values() for name in each))
    hues = dict(zip(reversed(names), ("pink", "grey", "sky", "orange"), strict=False))
    for number, name in enumerate(names):
        places = [place + 0.2 * (number - (len(names) - 1) / 2) for place in range(len(bars))]
        values = [each[name] for each in bars.values()]
        ax.barh(places, values, 0.18, color=theme.series[hues[name]], label=name)
        for place, value in zip(places, values, strict=True):
            text = format_quantity(value, "s", 2)
            ax.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center", fontsize=10)
    ax.set_yticks(range(len(bars)), [OPERATIONS[name] for name in bars])
    ax.set_ylim(len(bars) - 0.5, -0.5)
    log_axis(ax.xaxis, "s", "")
    ax.set_xlim(2e-6, 5e-2)
    ax.set_xticks([1e-5, 1e-4, 1e-3, 1e-2])
    ax.grid(axis="y", visible=False)
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2)


# --- where the time of cuDF goes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Shares:
    """The parts of an operation on the GPU with both copies, in seconds."""

    there: float
    work: float
    back: float

    @property
    def whole(self) -> float:
        """All of it."""
        return self.there + self.work + self.back


def shares_of(operation: str, rows: int) -> Shares:
    """Return the parts of an operation; a copy that made it no longer takes no time."""
    none, there, both = (seconds("cudf", operation, rows, transfer) for transfer in ("none", "in", "in-out"))
    there = max(none, min(there, both))
    return Shares(there - none, none, max(0.0, both - there))


def copies_by_size() -> Figure:
    """Draw which share of an operation's time the work takes, and which the copies, by number of rows."""
    sizes = {10**6: "10⁶", 10**7: "10⁷", 10**8: "10⁸"}
    found = {(name, rows): shares_of(name, rows) for name in OPERATIONS for rows in sizes}
    words = "; ".join(
        f"{OPERATIONS[name]}, {rows:,} rows: {each.work / each.whole:.0%} of {format_quantity(each.whole, 's')}"
        for (name, rows), each in found.items()
    )
    return show(
        lambda figure, _: _draw_shares(figure, found, sizes),
        alt="Bars of equal length, three for each of four operations, divided into the copy there, the work on the GPU "
        f"and the copy back. The share of the work: {words}.",
        caption="The larger the frame, the smaller the share of the work. Time of one operation with a copy both ways "
        f"on {reference_gpu.word('a short')}: grey, the copy there; orange, the work; dashed, the copy back. Copies "
        "are differences of medians.",
        records=[store.load_published("dataframe")],
        size=(WIDE, 4.1),
        narrow=(4.6, 4.1),
        name="copies-by-size",
        rows=[
            {"operation": OPERATIONS[name], "rows": rows, "there_s": each.there, "work_s": each.work,
             "back_s": each.back}
            for (name, rows), each in found.items()
        ],
    )  # fmt: skip


def _draw_shares(figure: Canvas, found: dict[tuple[str, int], Shares], sizes: dict[int, str]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 46.0, 15.0
    across = width - left - 74
    down = (height - 4) / (len(found) + 0.9 * len(OPERATIONS))
    y, title = height - 2.0, ""
    for (name, rows), each in found.items():
        if OPERATIONS[name] != title:
            title = OPERATIONS[name]
            y -= 0.9 * down
            drawings.label(ax, 6, y + 4, title, across="left", bold=True)
        y -= down
        drawings.label(ax, left - 8, y + tall / 2, sizes[rows], across="right", size=10)
        x = left
        parts = ((each.there, "grey", 0.3, False), (each.work, "orange", 0.8, False), (each.back, "", 0.0, True))
        for part, colour, strength, dashed in parts:
            wide = part / each.whole * across
            if part:
                drawings.box(ax, x, y, max(wide, 1.0), tall, colour=colour, strength=strength, dashed=dashed)
            x += wide
        drawings.label(ax, left + across + 8, y + tall / 2, format_quantity(each.whole, "s"), across="left")


# --- a script's start --------------------------------------------------------------------------------------


def start_of_a_script() -> Figure:
    """Draw a script's first group-by on the GPU: the import, the rest of the first call, and a second call."""
    record = store.load_published("dataframe-mistakes")
    keys: dict[str, Any] = {"op": "groupby", "rows": 10**7}
    loading, whole, second = (record.median("cold-start", name, **keys) for name in ("import", "time", "second_call"))
    host = min(seconds(name, "groupby", 10**7) for name in HOSTS)
    spoken = [format_quantity(each, "s") for each in (whole, loading, second, host)]
    return show(
        lambda figure, _: _draw_start(figure, loading, whole, second, host),
        alt=f"A bar of {spoken[0]}: importing cuDF takes {spoken[1]} of it, copying the frame and the first group-by "
        f"the rest. A second group-by takes {spoken[2]}; the best library on the host, already imported, takes "
        f"{spoken[3]}.",
        caption="In a script with one short query, importing cuDF takes longest. A group-by of ten million rows "
        "in a fresh process, nearly to scale.",
        records=[record, store.load_published("dataframe")],
        size=(WIDE, 1.8),
        narrow=(4.6, 1.8),
        name="start-of-a-script",
        rows=[
            {"part": "import", "time_s": loading},
            {"part": "copy and first call", "time_s": whole - loading},
            {"part": "second call", "time_s": second},
            {"part": "host", "time_s": host},
        ],
    )


def _draw_start(figure: Canvas, loading: float, whole: float, second: float, host: float) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 6.0, 28.0
    scale = (width - 2 * left) / whole
    bottom = height - 50
    drawings.label(
        ax, left, height - 12, f"until the first result: {format_quantity(whole, 's')}", across="left", bold=True
    )
    words = f"import {format_quantity(loading, 's')}"
    drawings.box(ax, left, bottom, loading * scale, tall, words, colour="pink", strength=0.3)
    rest = (whole - loading) * scale
    text = "copy, first call" if rest > 90 else ""
    drawings.box(ax, left + loading * scale, bottom, rest, tall, text, colour="orange", strength=0.4, size=10)
    for place, (name, each, colour) in enumerate(
        (("a second group-by", second, "orange"), ("the best library on the host, already imported", host, "blue"))
    ):
        _thin(ax, left, 30 - place * 24, each * scale, f"{name}: {format_quantity(each, 's')}", colour)


def _thin(ax: Axes, left: float, bottom: float, wide: float, words: str, colour: str) -> None:
    shown = max(wide, 1.6)
    drawings.box(ax, left, bottom, shown, 16, colour=colour, strength=0.8)
    drawings.label(ax, left + shown + 7, bottom + 8, words, across="left")

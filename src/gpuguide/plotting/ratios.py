"""Ratios of contenders in rows: what a change gives, a mark for each way to ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuguide.errors import GpuguideError
from gpuguide.measure import citation, store
from gpuguide.measure.citation import CitedRatio
from gpuguide.measure.records import Record
from gpuguide.plotting import palette
from gpuguide.plotting.figure import mine_of, note
from gpuguide.plotting.marks import device_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FARTHEST = 0.3
"""Rows by which the first and the last mark of a row lie off its middle"""


@dataclass(frozen=True)
class Mark:
    """How one series of ratios is drawn."""

    colour: str
    """A name in :attr:`~gpuguide.plotting.palette.Theme.series`"""
    marker: str
    ratios: Sequence[str | None]
    """Reference of each row, ``benchmark/slower/faster:time key=value``; None where there is nothing to compare"""


def ratios(ax: Axes, rows: Sequence[str], series: Mapping[str, Mark]) -> None:
    """Draw one mark for each row and series: the median of paired ratios in digits too, p25 to p75 as a whisker.

    The reader's own records are hollow. A line stands at 1, where a change changes nothing.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Where to draw; its horizontal axis becomes logarithmic.
    rows : sequence of str
        Names of the rows, from the top.
    series : mapping of str to Mark
        Name in the legend, and what is drawn.

    Raises
    ------
    GpuguideError
        If a series has not as many references as there are rows, or the published record lacks one.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    theme, found = palette.current(), list[float]()
    ax.axvline(1, color=theme.ceiling, linestyle=":", linewidth=1.3, zorder=1)
    for number, (name, mark) in enumerate(series.items()):
        if len(mark.ratios) != len(rows):
            raise GpuguideError(f"The series {name!r} has {len(mark.ratios)} ratios for {len(rows)} rows.")
        off = FARTHEST * (2 * number / max(len(series) - 1, 1) - 1)
        places = [(row + off, reference) for row, reference in enumerate(mark.ratios) if reference is not None]
        label = name
        for place, reference in places:
            for cited in _published_and_mine(reference):
                found.append(cited.summary.median)
                _draw(ax, cited, place, mark, label)
                label = "_"  # one line of the legend a series
    for record in {each.device: each for each in _mine(series)}.values():
        ax.plot([], [], "o", color=theme.text, markerfacecolor=theme.background, label=device_label(record))
    ax.set_xscale("log")
    ticks = [each for each in (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50) if 0.9 * min(found) <= each]
    ax.xaxis.set_major_locator(FixedLocator([each for each in ticks if each <= 1.2 * max(found)]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.margins(x=0.12)
    ax.set_xlabel("times as fast")


def _published_and_mine(reference: str) -> list[CitedRatio]:
    published = citation.ratio(reference)
    return [published, *(own for record in mine_of(published.record) if (own := _own(reference, record)))]


def _own(reference: str, record: Record) -> CitedRatio | None:
    """Return the ratio of a reader's record, if it holds both cases."""
    try:
        return citation.ratio(reference, record)
    except GpuguideError:
        return None


def _mine(series: Mapping[str, Mark]) -> list[Record]:
    references = [each for mark in series.values() for each in mark.ratios if each is not None]
    found = [cited.record for reference in references for cited in _published_and_mine(reference)]
    return [record for record in found if store.is_mine(record)]


def _draw(ax: Axes, cited: CitedRatio, place: float, mark: Mark, label: str) -> None:
    note(cited.record, [cited.numerator.contender, cited.denominator.contender])
    theme, summary = palette.current(), cited.summary
    colour, is_mine = theme.series[mark.colour], store.is_mine(cited.record)
    look: dict[str, Any] = {"color": colour, "markerfacecolor": theme.background if is_mine else colour}
    if summary.p25 is not None and summary.p75 is not None:
        ax.hlines(place, summary.p25, summary.p75, color=colour, linewidth=1.5)
    ax.plot([summary.median], [place], mark.marker, label="_" if is_mine else label, zorder=3, **look)
    if not is_mine:
        right = (max(summary.median, summary.p75 or 0), place)
        behind = {"facecolor": theme.background, "edgecolor": "none", "pad": 0.5}
        ax.annotate(cited.text, right, (7, 0), textcoords="offset points", va="center", fontsize="small", bbox=behind)

"""One call, every rendition: two SVGs for the site's schemes, or one PNG for notebooks elsewhere."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuguide.errors import GpuguideError
from gpuguide.measure import reference_gpu, store
from gpuguide.measure.comparison import case_like
from gpuguide.measure.records import Record
from gpuguide.plotting import data, other_gpus, palette, renditions
from gpuguide.plotting.renditions import Draw, Size
from gpuguide.plotting.text_boxes import cut_off

MIME = "application/vnd.gpuguide.figure+json"
"""The media type of the bundle that :class:`gpuguide.site.directives.figures.FigureRenderer` turns into HTML"""


@dataclass(frozen=True)
class Figure:
    """A finished figure. Jupyter and the site ask it for the rendition that they show."""

    alt: str
    caption: str
    stamps: tuple[str, ...]
    png: bytes
    svg: dict[str, str] | None = None
    """Scheme and width (``light``, ``dark``, ``light-narrow``, ``dark-narrow``) to SVG text; only while the site is
    built"""
    name: str = ""
    """What its address on the page ends with; by default its section's"""
    csv: str = ""
    """What is drawn, as a table; only while the site is built"""
    interactive: Mapping[str, Any] = field(default_factory=dict)
    """What a script of the site needs to let readers try it: ``kind``, and the data of that kind"""
    others: Mapping[str, Any] = field(default_factory=dict)
    """The same figure with another GPU, for readers who ask for it: ``svg``, ``alt`` and the ``stamps`` that it adds;
    only while the site is built, and only where there is another GPU"""

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: dict[str, Any] = {
            "image/png": base64.b64encode(self.png).decode("ascii"),
            "text/plain": "\n".join([self.alt, self.caption, *self.stamps]),
        }
        if self.svg is not None:
            bundle[MIME] = {
                "svg": self.svg,
                "alt": self.alt,
                "caption": self.caption,
                "stamps": list(self.stamps),
                "name": self.name,
                "csv": self.csv,
                "interactive": dict(self.interactive),
                "others": dict(self.others),
            }
        return bundle, {"image/png": {"alt": self.alt}}


def show(
    draw: Draw,
    *,
    alt: str,
    caption: str,
    records: Sequence[Record] = (),
    size: Size = (renditions.WIDE, 4.1),
    narrow: Size | None = None,
    name: str = "",
    rows: Sequence[Mapping[str, Any]] = (),
    interactive: Mapping[str, Any] | None = None,
) -> Figure:
    """Draw a figure and return it; as the last line of a cell it is displayed.

    Parameters
    ----------
    draw : callable
        ``draw(figure, theme)`` puts axes on an empty :class:`matplotlib.figure.Figure`, in the theme's colours. It is
        called once for each format and must draw the same thing each time.
    alt : str
        What a reader who cannot see the figure needs to know: what is plotted, and what it shows.
    caption : str
        One or two sentences under the figure. The first is its title, in lists and in the search.
    records : sequence of Record
        Where the numbers come from, for the stamp. Records drawn by :func:`gpuguide.plotting.curves` and
        :func:`gpuguide.plotting.bars` are added without being named here.
    size : tuple of float
        Width and height in inches where there is room, and in notebooks.
    narrow : tuple of float, optional
        The same on a phone: by default less wide and about as high. Panels that stand beside each other elsewhere
        go below each other there (:func:`gpuguide.plotting.is_narrow`), and need more height.
    name : str
        What the figure's address on the page ends with; by default its section's.
    rows : sequence of mapping
        The numbers of a drawing, for its table; those of curves, bars and points are found without.
    interactive : mapping, optional
        What a script of the site needs to let readers try it (:mod:`gpuguide.plotting.interactive`).

    Raises
    ------
    GpuguideError
        If ``alt`` or ``caption`` is empty, or, on the site, a text of the figure is cut off.
    """
    for kind, words in (("alt", alt), ("caption", caption)):
        if not words.strip():
            raise GpuguideError(f"A figure needs its {kind} text: pass {kind}='…' to plotting.show.")
    sizes = (size, narrow or renditions.narrow_size(size))
    svg: dict[str, str] | None = None
    found: list[data.Row] = []
    with noting() as drawn, other_gpus.left_out() as left_out:
        if os.environ.get("GPUGUIDE_SITE_BUILD"):
            svg = _schemes(draw, sizes, found)
        png = renditions.png(draw, size)
    own = _own_devices(each.record for each in drawn)
    mine = f"Dashed and hollow: the same, measured by you on {own}." if own else ""
    named = [Drawn(record, ()) for record in records if not any(record == each.record for each in drawn)]
    stamps = _stamps([*named, *drawn])
    others: dict[str, Any] = {}
    if svg and left_out:
        found = []
        with noting() as together:
            others["svg"] = _schemes(draw, sizes, found)
        others["alt"] = " ".join(filter(None, (alt.strip(), other_gpus.sentences(left_out), mine)))
        others["stamps"] = [line for line in _stamps([*named, *together]) if line not in stamps]
    if svg and not any(store.is_mine(each.record) for each in drawn):  # a reader's GPU may have a name of any length
        for drawing in filter(None, (svg, others.get("svg"))):
            refuse_cut_off(drawing)
    alt = " ".join(filter(None, (alt.strip(), mine)))
    table = data.as_csv(rows or found) if svg else ""
    return Figure(alt, caption.strip(), tuple(stamps), png, svg, name, table, interactive or {}, others)


def _schemes(draw: Draw, sizes: tuple[Size, Size], rows: list[data.Row]) -> dict[str, str]:
    """Return a figure in both schemes and both widths; ``rows`` get what is drawn."""
    wide, narrow = sizes
    svg = {
        "light": renditions.svg(draw, palette.LIGHT, wide, rows),
        "light-narrow": renditions.svg(draw, palette.LIGHT, narrow),
    }
    return svg | {name.replace("light", "dark"): palette.recolor_for_dark(text) for name, text in svg.items()}


def refuse_cut_off(svg: Mapping[str, str]) -> None:
    """Raise where a text does not lie within the figure."""
    for rendition in ("light", "light-narrow"):
        if outside := cut_off(svg[rendition]):
            where = "on a phone" if rendition.endswith("narrow") else "where there is room"
            raise GpuguideError(
                f"The text {outside[0]!r} is cut off at the edge of the figure, as drawn {where}. "
                "Shorten it, or give the figure another size (size=…, narrow=…)."
            )


def stamp(records: Iterable[Record]) -> list[str]:
    """Return one line for each device and environment: where, with what, when, and from how many samples."""
    return _stamps([Drawn(record, ()) for record in records])


def _stamps(drawn: Iterable[Drawn]) -> list[str]:
    lines: dict[str, set[int]] = {}
    for each in drawn:
        record = each.record
        for index, run in enumerate(record.runs):
            cases = [case for case in record.cases if case.run == index and case.status == "ok"]
            counts = {metric.summary.n for case in cases for metric in case.measured.values()}
            where = run.stamp(record.libraries(each.contenders or None))
            line = " · ".join(filter(None, (where, reference_gpu.age(record))))
            lines.setdefault(line, set()).update(counts)
    return [f"{line} · {_sample_count(counts)}" for line, counts in lines.items() if counts]


def _sample_count(counts: set[int]) -> str:
    low, high = min(counts), max(counts)
    return f"n = {low}" if low == high else f"n = {low} to {high}"


# --- the records that a figure draws ---------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A record that a figure draws."""

    record: Record
    contenders: tuple[str, ...]
    """Whose cases, where that is known; else all"""


_drawn: list[Drawn] | None = None


class noting:
    """Collect the records that the drawing functions use inside the ``with`` block."""

    def __enter__(self) -> list[Drawn]:
        global _drawn
        self._outer, _drawn = _drawn, []
        return _drawn

    def __exit__(self, *_: object) -> None:
        global _drawn
        _drawn = self._outer


def note(record: Record, contenders: Sequence[str] = ()) -> None:
    """Say that ``record`` is being drawn, so that its stamp stands under the figure with the libraries it called."""
    if _drawn is None:
        return
    place = next((place for place, each in enumerate(_drawn) if each.record == record), None)
    if place is None:
        _drawn.append(Drawn(record, tuple(contenders)))
    else:
        _drawn[place] = Drawn(record, tuple(dict.fromkeys([*_drawn[place].contenders, *contenders])))


def load_published_and_mine(source: Record | str, *contenders: str, others: bool = False) -> list[Record]:
    """Return the published record first, then the reader's own records of that benchmark, to draw all of them.

    Parameters
    ----------
    source : Record or str
        A record, or the name of a benchmark whose published record is meant.
    *contenders : str
        What the figure needs: records are left out that lack a case of these which the published one has.
    others : bool
        Between them, also the published record of another GPU, if there is one (:mod:`gpuguide.plotting.other_gpus`).
    """
    published = store.load_published(source) if isinstance(source, str) else source
    needed = [case for contender in contenders for case in published.cases_of(contender)]
    more = [*(other_gpus.find_compared_records(published) if others else ()), *mine_of(published)]
    found = [published, *(record for record in more if all(case_like(case, record) for case in needed))]
    for record in found:
        note(record, contenders)
    return found


def mine_of(published: Record) -> list[Record]:
    """Return the reader's own records of a benchmark."""
    return [record for record in store.load_mine(published.benchmark) if record.path != published.path]


def _own_devices(records: Iterable[Record]) -> str:
    """Return the names of the reader's own devices that a figure draws."""
    return " and ".join(dict.fromkeys(record.device_name for record in records if store.is_mine(record)))

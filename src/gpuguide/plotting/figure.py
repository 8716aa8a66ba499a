"""One call, every rendition: two SVGs for the site's schemes, or one PNG for notebooks elsewhere."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuguide.errors import GpuguideError
from gpuguide.measure import reference_gpu, store
from gpuguide.measure.records import Record
from gpuguide.measure.side_by_side import case_like
from gpuguide.plotting import other_gpus, palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MIME = "application/vnd.gpuguide.figure+json"
"""The media type of the bundle that :class:`gpuguide.site.records.figures.FigureRenderer` turns into HTML"""

Draw = Callable[["Canvas", palette.Theme], None]


@dataclass(frozen=True)
class Figure:
    """A finished figure. Jupyter and the site ask it for the rendition that they show."""

    alt: str
    caption: str
    stamps: tuple[str, ...]
    png: bytes
    svg: dict[str, str] | None = None
    """Scheme to SVG text; only while the site is built"""

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: dict[str, Any] = {
            "image/png": base64.b64encode(self.png).decode("ascii"),
            "text/plain": "\n".join([self.alt, self.caption, *self.stamps]),
        }
        if self.svg is not None:
            content = {"svg": self.svg, "alt": self.alt, "caption": self.caption, "stamps": list(self.stamps)}
            bundle[MIME] = content
        return bundle, {"image/png": {"alt": self.alt}}


def show(
    draw: Draw,
    *,
    alt: str,
    caption: str,
    records: Sequence[Record] = (),
    size: tuple[float, float] = (5.8, 3.7),
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
        One or two sentences under the figure.
    records : sequence of Record
        Where the numbers come from, for the stamp. Records drawn by :func:`gpuguide.plotting.curves` and
        :func:`gpuguide.plotting.bars` are added without being named here.
    size : tuple of float
        Width and height in inches. The default keeps the text readable on a phone.

    Raises
    ------
    GpuguideError
        If ``alt`` or ``caption`` is empty.
    """
    for name, value in (("alt", alt), ("caption", caption)):
        if not value.strip():
            raise GpuguideError(f"A figure needs its {name} text: pass {name}='…' to plotting.show.")
    with noting() as drawn:
        svg: dict[str, str] | None = None
        if os.environ.get("GPUGUIDE_SITE_BUILD"):
            light = _svg(draw, palette.LIGHT, size)
            svg = {"light": light, "dark": palette.in_dark(light)}
        png = _png(draw, size)
    others = other_gpus.sentences(each.record for each in drawn)
    own = _own_devices(each.record for each in drawn)
    mine = f"Dashed and hollow: the same, measured by you on {own}." if own else ""
    alt = " ".join(filter(None, (alt.strip(), others, mine)))
    caption = " ".join(filter(None, (caption.strip(), others)))
    named = [Drawn(record, ()) for record in records if not any(record == each.record for each in drawn)]
    return Figure(alt, caption, tuple(_stamps([*named, *drawn])), png, svg)


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


def published_and_mine(source: Record | str, *contenders: str, others: bool = False) -> list[Record]:
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
    published = store.published(source) if isinstance(source, str) else source
    needed = [case for contender in contenders for case in published.cases_of(contender)]
    more = [*(other_gpus.beside(published) if others else ()), *mine_of(published)]
    found = [published, *(record for record in more if all(case_like(case, record) for case in needed))]
    for record in found:
        note(record, contenders)
    return found


def mine_of(published: Record) -> list[Record]:
    """Return the reader's own records of a benchmark."""
    return [record for record in store.mine(published.benchmark) if record.path != published.path]


def _own_devices(records: Iterable[Record]) -> str:
    """Return the names of the reader's own devices that a figure draws."""
    return " and ".join(dict.fromkeys(record.device_name for record in records if store.is_mine(record)))


# --- renditions ------------------------------------------------------------------------------------------


def _draw(draw: Draw, theme: palette.Theme, size: tuple[float, float]) -> Canvas:
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=size, layout="constrained")
    with palette.using(theme):
        draw(figure, theme)
    return figure


def _settings(theme: palette.Theme) -> Any:
    return {
        "font.family": "sans-serif",
        "font.size": 12,
        "axes.titlesize": 13,
        "axes.titlelocation": "left",
        "axes.labelsize": 12,
        "xtick.labelsize": 11,
        "ytick.labelsize": 11,
        "legend.fontsize": 11,
        "legend.frameon": False,
        "lines.linewidth": 2,
        "lines.markersize": 6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.ymargin": 0.1,  # room for the name of a ceiling
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "axes.edgecolor": theme.faint,
        "xtick.color": theme.faint,
        "ytick.color": theme.faint,
        "text.color": theme.text,
        "axes.labelcolor": theme.text,
        "xtick.labelcolor": theme.text,
        "ytick.labelcolor": theme.text,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "svg.fonttype": "none",
        "svg.hashsalt": "gpuguide",
    }


def _svg(draw: Draw, theme: palette.Theme, size: tuple[float, float]) -> str:
    """Return the figure as SVG with real text; the same input gives the same bytes."""
    import matplotlib

    with matplotlib.rc_context(_settings(theme)):
        text = io.StringIO()
        figure = _draw(draw, theme, size)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return text.getvalue().replace("'DejaVu Sans', ", "")


def _png(draw: Draw, size: tuple[float, float]) -> bytes:
    """Return the figure as PNG on white, at twice the usual resolution."""
    import matplotlib

    with matplotlib.rc_context(_settings(palette.PRINT)):
        image = io.BytesIO()
        figure = _draw(draw, palette.PRINT, size)
        figure.savefig(image, format="png", dpi=144, facecolor="white", metadata={"Software": None})
    return image.getvalue()

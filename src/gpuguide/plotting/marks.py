"""What the figures are made of: curves and bars from records, ceilings, rooflines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuguide.errors import GpuguideError
from gpuguide.measure import reference_gpu, store
from gpuguide.measure.records import Case, Key, Record, SampleSummary
from gpuguide.plotting import data, finishing, other_gpus, palette
from gpuguide.plotting.figure import mine_of, note
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def curves(
    ax: Axes,
    source: Record | str,
    *,
    x: str,
    metric: str,
    contenders: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    beside: Sequence[str] | None = None,
    **keys: Key,
) -> None:
    """Draw the median of each contender over the key ``x``, with its p25–p75 band.

    Where the reader has measured the same benchmark, their curve is drawn over it: dashed, with hollow markers,
    named by its device. Another published GPU is drawn thin, in short dashes and without a band, where readers ask for
    it; of which contenders, says :mod:`gpuguide.plotting.other_gpus`. More than one name is written as :func:`legend`
    does.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Where to draw.
    source : Record or str
        A record, or the name of a benchmark whose published record is meant.
    x : str
        The key on the horizontal axis, for example ``"working_set"``.
    metric : str
        The metric on the vertical axis, for example ``"bandwidth"``.
    contenders : sequence of str, optional
        Which contenders, in this order; by default all that the record holds.
    labels : mapping of str to str, optional
        Contender to its name in the legend; by default that of :func:`gpuguide.plotting.label`.
    beside : sequence of str, optional
        The contenders that are drawn for another published GPU too, in place of the rule's choice.
    **keys
        Fixed values of the other keys.

    Raises
    ------
    GpuguideError
        If the published record holds no such point.
    """
    theme = palette.current()
    published = store.load_published(source) if isinstance(source, str) else source
    chosen = list(contenders) if contenders is not None else published.contenders
    drawn = [published]
    for record, names in _to_draw(published, chosen, beside):
        found = {name: _points(record, name, x, metric, keys) for name in names}
        if record is published and (missing := [name for name, points in found.items() if not points]):
            raise GpuguideError(
                f"The record of {record.benchmark!r} on {record.device} holds no {metric!r} of {missing[0]!r}"
                f" over {x!r}. It holds: {', '.join(record.contenders)}."
            )
        held = [name for name, points in found.items() if points]
        if held:
            note(record, held)
            drawn += [record] * (record is not published)
        for contender in held:
            style = palette.style(contender)
            colour = theme.series[style.colour]
            xs, summaries = zip(*found[contender], strict=True)
            label = (labels or {}).get(contender, palette.label(contender))
            medians = [summary.median for summary in summaries]
            (line,) = ax.plot(xs, medians, color=colour, marker=style.marker, label=label, **stroke(record))
            low, high = zip(*map(_band, summaries), strict=True)
            data.note_band(line, low, high, "" if record is published else device_label(record))
            if not other_gpus.is_other(record):
                ax.fill_between(xs, low, high, color=colour, alpha=0.25, linewidth=0)
    name_devices(ax, drawn)
    if len(ax.get_legend_handles_labels()[1]) > 1:
        legend(ax)


def _to_draw(published: Record, chosen: list[str], beside: Sequence[str] | None) -> list[tuple[Record, list[str]]]:
    """Return the records of a figure, each with the contenders that are drawn of it."""
    others = [(record, other_gpus.contenders(chosen, beside)) for record in other_gpus.find_compared_records(published)]
    return [(published, chosen), *others, *((record, chosen) for record in mine_of(published))]


def _points(
    record: Record, contender: str, x: str, metric: str, keys: Mapping[str, Key]
) -> list[tuple[float, SampleSummary]]:
    """Return what :meth:`Record.series` does, of a record that may lack keys or metrics which others have."""
    return sorted(
        (float(case.keys[x]), case.metrics[metric].summary)
        for case in record.cases_of(contender)
        if x in case.keys and metric in case.metrics and _has(case, keys)
    )


def stroke(record: Record, *, line: bool = True) -> dict[str, Any]:
    """Return how what comes from a record is drawn: a reader's own is dashed, with hollow markers, above the others.

    Another published GPU than the reference is thin, in short dashes.

    Parameters
    ----------
    record : Record
        Published, or the reader's own.
    line : bool
        False for markers that no line joins.
    """
    if other_gpus.is_other(record):
        return {"linestyle": other_gpus.SHORT_DASHES if line else "none", **other_gpus.look(record)}
    if not store.is_mine(record):
        return {"linestyle": "-" if line else "none", "zorder": 2}
    return {
        "linestyle": "--" if line else "none",
        "zorder": 3,
        "markerfacecolor": palette.current().background,
    }


def name_devices(ax: Axes, records: Sequence[Record]) -> None:
    """Put the devices into the legend, if there is more than one or the only one is stale.

    Where only another published GPU stands behind a fresh reference, it alone is named, which saves a line of the
    legend: the stamps name both.
    """
    first, *rest = records
    only_others = rest and all(map(other_gpus.is_other, rest)) and not first.stale
    if rest or first.stale:
        for record in rest if only_others else records:
            ax.plot([], [], color=palette.current().text, marker="o", label=device_label(record), **stroke(record))


def bars(
    ax: Axes,
    source: Record | str,
    *,
    metric: str,
    contenders: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    beside: Sequence[str] | None = None,
    **keys: Key,
) -> None:
    """Draw one horizontal bar for each contender: its median, its p25–p75 as a whisker, its value in words.

    The parameters are those of :func:`curves`; ``keys`` must leave one case for each contender. The reader's own
    bars stand under the published ones, hollow; those of another published GPU are thin.
    """
    published = store.load_published(source) if isinstance(source, str) else source
    chosen = list(contenders) if contenders is not None else published.contenders
    records = _to_draw(published, chosen, beside)
    names: list[str] = []
    for contender in chosen:
        for record in (record for record, drawn in records if contender in drawn):
            if record is not published and not _holds(record, contender, metric, keys):
                continue
            note(record, [contender])
            found = record.case(contender, **keys).metrics[metric]
            row = len(names)
            name = (labels or {}).get(contender, palette.label(contender))
            stale = " (stale)" * record.stale
            names.append(name + stale if record is published else device_label(record))
            low, high = _band(found.summary)
            middle = found.summary.median
            ax.barh(row, middle, xerr=[[middle - low], [high - middle]], **_bar(record, palette.colour(contender)))
            text = format_quantity(middle, found.unit)
            ax.annotate(text, (max(middle, high), row), (6, 0), textcoords="offset points", va="center")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.22)
    ax.set_xlim(left=0)


def _bar(record: Record, colour: str) -> dict[str, Any]:
    """Return how the bar of a record is drawn."""
    if other_gpus.is_other(record):
        return {"height": 0.25, "color": colour, "error_kw": {"elinewidth": 0}}
    whisker = {"ecolor": palette.current().text, "elinewidth": 1.5, "capsize": 3}
    mine = store.is_mine(record)
    return {
        "height": 0.66,
        "color": "none" if mine else colour,
        "edgecolor": colour,
        "linestyle": "--" if mine else "-",
        "error_kw": whisker,
    }


def ceiling(ax: Axes, value: float, label: str, *, faint: bool = False, at_end: bool = False) -> None:
    """Draw a horizontal bound with its name on it; ``faint`` for what is a datasheet's and not measured.

    The name stands at the beginning of the horizontal axis, or at its end, and at the other where curves run through.
    """
    theme = palette.current()
    colour = theme.faint if faint else theme.ceiling
    ax.axhline(value, color=colour, linestyle=":" if faint else (0, (6, 2)), linewidth=1.5, zorder=1)
    name = ax.annotate(
        label,
        (0.99 if at_end else 0.01, value),
        (0, 3),
        xycoords=ax.get_yaxis_transform(),
        textcoords="offset points",
        horizontalalignment="right" if at_end else "left",
        color=theme.text,
        fontsize="small",
    )
    finishing.note_bound(ax, value, name)


def roofline(
    ax: Axes,
    *,
    bandwidth: float,
    throughput: float,
    label: str,
    contender: str | None = None,
    faint: bool = False,
    record: Record | None = None,
    intensity: tuple[float, float] = (0.1, 10_000.0),
) -> None:
    """Draw the most that a kernel can reach at each arithmetic intensity.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Both axes become logarithmic.
    bandwidth : float
        Memory bandwidth in B/s: the slope.
    throughput : float
        Arithmetic ceiling in FLOP/s: the flat part.
    label : str
        For the legend.
    contender : str, optional
        Take the colour of this contender; by default that of a ceiling.
    faint : bool
        Draw it thin and dotted, for a datasheet's values.
    record : Record, optional
        Where the ceilings come from. A reader's own are dashed.
    intensity : tuple of float
        The range of the horizontal axis in FLOP/B.

    Notes
    -----
    The model is that of S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance
    model for multicore architectures", Communications of the ACM 52(4), 2009.
    """
    theme = palette.current()
    ridge = throughput / bandwidth
    xs = sorted({*intensity, min(max(ridge, intensity[0]), intensity[1])})
    colour = theme.faint if faint else (palette.colour(contender) if contender else theme.ceiling)
    ax.plot(
        xs,
        [min(throughput, bandwidth * value) for value in xs],
        color=colour,
        linewidth=1.2 if faint else 2,
        linestyle=":" if faint else stroke(record)["linestyle"] if record else "-",
        label=label,
    )
    ax.set_xscale("log")
    ax.set_yscale("log")


def legend(ax: Axes, *, at_lines: bool = True, most: int = finishing.MOST_NAMES) -> int:
    """Name the series when the figure is finished: up to five lines where they end, others in a legend above.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
        Whose series are named.
    at_lines : bool
        False where lines end in one place, as those of a watched GPU do: the legend then names all.
    most : int
        Of more lines than that, the legend names all. Raise it where they end apart from each other; a series of one
        point is then named at it too.

    Returns
    -------
    int
        The number of rows of the legend, for a title above it.
    """
    finishing.wants_legend(ax, most if at_lines else 0)
    return finishing.legend_rows(ax)


def device_label(record: Record) -> str:
    """Return the name of a record's device as a legend shows it: short, whose it is, and if it is stale.

    A reader's own keeps the whole name that its driver gives.
    """
    if other_gpus.is_other(record):
        of_the_day = f" (code of {reference_gpu.code_of(record)})" if record.stale else ""
        return reference_gpu.short_name(record.device_name) + of_the_day
    mine = store.is_mine(record)
    whole = record.device_name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    name = whole if mine else reference_gpu.short_name(record.device_name)
    notes = ["yours"] * mine + ["stale"] * record.stale
    return f"{name} ({', '.join(notes)})" if notes else name


def _holds(record: Record, contender: str, metric: str, keys: Mapping[str, Key]) -> bool:
    """Return whether a record has one case of these keys, with this metric."""
    found = [case for case in record.cases_of(contender) if _has(case, keys)]
    return len(found) == 1 and metric in found[0].metrics


def _has(case: Case, keys: Mapping[str, Key]) -> bool:
    """Return whether a case has these keys, among others."""
    return all(case.keys.get(name) == value for name, value in keys.items())


def _band(summary: SampleSummary) -> tuple[float, float]:
    """Return p25 and p75, or the single value twice."""
    if summary.p25 is None or summary.p75 is None:
        return summary.median, summary.median
    return summary.p25, summary.p75

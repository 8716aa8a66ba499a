"""Another published GPU beside the reference GPU: which it is, how it is drawn, and what is said of it.

The rule, for every figure: what the reference GPU measured is the figure. One other GPU may be drawn with it, in a
second drawing, which the site shows to readers who ask for other GPUs (:func:`left_out`); notebooks have the first.

* One other GPU is drawn, the one measured last, and a fresh record before a stale one. Processors are never drawn so,
  nor numbers of GPUs other than the figure's own.
* Of one or two contenders both are drawn on it. Of more only ours (the first whose name begins with ``gpuguide``),
  or the first where none is ours: a crowd of thin lines says nothing. ``beside`` names others.
* It is drawn in the contender's own colour and marker, thin and in short dashes, with small markers and without a
  band. If the code has changed since it was measured, the legend says of which day it was.
* :func:`~gpuguide.plotting.curves` and :func:`~gpuguide.plotting.bars` draw it. Drawings by hand, in which numbers and
  names stand beside the points, and traces show the reference GPU alone, unless they ask for it
  (:func:`~gpuguide.plotting.load_published_and_mine` with ``others``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpuguide.measure import folders, page_gpu, reference_gpu, store
from gpuguide.measure.records import Record
from gpuguide.plotting import palette

MOST_CONTENDERS = 2
OURS = "gpuguide"
SHORT_DASHES = (0, (2.5, 1.2))
"""Unlike those of a reader's own curves"""

_left_out: list[Record] | None = None


@contextmanager
def left_out() -> Iterator[list[Record]]:
    """Draw without other GPUs inside the ``with`` block, and give the records that would have been drawn."""
    global _left_out
    outer, _left_out = _left_out, []
    try:
        yield _left_out
    finally:
        _left_out = outer


def find_compared_records(published: Record) -> list[Record]:
    """Return the record of the other GPU that is to be drawn with a published one of the reference GPU, if any."""
    found = find_other_gpu_records(published)
    if _left_out is None:
        return found
    _left_out.extend(record for record in found if record not in _left_out)
    return []


def find_other_gpu_records(published: Record) -> list[Record]:
    """Return the record of the other GPU that may be drawn with a published one of the reference GPU, if any."""
    if not is_published(published) or not reference_gpu.is_reference(published):
        return []
    number = published.device.removesuffix(page_gpu.kind(published.device))
    found = [
        record
        for record in store.load_all_published(published.benchmark)
        if is_other(record) and record.device.removesuffix(page_gpu.kind(record.device)) == number
    ]
    return sorted(found, key=lambda record: (not record.stale, reference_gpu.code_of(record)))[-1:]


def is_other(record: Record) -> bool:
    """Return whether a record is published, and of another GPU than the one that prose speaks of."""
    return is_published(record) and not reference_gpu.is_quotable(record)


def is_published(record: Record) -> bool:
    """Return whether a record lies among the published ones."""
    return record.path is not None and record.path.is_relative_to(folders.published_folder())


def contenders(drawn: Sequence[str], wanted: Sequence[str] | None = None) -> list[str]:
    """Return which of the contenders that a figure draws it draws for the other GPU too.

    Parameters
    ----------
    drawn : sequence of str
        All contenders of the figure.
    wanted : sequence of str, optional
        Those that the author chose; by default the rule of this module.
    """
    if wanted is not None:
        return [name for name in drawn if name in wanted]
    if len(drawn) <= MOST_CONTENDERS:
        return list(drawn)
    return [next((name for name in drawn if name.startswith(OURS)), drawn[0])]


def look(record: Record) -> dict[str, Any]:
    """Return how its lines and markers differ from those of the reference GPU.

    A line often lies on that of the reference GPU, in the same colour: an edge in the colour of the ground shows it.
    """
    from matplotlib.patheffects import withStroke

    edge = withStroke(linewidth=3.4, foreground=palette.current().background)
    return {"linewidth": 1.3, "markersize": 4, "zorder": 2.5, "path_effects": [edge]}


def sentences(drawn: Iterable[Record]) -> str:
    """Return what alternative texts say of the other GPUs among the records that a figure draws."""
    found: dict[str, set[str]] = {}
    for record in drawn:
        if is_other(record):
            days = found.setdefault(record.device_name, set())
            days |= {reference_gpu.code_of(record)} if record.stale else set()
    return " ".join(
        f"Thin: {name}, measured with the code of {' and '.join(sorted(days))}." if days else f"Thin: {name}."
        for name, days in found.items()
    )

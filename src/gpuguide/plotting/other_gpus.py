"""Another published GPU beside the reference GPU: which it is, how it is drawn, and what is said of it.

The rule, for every figure: what the reference GPU measured is the figure, and one other GPU may stand behind it.

* One other GPU is drawn, the one measured last, and a fresh record before a stale one. Processors are never drawn so,
  nor numbers of GPUs other than the figure's own.
* Of one or two contenders both are drawn on it. Of more only ours (the first whose name begins with ``gpuguide``),
  or the first where none is ours: a crowd of thin lines says nothing. ``beside`` names others.
* It is drawn in the contender's own colour and marker, thin, with small markers and without a band. If the code has
  changed since it was measured, it is pale as well, and the caption says with the code of which day it was measured.
* :func:`~gpuguide.plotting.curves` and :func:`~gpuguide.plotting.bars` draw it. Drawings by hand, in which numbers and
  names stand beside the points, and traces show the reference GPU alone, unless they ask for it
  (:func:`~gpuguide.plotting.published_and_mine` with ``others``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpuguide.measure import reference_gpu, store
from gpuguide.measure.records import Record

MOST_CONTENDERS = 2
OURS = "gpuguide"


def beside(published: Record) -> list[Record]:
    """Return the record of the other GPU that may be drawn behind a published one of the reference GPU, if any."""
    if not is_published(published) or not store.is_reference(published):
        return []
    number = published.device.removesuffix(store.kind(published.device))
    found = [
        record
        for record in store.published_records()
        if record.benchmark == published.benchmark
        and is_other(record)
        and record.device.removesuffix(store.kind(record.device)) == number
    ]
    return sorted(found, key=lambda record: (not record.stale, reference_gpu.code_of(record)))[-1:]


def is_other(record: Record) -> bool:
    """Return whether a record is published, and of another GPU than the one that prose speaks of."""
    return is_published(record) and not store.is_quotable(record)


def is_published(record: Record) -> bool:
    """Return whether a record lies among the published ones."""
    return record.path is not None and record.path.is_relative_to(store.published_folder())


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
    """Return how its lines and markers differ from those of the reference GPU."""
    return {"linewidth": 1.1, "markersize": 3.5, "zorder": 1.5, "alpha": opacity(record)}


def opacity(record: Record) -> float:
    """Return how strongly it is drawn."""
    return 0.45 if record.stale else 0.9


def sentences(drawn: Iterable[Record]) -> str:
    """Return what captions and alternative texts say of the other GPUs among the records that a figure draws."""
    found: dict[str, set[str]] = {}
    for record in drawn:
        if is_other(record):
            days = found.setdefault(record.device_name, set())
            days |= {reference_gpu.code_of(record)} if record.stale else set()
    return " ".join(
        f"Thin and pale: {name}, measured with the code of {' and '.join(sorted(days))}." if days else f"Thin: {name}."
        for name, days in found.items()
    )

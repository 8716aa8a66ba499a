"""Answers about the library's source, kept from one process to the next for as long as no file of it changes.

To take every digest anew takes seconds, and a build in which nothing changed needs them all, as a list of records does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Answers:
    """Cache of facts about the source as it stood when the process began."""

    path: Path
    source: list[Any]
    """Its files with their sizes and times"""
    known: dict[str, Any]
    taken_over: int
    """Number of answers that were known from the beginning"""


_kept: Answers | None = None


def keep_in(path: Path, folder: Path) -> None:
    """Take over what an earlier process left in a file, if the source in ``folder`` has not changed since."""
    global _kept
    source = [
        [file.relative_to(folder).as_posix(), file.stat().st_size, file.stat().st_mtime_ns]
        for file in sorted(folder.rglob("*.py"))
    ]
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        earlier = {}
    known = earlier["known"] if earlier.get("source") == source else {}
    _kept = Answers(path, source, known, len(known))


def answer(question: str, find: Callable[[], Any]) -> Any:
    """Return what is known, or else what ``find`` returns, which JSON must be able to hold."""
    if _kept is None:
        return find()
    if question not in _kept.known:
        _kept.known[question] = find()
    return _kept.known[question]


def save() -> None:
    """Leave what is known to later processes, if some of it is new."""
    if _kept is not None and len(_kept.known) > _kept.taken_over:
        _kept.path.parent.mkdir(parents=True, exist_ok=True)
        _kept.path.write_text(json.dumps({"source": _kept.source, "known": _kept.known}), encoding="utf-8")

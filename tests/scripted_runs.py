"""For the tests of the runner: failures at a chosen step of a scripted benchmark, and what a run has stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuguide.measure import records
from gpuguide.measure.records import Record


def stored(folder: Path, name: str = "scripted", device: str = "cpu") -> Record:
    """Return the record of a benchmark on a device, read from its file."""
    return records.read(folder / device / f"{name}.json")


def statuses(record: Record) -> dict[tuple[Any, str], tuple[str, str]]:
    """Return what became of each contender on each size."""
    return {(case.keys["size"], case.contender): (case.status, case.reason) for case in record.cases}


def fails(where: str, error: Exception) -> Callable[[str], None]:
    """Return a hook that raises at the last such step before the end of the sampling."""
    seen: list[str] = []

    def at(step: str) -> None:
        seen.append(step)
        if step == where and seen.count(step) in (1 if "sample" not in where else 4,):
            raise error

    return at

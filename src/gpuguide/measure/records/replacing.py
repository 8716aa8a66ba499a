"""A record that takes the place of another one: which measurements would be gone, and where they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuguide.measure.records.fields import DamagedRecord
from gpuguide.measure.records.reading import read
from gpuguide.measure.records.record import Record
from gpuguide.measure.records.samples import Metric


def find_backup_path(record: Record) -> Path:
    """Return where a record's file is kept when a new one takes its place; no reader of records looks there."""
    assert record.path is not None
    return record.path.with_name(f"{record.path.name}.{record.runs[-1].finished_at[:19].replace(':', '-')}")


def set_aside(record: Record, target: Path) -> Path | None:
    """Rename the file that ``record`` is about to replace, if it holds measurements that ``record`` does not.

    Returns
    -------
    Path or None
        What the file is called now, if it was renamed.
    """
    there = _readable(target)
    if there is None:
        return None
    if there.device_name == record.device_name and _index_metrics(there).items() <= _index_metrics(record).items():
        return None
    return target.replace(find_backup_path(there))


def find_lost_measurements(record: Record, target: Path) -> str | None:
    """Return which measurements would be lost if ``record`` took the place of a file, or ``None`` if none would.

    A file that is damaged holds nothing to lose.
    """
    there = _readable(target)
    if there is None:
        return None
    if there.device_name != record.device_name:
        return f"{target} is of another machine, {there.device_name}, and it is of {record.device_name}"
    measured = _index_metrics(there)
    gone = measured.keys() - _index_metrics(record).keys()
    if not gone:
        return None
    return f"it lacks {len(gone)} of the {len(measured)} cases measured in {target}"


def _readable(path: Path) -> Record | None:
    """Return the record in a file, or ``None`` if there is none that can be read."""
    try:
        return read(path) if path.exists() else None
    except DamagedRecord:
        return None


def _index_metrics(record: Record) -> dict[tuple[object, ...], Mapping[str, Metric]]:
    """Return what was measured, by contender and keys."""
    good = [case for case in record.cases if case.status == "ok"]
    return {(case.contender, *sorted(case.keys.items())): case.measured for case in good}

"""Records: what a benchmark measured, on which machine, in one JSON file a device and benchmark.

The format is described for readers in ``docs/record-format.md``. This package is the only one that knows it:
:mod:`~gpuguide.measure.records.record` says what a record holds, :mod:`~gpuguide.measure.records.reading` reads a file
and checks every field on the way, :mod:`~gpuguide.measure.records.writing` writes it back, and
:mod:`~gpuguide.measure.records.replacing` says what is lost where one takes the place of another.
"""

from __future__ import annotations

from gpuguide.measure.records.fields import DamagedRecord
from gpuguide.measure.records.reading import from_json, load, read
from gpuguide.measure.records.record import (
    CORRECT,
    HARNESS_VERSION,
    SCHEMA_VERSION,
    STATUSES,
    Case,
    Correct,
    Key,
    Readings,
    Record,
    Run,
    Status,
    describe_keys,
)
from gpuguide.measure.records.replacing import find_backup_path, find_lost_measurements, set_aside
from gpuguide.measure.records.samples import QUANTILES, Metric, Rate, SampleSummary, metric, summarise
from gpuguide.measure.records.writing import to_json, write

__all__ = [
    "CORRECT",
    "HARNESS_VERSION",
    "QUANTILES",
    "SCHEMA_VERSION",
    "STATUSES",
    "Case",
    "Correct",
    "DamagedRecord",
    "Key",
    "Metric",
    "Rate",
    "Readings",
    "Record",
    "Run",
    "SampleSummary",
    "Status",
    "describe_keys",
    "find_backup_path",
    "find_lost_measurements",
    "from_json",
    "load",
    "metric",
    "read",
    "set_aside",
    "summarise",
    "to_json",
    "write",
]

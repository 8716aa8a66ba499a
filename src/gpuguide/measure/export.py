"""Records as CSV: one row a device, benchmark, contender, case and metric."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable

from gpuguide.measure.records import Record

CSV_COLUMNS = [
    "device",
    "benchmark",
    "contender",
    "case",
    "metric",
    "unit",
    "n",
    "p5",
    "p25",
    "median",
    "p75",
    "p95",
    "correct",
    "measured_at",
    "commit",
    "stale",
]


def csv_text(chosen: Iterable[Record]) -> str:
    """Return records as CSV: one row a device, benchmark, contender, case and metric that was measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for record in chosen:
        writer.writerows(rows(record))
    return text.getvalue()


def rows(record: Record) -> list[list[str]]:
    """Return the CSV rows of one record, in the order of :data:`CSV_COLUMNS`."""
    stale = "yes" if record.stale else "no"
    found = []
    for case in record.cases:
        run = record.runs[case.run]
        keys = json.dumps(dict(case.keys), sort_keys=True)
        for name, metric in case.metrics.items():
            s = metric.summary
            quantiles = ["" if value is None else f"{value:.6g}" for value in (s.p5, s.p25, s.median, s.p75, s.p95)]
            where = [record.device, record.benchmark, case.contender, keys, name, metric.unit, str(s.n)]
            found.append([*where, *quantiles, case.correct, run.finished_at, run.commit or "", stale])
    return found

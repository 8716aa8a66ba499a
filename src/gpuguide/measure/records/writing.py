"""Write a record's file, so that no reader ever sees half of one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpuguide.errors import GpuguideError
from gpuguide.files import replace_atomically
from gpuguide.measure.records.record import SCHEMA_VERSION, Case, Record
from gpuguide.measure.records.samples import Metric


def to_json(record: Record) -> str:
    """Return the text of a record's file: one run or case a line, so that changes read well in a diff."""
    runs = [_to_line(asdict(run)) for run in record.runs]
    cases = [_to_line(_case_fields(case)) for case in record.cases]
    head = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": record.benchmark,
        "device": record.device,
        "harness_version": record.harness_version,
        "code_digest": record.code_digest,
    }
    head["checksum"] = checksum(
        {**head, "runs": [json.loads(r) for r in runs], "cases": [json.loads(c) for c in cases]}
    )
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    body = ' "runs": [\n  ' + ",\n  ".join(runs) + '\n ],\n "cases": [\n  ' + ",\n  ".join(cases) + "\n ]"
    return "{\n" + "\n".join(lines) + "\n" + body + "\n}\n"


def write(record: Record, path: Path) -> Record:
    """Write ``record`` to ``path`` so that no reader ever sees half a file, and return it with its path.

    Raises
    ------
    GpuguideError
        If the folder cannot be written; whatever stood at ``path`` before is still there.
    """
    try:
        with replace_atomically(path) as temporary:
            # A command line may hold bytes that are not UTF-8; backslashreplace writes them as JSON escapes.
            temporary.write_text(to_json(record), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise GpuguideError(
            f"Cannot write the record {path}: {error.strerror or error}. Free some space, or choose another folder "
            "with --out or GPUGUIDE_RECORDS; the cases written before are kept."
        ) from error
    return replace(record, path=path)


def _to_line(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))  # spaces would be a tenth of the file


def _case_fields(case: Case) -> dict[str, Any]:
    fields = {
        "keys": dict(case.keys),
        "contender": case.contender,
        "run": case.run,
        "status": case.status,
        "correct": case.correct,
    }
    may_be_empty = {
        "reason": case.reason,
        "libraries": case.libraries,
        "metrics": {name: _metric_fields(value) for name, value in case.measured.items()},
        "rates": {name: asdict(value) for name, value in case.rates.items()},
    }
    return fields | {name: value for name, value in may_be_empty.items() if value}


def _metric_fields(metric: Metric) -> dict[str, Any]:
    summary = {"n": metric.summary.n, "median": metric.summary.median}  # the other quantiles follow from the samples
    fields = {"unit": metric.unit, "samples": metric.samples, "summary": summary}
    return fields | ({"turns": metric.turns} if metric.turns else {})


def checksum(fields: Mapping[str, Any]) -> str:
    """Return a digest of everything in the file but the checksum, so that an edit by hand is noticed."""
    text = json.dumps({k: v for k, v in fields.items() if k != "checksum"}, sort_keys=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

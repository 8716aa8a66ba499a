"""Each published record as JSON, CSV and Arrow, at an address that does not change between builds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gpuguide.measure import digest, export, store
from gpuguide.measure.records import Record
from gpuguide.site.execution import watching

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FORMATS = {"json": "JSON", "csv": "CSV", "arrow": "Arrow"}
"""Ending of the file, and the format's name"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("build-finished", write_all)


def address(record: Record, kind: str) -> str:
    """Return where a record's file is on the site, from its root."""
    return f"records/{record.device}/{record.benchmark}.{kind}"


def write_all(app: Sphinx, exception: Exception | None) -> None:
    """Write the files whose record or code has changed since they were written."""
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    if watching.is_nothing_new(app) and (out / "records").exists():
        return
    wanted: set[Path] = set()
    for record in store.load_all_published():
        targets = {kind: out / address(record, kind) for kind in FORMATS}
        wanted.update(targets.values())
        if record.path is None or _current(record, list(targets.values())):
            continue
        targets["json"].parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(record.path, targets["json"])
        targets["csv"].write_text(export.csv_text([record]), encoding="utf-8")
        write_arrow(record, targets["arrow"])
    for path in (out / "records").glob("*/*"):
        if path not in wanted:
            path.unlink()


def _current(record: Record, targets: list[Path]) -> bool:
    """Return whether all files are there, and newer than the record and the benchmark's code."""
    if not all(path.exists() for path in targets) or record.path is None:
        return False
    module = digest.benchmark_modules().get(record.benchmark)
    sources = [record.path, *([digest.module_path(name) for name in digest.transitive([module])] if module else [])]
    return min(path.stat().st_mtime for path in targets) >= max(path.stat().st_mtime for path in sources)


def write_arrow(record: Record, path: Path) -> None:
    """Write a record as an Arrow IPC file: the CSV's columns, with numbers as numbers, all samples and their turns."""
    import pyarrow as pa

    columns: dict[str, list[object]] = {name: [] for name in (*export.CSV_COLUMNS, "samples", "turns")}
    for row in export.rows(record):
        for name, value in zip(export.CSV_COLUMNS, row, strict=True):
            columns[name].append(value)
    for case in record.cases:
        for metric in case.metrics.values():
            columns["samples"].append(list(metric.samples))
            columns["turns"].append(list(metric.turns))
    for name in ("n", "p5", "p25", "median", "p75", "p95"):
        kind = int if name == "n" else float
        columns[name] = [kind(str(value)) if value != "" else None for value in columns[name]]
    columns["stale"] = [value == "yes" for value in columns["stale"]]
    types = dict.fromkeys(("p5", "p25", "median", "p75", "p95"), pa.float64())
    types |= {"n": pa.int64(), "stale": pa.bool_(), "samples": pa.list_(pa.float64()), "turns": pa.list_(pa.int64())}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in columns])
    table = pa.table(columns, schema=schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table)

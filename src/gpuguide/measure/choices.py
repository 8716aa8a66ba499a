"""Tables of who is fastest, for the functions that choose: written from published records, and never by hand.

A topic that chooses by speed keeps a ``choices.json``. It names a benchmark and, for each contender that can be
chosen, what the topic calls it. From the records it gets, for each kind of device and each case, the order of speed.
It is data: a new record changes what a function prefers and not what a benchmark measures, so no digest holds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuguide.errors import GpuguideError
from gpuguide.hardware import datasheet
from gpuguide.measure import page_gpu, store
from gpuguide.measure.digest import PACKAGE_FOLDER
from gpuguide.measure.records import Record


def tables() -> list[Path]:
    """Return the tables of all topics."""
    return sorted(PACKAGE_FOLDER.glob("*/choices.json"))


def from_records(table: Path) -> str:
    """Return what a table should hold, by the published records of its benchmark on single GPUs.

    Raises
    ------
    GpuguideError
        If a GPU that was measured is not in the table of GPUs, which knows its compute capability.
    """
    asked = json.loads(table.read_text(encoding="utf-8"))
    named = {
        record.device_name: record
        for record in store.load_all_published()
        if record.benchmark == asked["benchmark"] and record.device == page_gpu.kind(record.device) != page_gpu.CPU
    }
    return as_text(
        {**asked, "devices": {name: collect_device_choices(record, asked) for name, record in named.items()}}
    )


def collect_device_choices(record: Record, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compute capability of a record's device, and the order of speed in each case."""
    gpu = datasheet.find(record.device_name)
    if gpu is None:
        raise GpuguideError(
            f"{record.device_name}, of which {record.path} is a record, is not in the table of GPUs, which tells its "
            "compute capability. Add it to datasheet.toml."
        )
    times: dict[str, dict[str, float]] = {}
    for case in record.cases:
        if case.status == "ok" and case.contender in asked["contenders"]:
            of_case = times.setdefault(json.dumps(dict(case.keys)), {})
            of_case[asked["contenders"][case.contender]] = case.metrics["time"].summary.median
    cases = [{**json.loads(keys), "order": sorted(found, key=found.__getitem__)} for keys, found in times.items()]
    return {"capability": list(gpu.capability), "cases": cases}


def as_text(table: Mapping[str, Any]) -> str:
    """Return a table as JSON with a line for each case."""
    head = json.dumps({key: value for key, value in table.items() if key != "devices"}, indent=2).removesuffix("\n}")
    devices = [
        f'    {json.dumps(name)}: {{\n      "capability": {device["capability"]},\n      "cases": [\n'
        + ",\n".join(f"        {json.dumps(case)}" for case in device["cases"])
        + "\n      ]\n    }"
        for name, device in table["devices"].items()
    ]
    return f'{head},\n  "devices": {{\n' + ",\n".join(devices) + "\n  }\n}\n"

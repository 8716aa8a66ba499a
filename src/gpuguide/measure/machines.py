"""The ceilings of GPUs: measured ones where a published record has them, what the vendor prints elsewhere."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from gpuguide.hardware import datasheet, machines
from gpuguide.hardware.machines import Ceiling, Machine
from gpuguide.measure import store
from gpuguide.measure.records import Record

BENCHMARK = "ceilings"
BANDWIDTHS = {"memory": "copy", "host": "h2d-pinned"}
"""Bandwidth of a machine to the contender of the benchmark that measures it"""


def machine(gpu_id: str) -> Machine:
    """Return a GPU's ceilings, measured where we have measured them.

    Parameters
    ----------
    gpu_id : str
        An id of the datasheet table such as ``"h100-sxm"``, or a name of the GPU.

    Raises
    ------
    GpuguideError
        If the table has no such GPU.
    """
    known = machines.printed(gpu_id)
    record = record_of(known.id)
    return with_measured(known, record) if record else known


def record_of(gpu_id: str) -> Record | None:
    """Return the published record of a GPU's ceilings, if there is one that may be quoted.

    A stale one of another GPU than the reference may not: its printed ceilings say more.
    """
    for path in sorted(store.published_folder().glob(f"*/{BENCHMARK}.json")):
        store.check_declared(BENCHMARK)
        record = store.load(path)
        gpu = datasheet.find(record.device_name)
        usable = store.kind(record.device) == record.device and (store.is_quotable(record) or not record.stale)
        if gpu is not None and gpu.id == gpu_id and usable:
            return record
    return None


def with_measured(machine: Machine, record: Record) -> Machine:
    """Return ``machine`` with the medians of a record of ``ceilings`` in place of printed values."""

    def median(contender: str, metric: str) -> Ceiling | None:
        if contender not in record.contenders:
            return None
        return Ceiling(record.case(contender).metrics[metric].summary.median, "measured")

    arithmetic, bandwidth = dict(machine.arithmetic), dict(machine.bandwidth)
    for format in machines.FORMATS:
        if found := median(f"matmul-{format}", "throughput"):
            arithmetic[format] = found
    for name, contender in BANDWIDTHS.items():
        if found := median(contender, "bandwidth"):
            bandwidth[name] = found
    return replace(
        machine,
        arithmetic=MappingProxyType(arithmetic),
        bandwidth=MappingProxyType(bandwidth),
        launch=median("launch-graph", "time"),
    )

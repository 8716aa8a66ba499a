"""The ceilings of GPUs: measured ones where published records have them, what the vendor prints elsewhere.

A measured ceiling is the best that any record of ours has seen of its kind, so that no case of ours is faster than the
limit that follows from it: the highest 95th percentile of the rate (which is the 5th of the time) among products of
matrices in a format, among copies and reads of memory, and among pinned transfers from and to the host. Sizes that may
stay in the L2 cache, of fewer bytes than :data:`L2_MARGIN` times the cache, do not count for memory. A kernel's start
is the 5th percentile of the time from one to the next in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from gpuguide.hardware import datasheet, machines
from gpuguide.hardware.machines import Ceiling, Machine
from gpuguide.measure import store
from gpuguide.measure.records import Case, Record

CEILINGS = "ceilings"
PRODUCTS = (CEILINGS, "matmul-size", "lm-head")
"""Benchmarks that multiply matrices of random numbers"""
MEMORY = (CEILINGS, "copy-size", "log-sum-exp", "softmax")
"""Benchmarks whose time is that of reading or copying memory"""
HOST = (CEILINGS, "transfer-size")
CAPACITY = "gpu-metrics"
"""The benchmark that asks the driver how much memory there is, which no change of code makes stale"""
L2_MARGIN = 2
"""A size counts as staying in L2 below so many times the bytes of the cache"""


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
    return with_measured(known, list(records_of(known.id)))


def records_of(gpu_id: str) -> Iterator[Record]:
    """Yield the published records of one GPU that its ceilings are taken from."""
    for name in dict.fromkeys((*PRODUCTS, *MEMORY, *HOST, CAPACITY)):
        for path in sorted(store.published_folder().glob(f"*/{name}.json")):
            store.check_declared(name)
            record = store.load(path)
            gpu = datasheet.find(record.device_name)
            if gpu is not None and gpu.id == gpu_id and store.kind(record.device) == record.device:
                yield record


def with_measured(machine: Machine, records: Iterable[Record]) -> Machine:
    """Return ``machine`` with the best of its records in place of printed values, as the module says."""
    known = {record.benchmark: record for record in records}
    arithmetic, bandwidth = dict(machine.arithmetic), dict(machine.bandwidth)
    for format in machines.FORMATS:
        if rates := list(product_rates(known, format)):
            arithmetic[format] = Ceiling(max(rates), "measured")
    l2 = datasheet.get(machine.id).figures.get("l2")
    beyond_l2 = L2_MARGIN * l2.value if l2 else 0.0
    if rates := list(memory_rates(known, beyond_l2)):
        bandwidth["memory"] = Ceiling(max(rates), "measured")
    if rates := list(host_rates(known)):
        bandwidth["host"] = Ceiling(max(rates), "measured")
    capacities = list(driver_memories(known))
    return replace(
        machine,
        capacity=capacities[0] if capacities else machine.capacity,
        capacity_origin="driver" if capacities else machine.capacity_origin,
        arithmetic=MappingProxyType(arithmetic),
        bandwidth=MappingProxyType(bandwidth),
        launch=launch_of(known),
    )


def product_rates(known: Mapping[str, Record], format: str) -> Iterator[float]:
    """Yield the rates of all products in a format, FLOP/s."""
    for case in measured_cases(known, PRODUCTS):
        computed = case.keys.get("dtype") if case.contender == "torch" else case.contender.removeprefix("matmul-")
        if computed == format:
            yield best(case, "throughput")


def memory_rates(known: Mapping[str, Record], least: float) -> Iterator[float]:
    """Yield the bandwidths of memory over at least so many bytes, B/s."""
    for case in measured_cases(known, MEMORY):
        if "bandwidth" not in case.metrics or case.contender.startswith(("h2d", "d2h")):
            continue
        moved = case.metrics["bandwidth"].summary.median * case.metrics["time"].summary.median
        if moved >= least:
            yield best(case, "bandwidth")


def host_rates(known: Mapping[str, Record]) -> Iterator[float]:
    """Yield the bandwidths of pinned transfers, B/s."""
    for case in measured_cases(known, HOST):
        if case.contender.endswith("-pinned"):
            yield best(case, "bandwidth")


def driver_memories(known: Mapping[str, Record]) -> Iterator[float]:
    """Yield the memory that the driver reported, B."""
    for case in known[CAPACITY].cases if CAPACITY in known else ():
        if "memory_total" in case.metrics:
            yield case.metrics["memory_total"].summary.median


def launch_of(known: Mapping[str, Record]) -> Ceiling | None:
    """Return the shortest time from one kernel to the next, s."""
    for case in measured_cases(known, [CEILINGS]):
        if case.contender == "launch-graph":
            summary = case.metrics["time"].summary
            return Ceiling(summary.median if summary.p5 is None else summary.p5, "measured")
    return None


def measured_cases(known: Mapping[str, Record], benchmarks: Iterable[str]) -> Iterator[Case]:
    """Yield the cases of these benchmarks that were measured and are right.

    None, if one of the records is stale and of another GPU than the reference: the best of the rest might be slower
    than what stands in that one, and the printed ceilings say more.
    """
    records = [known[name] for name in benchmarks if name in known]
    if all(store.is_quotable(record) or not record.stale for record in records):
        for record in records:
            yield from (case for case in record.cases if case.status == "ok")


def best(case: Case, metric: str) -> float:
    """Return the 95th percentile of a rate, or its median where there is none."""
    summary = case.metrics[metric].summary
    return summary.median if summary.p95 is None else summary.p95

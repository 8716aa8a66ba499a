"""The ceilings of GPUs: measured ones where published records have them, what the vendor prints elsewhere.

A measured ceiling is the best that any record of ours has seen of its kind, so that no case of ours is faster than the
limit that follows from it: the highest 95th percentile of the rate (which is the 5th of the time)

- of matmuls in a format, of random numbers (``arithmetic``, :data:`MATMULS`);
- of bytes of memory that are only read (``bandwidth["read"]``, :data:`READS`), and of bytes that are read and written
  (``bandwidth["copy"]``, :data:`COPIES`);
- of pinned transfers from and to the host, one way (``bandwidth["host"]``, :data:`HOST`).

What the caches may hold does not count for memory: fewer bytes than :data:`L2_MARGIN` times the L2 cache, or than
:data:`AGAIN_MARGIN` times where one call reads the same bytes again and again. ``sustained`` is the rate over seconds
without a pause (:data:`SUSTAINED`): the best median, since the parts of such a run scatter. A kernel's start is the 5th
percentile of the time from one to the next in a CUDA graph.

>>> from gpuguide.measure import measured_ceilings
>>> measured_ceilings.load_reference().bandwidth["read"].reference  # doctest: +SKIP
'memory-hierarchy/l1:bandwidth working_set=2147483648'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from gpuguide.errors import unknown
from gpuguide.hardware import datasheet, datasheet_ceilings
from gpuguide.hardware.datasheet_ceilings import Ceiling, GpuCeilings
from gpuguide.measure import folders, page_declaration, page_gpu, records, reference_gpu
from gpuguide.measure.records import Case, Record

CEILINGS = "ceilings"
SUSTAINED = ("sustained-matmul",)
MATMULS = (CEILINGS, "matmul-size", "lm-head", "matmul-precision", "fp8-linear", "timing-mistakes", *SUSTAINED)
"""Benchmarks that multiply matrices of random numbers"""
COPIES = (CEILINGS, "copy-size", "softmax", "gpu-metrics")
"""Benchmarks that write about as many bytes of memory as they read"""
READS = ("memory-hierarchy", "bytes-in-flight", "decode-attention", "decode-linear", "log-sum-exp", "lm-head")
"""Benchmarks that read memory and write next to nothing, lm-head where few tokens share the read"""
HOST = (CEILINGS, "transfer-size", "host-device-copy", "offload")
"""Benchmarks that copy between pinned memory of the host and the GPU"""
CAPACITY = "gpu-metrics"
"""The benchmark that asks the driver how much memory there is, which no change of code makes stale"""
SOURCES = tuple(dict.fromkeys((*MATMULS, *COPIES, *READS, *HOST, CAPACITY)))
"""Benchmarks whose records ceilings are taken from. A page that declares :data:`CEILINGS` may use them all."""
L2_MARGIN = 2
"""A size counts as staying in the L2 cache below so many times the bytes of the cache"""
AGAIN_MARGIN = 4
"""The same where one call reads a size again and again, through all caches, and nothing else comes between"""
AGAIN = ("memory-hierarchy",)
TIMED_RIGHTLY = ("right", "cold-clock")
"""Contenders of ``timing-mistakes`` whose rates are those of matmuls of random numbers"""

IN_BF16 = "bf16-compile"
"""The contender of ``fp8-linear`` that multiplies in bf16"""


@dataclass(frozen=True)
class CaseRate:
    """A rate that a case reached."""

    value: float
    """The 95th percentile, or the median where there is none"""
    median: float
    reference: str
    """Reference to it as pages and the ledger write it"""


def load_reference() -> GpuCeilings:
    """Return the ceilings of the GPU that prose speaks of."""
    return load(reference_gpu.sheet().id)


def load(gpu_id: str) -> GpuCeilings:
    """Return a GPU's ceilings, measured where we have measured them.

    Parameters
    ----------
    gpu_id : str
        An id of the datasheet table such as ``"h100-sxm"``, or a name of the GPU.

    Raises
    ------
    GpuguideError
        If the table has no such GPU, or a page that is being built does not declare :data:`CEILINGS`.
    """
    page_declaration.check_benchmark(CEILINGS)
    files = tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in source_files())
    return _load(datasheet.get(gpu_id).id, files, reference_gpu.slug())


@lru_cache(maxsize=128)
def _load(gpu_id: str, files: tuple[tuple[Path, int, int], ...], device: str) -> GpuCeilings:
    """Return a GPU's ceilings, once for what the files of records hold and for the device that prose speaks of."""
    return with_measured(datasheet_ceilings.load(gpu_id), list(records_of(gpu_id)))


def find_quoted_ceiling(name: str, gpu: GpuCeilings | None = None) -> tuple[Ceiling, str]:
    """Return the ceiling that prose names, and its unit.

    Parameters
    ----------
    name : str
        ``copy``, ``read``, ``link``, ``host``, a number format such as ``bf16`` for a burst of matmuls,
        ``bf16 sustained`` for seconds of them, ``launch`` or ``capacity``.
    gpu : GpuCeilings, optional
        Ceilings of a GPU; by default those of the GPU that prose speaks of.

    Raises
    ------
    GpuguideError
        If that GPU has no ceiling of this name.
    """
    gpu = gpu or load_reference()
    known: dict[str, tuple[Ceiling, str]] = {key: (found, "B/s") for key, found in gpu.bandwidth.items()}
    known |= {key: (found, "FLOP/s") for key, found in gpu.arithmetic.items()}
    known |= {f"{key} sustained": (found, "FLOP/s") for key, found in gpu.sustained.items()}
    known |= {"launch": (gpu.launch, "s")} if gpu.launch else {}
    measured = "" if gpu.capacity_origin == "printed" else next(capacity_references(gpu.id), "")
    known["capacity"] = (Ceiling(gpu.capacity, "measured" if measured else "datasheet", measured), "B")
    if name not in known:
        raise unknown(f"ceiling of {gpu.name}", name, known)
    return known[name]


def source_files() -> list[Path]:
    """Return the published records that ceilings are taken from, of all devices."""
    folder = folders.published_folder()
    return [path for name in SOURCES for path in sorted(folder.glob(f"*/{name}.json"))]


def records_of(gpu_id: str) -> Iterator[Record]:
    """Yield the published records of one GPU that its ceilings are taken from."""
    for record in map(records.load, source_files()):
        gpu = datasheet.find(record.device_name)
        if gpu is not None and gpu.id == gpu_id and page_gpu.kind(record.device) == record.device:
            yield record


def with_measured(printed: GpuCeilings, records: Iterable[Record]) -> GpuCeilings:
    """Return printed ceilings with the best of its records in their place, as the module says."""
    known = {record.benchmark: record for record in records}
    arithmetic, bandwidth, sustained = dict(printed.arithmetic), dict(printed.bandwidth), {}
    for format, rates in matmul_rates(known, MATMULS).items():
        arithmetic[format] = highest(rates)
    for format, rates in matmul_rates(known, SUSTAINED).items():
        most = max(rates, key=lambda rate: rate.median)
        sustained[format] = Ceiling(most.median, "measured", most.reference)
    l2 = datasheet.get(printed.id).figures.get("l2")
    for kind, benchmarks in (("copy", COPIES), ("read", READS)):
        if found := list(memory_rates(known, benchmarks, l2.value if l2 else 0.0)):
            bandwidth[kind] = highest(found)
    if pinned := list(host_rates(known)):
        bandwidth["host"] = highest(pinned)
    capacities = list(driver_memories(known))
    return replace(
        printed,
        capacity=capacities[0] if capacities else printed.capacity,
        capacity_origin="driver" if capacities else printed.capacity_origin,
        arithmetic=MappingProxyType(arithmetic),
        bandwidth=MappingProxyType(bandwidth),
        sustained=MappingProxyType(sustained),
        launch=launch_of(known),
    )


def highest(rates: Iterable[CaseRate]) -> Ceiling:
    """Return the highest rate as a measured ceiling."""
    most = max(rates, key=lambda rate: rate.value)
    return Ceiling(most.value, "measured", most.reference)


# --- what of a record counts for which ceiling ------------------------------------------------------------


def matmul_rates(known: Mapping[str, Record], benchmarks: Iterable[str]) -> dict[str, list[CaseRate]]:
    """Return the rates of all products of random numbers among these benchmarks by number format, FLOP/s."""
    found: dict[str, list[CaseRate]] = {}
    for record, case in successful_cases(known, benchmarks):
        if (format := format_of(record, case)) in datasheet_ceilings.FORMATS:
            found.setdefault(format, []).append(rate_of(record, case, "throughput"))
    return found


def format_of(record: Record, case: Case) -> str:
    """Return the number format in which a case multiplies random numbers; empty if it does not."""
    if case.keys.get("data") == "zeros":
        return ""
    if record.benchmark == "timing-mistakes":
        return "bf16" if case.contender in TIMED_RIGHTLY else ""
    if record.benchmark == "fp8-linear":
        return "bf16" if case.contender == IN_BF16 else "fp8"
    if case.contender.startswith("matmul-"):
        return case.contender.removeprefix("matmul-")
    return str(case.keys.get("format", case.keys.get("dtype", "")))


def memory_rates(known: Mapping[str, Record], benchmarks: Iterable[str], l2: float) -> Iterator[CaseRate]:
    """Yield the bandwidths of memory among these benchmarks, B/s, without what may stay in caches; ``l2`` in bytes."""
    for record, case in successful_cases(known, benchmarks):
        if (metric := memory_metric(record, case)) and case_size(case, metric) >= least_size(record, l2):
            yield rate_of(record, case, metric)


def memory_metric(record: Record, case: Case) -> str | None:
    """Return which metric of a case is a bandwidth of the GPU's memory, or ``None`` if there is none."""
    if record.benchmark == "gpu-metrics":
        return "rate" if case.keys["scenario"] == "copies" else None
    return "bandwidth" if "bandwidth" in case.metrics and not case.contender.startswith(("h2d", "d2h")) else None


def case_size(case: Case, metric: str) -> float:
    """Return the bytes that a case touches: its working set, or else what a call moves."""
    if "working_set" in case.keys:
        return float(case.keys["working_set"])
    return case.metrics[metric].summary.median * case.metrics["time"].summary.median


def least_size(record: Record, l2: float) -> float:
    """Return the fewest bytes that count as memory's and not as a cache's; ``l2`` is the cache's size in bytes."""
    return l2 * (AGAIN_MARGIN if record.benchmark in AGAIN else L2_MARGIN)


def host_rates(known: Mapping[str, Record]) -> Iterator[CaseRate]:
    """Yield the bandwidths of pinned transfers in one direction, B/s."""
    for record, case in successful_cases(known, HOST):
        is_pinned = case.contender.endswith("-pinned") or case.contender in ("pinned", "copy-only")
        if is_pinned and case.keys.get("direction") != "both":
            yield rate_of(record, case, "bandwidth")


def driver_memories(known: Mapping[str, Record]) -> Iterator[float]:
    """Yield the memory that the driver reported, B."""
    for case in known[CAPACITY].cases if CAPACITY in known else ():
        if "memory_total" in case.metrics:
            yield case.metrics["memory_total"].summary.median


def capacity_references(gpu_id: str) -> Iterator[str]:
    """Yield the measurements that say how much memory the driver reported."""
    for record in records_of(gpu_id):
        for case in record.cases if record.benchmark == CAPACITY else ():
            if "memory_total" in case.metrics:
                yield rate_of(record, case, "memory_total").reference


def launch_of(known: Mapping[str, Record]) -> Ceiling | None:
    """Return the shortest time from one kernel to the next, s."""
    for record, case in successful_cases(known, [CEILINGS]):
        if case.contender == "launch-graph":
            summary = case.metrics["time"].summary
            least = summary.median if summary.p5 is None else summary.p5
            return Ceiling(least, "measured", rate_of(record, case, "time").reference)
    return None


def successful_cases(known: Mapping[str, Record], benchmarks: Iterable[str]) -> Iterator[tuple[Record, Case]]:
    """Yield the cases of these benchmarks that were measured and are right, each with its record.

    None, if one of the records is stale and of another GPU than the reference: the best of the rest might be slower
    than what stands in that one, and the printed ceilings say more.
    """
    records = [known[name] for name in benchmarks if name in known]
    if all(reference_gpu.is_quotable(record) or not record.stale for record in records):
        for record in records:
            yield from ((record, case) for case in record.cases if case.status == "ok")


def rate_of(record: Record, case: Case, metric: str) -> CaseRate:
    """Return what a case reached in a metric."""
    summary = case.metrics[metric].summary
    keys = "".join(f" {key}={str(value).lower()}" for key, value in case.keys.items())
    written = f"{record.benchmark}/{case.contender}:{metric}{keys}"
    return CaseRate(summary.median if summary.p95 is None else summary.p95, summary.median, written)

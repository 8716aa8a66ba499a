"""Ceilings are the best that records hold: no published case of any GPU lies above the ceiling that applies to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from gpuguide.errors import GpuguideError
from gpuguide.hardware import datasheet
from gpuguide.hardware.datasheet_ceilings import GpuCeilings
from gpuguide.measure import citation, measured_ceilings, page_declaration, page_gpu, reference_gpu, store
from gpuguide.measure.records import Case, Record

READING = (
    *("bytes-in-flight", "dataframe", "dataframe-groups", "dataframe-mistakes", "decode", "decode-attention"),
    *("decode-linear", "lm-head", "log-sum-exp", "memory-hierarchy", "sample-token", "sample-token-settings"),
    *("sustained-matmul", "timing-mistakes"),
)
COPYING = ("copy-size", "softmax", "gpu-metrics")
BANDWIDTHS = {
    **dict.fromkeys(READING, "read"),
    **dict.fromkeys(COPYING, "copy"),
    **dict.fromkeys(("add-layer-norm", "fused-sum", "optimizer-step"), "read"),  # read more than they write
    **dict.fromkeys(("frame-transfer", "host-device-copy", "offload", "transfer-size", "checkpoint"), "host"),
    **dict.fromkeys(("all-reduce", "collectives", "peer-copy", "tensor-parallel-layer"), "link"),
}
"""The ceiling of each benchmark's bandwidths; of ``ceilings`` it depends on the contender"""
WITH_ONE_FORMAT = {
    **dict.fromkeys(("attention-tiles", "gpu-metrics", "linear-cross-entropy", "linear-cross-entropy-chunk"), "bf16"),
    "linear-gelu": "bf16",
    **dict.fromkeys(("prefill", "sustained-matmul", "tensor-parallel-layer", "timing-mistakes"), "bf16"),
}
"""Benchmarks whose arithmetic is in one number format, which no key names"""
WRONG_ON_PURPOSE = {("timing-mistakes", name) for name in ("no-synchronize", "inside-l2", "zeros")}


def applying(record: Record, case: Case, metric: str) -> str:
    """Return the name of the ceiling that bounds a rate."""
    unit = case.metrics[metric].unit
    if unit == "B/s":
        if record.benchmark == "ceilings":
            return "copy" if case.contender == "copy" else "host"
        return BANDWIDTHS[record.benchmark]
    if record.benchmark in WITH_ONE_FORMAT:
        return WITH_ONE_FORMAT[record.benchmark]
    if record.benchmark == "fp8-linear":
        return "bf16" if case.contender == "bf16-compile" else "fp8"
    if case.contender.startswith("matmul-"):
        return case.contender.removeprefix("matmul-")
    return str(case.keys.get("format", case.keys.get("dtype")))


def is_of_a_cache(record: Record, case: Case, metric: str, l2: float) -> bool:
    """Return whether a bandwidth may be that of caches."""
    return measured_ceilings.case_size(case, metric) < measured_ceilings.least_size(record, l2)


def bounded(gpu: str) -> Iterator[tuple[Record, Case, str, str, float]]:
    """Yield record, case, metric, the ceiling's name and the rate for each GPU, of everything that a ceiling bounds."""
    l2 = datasheet.get(gpu).figures["l2"].value
    for record in store.load_all_published():
        found = datasheet.find(page_gpu.kind(record.device))
        for case in record.cases if found is not None and found.id == gpu else ():
            is_wrong = (record.benchmark, case.contender) in WRONG_ON_PURPOSE or case.keys.get("data") == "zeros"
            for metric, held in case.metrics.items():
                if held.unit not in ("B/s", "FLOP/s") or is_wrong or case.status != "ok":
                    continue
                name = applying(record, case, metric)
                if name in ("read", "copy") and is_of_a_cache(record, case, metric, l2):
                    continue
                ways = 2 if case.keys.get("direction") == "both" else 1
                # What a layer divided over several GPUs computes is counted for all of them.
                gpus = record.device.partition("x-")[0] if record.device.partition("x-")[0].isdigit() else 1
                count = int(gpus) if held.unit == "FLOP/s" else 1
                rate = held.summary.median if held.summary.p95 is None else held.summary.p95
                yield record, case, metric, name, rate / ways / count


def measured_gpus() -> list[str]:
    """Return the ids of all GPUs of which there are records."""
    found = [
        datasheet.find(page_gpu.kind(device)) for device in {record.device for record in store.load_all_published()}
    ]
    return sorted({gpu.id for gpu in found if gpu is not None})


def spoken_of(monkeypatch: pytest.MonkeyPatch, gpu: str) -> GpuCeilings:
    """Let prose speak of a GPU, so that its records are used whether stale or not, and return its ceilings."""
    devices = {record.device for record in store.load_all_published() if "x-" not in record.device}
    (device,) = (device for device in devices if getattr(datasheet.find(device), "id", "") == gpu)
    monkeypatch.setattr(reference_gpu, "slug", lambda: device)
    return measured_ceilings.load_reference()


@pytest.mark.parametrize("gpu", measured_gpus())
@pytest.mark.parametrize("is_reference", [True, False])
def test_no_published_rate_lies_above_its_ceiling(
    gpu: str, is_reference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = spoken_of(monkeypatch, gpu) if is_reference else measured_ceilings.load(gpu)
    found: Counter[str] = Counter()
    for record, case, metric, name, rate in bounded(gpu):
        ceiling, unit = measured_ceilings.find_quoted_ceiling(name, machine)
        assert unit == case.metrics[metric].unit
        assert rate <= ceiling.value, f"{measured_ceilings.rate_of(record, case, metric).reference} is above {name}"
        found[name] += 1
    assert found["read"] > 50
    assert found["copy"] > 20
    assert found["bf16"] > 100
    assert min(found[name] for name in ("fp16", "tf32", "fp32", "fp8")) >= 8
    assert found["host"] > 50


def test_every_benchmark_with_a_rate_is_bounded() -> None:
    """A record of a benchmark that nobody has put under a ceiling would otherwise fail with a key only."""
    names = {
        record.benchmark
        for record in store.load_all_published()
        if any(metric.unit == "B/s" for case in record.cases for metric in case.metrics.values())
    }
    assert names == {*BANDWIDTHS, "ceilings"}


@pytest.mark.parametrize("gpu", measured_gpus())
def test_a_measured_ceiling_is_what_its_record_holds(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = spoken_of(monkeypatch, gpu)
    found = [*machine.arithmetic.values(), machine.bandwidth["copy"], machine.bandwidth["read"]]
    assert {ceiling.origin for ceiling in found} == {"measured"}
    for ceiling in found:
        assert citation.measurement(ceiling.reference).summary.p95 == ceiling.value
    for format, sustained in machine.sustained.items():
        assert citation.measurement(sustained.reference).summary.median == sustained.value
        assert sustained.value < machine.arithmetic[format].value
    assert machine.bandwidth["read"].value > machine.bandwidth["copy"].value


@pytest.mark.parametrize("gpu", measured_gpus())
def test_no_run_of_seconds_is_faster_than_what_is_sustained(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = spoken_of(monkeypatch, gpu)
    products = store.load_published("gpu-metrics").case("nvml", scenario="products")
    assert products.metrics["rate"].summary.median <= machine.sustained["bf16"].value


def test_without_records_the_printed_figure_stands_for_copies_and_reads() -> None:
    a100 = measured_ceilings.load("a100-sxm-80gb")
    printed = datasheet.get("a100-sxm-80gb").figures["memory_bandwidth"].value
    for name in ("copy", "read"):
        ceiling = a100.bandwidth[name]
        assert (ceiling.value, ceiling.origin, ceiling.reference) == (printed, "datasheet", "")
    assert not a100.sustained
    assert measured_ceilings.find_quoted_ceiling("capacity", a100)[0].value == a100.capacity


def test_what_prose_names_has_a_value_and_a_unit() -> None:
    ours = measured_ceilings.load_reference()
    assert measured_ceilings.find_quoted_ceiling("read") == (ours.bandwidth["read"], "B/s")
    assert measured_ceilings.find_quoted_ceiling("bf16 sustained") == (ours.sustained["bf16"], "FLOP/s")
    assert measured_ceilings.find_quoted_ceiling("launch") == (ours.launch, "s")
    capacity, unit = measured_ceilings.find_quoted_ceiling("capacity")
    assert (capacity.value, unit) == (ours.capacity, "B")
    assert capacity.reference.startswith("gpu-metrics/nvml:memory_total")
    with pytest.raises(GpuguideError, match="fp4"):
        measured_ceilings.find_quoted_ceiling("fp4")


def test_a_page_reads_ceilings_if_it_declares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(page_declaration.DECLARED_VARIABLE, "copy-size,ceilings")
    assert measured_ceilings.load_reference().id == reference_gpu.sheet().id
    monkeypatch.setenv(page_declaration.DECLARED_VARIABLE, "copy-size,memory-hierarchy")
    with pytest.raises(GpuguideError, match="'ceilings'"):
        measured_ceilings.load_reference()

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuguide.errors import GpuguideError
from gpuguide.measure import digest, records
from gpuguide.measure.records import Record

Fields = dict[str, Any]


def test_only_good_cases_are_given_out(record: Record) -> None:
    assert record.contenders == ["fast", "slow"]
    assert [case.keys["size"] for case in record.cases_of("fast")] == [1, 2]
    assert [case.keys["size"] for case in record.cases_of("slow")] == [1]


def test_series_is_sorted_and_restricted(record: Record) -> None:
    backwards = replace(record, cases=record.cases[::-1])
    series = backwards.series("fast", "size", "bandwidth", causal=True)
    assert [x for x, _ in series] == [1, 2]
    assert series[0][1].median == pytest.approx(np.median([6000, 3000, 1500, 750]))
    assert backwards.series("fast", "size", "bandwidth", causal=False) == []


def test_one_case_is_found_by_its_keys(record: Record) -> None:
    assert record.case("fast", size=2).run == 1


@pytest.mark.parametrize(
    ("contender", "keys", "says"),
    [
        ("fats", {"size": 1}, ["contender", "'fats'", "Did you mean fast"]),
        ("fast", {"size": 3}, ["matches 0 cases", "size=1 causal=true shape=square; size=2"]),
        ("fast", {"shape": "square"}, ["matches 3 cases", "size=1", "size=2"]),
        ("fast", {"siez": 1}, ["siez=1", "matches 0 cases", "size=1"]),
        ("slow", {"size": 2}, ["no measurement", "skipped", "needs fp8"]),
        ("slow", {"size": 4}, ["failed", "wrong result"]),
    ],
)
def test_a_case_that_cannot_be_had_says_why(record: Record, contender: str, keys: Any, says: list[str]) -> None:
    with pytest.raises(GpuguideError) as caught:
        record.case(contender, **keys)
    assert not [text for text in [*says, "nvidia-test-gpu"] if text not in str(caught.value)]


def test_a_record_is_stale_once_code_or_harness_changed(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "benchmark_digest", lambda name: record.code_digest)
    assert not record.stale
    assert replace(record, code_digest="sha256:" + "2" * 64).stale
    assert replace(record, harness_version=records.HARNESS_VERSION + 1).stale


def test_a_record_of_a_benchmark_that_is_gone_is_stale(record: Record) -> None:
    assert record.stale


def test_the_stamp_says_where_and_when(record: Record) -> None:
    assert record.runs[0].stamp() == "NVIDIA Test GPU · driver 580.1 · CUDA 13.0 · torch 2.11.0 · 2026-11-21"
    assert record.runs[1].stamp() == "NVIDIA Test GPU · torch 2.11.0 · 2026-11-21 · simulated, not measured"


def test_a_stamp_names_the_libraries_that_matter(record: Record) -> None:
    assert record.libraries() == ["cudnn"] == record.libraries(["fast", "slow"])
    assert record.libraries(["slow"]) == record.libraries([]) == []
    start, end = "NVIDIA Test GPU · driver 580.1 · CUDA 13.0 · torch 2.11.0", "2026-11-21"
    assert record.runs[0].stamp(record.libraries()) == f"{start} · cuDNN 9.19.0 · {end}"
    assert record.runs[0].stamp(["torch", "liger-kernel", "cudnn"]) == f"{start} · cuDNN 9.19.0 · {end}"
    other = replace(record.runs[0], versions={"a-library": "1.2+local"})
    assert other.stamp(["a-library"]) == f"NVIDIA Test GPU · driver 580.1 · CUDA 13.0 · a-library 1.2 · {end}"
    assert record.simulated


def test_what_the_host_computed_is_not_stamped_as_the_gpus(record: Record) -> None:
    versions = {**record.runs[0].versions, "polars": "2.1.0", "cudf": "26.10", "pyarrow": "25.0"}
    run = replace(record.runs[0], versions=versions, host_cpu="A processor", host_cores=64, host_cores_available=16.0)
    host, end = "host A processor, 16 of 64 cores", "2026-11-21"
    assert run.stamp(["polars", "pyarrow"]) == f"{host} · Polars 2.1.0 · PyArrow 25.0 · {end}"
    assert host not in run.stamp(["cudf", "pyarrow"])
    both = run.stamp(["polars", "cudf"])
    assert both == f"{run.stamp().removesuffix(end)}{host} · Polars 2.1.0 · cuDF 26.10 · {end}"
    assert replace(run, driver=None, host_cores_available=None).stamp(["polars"]).startswith("NVIDIA Test GPU")
    assert run.find_compute_device(["polars", "pyarrow"]) == "A processor"
    assert run.find_compute_device(["pandas", "cudf"]) == run.find_compute_device([]) == "NVIDIA Test GPU"

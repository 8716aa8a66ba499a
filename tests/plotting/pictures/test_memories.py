"""The drawings of a GPU's memories: their numbers are those of the records, and the registers' follows from one."""

from __future__ import annotations

import csv
import io

import pytest

from gpuguide import plotting
from gpuguide.measure import store


@pytest.fixture(autouse=True)
def site_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")
    monkeypatch.setenv("GPUGUIDE_RECORDS", "")


def rows_of(figure: plotting.Figure, key: str, value: str) -> dict[str, float]:
    return {row[key]: float(row[value]) for row in csv.DictReader(io.StringIO(figure.csv))}


def test_registers_feed_three_operands_of_four_bytes_to_every_multiply_add() -> None:
    found = rows_of(plotting.memories_of_a_gpu(), "memory", "bandwidth_B_per_s")
    operations = store.published("ceilings").median("matmul-fp32", "throughput")
    assert found["Registers"] == pytest.approx(6 * operations, rel=1e-5)
    assert found["Registers"] > 2 * found["Shared memory"]


def test_the_waits_grow_with_the_distance() -> None:
    found = rows_of(plotting.wait_for_a_word(), "from", "time_s")
    waits = store.published("memory-latency")
    assert list(found) == ["shared memory", "L1 cache", "L2 cache", "GPU memory", "host memory"]
    assert list(found.values()) == sorted(found.values())
    assert found["GPU memory"] == pytest.approx(waits.median("l2", "time", working_set=2**30), rel=1e-5)


def test_a_full_pipe_holds_its_latency_times_its_bandwidth() -> None:
    latency, bandwidth, alone, full = rows_of(plotting.bytes_under_way(), "what", "value").values()
    assert full == pytest.approx(latency * bandwidth, rel=1e-4)
    assert alone == pytest.approx(16 / latency, rel=1e-4)

"""The drawings of a GPU's memories: their numbers are those of the records, and the registers' follows from one."""

from __future__ import annotations

import pytest
from figure_rows import rows_of

from gpuguide import plotting
from gpuguide.measure import reference_gpu, store
from gpuguide.plotting.pictures import memories as pictures


def column_of(figure: plotting.Figure, key: str, value: str) -> dict[str, float]:
    return {row[key]: float(row[value]) for row in rows_of(figure)}


def test_the_memories_are_as_fast_as_measured() -> None:
    shown = pictures.memories_of_a_gpu()
    rates = column_of(shown, "memory", "bandwidth_B_per_s")
    link = store.load_published("ceilings").case("h2d-pinned").metrics["bandwidth"].summary.median
    assert rates["Host memory"] == pytest.approx(link, rel=1e-5)
    assert list(rates.values()) == sorted(rates.values(), reverse=True)
    assert len(shown.stamps) >= 1
    assert reference_gpu.word("a short") in shown.caption


def test_registers_feed_three_operands_of_four_bytes_to_every_multiply_add() -> None:
    found = column_of(pictures.memories_of_a_gpu(), "memory", "bandwidth_B_per_s")
    operations = store.load_published("ceilings").median("matmul-fp32", "throughput")
    assert found["Registers"] == pytest.approx(6 * operations, rel=1e-5)
    assert found["Registers"] > 2 * found["Shared memory"]


def test_the_waits_grow_with_the_distance() -> None:
    found = column_of(pictures.wait_for_a_word(), "from", "time_s")
    waits = store.load_published("memory-latency")
    assert list(found) == ["shared memory", "L1 cache", "L2 cache", "GPU memory", "host memory"]
    assert list(found.values()) == sorted(found.values())
    assert found["GPU memory"] == pytest.approx(waits.median("l2", "time", working_set=2**30), rel=1e-5)


def test_a_full_pipe_holds_its_latency_times_its_bandwidth() -> None:
    latency, bandwidth, alone, full = column_of(pictures.bytes_under_way(), "what", "value").values()
    assert full == pytest.approx(latency * bandwidth, rel=1e-4)
    assert alone == pytest.approx(16 / latency, rel=1e-4)

"""Drawings of a GPU's metrics say what the records say."""

from __future__ import annotations

import pytest
from figure_rows import rows_of

from gpuguide.measure import store
from gpuguide.plotting.pictures import metrics as pictures


def test_one_thread_reads_as_full_and_keeps_one_multiprocessor_busy() -> None:
    spin, bursts, products = rows_of(pictures.what_utilisation_counts())
    assert float(spin["gpu_utilisation"]) > 0.95 < float(products["gpu_utilisation"])
    assert float(spin["sm_activity"]) < 0.05 < 0.9 < float(products["sm_activity"])
    assert 0.3 < float(bursts["gpu_utilisation"]) < 0.7


def test_the_step_as_found_is_the_hosts_part_and_the_gpus() -> None:
    as_found, bf16_alone, once, both = rows_of(pictures.step_and_its_data())
    record = store.load_published("slow-training-step")
    whole = record.case("nvml", step="as-found").metrics["time"].summary.median
    assert float(as_found["host_s"]) + float(as_found["gpu_s"]) == pytest.approx(whole, rel=1e-4)
    assert bf16_alone["host_s"] == as_found["host_s"]
    assert bf16_alone["gpu_s"] == both["gpu_s"]
    assert float(once["host_s"]) == float(both["host_s"]) == 0


def test_four_metrics_of_the_drawn_second_differ() -> None:
    values = [float(row["value"]) for row in rows_of(pictures.four_counters())]
    assert values == sorted(set(values), reverse=True)
    assert values[0] == pytest.approx(sum(any(warps) for _, warps, _ in pictures.SECOND) / len(pictures.SECOND))
    assert all(len(warps) == pictures.PROCESSORS and max(warps) <= pictures.WARPS for _, warps, _ in pictures.SECOND)


def test_at_a_utilisation_of_one_the_rate_of_work_can_be_anything() -> None:
    rows: dict[str, dict[str, float]] = {}
    for row in rows_of(pictures.six_kinds_of_work()):
        rows.setdefault(row["work"], {})[row["metric"]] = float(row["share"])
    busy = [bars["of ceiling"] for bars in rows.values() if bars["utilisation"] > 0.95]
    assert len(busy) == 4
    assert min(busy) < 0.01 < 0.8 < max(busy)


def test_of_four_pieces_two_are_allocated_and_four_reserved() -> None:
    sizes = {row["number"]: float(row["B"]) / pictures.GIB for row in rows_of(pictures.memory_of_a_card())}
    assert (round(sizes["allocated"]), round(sizes["reserved"])) == (2, 4)
    assert sizes["reserved"] + sizes["driver"] < sizes["memory_used"] < sizes["total"]


def test_no_reading_shows_the_peak() -> None:
    sizes = [float(row["allocated_B"]) / pictures.GIB for row in rows_of(pictures.peak_between_readings())]
    case = store.load_published("gpu-metrics").case("nvml", scenario="spike")
    assert round(max(sizes)) == 1
    assert round(case.measured["peak_allocated"].samples[0] / pictures.GIB) == 9


def test_readings_rise_after_the_work_begins() -> None:
    case = store.load_published("gpu-metrics").case("nvml", scenario="stretches")
    begun = case.measured["stretch_began"].samples[0]
    for row in rows_of(pictures.late_readings()):
        if float(row["seconds"]) < begun:
            assert float(row["gpu_utilisation"]) == 0
            assert float(row["instant_power"]) < 0.3

"""Drawings of what a timer reads: their numbers are those of the records and of the datasheet."""

from __future__ import annotations

import pytest
from figure_rows import rows_of

from gpuguide.costs import roofline
from gpuguide.measure import measured_ceilings, reference_gpu, store
from gpuguide.plotting.pictures import timing


def test_the_longer_of_two_times_is_the_roofline_bound() -> None:
    sheet = reference_gpu.sheet().figures
    rates = sheet["bf16_dense"].value, sheet["memory_bandwidth"].value
    for row in rows_of(timing.two_matmuls()):
        shape = timing.SHAPES[row["matmul"]]
        flops, moved = roofline.matmul_flops(*shape), roofline.matmul_bytes(*shape, element_size=2)
        longer = max(float(row["compute_s"]), float(row["memory_s"]))
        assert longer == pytest.approx(roofline.time_floor(flops, moved, *rates), rel=1e-5)


def test_the_first_call_takes_most_of_ten() -> None:
    first, mean, right = (float(row["time_s"]) for row in rows_of(timing.ten_calls()))
    assert timing.CALLS * mean > first > 0.8 * timing.CALLS * mean
    assert right < mean < first


def test_after_a_pause_the_events_read_what_the_host_takes() -> None:
    awake, paused = rows_of(timing.pause_before_a_call())
    assert float(paused["host_s"]) > 0.8 * float(paused["events_s"]) > 5 * float(awake["events_s"])


def test_a_matrix_in_the_cache_arrives_faster() -> None:
    near, far = (float(row["bandwidth"]) for row in rows_of(timing.matrix_in_the_cache()))
    record = store.load_published("timing-mistakes")
    assert far == pytest.approx(record.median("right", "bandwidth", shape="skinny"), rel=1e-5)
    assert near > 1.2 * far


def test_no_ceiling_reaches_its_datasheet() -> None:
    for row in rows_of(timing.share_of_the_datasheet()):
        best, unit = measured_ceilings.find_quoted_ceiling(row["ceiling"])
        assert (float(row["measured"]), row["unit"]) == (pytest.approx(best.value, rel=1e-5), unit)
        assert float(row["measured"]) < float(row["datasheet"])

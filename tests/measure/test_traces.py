"""Traces as metrics of a record, and in words."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import synthetic_records as synthetic

from gpuguide.errors import GpuguideError
from gpuguide.hardware.quantities import QUANTITIES
from gpuguide.hardware.trace import Row, Trace
from gpuguide.measure import records, traces
from gpuguide.measure.records import Case


def trace(**columns: list[float]) -> Trace:
    units = {name: QUANTITIES[name].unit for name in columns}
    count = len(next(iter(columns.values())))
    rows = [Row(0.5 * row, 2e-3, {name: columns[name][row] for name in columns}) for row in range(count)]
    board = {"power_limit": 700.0, "slowdown_temperature": 89.0}
    return Trace("NVIDIA Made-up", 1, 0.5, "2026-01-02T03:04:05+00:00", units, {}, board, rows)


def record_of(metrics: dict[str, records.Metric]) -> records.Record:
    case = Case({"scenario": "idle"}, "nvml", 0, "ok", measured=metrics)
    return synthetic.record("gpu-metrics", [case], synthetic.PUBLISHED)


def test_a_trace_goes_through_a_record_file_and_back(tmp_path: Path) -> None:
    before = trace(power=[100.0, 250.5, 300.0], clock_limits=[1.0, 4.0, 4.0], memory_used=[2.0**30] * 3)
    made = record_of({**traces.as_metrics(before), "throughput": records.metric("FLOP/s", [1e12])})
    written = records.read(records.write(made, tmp_path / made.device / "gpu-metrics.json").path or Path())
    after = traces.find_case_trace(written, written.case("nvml", scenario="idle"))
    assert after.device == synthetic.PUBLISHED[1]
    assert after.units == before.units
    assert after.board == before.board
    assert after.interval == 0.5
    assert np.allclose(after.seconds, before.seconds)
    for name in before.units:
        assert np.allclose(after[name], before[name], rtol=1e-6)
    assert after.totals().energy_from_power == pytest.approx(before.totals().energy_from_power, rel=1e-6)


def test_a_moment_with_a_gap_is_left_out_whole() -> None:
    powers = [100.0, math.nan, *[300.0] * 8]
    metrics = traces.as_metrics(trace(power=powers, temperature=[40.0 + row for row in range(10)]))
    assert metrics["seconds"].samples[:2] == (0.0, 1.0)
    assert metrics["temperature"].samples[:2] == (40.0, 42.0)
    assert len(metrics["power"].samples) == 9


def test_a_quantity_with_many_gaps_is_left_out_and_takes_no_moments_with_it() -> None:
    metrics = traces.as_metrics(trace(power=[100.0, math.nan, math.nan], temperature=[40.0, 41.0, 42.0]))
    assert metrics["temperature"].samples == (40.0, 41.0, 42.0)
    assert "power" not in metrics


def test_a_case_without_a_trace_is_named_with_what_it_has() -> None:
    made = record_of({"time": records.metric("s", [1.0])})
    with pytest.raises(GpuguideError, match=r"gpu-metrics/nvml \(scenario=idle\) holds no trace: it has time, and no"):
        traces.find_case_trace(made, made.cases[0])


def test_a_trace_in_words() -> None:
    told = trace(
        gpu_utilisation=[0.0, 1.0, 1.0],
        power=[100.0, 300.0, 300.0],
        energy=[0.0, 110.0, 260.0],
        sm_clock=[1.98e9] * 3,
        temperature=[40.0, 41.0, 42.0],
        clock_limits=[1.0, 4.0, 4.0],
    )
    told.absent["memory_utilisation"] = "the driver says 'Not Supported'"
    assert traces.describe_trace(told) == [
        "GPU 1, NVIDIA Made-up: 3 readings in 1.00 s",
        "GPU utilisation: mean 75%, highest 100%",
        "power: mean 250 W, highest 300 W",
        "SM clock: mean 1.98 GHz, highest 1.98 GHz",
        "temperature: mean 41 °C, highest 42 °C",
        "energy: 250 J by power × time, 260 J by the driver's counter",
        "clock limits: SW Power Cap (67% of the readings), GPU Idle (33% of the readings)",
        "not read: memory utilisation, the driver says 'Not Supported'",
        "a reading took 2.00 ms, 0.60% of the time of one thread",
    ]


def test_a_trace_of_a_board_that_tells_nothing() -> None:
    told = trace(temperature=[40.0, 41.0])
    assert traces.describe_trace(told)[1:] == [
        "temperature: mean 40 °C, highest 41 °C",
        "a reading took 2.00 ms, 0.80% of the time of one thread",
    ]

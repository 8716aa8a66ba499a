"""What a trace adds up to."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from fake_nvml import FakeNvml

from gpuguide.errors import GpuguideError
from gpuguide.hardware.quantities import QUANTITIES
from gpuguide.hardware.trace import Row, Trace

NVML_ONLY = set(QUANTITIES) - {"allocated", "reserved", "done"}
Install = Callable[..., FakeNvml]


def made(seconds: list[float], **columns: list[float]) -> Trace:
    units = {name: QUANTITIES[name].unit for name in columns}
    rows = [Row(at, 0.01, {name: columns[name][row] for name in columns}) for row, at in enumerate(seconds)]
    return Trace("a GPU", 0, 1.0, "2026-01-02T03:04:05.000+00:00", units, rows=rows)


def counted(values: list[float]) -> Trace:
    rows = [Row(0.5 * row, 1e-3, {"done": value}) for row, value in enumerate(values)]
    return Trace("a GPU", 0, 0.5, "2026-01-02T03:04:05+00:00", {"done": "FLOP"}, rows=rows)


def test_a_part_of_a_trace_and_how_fast_something_was_counted_in_it() -> None:
    whole = counted([0.0, 10.0, 30.0, 50.0, 50.0])
    assert whole.rate("done") == 25.0
    part = whole.select_interval(0.4, 1.6)
    assert part.seconds.tolist() == [0.5, 1.0, 1.5]
    assert part.rate("done") == 40.0
    assert counted([0.0, math.nan, 30.0]).rate("done") == 30.0
    assert whole.totals().columns == {}  # a mean of a count says nothing


def test_a_part_without_readings_and_a_rate_of_one_reading() -> None:
    whole = counted([0.0, 10.0])
    with pytest.raises(GpuguideError, match=r"no reading from 3 s to 4 s: it ends at 0.5 s"):
        whole.select_interval(3, 4)
    with pytest.raises(GpuguideError, match=r"A rate of done needs two readings, and this trace of a GPU has 1"):
        whole.select_interval(0.4, 1).rate("done")


def test_how_often_a_reading_is_renewed() -> None:
    """Every tenth reading is a new one, and of some stretches two are equal."""
    values = [float(row // 10 if row < 60 else 6 + (row - 60) // 20) for row in range(120)]
    assert counted(values).renewal("done") == pytest.approx(5.0)
    with pytest.raises(GpuguideError, match=r"The done of a GPU changed 1 times in this trace, too seldom"):
        counted([0.0, 0.0, 1.0, 1.0]).renewal("done")


def test_means_are_over_time_and_energy_is_power_times_time() -> None:
    """Compare with NumPy's interpolation on a fine grid, which knows nothing of trapezoids."""
    seconds, power = [0.0, 1.0, 1.5, 4.0], [100.0, 300.0, 300.0, 50.0]
    totals = made(seconds, power=power, temperature=[40.0, 41.0, 42.0, 43.0]).totals()
    grid = np.linspace(0, 4, 400_001)
    mean = float(np.interp(grid, seconds, power).mean())
    assert totals.columns["power"].mean == pytest.approx(mean, rel=1e-4)
    assert totals.energy_from_power == pytest.approx(4 * mean, rel=1e-4)
    assert (totals.columns["power"].least, totals.columns["power"].most) == (50, 300)
    assert (totals.duration, totals.samples) == (4, 4)
    assert totals.energy_counted is None
    assert totals.cost == pytest.approx(0.01)
    assert totals.share == pytest.approx(0.01)


def test_the_energy_comes_from_the_power_of_the_moment_where_there_is_one() -> None:
    totals = made([0, 2], power=[10, 10], instant_power=[50, 70], energy=[0.0, 119.0]).totals()
    assert totals.energy_from_power == 120
    assert totals.energy_counted == 119
    assert "energy" not in totals.columns


def test_gaps_do_not_count() -> None:
    nan = math.nan
    totals = made([0, 1, 2, 3], power=[nan, 100, nan, 200], temperature=[nan] * 4, energy=[0, 90, nan, 300]).totals()
    assert totals.columns["power"].mean == 150
    assert "temperature" not in totals.columns
    assert totals.energy_counted == 300


def test_one_reading_has_a_mean_and_no_energy_to_speak_of() -> None:
    totals = made([0.0], power=[250.0], energy=[0.0]).totals()
    assert (totals.columns["power"].mean, totals.energy_from_power, totals.energy_counted) == (250, 0, None)


def test_a_trace_without_readings_has_no_totals() -> None:
    with pytest.raises(GpuguideError, match="holds no reading yet"):
        made([]).totals()

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from fake_nvml import FakeNvml, NVMLError

from gpuguide.hardware import monitor
from gpuguide.hardware.quantities import QUANTITIES

NVML_ONLY = set(QUANTITIES) - {"allocated", "reserved", "done"}
Install = Callable[..., FakeNvml]


def test_limits_are_counted_over_the_readings() -> None:
    shares = monitor.compute_clock_limit_shares([4, 4, 0x24, 0, math.nan])
    assert shares == {"SW Power Cap": 0.75, "SW Thermal Slowdown": 0.25}
    assert monitor.compute_clock_limit_shares([0, 0]) == monitor.compute_clock_limit_shares([]) == {}


def test_every_limit_has_a_meaning() -> None:
    assert set(monitor.CLOCK_LIMIT_MEANINGS) == set(monitor.CLOCK_LIMITS.values())
    explained = monitor.explain_clock_limits(0x44)
    assert list(explained) == ["SW Power Cap", "HW Thermal Slowdown"]
    assert "cooling" in explained["HW Thermal Slowdown"]


def test_a_bit_that_has_no_name_here_is_told_too() -> None:
    new_bit = 1 << 40
    assert monitor.name_clock_limits(4 | new_bit) == ["SW Power Cap", "unknown reason"]
    assert "newer" in monitor.explain_clock_limits(new_bit)["unknown reason"]
    assert monitor.compute_clock_limit_shares([4, new_bit]) == {"SW Power Cap": 0.5, "unknown reason": 0.5}


def test_the_bits_are_those_of_the_real_library() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert sum(monitor.CLOCK_LIMITS) == pynvml.nvmlClocksEventReasonAll


def test_the_real_library_has_what_is_asked_of_it() -> None:
    pynvml = pytest.importorskip("pynvml")
    asked = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert not [name for name in asked if not hasattr(pynvml, name)]
    for name in (name for name in asked if name.startswith("NVML_")):
        assert getattr(pynvml, name) == getattr(FakeNvml, name)
    assert [name for name in asked if name == "nvmlMemory_v2"]
    assert pynvml.nvmlMemory_v2 == FakeNvml.nvmlMemory_v2
    metrics = pynvml.c_nvmlGpmMetricsGet_t()
    metrics.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    assert [(each.metricId, each.nvmlReturn, each.value) for each in metrics.metrics[:2]] == [(2, 0, 0.0), (0, 0, 0.0)]
    field = pynvml.c_nvmlFieldValue_t()
    assert (field.nvmlReturn, field.value.uiVal, field.value.siVal) == (0, 0, 0)
    assert str(pynvml.NVMLError(3)) == str(NVMLError(3)) == "Not Supported"

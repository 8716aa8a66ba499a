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
    assert monitor.limits_over([4, 4, 0x24, 0, math.nan]) == {"the power limit": 0.75, "the temperature (driver)": 0.25}
    assert monitor.limits_over([0, 0]) == monitor.limits_over([]) == {}


def test_every_limit_has_a_meaning() -> None:
    assert set(monitor.CLOCK_LIMIT_MEANINGS) == set(monitor.CLOCK_LIMITS.values())
    explained = monitor.limits_explained(0x44)
    assert list(explained) == ["the power limit", "the temperature (hardware)"]
    assert "cooling" in explained["the temperature (hardware)"]


def test_a_bit_that_has_no_name_here_is_told_too() -> None:
    new_bit = 1 << 40
    assert monitor.limits_named(4 | new_bit) == ["the power limit", "a reason without a name here"]
    assert "newer" in monitor.limits_explained(new_bit)["a reason without a name here"]
    assert monitor.limits_over([4, new_bit]) == {"the power limit": 0.5, "a reason without a name here": 0.5}


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

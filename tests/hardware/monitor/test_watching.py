"""Watching a GPU through a made-up NVML: which readings, and what becomes of those that do not come."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from fake_nvml import GIB, FakeNvml

from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.hardware import monitor
from gpuguide.hardware.quantities import BOARD, QUANTITIES
from gpuguide.hardware.trace import Trace

NVML_ONLY = set(QUANTITIES) - {"allocated", "reserved", "done"}
Install = Callable[..., FakeNvml]


def wait_for(condition: Callable[[], bool]) -> None:
    """Give the thread that samples up to a minute, which a busy machine may need."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < 60
        time.sleep(0.001)


def test_everything_is_read_in_si_units_before_while_and_after_a_block(nvml: Install) -> None:
    nvml()
    with monitor.watch(interval=0.001) as trace:
        assert len(trace.rows) >= 1
        wait_for(lambda: len(trace.rows) >= 5)
        seen = len(trace.rows)
    assert len(trace.rows) > seen
    assert set(trace.units) == NVML_ONLY
    assert {name: trace.units[name] for name in trace.units} == {name: QUANTITIES[name].unit for name in trace.units}
    assert trace.absent == {}
    expected = {
        "gpu_utilisation": 1.0,
        "memory_utilisation": 0.25,
        "memory_used": GIB,
        "instant_power": 400.0,
        "sm_clock": 1.98e9,
        "memory_clock": 2.619e9,
        "temperature": 45.0,
        "temperature_margin": 40.0,
        "clock_limits": 4.0,
    }
    for name, value in expected.items():
        assert trace[name].tolist() == pytest.approx([value] * len(trace.rows)), name
    assert trace["power"].tolist() == pytest.approx(list(range(1, len(trace.rows) + 1)))
    assert trace["energy"].tolist() == pytest.approx([0.5 * index for index in range(len(trace.rows))])
    assert trace.device == "NVIDIA Made-up 0"
    assert trace.board == {
        "memory_total": 80 * GIB,
        "power_limit": 700.0,
        "sm_clock_limit": 1.98e9,
        "slowdown_temperature": 89.0,
        "shutdown_temperature": 92.0,
        "software_slowdown_margin": 0.0,
        "hardware_slowdown_margin": -2.0,
        "shutdown_margin": -8.0,
        "driver_memory": GIB / 2,
    }
    assert set(trace.board) == set(BOARD)


def test_moments_grow_from_zero_and_every_reading_says_what_it_cost(nvml: Install) -> None:
    nvml()
    with monitor.watch(interval=0.001) as trace:
        wait_for(lambda: len(trace.rows) >= 5)
    assert trace.seconds[0] == 0
    assert (np.diff(trace.seconds) > 0).all()
    assert all(row.cost > 0 for row in trace.rows)
    assert 0 < trace.totals().cost <= trace.totals().share * trace.totals().duration


def test_a_block_shorter_than_the_interval_has_its_first_and_its_last_reading(nvml: Install) -> None:
    nvml()
    with monitor.watch(interval=60) as trace:
        pass
    assert len(trace.rows) == 2
    assert trace.totals().energy_counted == pytest.approx(0.5)


def test_a_block_that_raises_leaves_a_whole_trace_and_its_own_exception(nvml: Install) -> None:
    nvml()
    kept: list[Trace] = []

    def work() -> None:
        with monitor.watch(interval=0.001) as trace:
            kept.append(trace)
            wait_for(lambda: len(trace.rows) >= 3)
            raise ZeroDivisionError("in the block")

    with pytest.raises(ZeroDivisionError, match="in the block"):
        work()
    (trace,) = kept
    assert len(trace.rows) >= 4
    assert trace.totals().samples == len(trace.rows)


@pytest.mark.parametrize("interval", [0, -1, 0.0001, math.inf, math.nan])
def test_an_interval_that_cannot_be_kept(nvml: Install, interval: float) -> None:
    nvml()
    with pytest.raises(GpuguideError, match=r"Choose 0\.001 s or longer"), monitor.watch(interval=interval):
        pass


def test_late_readings_are_left_out_and_do_not_pile_up(nvml: Install) -> None:
    """A reading that takes ten intervals must not be followed by ten at once."""
    nvml()
    with monitor.watch(interval=0.002, also={"slow": ("1", lambda: time.sleep(0.02) or 1.0)}) as trace:
        wait_for(lambda: len(trace.rows) >= 4)
    assert np.diff(trace.seconds).min() >= 0.019


def test_other_quantities_are_read_at_the_same_moments(nvml: Install) -> None:
    nvml()
    counted = iter(range(1000))
    with monitor.watch(interval=0.001, also={"steps": ("1", lambda: next(counted))}) as trace:
        wait_for(lambda: len(trace.rows) >= 3)
    assert trace["steps"].tolist() == list(range(len(trace.rows)))
    assert trace.units["steps"] == "1"


def test_another_quantity_that_fails_is_a_gap_or_is_absent(nvml: Install) -> None:
    nvml()
    values = iter([1.0])
    further = {"never": ("B", lambda: [][0]), "once": ("B", lambda: next(values))}
    with monitor.watch(interval=60, also=further) as trace:
        pass
    assert trace.absent == {"never": "IndexError: list index out of range"}
    assert trace["once"][0] == 1
    assert math.isnan(trace["once"][1])


QUESTIONS = {
    "nvmlDeviceGetUtilizationRates": {"gpu_utilisation", "memory_utilisation"},
    "nvmlDeviceGetMemoryInfo": {"memory_used"},
    "nvmlDeviceGetPowerUsage": {"power"},
    "nvmlDeviceGetFieldValues": {"instant_power", "memory_temperature"},
    "nvmlGpmQueryDeviceSupport": set(monitor.CHIP_COUNTERS),
    "nvmlGpmSampleGet": set(monitor.CHIP_COUNTERS),
    "nvmlGpmMetricsGet": set(monitor.CHIP_COUNTERS),
    "nvmlDeviceGetTotalEnergyConsumption": {"energy"},
    "nvmlDeviceGetClockInfo": {"sm_clock", "memory_clock"},
    "nvmlDeviceGetTemperature": {"temperature"},
    "nvmlDeviceGetMarginTemperature": {"temperature_margin"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"clock_limits"},
}


@pytest.mark.parametrize("how", ["refused", "missing"])
@pytest.mark.parametrize("question", sorted(QUESTIONS))
def test_a_reading_that_is_not_supported_is_absent_with_its_reason(nvml: Install, question: str, how: str) -> None:
    nvml(**{how: {question}})
    with monitor.watch(interval=60) as trace:
        pass
    reasons = {
        "refused": "the driver says 'Not Supported'",
        "missing": "the installed nvidia-ml-py is too old to ask for it",
    }
    assert trace.absent == dict.fromkeys(QUESTIONS[question], reasons[how])
    assert set(trace.units) == NVML_ONLY - QUESTIONS[question]
    absent = min(QUESTIONS[question])
    with pytest.raises(GpuguideError, match=f"NVIDIA Made-up 0 gives no {absent}: {reasons[how]}"):
        trace[absent]
    assert trace.totals().samples == 2


def test_what_is_refused_once_is_not_asked_for_again(nvml: Install) -> None:
    driver = nvml(refused={"nvmlDeviceGetUtilizationRates"})
    with monitor.watch(interval=0.001) as trace:
        wait_for(lambda: len(trace.rows) >= 4)
    assert driver.asked.count("nvmlDeviceGetUtilizationRates") == 1
    assert driver.asked.count("nvmlDeviceGetTemperature") == len(trace.rows)


def test_a_field_that_the_driver_marks_as_unsupported_is_absent(nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvml()
    answer = [SimpleNamespace(nvmlReturn=3, value=SimpleNamespace(uiVal=0))]
    monkeypatch.setattr(driver, "nvmlDeviceGetFieldValues", lambda gpu, fields: answer)
    with monitor.watch(interval=60) as trace:
        pass
    assert trace.absent == dict.fromkeys(("instant_power", "memory_temperature"), "the driver says 'Not Supported'")


def test_counters_in_the_chip_count_from_one_reading_to_the_next(nvml: Install) -> None:
    driver = nvml()
    with monitor.watch(interval=0.001) as trace:
        wait_for(lambda: len(trace.rows) >= 5)
        assert len(driver.looks) == 2
    expected = {"sm_activity": 0.2, "sm_occupancy": 0.3, "tensor_activity": 0.5, "bandwidth_share": 1.0}
    for name, share in expected.items():
        assert trace[name].tolist() == [share] * len(trace.rows)


def test_counters_in_the_chip_are_not_asked_before_they_are_renewed(
    nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sooner the driver says zero, though the chip is at work. What it said before stands until then."""
    driver, moment = nvml(), [0.0]
    monkeypatch.setattr(monitor.chip_counters, "time", SimpleNamespace(perf_counter=lambda: moment[0]))
    counters = monitor.ChipCounters(driver, 0)
    found = []
    for moment[0] in (0.05, 0.1, 0.149, 0.151, 0.26):
        found.append((counters.read(), driver.asked.count("nvmlGpmSampleGet")))
    counters.close()
    assert {shares for shares, _ in found} == {(0.2, 0.3, 0.5, 1.0)}
    assert [looks for _, looks in found] == [2, 2, 2, 3, 4]


def test_a_zero_of_the_counters_counts_only_when_they_must_have_been_renewed(
    nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver renews them by a clock of its own: two looks a tenth of a second apart may find the same."""
    driver, moment = nvml(), [0.0]
    monkeypatch.setattr(monitor.chip_counters, "time", SimpleNamespace(perf_counter=lambda: moment[0]))
    counters = monitor.ChipCounters(driver, 0)
    busy, nothing = (0.2, 0.3, 0.5, 1.0), (0.0, 0.0, 0.0, 0.0)
    driver.seeing_nothing = {3, 5, 6, 7}  # of which 3 is too early to be believed, and 5 as well
    found = []
    for moment[0] in (0.21, 0.32, 0.43, 0.54, 0.65, 0.76):
        found.append(counters.read())
    counters.close()
    assert driver.asked.count("nvmlGpmSampleGet") == 7
    assert found == [busy, busy, busy, busy, nothing, nothing]


def test_the_first_look_at_the_counters_waits_until_a_zero_is_certain(nvml: Install) -> None:
    driver = nvml()
    driver.seeing_nothing = range(100)
    begun = time.perf_counter()
    with monitor.watch(interval=60) as trace:
        pass
    assert trace.seconds[0] == 0
    assert trace["sm_activity"].tolist() == [0.0, 0.0]
    assert time.perf_counter() - begun >= monitor.chip_counters.CERTAIN  # a wait, not a time of work


def test_a_gpu_before_hopper_has_no_such_counters(nvml: Install) -> None:
    nvml().has_counters = False
    with monitor.watch(interval=60) as trace:
        pass
    assert trace.absent == dict.fromkeys(monitor.CHIP_COUNTERS, "the driver says 'Not Supported'")


def test_counters_that_nobody_asked_for_are_left_alone(nvml: Install) -> None:
    driver = nvml()
    with monitor.watch(interval=60, counters=False) as trace:
        pass
    assert trace.absent == dict.fromkeys(monitor.CHIP_COUNTERS, "nobody asked for it")
    assert not [question for question in driver.asked if "Gpm" in question]
    assert set(trace.units) == NVML_ONLY - set(monitor.CHIP_COUNTERS)


def test_one_counter_that_is_not_given_is_a_gap_and_all_of_them_are_a_refusal(nvml: Install) -> None:
    driver = nvml()
    driver.failing = {3}
    with monitor.watch(interval=60) as trace:
        pass
    assert np.isnan(trace["sm_occupancy"]).all()
    assert trace["sm_activity"].tolist() == [0.2, 0.2]
    driver.failing = {2, 3, 5, 10}
    with monitor.watch(interval=60) as trace:
        pass
    assert trace.absent == dict.fromkeys(monitor.CHIP_COUNTERS, "the driver says 'Not Supported'")


def test_a_reading_that_stops_coming_is_a_gap(nvml: Install) -> None:
    nvml(lost_after=1)
    with monitor.watch(interval=60) as trace:
        pass
    assert set(trace.units) >= {"power", "temperature", "energy"}
    assert math.isnan(trace["power"][-1])
    totals = trace.totals()
    assert totals.columns["power"].mean == totals.columns["power"].most == 1.0
    assert totals.energy_counted is None


def test_a_board_that_tells_no_bounds_and_no_name(nvml: Install) -> None:
    nvml(refused={"nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetName"})
    with monitor.watch(interval=60) as trace:
        pass
    assert set(trace.board) == {
        "memory_total",
        "sm_clock_limit",
        "driver_memory",
        "software_slowdown_margin",
        "hardware_slowdown_margin",
        "shutdown_margin",
    }
    assert trace.device == "a GPU whose name the driver does not give"


def test_a_quantity_that_no_trace_has_is_named_with_its_neighbours(nvml: Install) -> None:
    nvml()
    with monitor.watch(interval=60) as trace:
        pass
    with pytest.raises(UnknownName, match=r"There is no quantity in the trace of .* 'pover'\. Did you mean power"):
        trace["pover"]


def test_without_a_driver_there_is_one_sentence(nvml: Install) -> None:
    nvml(refused={"nvmlInit"})
    with pytest.raises(GpuguideError, match=r"There is no NVIDIA driver to ask \(Not Supported\)"), monitor.watch():
        pass


def test_without_the_library_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(GpuguideError, match="pip install nvidia-ml-py"), monitor.watch():
        pass


def test_a_driver_without_a_gpu(nvml: Install) -> None:
    nvml(0)
    for devices in (None, [None]):
        with pytest.raises(GpuguideError, match="knows no GPU"), monitor.samplers(devices):
            pass


@pytest.mark.gpu
@pytest.mark.needs("pynvml")
def test_a_real_gpu_is_watched_while_it_works() -> None:
    import torch

    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    with monitor.watch(interval=0.05, also=monitor.torch_memory()) as trace:
        for _ in range(20):
            for _ in range(100):
                matrix @ matrix
            torch.cuda.synchronize()
            time.sleep(0.02)
        time.sleep(0.3)
    assert trace.device == torch.cuda.get_device_name()
    assert trace["gpu_utilisation"].max() > 0
    assert trace["memory_used"].min() >= trace["reserved"].min() >= trace["allocated"].min() >= matrix.nbytes
    assert 0 < trace["temperature"].min() < 110
    if "energy" in trace.units:
        assert (np.diff(trace["energy"]) >= 0).all()
    assert 0 < trace.totals().share < 0.5

"""Watching a GPU through a made-up NVML: which GPU, which readings, and what a trace makes of them."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_nvml import GIB, FakeNvml, NVMLError

from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.hardware import monitor
from gpuguide.hardware.quantities import BOARD, QUANTITIES
from gpuguide.hardware.trace import Row, Trace

NVML_ONLY = set(QUANTITIES) - {"allocated", "reserved", "done"}
Install = Callable[..., FakeNvml]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a made-up NVML, and see that everything that was opened is closed."""
    monkeypatch.delenv(monitor.VISIBLE_VARIABLE, raising=False)
    idle = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", idle)  # type: ignore[arg-type]
    made: list[FakeNvml] = []

    def install(*arguments: Any, **named: Any) -> FakeNvml:
        made.append(FakeNvml(*arguments, **named))
        monkeypatch.setitem(sys.modules, "pynvml", made[-1])
        return made[-1]

    yield install
    assert [each.open for each in made] == [0] * len(made)
    assert [each.looks for each in made] == [[]] * len(made)
    assert not [thread for thread in threading.enumerate() if thread.name == "gpuguide-watch"]


def wait_for(condition: Callable[[], bool]) -> None:
    """Give the thread that samples up to ten seconds."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < 10
        time.sleep(0.001)


# --- sampling --------------------------------------------------------------------------------------------


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


# --- what a device does not give -------------------------------------------------------------------------

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


# --- no driver -------------------------------------------------------------------------------------------


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


# --- which GPU -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "visible"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        (" 3 , 1 ", [3, 1]),
        ("", []),
        ("-1", []),
        ("1,-1,2", [1]),
        ("0,9,1", [0]),
        ("GPU-2a7c81f2", [2]),
        ("gpu-3a7c,1", [3, 1]),
        ("GPU-", []),
        ("MIG-1234", []),
    ],
)
def test_cuda_visible_devices_is_honoured(
    nvml: Install, monkeypatch: pytest.MonkeyPatch, wanted: str | None, visible: list[int]
) -> None:
    driver = nvml(4)
    if wanted is not None:
        monkeypatch.setenv(monitor.VISIBLE_VARIABLE, wanted)
    assert monitor.visible_gpus(driver) == visible
    if not visible:
        with pytest.raises(GpuguideError, match="leaves no GPU visible"), monitor.watch():
            pass
        return
    for number, index in enumerate(visible):
        for device in (number, str(number), f"cuda:{number}"):
            assert monitor.find_gpu(driver, device) == index
    with monitor.samplers(interval=1) as found:
        assert [sampler.trace.index for sampler in found] == visible


@pytest.mark.parametrize(
    ("count", "wanted", "device", "words"),
    [
        (4, None, 4, "There is no GPU number 4: there are 4, from 0 to 3. Name"),
        (4, None, -1, "There is no GPU number -1: there are 4"),
        (1, None, "cuda:1", "There is no GPU number 1: there is one, number 0. Name"),
        (4, "2", 1, "there is one, number 0, as CUDA_VISIBLE_DEVICES=2 says"),
    ],
)
def test_a_number_that_no_gpu_has(
    nvml: Install, monkeypatch: pytest.MonkeyPatch, count: int, wanted: str | None, device: int | str, words: str
) -> None:
    nvml(count)
    if wanted is not None:
        monkeypatch.setenv(monitor.VISIBLE_VARIABLE, wanted)
    with pytest.raises(GpuguideError, match=words), monitor.watch(device):
        pass


def test_a_uuid_is_found_whole_or_by_its_beginning_even_if_it_is_hidden(
    nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = nvml(4)
    monkeypatch.setenv(monitor.VISIBLE_VARIABLE, "0")
    uuid = driver.nvmlDeviceGetUUID(2)
    for text in (uuid, uuid.removeprefix("GPU-"), uuid[:8], uuid.upper()):
        with monitor.watch(text, interval=60) as trace:
            assert trace.index == 2
            assert trace["power"][0] > 200


def test_a_gpu_that_the_driver_keeps_to_itself(nvml: Install) -> None:
    nvml(refused={"nvmlDeviceGetHandleByIndex"})
    with pytest.raises(GpuguideError, match=r"does not give access to the GPU \(Not Supported\)"), monitor.watch():
        pass


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("text", ["GPU-ffff", "GPU-", "h100", ""])
def test_a_uuid_that_none_has(nvml: Install, text: str, count: int) -> None:
    nvml(count)
    with pytest.raises(UnknownName, match="There is no GPU named"), monitor.watch(text):
        pass


class Torch:
    """PyTorch in use on a machine whose order of GPUs is not NVML's."""

    def __init__(self, driver: FakeNvml, order: list[int], current: int) -> None:
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            current_device=lambda: current,
            device_count=lambda: len(order),
            get_device_properties=lambda number: SimpleNamespace(
                uuid=driver.nvmlDeviceGetUUID(order[number]).removeprefix("GPU-")
            ),
        )


def test_pytorch_in_use_knows_the_order_and_the_current_gpu(nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvml(4)
    monkeypatch.setitem(sys.modules, "torch", Torch(driver, [3, 1, 0, 2], current=1))  # type: ignore[arg-type]
    assert [monitor.find_gpu(driver, number) for number in (0, 1, 2, 3)] == [3, 1, 0, 2]
    assert monitor.find_gpu(driver) == 1
    with pytest.raises(GpuguideError, match="no GPU number 4"):
        monitor.find_gpu(driver, 4)


# --- arithmetic ------------------------------------------------------------------------------------------


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
    part = whole.between(0.4, 1.6)
    assert part.seconds.tolist() == [0.5, 1.0, 1.5]
    assert part.rate("done") == 40.0
    assert counted([0.0, math.nan, 30.0]).rate("done") == 30.0
    assert whole.totals().columns == {}  # a mean of a count says nothing


def test_a_part_without_readings_and_a_rate_of_one_reading() -> None:
    whole = counted([0.0, 10.0])
    with pytest.raises(GpuguideError, match=r"no reading from 3 s to 4 s: it ends at 0.5 s"):
        whole.between(3, 4)
    with pytest.raises(GpuguideError, match=r"A rate of done needs two readings, and this trace of a GPU has 1"):
        whole.between(0.4, 1).rate("done")


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


# --- why the clock is not higher -------------------------------------------------------------------------


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


# --- the real thing --------------------------------------------------------------------------------------


@pytest.mark.gpu
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

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from gpuguide.hardware import monitor
from gpuguide.hardware.monitor import DriverState


class NVMLError(Exception):
    """What NVML raises."""


READINGS: dict[str, Any] = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlSystemGetDriverVersion": "580.159.04",
    "nvmlDeviceGetHandleByIndex": "the first",
    "nvmlDeviceGetHandleByUUID": "the one",
    "nvmlDeviceGetCurrentClocksEventReasons": 0x24,
    "nvmlDeviceGetPowerUsage": 310_500,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetTemperature": 45,
    "nvmlDeviceGetClockInfo": 1980,
}
WHOLE = DriverState("580.159.04", 1.98e9, 1.98e9, 310.5, 700.0, 45.0, 0x24)
FIELD = {
    "nvmlSystemGetDriverVersion": {"driver"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"clock_limits"},
    "nvmlDeviceGetPowerUsage": {"power"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit"},
    "nvmlDeviceGetTemperature": {"temperature"},
    "nvmlDeviceGetClockInfo": {"sm_clock", "memory_clock"},
}


class Driver(ModuleType):
    """NVML with made-up readings, of which some are refused or do not exist."""

    def __init__(self, refused: set[str], missing: set[str]) -> None:
        super().__init__("pynvml")
        self.NVMLError = NVMLError
        self.NVML_CLOCK_SM, self.NVML_CLOCK_MEM, self.NVML_TEMPERATURE_GPU = 1, 2, 0
        self.asked: list[tuple[Any, ...]] = []
        for name in READINGS.keys() - missing:
            setattr(self, name, self.answer(name, name in refused))

    def answer(self, name: str, refused: bool) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.asked.append((name, *arguments))
            if refused:
                raise NVMLError(name)
            return READINGS[name]

        return call


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Driver]:
    def install(refused: set[str] = frozenset(), missing: set[str] = frozenset()) -> Driver:  # type: ignore[assignment]
        module = Driver(set(refused), set(missing))
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module

    return install


def test_all_readings_are_in_si_units(driver: Callable[..., Driver]) -> None:
    module = driver()
    assert monitor.read_driver() == WHOLE
    assert ("nvmlDeviceGetClockInfo", "the first", 1) in module.asked
    assert module.asked[-1] == ("nvmlShutdown",)


def test_a_gpu_is_found_by_its_uuid(driver: Callable[..., Driver]) -> None:
    module = driver()
    assert monitor.read_driver("1234-abcd") == WHOLE
    assert ("nvmlDeviceGetHandleByUUID", "GPU-1234-abcd") in module.asked
    assert ("nvmlDeviceGetPowerUsage", "the one") in module.asked


@pytest.mark.parametrize("how", ["refused", "missing"])
@pytest.mark.parametrize("question", sorted(FIELD))
def test_a_reading_that_is_not_to_be_had_is_none_and_the_others_stand(
    driver: Callable[..., Driver], question: str, how: str
) -> None:
    """A driver refuses what it cannot read; an older nvidia-ml-py lacks what is newer."""
    driver(**{how: {question}})
    assert {name for name in vars(WHOLE) if getattr(monitor.read_driver(), name) is None} == FIELD[question]


def test_a_driver_that_gives_no_readings_at_all(driver: Callable[..., Driver]) -> None:
    driver(refused=set(FIELD))
    assert monitor.read_driver() == DriverState()


def test_a_driver_that_knows_no_gpu_still_has_a_version(driver: Callable[..., Driver]) -> None:
    driver(refused={"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID"})
    assert monitor.read_driver() == monitor.read_driver("1234") == DriverState(driver="580.159.04")


def test_without_a_driver_nothing_is_asked(driver: Callable[..., Driver]) -> None:
    module = driver(refused={"nvmlInit"})
    assert monitor.read_driver() == DriverState()
    assert module.asked == [("nvmlInit",)]


def test_a_driver_that_cannot_be_closed_does_no_harm(driver: Callable[..., Driver]) -> None:
    driver(refused={"nvmlShutdown"})
    assert monitor.read_driver() == WHOLE


def test_without_the_library_there_are_no_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert monitor.read_driver() == DriverState()


def test_a_version_may_be_bytes(driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READINGS, "nvmlSystemGetDriverVersion", b"418.87")
    driver()
    assert monitor.read_driver().driver == "418.87"


def test_the_real_library_has_what_is_asked_of_it() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = [*READINGS, "NVMLError", "NVML_CLOCK_SM", "NVML_CLOCK_MEM", "NVML_TEMPERATURE_GPU"]
    assert not [name for name in names if not hasattr(pynvml, name)]
    assert pynvml.NVML_TEMPERATURE_GPU == 0


def test_what_limits_the_clock_is_said_in_words() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert monitor.name_clock_limits(0) == []
    assert monitor.name_clock_limits(0x24) == ["SW Power Cap", "SW Thermal Slowdown"]
    assert monitor.name_clock_limits(pynvml.nvmlClocksEventReasonSwPowerCap) == ["SW Power Cap"]
    assert monitor.name_clock_limits(pynvml.nvmlClocksEventReasonGpuIdle) == ["GPU Idle"]

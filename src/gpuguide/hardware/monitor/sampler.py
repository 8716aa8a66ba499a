"""One GPU read into a trace: the questions to NVML, and what becomes of an answer that does not come."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gpuguide.hardware.monitor.chip_counters import CHIP_COUNTERS, ChipCounters
from gpuguide.hardware.monitor.driver import decode_text
from gpuguide.hardware.quantities import BOARD, QUANTITIES
from gpuguide.hardware.totals import Row
from gpuguide.hardware.trace import Further, Trace


def _utilisation(nvml: Any, gpu: Any) -> tuple[float, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return rates.gpu / 100, rates.memory / 100


def _field(nvml: Any, gpu: Any, number: int, *, signed: bool = False) -> float:
    """Return one of NVML's numbered values. Margins may be negative, whatever type the driver says they have."""
    (field,) = nvml.nvmlDeviceGetFieldValues(gpu, [number])
    if field.nvmlReturn != 0:
        raise nvml.NVMLError(field.nvmlReturn)
    return float(field.value.siVal if signed else field.value.uiVal)


READERS: dict[tuple[str, ...], Callable[[Any, Any], tuple[float, ...]]] = {
    ("gpu_utilisation", "memory_utilisation"): _utilisation,
    ("memory_used",): lambda nvml, gpu: (nvml.nvmlDeviceGetMemoryInfo(gpu).used,),
    ("power",): lambda nvml, gpu: (nvml.nvmlDeviceGetPowerUsage(gpu) * 1e-3,),
    ("instant_power",): lambda nvml, gpu: (_field(nvml, gpu, nvml.NVML_FI_DEV_POWER_INSTANT) * 1e-3,),
    ("energy",): lambda nvml, gpu: (nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) * 1e-3,),
    ("sm_clock",): lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6,),
    ("memory_clock",): lambda nvml, gpu: (nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM) * 1e6,),
    ("temperature",): lambda nvml, gpu: (nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),),
    ("memory_temperature",): lambda nvml, gpu: (_field(nvml, gpu, nvml.NVML_FI_DEV_MEMORY_TEMP),),
    ("temperature_margin",): lambda nvml, gpu: (nvml.nvmlDeviceGetMarginTemperature(gpu),),
    ("clock_limits",): lambda nvml, gpu: (nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),),
}
"""The quantities that one question to NVML answers, and the question; answers are in SI units"""


class Sampler:
    """Reads one GPU into a trace, one row at each call of :meth:`sample`."""

    def __init__(
        self, nvml: Any, gpu: Any, interval: float, also: Further | None = None, *, counters: bool = True
    ) -> None:
        self._refusals: tuple[type[BaseException], ...] = (nvml.NVMLError, AttributeError)
        self._readers = [(names, _bind_reader(read, nvml, gpu)) for names, read in READERS.items()]
        self._counters = ChipCounters(nvml, gpu) if counters else None
        if self._counters is not None:
            self._readers.append((tuple(CHIP_COUNTERS), self._counters.read))
        self._further = dict(also or {})
        self._counted_before: float | None = None
        self._begun = time.perf_counter()
        self.trace = Trace(
            device=decode_text(self._ask(lambda: nvml.nvmlDeviceGetName(gpu)))
            or "a GPU whose name the driver does not give",
            index=int(self._ask(lambda: nvml.nvmlDeviceGetIndex(gpu)) or 0),
            interval=interval,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            units={},
            absent={} if counters else dict.fromkeys(CHIP_COUNTERS, "nobody asked for it"),
            board=self._board(nvml, gpu),
        )

    def close(self) -> None:
        """Give back what the driver keeps for the chip's counters."""
        if self._counters is not None:
            self._counters.close()

    def sample(self) -> None:
        """Read everything once. What is refused the first time is not asked for again."""
        first = not self.trace.rows
        if first and self._counters is not None:
            self._counters.wait()
        start = time.perf_counter()
        readings: dict[str, float] = {}
        for names, read in self._readers:
            if first or names[0] in self.trace.units:
                readings |= self._read(names, read, self._refusals, first)
        for name, (unit, function) in self._further.items():
            if first or name in self.trace.units:
                readings |= self._read((name,), _alone(function), (Exception,), first, unit)
        if self._counted_before is None:
            self._counted_before = readings.get("energy")
        if "energy" in readings and self._counted_before is not None:
            readings["energy"] -= self._counted_before
        end = time.perf_counter()
        if first:
            self._begun = (start + end) / 2
        self.trace.rows.append(Row((start + end) / 2 - self._begun, end - start, readings))

    def sample_until(self, stop: threading.Event) -> None:
        """Sample at the trace's interval until told to stop; a reading that comes too late is left out, not made up."""
        interval, ticks = self.trace.interval, 1
        while not stop.wait(max(0.0, self._begun + ticks * interval - time.perf_counter())):
            self.sample()
            ticks = max(ticks + 1, math.ceil((time.perf_counter() - self._begun) / interval))

    def _read(
        self,
        names: tuple[str, ...],
        read: Callable[[], tuple[float, ...]],
        refusals: tuple[type[BaseException], ...],
        first: bool,
        unit: str | None = None,
    ) -> dict[str, float]:
        try:
            values = tuple(map(float, read()))
        except refusals as error:
            if first:
                self.trace.absent.update(dict.fromkeys(names, _reason(error)))
                return {}
            values = (math.nan,) * len(names)
        if first:
            self.trace.units.update({name: unit or QUANTITIES[name].unit for name in names})
        return dict(zip(names, values, strict=True))

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._refusals:
            return None

    def _board(self, nvml: Any, gpu: Any) -> dict[str, float]:
        asked = {
            "memory_total": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
            "power_limit": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) * 1e-3,
            "sm_clock_limit": lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM) * 1e6,
            "slowdown_temperature": lambda: nvml.nvmlDeviceGetTemperatureThreshold(
                gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            "shutdown_temperature": lambda: nvml.nvmlDeviceGetTemperatureThreshold(
                gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
            ),
            "software_slowdown_margin": lambda: _field(
                nvml, gpu, nvml.NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, signed=True
            ),
            "hardware_slowdown_margin": lambda: _field(
                nvml, gpu, nvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, signed=True
            ),
            "shutdown_margin": lambda: _field(nvml, gpu, nvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, signed=True),
            "driver_memory": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2).reserved,
        }
        found = {name: self._ask(asked[name]) for name in BOARD}
        return {name: float(value) for name, value in found.items() if value is not None}


def _bind_reader(read: Callable[[Any, Any], tuple[float, ...]], nvml: Any, gpu: Any) -> Callable[[], tuple[float, ...]]:
    return lambda: read(nvml, gpu)


def _alone(function: Callable[[], float]) -> Callable[[], tuple[float, ...]]:
    return lambda: (function(),)


def _reason(error: BaseException) -> str:
    if isinstance(error, AttributeError):
        return "the installed nvidia-ml-py is too old to ask for it"
    if type(error).__module__.startswith("pynvml") or type(error).__name__.startswith("NVMLError"):
        return f"the driver says {str(error)!r}"
    return f"{type(error).__name__}: {error}"

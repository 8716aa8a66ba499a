"""NVML without a driver: GPUs with made-up readings, of which some are refused, are missing, or stop coming.

Tests put an instance into ``sys.modules`` as ``pynvml``. A process of its own finds it by a module ``pynvml`` that says
``from fake_nvml import *``, with the number of GPUs in ``FAKE_GPUS``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from types import ModuleType, SimpleNamespace
from typing import Any

GIB = 2**30
FIRST_INSTANCE = 100
"""Handles of instances of GPUs in MIG mode begin here"""


class NVMLError(Exception):
    """What NVML raises. The text is that of the real one for error 3."""

    def __init__(self, value: object = 3) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return "Not Supported" if self.value == 3 else str(self.value)


class FakeNvml(ModuleType):
    """``count`` GPUs; readings of GPU ``i`` and of the ``n``-th time that power is asked differ from all others."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_TEMPERATURE_THRESHOLD_SHUTDOWN, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 0, 1
    NVML_FI_DEV_POWER_INSTANT, NVML_FI_DEV_MEMORY_TEMP = 186, 82
    NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT = 193, 194
    NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT = 196
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_SM_OCCUPANCY = 2, 3
    NVML_GPM_METRIC_ANY_TENSOR_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL = 5, 10
    nvmlMemory_v2 = 0x2000028

    def __init__(
        self,
        count: int = 1,
        refused: Collection[str] = (),
        missing: Collection[str] = (),
        lost_after: int | None = None,
    ) -> None:
        super().__init__("pynvml")
        self.count, self.refused, self.missing, self.lost_after = count, set(refused), set(missing), lost_after
        self.asked: list[str] = []
        self.open = 0
        self.has_counters = True
        self.looks: list[int] = []
        self.failing: set[int] = set()
        self.seeing_nothing: Collection[int] = set()
        self.instances: dict[int, int] = {}
        """GPUs in MIG mode, and the place of the one instance that each has"""

    def __getattribute__(self, name: str) -> Any:
        """Refuse and forget what the test says, and write down what was asked."""
        if not name.startswith("nvml") or name == "nvmlMemory_v2":
            return super().__getattribute__(name)
        if name in self.missing:
            raise AttributeError(name)
        function: Callable[..., Any] = super().__getattribute__(name)

        def call(*arguments: Any) -> Any:
            self.asked.append(name)
            if name in self.refused:
                raise NVMLError(3)
            if self.lost_after is not None and self.asked.count(name) > self.lost_after:
                raise NVMLError("GPU is lost")
            return function(*arguments)

        return call

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.00"

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        known = [*range(self.count), *(FIRST_INSTANCE + place for place in self.instances.values())]
        found = [handle for handle in known if self.nvmlDeviceGetUUID(handle) == uuid]
        if not found:
            raise NVMLError("Not Found")
        return found[0]

    def nvmlDeviceGetMigMode(self, gpu: int) -> list[int]:
        return [int(gpu in self.instances)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: int, place: int) -> int:
        if self.instances[gpu] != place:
            raise NVMLError("Not Found")
        return FIRST_INSTANCE + place

    def nvmlDeviceGetIndex(self, gpu: int) -> int:
        return gpu

    def nvmlDeviceGetUUID(self, gpu: int) -> str:
        kind, number = ("MIG", gpu - FIRST_INSTANCE) if gpu >= FIRST_INSTANCE else ("GPU", gpu)
        return f"{kind}-{number}a7c81f2-0000-1111-2222-33334444555{number}"

    def nvmlDeviceGetName(self, gpu: int) -> bytes:
        return f"NVIDIA Made-up {gpu}".encode()

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=100, memory=25)

    def nvmlDeviceGetMemoryInfo(self, gpu: int, version: int | None = None) -> SimpleNamespace:
        known = SimpleNamespace(total=80 * GIB, used=(gpu + 1) * GIB, free=(79 - gpu) * GIB)
        if version == self.nvmlMemory_v2:
            known.reserved = GIB // 2
        return known

    def nvmlGpmQueryDeviceSupport(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(isSupportedDevice=int(self.has_counters))

    def nvmlGpmSampleAlloc(self) -> SimpleNamespace:
        """Return an empty look; ``looks`` counts those that nobody has freed."""
        look = SimpleNamespace(number=None, key=len(self.asked))
        self.looks.append(look.key)
        return look

    def nvmlGpmSampleFree(self, look: SimpleNamespace) -> None:
        self.looks.remove(look.key)

    def nvmlGpmSampleGet(self, gpu: int, look: SimpleNamespace) -> SimpleNamespace:
        look.number = self.asked.count("nvmlGpmSampleGet")
        return look

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(333)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)

    def nvmlGpmMetricsGet(self, asked: SimpleNamespace) -> SimpleNamespace:
        """Give ten times its number as each metric, in percent, or zero; the second look must be the later one."""
        assert asked.version == 1
        has_worked = asked.sample2.number not in self.seeing_nothing
        assert asked.sample2.number > asked.sample1.number
        for each in asked.metrics[: asked.numMetrics]:
            each.nvmlReturn = 3 if each.metricId in self.failing else 0
            each.value = 10.0 * each.metricId * has_worked
        return asked

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        if gpu >= FIRST_INSTANCE:
            raise NVMLError(3)
        return 1000 * (gpu * 100 + self.asked.count("nvmlDeviceGetPowerUsage"))

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:
        return 700_000

    def nvmlDeviceGetFieldValues(self, gpu: int, fields: list[int]) -> list[SimpleNamespace]:
        values = {186: 400_000, 82: 58, 196: 0, 194: -2, 193: -8}
        return [
            SimpleNamespace(
                nvmlReturn=0,
                value=SimpleNamespace(uiVal=values[each] % 2**32, siVal=values[each]),
            )
            for each in fields
        ]

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: int) -> int:
        return 10**9 + 500 * self.asked.count("nvmlDeviceGetTotalEnergyConsumption")

    def nvmlDeviceGetClockInfo(self, gpu: int, clock: int) -> int:
        return 1980 if clock == self.NVML_CLOCK_SM else 2619

    def nvmlDeviceGetMaxClockInfo(self, gpu: int, clock: int) -> int:
        return 1980

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:
        return 45 + gpu

    def nvmlDeviceGetMarginTemperature(self, gpu: int) -> int:
        return 40

    def nvmlDeviceGetTemperatureThreshold(self, gpu: int, threshold: int) -> int:
        return {0: 92, 1: 89}[threshold]

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: int) -> int:
        return 0x4


_nvml = FakeNvml(int(os.environ.get("FAKE_GPUS", "1")))


def __getattr__(name: str) -> Any:
    """Let ``import fake_nvml as pynvml`` do."""
    return getattr(_nvml, name)

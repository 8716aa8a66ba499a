"""What the driver tells of a GPU: at one moment (:func:`read_driver`), or over time (:func:`watch`).

All of it comes from NVML, the library that nvidia-smi asks too. A reading that a device does not give is left out and
never made up.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.trace import BOARD, QUANTITIES, Further, Row, Trace


@dataclass(frozen=True)
class DriverState:
    """One look at a GPU through NVML."""

    driver: str | None = None
    sm_clock: float | None = None
    """Hz"""
    memory_clock: float | None = None
    """Hz"""
    power: float | None = None
    """W"""
    power_limit: float | None = None
    """W"""
    temperature: float | None = None
    """degrees Celsius"""
    clock_limits: int | None = None
    """Bits that say why the clock is not higher; :data:`CLOCK_LIMITS` names them"""


CLOCK_LIMITS = {
    0x1: "the GPU is idle",
    0x2: "a clock that was set",
    0x4: "the power limit",
    0x8: "the hardware's slowdown",
    0x10: "boost in step with other GPUs",
    0x20: "the temperature (driver)",
    0x40: "the temperature (hardware)",
    0x80: "the power brake",
    0x100: "the display's clock",
}
"""Names of the bits. Source: NVML API reference, "NvmlClocksEventReasons"."""

CLOCK_LIMIT_MEANINGS = {
    "the GPU is idle": "Nothing runs, and the clock is lowered to save power. It rises again with the next kernel.",
    "a clock that was set": "Somebody set the clock of applications, with nvidia-smi or a program.",
    "the power limit": "The driver lowers the clock so that the board stays within its power limit. Under full load "
    "this is the normal state of a healthy GPU.",
    "the hardware's slowdown": "The hardware cuts the clock to half or less: too hot, too much power at once, or the "
    "power supply asks for it. One of the two bits below often says which. It may also show for a moment "
    "while the clock changes.",
    "boost in step with other GPUs": "The GPU belongs to a group whose members all run at the clock of the slowest.",
    "the temperature (driver)": "The driver lowers the clock so that the GPU or its memory stays below its limit.",
    "the temperature (hardware)": "The hardware cuts the clock to half or less, because it is too hot. Look at the "
    "cooling.",
    "the power brake": "The power supply or the chassis asks to draw less, and the hardware cuts the clock to half or "
    "less.",
    "the display's clock": "The setting of a display bounds the clock.",
}
"""What each of :data:`CLOCK_LIMITS` means. Source: as there."""


def limits_named(bits: int) -> list[str]:
    """Return in words what keeps the clock from being higher.

    >>> limits_named(0x24)
    ['the power limit', 'the temperature (driver)']
    """
    named = [name for bit, name in CLOCK_LIMITS.items() if bits & bit]
    return [*named, "a reason without a name here"] if bits & ~sum(CLOCK_LIMITS) else named


def limits_explained(bits: int) -> dict[str, str]:
    """Return what keeps the clock from being higher, and what that means."""
    unknown_one = "The driver is newer than the names of the bits that are known here."
    return {name: CLOCK_LIMIT_MEANINGS.get(name, unknown_one) for name in limits_named(bits)}


def read_driver(uuid: str | None = None) -> DriverState:
    """Read one GPU's state; every reading that the driver or a missing library refuses is ``None``.

    Parameters
    ----------
    uuid : str, optional
        The GPU's UUID as PyTorch reports it; without it the first GPU is read. NVML counts all GPUs of the machine,
        while PyTorch counts those that ``CUDA_VISIBLE_DEVICES`` leaves visible.

    Some virtual machines and older drivers give no power or clock readings. A benchmark is worth running there
    too, so nothing raises.
    """
    try:
        import pynvml
    except ImportError:
        return DriverState()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return DriverState()

    def ask(question: str, *arguments: Any) -> Any:
        try:
            return getattr(pynvml, question)(*arguments)
        except (pynvml.NVMLError, AttributeError):  # the driver refuses, or nvidia-ml-py is too old to ask
            return None

    def reading(question: str, *arguments: Any, scale: float = 1.0) -> float | None:
        value = ask(question, gpu, *arguments)
        return None if value is None else float(value) * scale

    version = ask("nvmlSystemGetDriverVersion")
    gpu = ask("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}") if uuid else ask("nvmlDeviceGetHandleByIndex", 0)
    state = DriverState(driver=version.decode() if isinstance(version, bytes) else version)
    if gpu is not None:
        limits = reading("nvmlDeviceGetCurrentClocksEventReasons")
        state = replace(
            state,
            sm_clock=reading("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM, scale=1e6),
            memory_clock=reading("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM, scale=1e6),
            power=reading("nvmlDeviceGetPowerUsage", scale=1e-3),
            power_limit=reading("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
            temperature=reading("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
            clock_limits=None if limits is None else int(limits),
        )
    ask("nvmlShutdown")
    return state


def limits_over(bits: Iterable[float]) -> dict[str, float]:
    """Return what kept the clock from being higher, and in which share of many readings, the commonest first.

    Parameters
    ----------
    bits : iterable of float
        Such as ``trace["clock_limits"]``; NaN, where a reading is missing, does not count.
    """
    known = [int(each) for each in bits if not math.isnan(each)]
    counts = Counter(name for each in known for name in limits_named(each))
    return {name: count / len(known) for name, count in counts.most_common()}


# --- over time -------------------------------------------------------------------------------------------

INTERVAL = 0.05
"""Seconds between readings. The driver renews utilisation several times a second at most, so more tells little."""
LEAST_INTERVAL = 0.001
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


@contextmanager
def watch(
    device: int | str | None = None,
    *,
    interval: float = INTERVAL,
    also: Further | None = None,
    counters: bool = True,
) -> Iterator[Trace]:
    """Read a GPU's utilisation, memory, power, clocks and temperature in a thread while a block runs.

    Parameters
    ----------
    device : int or str, optional
        The number that CUDA gives the GPU, or its UUID (a beginning will do). By default PyTorch's current GPU if
        PyTorch has begun to use one, else the first that ``CUDA_VISIBLE_DEVICES`` leaves visible.
    interval : float
        Seconds from one reading to the next. The first is made before the block, the last after it.
    also : mapping of str to (str, callable), optional
        Other quantities to read at the same moments, as name to unit and function; see :func:`torch_memory`.
    counters : bool
        Whether to read :data:`CHIP_COUNTERS` too. A profiler of the same counters, and readings that must be as fast
        as they can be, are reasons not to.

    Yields
    ------
    Trace
        Grows while the block runs, and stays whole if the block raises. What the device does not give stands in
        its ``absent``, with the reason; ``trace.totals().cost`` says what a reading costs.

    Raises
    ------
    GpuguideError
        If there is no driver, no such GPU, or nvidia-ml-py is not installed.

    Notes
    -----
    A number means the same GPU here and in CUDA: ``CUDA_VISIBLE_DEVICES`` is honoured, although NVML counts all GPUs.
    Before PyTorch is in use the order is that of the PCI bus. CUDA's own default puts the fastest first, which differs
    on a machine with unlike GPUs, unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set. A UUID is never ambiguous.

    Examples
    --------
    .. code-block:: python

        with monitor.watch(interval=0.1) as trace:
            train()
        print(trace.totals().columns["power"].mean)
    """
    if not LEAST_INTERVAL <= interval < math.inf:
        raise GpuguideError(f"An interval of {interval} s cannot be kept. Choose {LEAST_INTERVAL} s or longer.")
    with samplers([device], interval=interval, also=also, counters=counters) as (sampler,):
        sampler.sample()
        stop = threading.Event()
        thread = threading.Thread(target=sampler.sample_until, args=(stop,), name="gpuguide-watch", daemon=True)
        thread.start()
        try:
            yield sampler.trace
        finally:
            stop.set()
            thread.join()
            sampler.sample()


def torch_memory(device: int | str | None = None) -> Further:
    """Return what PyTorch's allocator knows of its memory, for ``also`` of :func:`watch`.

    Parameters
    ----------
    device : int or str, optional
        As PyTorch names it, for example ``"cuda:0"``; by default its current GPU.
    """
    import torch

    return {
        "allocated": ("B", lambda: torch.cuda.memory_allocated(device)),
        "reserved": ("B", lambda: torch.cuda.memory_reserved(device)),
    }


class Sampler:
    """Reads one GPU into a trace, one row at each call of :meth:`sample`."""

    def __init__(
        self, nvml: Any, gpu: Any, interval: float, also: Further | None = None, *, counters: bool = True
    ) -> None:
        self._refusals: tuple[type[BaseException], ...] = (nvml.NVMLError, AttributeError)
        self._readers = [(names, _bound(read, nvml, gpu)) for names, read in READERS.items()]
        self._counters = ChipCounters(nvml, gpu) if counters else None
        if self._counters is not None:
            self._readers.append((tuple(CHIP_COUNTERS), self._counters.read))
        self._further = dict(also or {})
        self._counted_before: float | None = None
        self._begun = time.perf_counter()
        self.trace = Trace(
            device=_text(self._ask(lambda: nvml.nvmlDeviceGetName(gpu))) or "a GPU whose name the driver does not give",
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


@contextmanager
def samplers(
    devices: Sequence[int | str | None] | None = None,
    *,
    interval: float = INTERVAL,
    also: Further | None = None,
    counters: bool = True,
) -> Iterator[list[Sampler]]:
    """Open the driver and give a sampler for each GPU; :func:`watch` calls one in a thread.

    Parameters
    ----------
    devices : sequence of int or str, optional
        As for :func:`watch`; by default all that ``CUDA_VISIBLE_DEVICES`` leaves visible.
    interval, also, counters
        As for :func:`watch`.
    """
    nvml = _opened()
    try:
        try:
            handles = visible_gpus(nvml) if devices is None else [find_gpu(nvml, device) for device in devices]
        except nvml.NVMLError as error:
            raise GpuguideError(
                f"The NVIDIA driver does not give access to the GPU ({error}). 'nvidia-smi -L' lists what it gives."
            ) from error
        if not handles:
            raise GpuguideError(_none_visible())
        opened = [Sampler(nvml, handle, interval, also, counters=counters) for handle in handles]
        try:
            yield opened
        finally:
            for sampler in opened:
                sampler.close()
    finally:
        nvml.nvmlShutdown()


def _opened() -> Any:
    """Return NVML, ready to be asked."""
    try:
        import pynvml
    except ImportError as error:
        raise GpuguideError(
            "Watching a GPU needs the package nvidia-ml-py, which is not installed. It is small: "
            "'pip install nvidia-ml-py'."
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise GpuguideError(
            f"There is no NVIDIA driver to ask ({error}), so no GPU can be watched here. "
            "'gpuguide doctor' says what this machine has."
        ) from error
    return pynvml


# --- which GPU -------------------------------------------------------------------------------------------


def find_gpu(nvml: Any, device: int | str | None = None) -> Any:
    """Return NVML's handle of the GPU that :func:`watch` means by ``device``."""
    text = str(device).removeprefix("cuda:") if device is not None else None
    number = int(text) if text is not None and text.lstrip("-").isdigit() else None
    if text is None or number is not None:
        if uuid := _torch_uuid(number):
            return nvml.nvmlDeviceGetHandleByUUID(uuid)
        return _numbered(visible_gpus(nvml), number or 0)
    known = {_uuid(nvml, gpu): gpu for gpu in _all_gpus(nvml)}
    found = [gpu for uuid, gpu in known.items() if _is_named(uuid, text)]
    if len(found) != 1:
        raise unknown("GPU", text, known)
    return found[0]


def visible_gpus(nvml: Any) -> list[Any]:
    """Return NVML's handles of the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves visible, in its order.

    As in CUDA, an entry that names no GPU ends the list. Source: CUDA C++ Programming Guide, environment variables.
    """
    everything = _all_gpus(nvml)
    wanted = os.environ.get(VISIBLE_VARIABLE)
    if wanted is None:
        return everything
    uuids = [_uuid(nvml, gpu) for gpu in everything]
    found: list[Any] = []
    for entry in map(str.strip, wanted.split(",")):
        if entry.isdigit():
            named = everything[int(entry) : int(entry) + 1]
        else:
            named = [gpu for gpu, uuid in zip(everything, uuids, strict=True) if entry and _is_named(uuid, entry)]
        if len(named) != 1:
            break
        found.append(named[0])
    return found


def _all_gpus(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _numbered(gpus: Sequence[Any], number: int) -> Any:
    if not gpus:
        raise GpuguideError(_none_visible())
    if not 0 <= number < len(gpus):
        there_are = "there is one, number 0" if len(gpus) == 1 else f"there are {len(gpus)}, from 0 to {len(gpus) - 1}"
        hidden = (
            f", as {VISIBLE_VARIABLE}={os.environ[VISIBLE_VARIABLE]} says" if VISIBLE_VARIABLE in os.environ else ""
        )
        raise GpuguideError(f"There is no GPU number {number}: {there_are}{hidden}. Name one of these, or a UUID.")
    return gpus[number]


def _none_visible() -> str:
    wanted = os.environ.get(VISIBLE_VARIABLE)
    if wanted is None:
        return "The NVIDIA driver is here and knows no GPU. 'nvidia-smi -L' should list one."
    return f"{VISIBLE_VARIABLE}={wanted!r} leaves no GPU visible. Unset it, or name a GPU that 'nvidia-smi -L' lists."


def _torch_uuid(number: int | None) -> str | None:
    """Return the UUID of a GPU by PyTorch's number, if PyTorch is in use: it alone knows CUDA's order for certain."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    chosen = torch.cuda.current_device() if number is None else number
    if not 0 <= chosen < torch.cuda.device_count():
        return None
    return f"GPU-{torch.cuda.get_device_properties(chosen).uuid}"


def _uuid(nvml: Any, gpu: Any) -> str:
    return _text(nvml.nvmlDeviceGetUUID(gpu)) or ""


def _is_named(uuid: str, text: str) -> bool:
    """Return whether ``text`` begins a UUID, with ``GPU-`` before it or without."""
    beginning = text.lower().removeprefix("gpu-")
    return bool(beginning) and uuid.lower().removeprefix("gpu-").startswith(beginning)


# --- one reading -----------------------------------------------------------------------------------------


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


CHIP_COUNTERS = {
    "sm_activity": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_activity": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "bandwidth_share": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
"""Quantities that counters in the chip give, and NVML's names of them. Source: NVML API reference, "GPM Enums"."""
RENEWAL = 0.1
"""Seconds between two looks at the chip's counters. Sooner the driver has nothing new, and says zero. Source: NVML API
reference, ``nvmlGpmSampleGet``."""


class ChipCounters:
    """What counters in the chip have seen between two looks: NVML's "GPM", which GPUs have from Hopper on.

    A reading that comes before they are renewed repeats the one before. Unlike utilisation they say how much of the GPU
    worked. DCGM reads the same kind of counters on older GPUs, with rights that a program of a user often lacks.
    """

    def __init__(self, nvml: Any, gpu: Any) -> None:
        self._nvml, self._gpu = nvml, gpu
        self._samples: list[Any] = []
        self._refused: BaseException | None = None
        self._last: tuple[float, ...] | None = None
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
                raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
            for _ in range(2):
                self._samples.append(nvml.nvmlGpmSampleAlloc())
            nvml.nvmlGpmSampleGet(gpu, self._samples[0])
        except (nvml.NVMLError, AttributeError) as error:
            self._refused = error
        self._looked = time.perf_counter()

    def wait(self) -> None:
        """Wait until there has been enough time to count in, if there are counters."""
        if self._refused is None:
            threading.Event().wait(max(0.0, self._looked + RENEWAL - time.perf_counter()))

    def read(self) -> tuple[float, ...]:
        """Return the share of each of :data:`CHIP_COUNTERS`; NaN for one that the driver did not give this time."""
        if self._refused is not None:
            raise self._refused
        moment = time.perf_counter()
        if self._last is not None and moment < self._looked + RENEWAL:
            return self._last
        self._looked = moment
        before, now = self._samples
        self._nvml.nvmlGpmSampleGet(self._gpu, now)
        self._samples.reverse()
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = self._nvml.NVML_GPM_METRICS_GET_VERSION, len(CHIP_COUNTERS)
        asked.sample1, asked.sample2 = before, now
        for position, name in enumerate(CHIP_COUNTERS.values()):
            asked.metrics[position].metricId = getattr(self._nvml, name)
        self._nvml.nvmlGpmMetricsGet(asked)
        given = asked.metrics[: len(CHIP_COUNTERS)]
        if all(each.nvmlReturn != 0 for each in given):
            raise self._nvml.NVMLError(given[0].nvmlReturn)
        self._last = tuple(math.nan if each.nvmlReturn else each.value / 100 for each in given)
        return self._last

    def close(self) -> None:
        """Free the driver's memory of the two looks."""
        while self._samples:
            self._nvml.nvmlGpmSampleFree(self._samples.pop())


def _bound(read: Callable[[Any, Any], tuple[float, ...]], nvml: Any, gpu: Any) -> Callable[[], tuple[float, ...]]:
    return lambda: read(nvml, gpu)


def _alone(function: Callable[[], float]) -> Callable[[], tuple[float, ...]]:
    return lambda: (function(),)


def _reason(error: BaseException) -> str:
    if isinstance(error, AttributeError):
        return "the installed nvidia-ml-py is too old to ask for it"
    if type(error).__module__.startswith("pynvml") or type(error).__name__.startswith("NVMLError"):
        return f"the driver says {str(error)!r}"
    return f"{type(error).__name__}: {error}"


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value

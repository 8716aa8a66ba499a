"""One look at a GPU through its driver, for the stamp of a record and for the doctor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


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
    """Bits that say why the clock is not higher; :mod:`~gpuguide.hardware.monitor.clock_limits` names them"""


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
    state = DriverState(driver=decoded(version))
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


def decoded(text: Any) -> str | None:
    """Return what NVML gives as text: bytes from older versions of nvidia-ml-py, text from newer ones."""
    return text.decode() if isinstance(text, bytes) else text

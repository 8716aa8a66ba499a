"""The driver's readings: version, clocks, power, temperature. A reading that is not to be had is ``None``."""

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
"""Meaning of the bits. Source: NVML API reference, "NvmlClocksEventReasons"."""


def limits_named(bits: int) -> list[str]:
    """Return in words what keeps the clock from being higher."""
    return [name for bit, name in CLOCK_LIMITS.items() if bits & bit]


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

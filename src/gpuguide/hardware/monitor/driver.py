"""One look at a GPU through its driver, for the stamp of a record and for the doctor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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


@dataclass(frozen=True)
class BoardState:
    """State of a GPU's slot and of its sharing, at one moment."""

    link_generation: int | None = None
    """PCIe generation now; an idle GPU may lower it"""
    most_link_generation: int | None = None
    """Highest PCIe generation that GPU and slot can have together"""
    link_width: int | None = None
    """Lanes of PCIe, now"""
    most_link_width: int | None = None
    is_partitioned: bool | None = None
    """True in MIG mode, in which the GPU is divided into instances"""
    memory_free: int | None = None
    """Bytes that no process holds"""


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
    with _asking(uuid) as (nvml, ask):
        if nvml is None:
            return DriverState()
        limits = ask("nvmlDeviceGetCurrentClocksEventReasons")
        return DriverState(
            driver=decode_text(ask("nvmlSystemGetDriverVersion")),
            sm_clock=_scale(ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM), 1e6),
            memory_clock=_scale(ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM), 1e6),
            power=_scale(ask("nvmlDeviceGetPowerUsage"), 1e-3),
            power_limit=_scale(ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            temperature=_scale(ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU), 1.0),
            clock_limits=None if limits is None else int(limits),
        )


def read_board(uuid: str | None = None) -> BoardState:
    """Read how one GPU is plugged in and shared; as in :func:`read_driver`, what is refused is ``None``."""
    with _asking(uuid) as (nvml, ask):
        if nvml is None:
            return BoardState()
        memory, mode = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetMigMode")
        return BoardState(
            link_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            most_link_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            link_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
            most_link_width=ask("nvmlDeviceGetMaxPcieLinkWidth"),
            is_partitioned=None if mode is None else bool(mode[0]),
            memory_free=None if memory is None else int(memory.free),
        )


@contextmanager
def _asking(uuid: str | None) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Give NVML and a function that asks it about one GPU and returns ``None`` for a refusal; no NVML without one."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, or no driver: an NVMLError, which is known only where it is installed
        yield None, lambda *question: None
        return
    refusals = (pynvml.NVMLError, AttributeError)  # an AttributeError if nvidia-ml-py is too old to ask
    gpu = None
    with suppress(*refusals):
        gpu = handle_by_uuid(pynvml, uuid) if uuid else pynvml.nvmlDeviceGetHandleByIndex(0)

    def ask(question: str, *arguments: Any) -> Any:
        about_gpu = question.startswith("nvmlDevice")
        if about_gpu and gpu is None:
            return None
        try:
            return getattr(pynvml, question)(*([gpu] if about_gpu else []), *arguments)
        except refusals:
            return None

    try:
        yield pynvml, ask
    finally:
        with suppress(*refusals):
            pynvml.nvmlShutdown()


def handle_by_uuid(nvml: Any, uuid: str) -> Any:
    """Return NVML's handle of the GPU, or of the instance of one in MIG mode, with the UUID that PyTorch reports.

    Raises
    ------
    NVMLError
        If there is none.
    """
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _scale(value: Any, scale: float) -> float | None:
    return None if value is None else float(value) * scale


def decode_text(text: Any) -> str | None:
    """Return what NVML gives as text: bytes from older versions of nvidia-ml-py, text from newer ones."""
    return text.decode() if isinstance(text, bytes) else text

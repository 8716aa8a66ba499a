"""Quantities that are read of a GPU, each with its unit, its title and its meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """Something that is read over and over."""

    unit: str
    """``1`` for a share and for bits"""
    title: str
    meaning: str
    """Definition of the number by its source"""


QUANTITIES = {
    "gpu_utilisation": Quantity(
        "1",
        "GPU utilisation",
        "share of the driver's last sample period, 1/6 s to 1 s, in which any kernel ran, however small",
    ),
    "memory_utilisation": Quantity(
        "1",
        "memory utilisation",
        "share of the driver's last sample period in which device memory was read or written, as NVML has it",
    ),
    "sm_activity": Quantity(
        "1", "SM activity", "multiprocessors that were busy, as a share of all, since the last look; from Hopper on"
    ),
    "sm_occupancy": Quantity(
        "1", "SM occupancy", "warps on the multiprocessors, as a share of those that there is room for; from Hopper on"
    ),
    "tensor_activity": Quantity(
        "1",
        "tensor-core activity",
        "share of the time since the last look in which tensor cores worked; from Hopper on",
    ),
    "bandwidth_share": Quantity(
        "1",
        "memory bandwidth",
        "bytes to and from device memory since the last look, as a share of the theoretical most; from Hopper on",
    ),
    "memory_used": Quantity(
        "B", "memory used", "memory that is not free: tensors, caches and contexts of all processes, and the driver's"
    ),
    "power": Quantity("W", "power", "of the whole board; from Ampere on, but for GA100, the mean of the last second"),
    "instant_power": Quantity("W", "power now", "of the whole board at this moment"),
    "energy": Quantity("J", "energy", "counted by the driver since the first reading"),
    "sm_clock": Quantity("Hz", "SM clock", "at which the multiprocessors run now"),
    "memory_clock": Quantity("Hz", "memory clock", "at which the memory runs now"),
    "temperature": Quantity("°C", "temperature", "of the GPU's die"),
    "memory_temperature": Quantity(
        "°C", "memory temperature", "of the device memory, the hottest of its stacks or chips"
    ),
    "temperature_margin": Quantity(
        "°C", "temperature margin", "degrees that are left until the nearest threshold at which the clock is lowered"
    ),
    "clock_limits": Quantity("1", "clock limits", "bits that say why the clock is not higher"),
    "allocated": Quantity("B", "allocated", "what PyTorch's tensors take in this process"),
    "reserved": Quantity("B", "reserved", "what PyTorch's allocator holds in this process, free blocks included"),
    "done": Quantity("FLOP", "work done", "operations or bytes that the program has finished, by its own count"),
}
"""Quantities that a trace may hold. Sources: NVML API reference (nvmlUtilization_t, nvmlGpmMetricId_t, nvmlMemory_t,
nvmlDeviceGetPowerUsage, field values, nvmlDeviceGetTotalEnergyConsumption), and PyTorch's CUDA semantics for
``allocated`` and ``reserved``."""

BOARD = {
    "memory_total": "B",
    "power_limit": "W",
    "sm_clock_limit": "Hz",
    "slowdown_temperature": "°C",
    "shutdown_temperature": "°C",
    "software_slowdown_margin": "°C",
    "hardware_slowdown_margin": "°C",
    "shutdown_margin": "°C",
    "driver_memory": "B",
}
"""Constants of one board that bound its readings, and their units; read once. From Ada and Hopper on, thresholds
are told as margins (NVML's "T.Limit"): what ``temperature_margin`` reads when they are reached. ``driver_memory`` is
what driver and firmware keep for themselves, which ``memory_used`` includes."""


NOT_AVERAGED = ("energy", "done", "clock_limits")
"""Quantities of which a mean says nothing: counts from the beginning, and bits"""

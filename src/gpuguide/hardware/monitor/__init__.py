"""The driver's readings of a GPU, at one moment or over time.

:func:`~gpuguide.hardware.monitor.driver.read_driver` looks once, :func:`~gpuguide.hardware.monitor.watching.watch` over
and over, and :mod:`~gpuguide.hardware.monitor.clock_limits` says in words why a clock is not higher. All of it comes
from NVML, the library that nvidia-smi asks too. A reading that a device does not give is left out and never made up.
"""

from __future__ import annotations

from gpuguide.hardware.monitor.chip_counters import CHIP_COUNTERS, ChipCounters
from gpuguide.hardware.monitor.clock_limits import (
    CLOCK_LIMIT_MEANINGS,
    CLOCK_LIMITS,
    compute_clock_limit_shares,
    explain_clock_limits,
    name_clock_limits,
)
from gpuguide.hardware.monitor.driver import BoardState, DriverState, read_board, read_driver
from gpuguide.hardware.monitor.sampler import Sampler
from gpuguide.hardware.monitor.watching import INTERVAL, samplers, torch_memory, watch
from gpuguide.hardware.monitor.which_gpu import VISIBLE_VARIABLE, find_gpu, visible_gpus

__all__ = [
    "CHIP_COUNTERS",
    "CLOCK_LIMITS",
    "CLOCK_LIMIT_MEANINGS",
    "INTERVAL",
    "VISIBLE_VARIABLE",
    "BoardState",
    "ChipCounters",
    "DriverState",
    "Sampler",
    "compute_clock_limit_shares",
    "explain_clock_limits",
    "find_gpu",
    "name_clock_limits",
    "read_board",
    "read_driver",
    "samplers",
    "torch_memory",
    "visible_gpus",
    "watch",
]

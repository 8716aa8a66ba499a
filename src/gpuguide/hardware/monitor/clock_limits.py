"""Clock event reasons (throttle reasons): the bits by which NVML says why a clock is not higher, and their meanings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

CLOCK_LIMITS = {
    0x1: "GPU Idle",
    0x2: "Applications Clocks Setting",
    0x4: "SW Power Cap",
    0x8: "HW Slowdown",
    0x10: "Sync Boost",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
    0x100: "Display Clock Setting",
}
"""NVML's name of each bit, as ``nvidia-smi -q`` prints it. Source: NVML API reference, "NvmlClocksEventReasons"."""

CLOCK_LIMIT_MEANINGS = {
    "GPU Idle": "Nothing runs, and the clock is lowered to save power. It rises again with the next kernel.",
    "Applications Clocks Setting": "A user or program has set the applications clocks, for example with nvidia-smi.",
    "SW Power Cap": "The driver lowers the clock so that the board stays within its power limit. Under full load "
    "this is the normal state of a healthy GPU.",
    "HW Slowdown": "The hardware cuts the clock to half or less: the GPU is too hot, draws too much power at once, or "
    "the power supply asks for it. HW Thermal Slowdown or HW Power Brake Slowdown often says which. The bit may also "
    "be set for a moment while the clock changes.",
    "Sync Boost": "The GPU belongs to a sync boost group, whose members all run at the clock of the slowest.",
    "SW Thermal Slowdown": "The driver lowers the clock so that the GPU or its memory stays below its limit.",
    "HW Thermal Slowdown": "The hardware cuts the clock to half or less, because the GPU is too hot. Check "
    "the cooling.",
    "HW Power Brake Slowdown": "The power supply or the chassis asks to draw less, and the hardware cuts the clock to "
    "half or less.",
    "Display Clock Setting": "A display setting limits the clock.",
}
"""Meaning of each of :data:`CLOCK_LIMITS`, from the same source"""


def name_clock_limits(bits: int) -> list[str]:
    """Return NVML's names of the reasons why the clock is not higher.

    >>> name_clock_limits(0x24)
    ['SW Power Cap', 'SW Thermal Slowdown']
    """
    named = [name for bit, name in CLOCK_LIMITS.items() if bits & bit]
    return [*named, "unknown reason"] if bits & ~sum(CLOCK_LIMITS) else named


def explain_clock_limits(bits: int) -> dict[str, str]:
    """Return the reasons why the clock is not higher, each with its meaning."""
    unknown = "The driver is newer than the list of names here."
    return {name: CLOCK_LIMIT_MEANINGS.get(name, unknown) for name in name_clock_limits(bits)}


def compute_clock_limit_shares(bits: Iterable[float]) -> dict[str, float]:
    """Return the share of readings for each reason why the clock was not higher, the most frequent first.

    Parameters
    ----------
    bits : iterable of float
        Such as ``trace["clock_limits"]``; NaN, where a reading is missing, does not count.
    """
    known = [int(reading) for reading in bits if not math.isnan(reading)]
    counts = Counter(name for reading in known for name in name_clock_limits(reading))
    return {name: count / len(known) for name, count in counts.most_common()}

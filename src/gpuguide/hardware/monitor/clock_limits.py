"""Throttle reasons: what keeps the clock from being higher, the bits that say so, and what each of them means."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

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

"""Settings as arguments of kernels, whose own floating-point parameters have only 32 bits."""

from __future__ import annotations

import math
import struct

from gpuguide.sampling.reference import SamplingSettings

__all__ = ["as_bits"]


def as_bits(settings: SamplingSettings) -> dict[str, int]:
    """Return the temperature, top-p and the logarithm of min-p, each as the 64 bits of a float."""
    return {
        "temperature": _float64_bits(settings.temperature),
        "p": _float64_bits(settings.top_p),
        "log_min_p": _float64_bits(_safe_log(settings.min_p)),
    }


def _float64_bits(number: float) -> int:
    """Return the 64 bits of a float as an integer.

    The integer must not look like one of 32 bits, so positive numbers below 1e-300 are replaced by 1e-300.
    """
    return int(struct.unpack("<q", struct.pack("<d", number if number <= 0 else max(number, 1e-300)))[0])


def _safe_log(p: float) -> float:
    """Return the logarithm of a number in [0, 1]. One gives minus zero, whose bits are not those of a small integer."""
    return -math.inf if p == 0 else -abs(math.log(p))

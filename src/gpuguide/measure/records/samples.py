"""The samples of one quantity and their quantiles: :class:`Metric`, :class:`Summary`, and rates derived from a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

QUANTILES = {"p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95}


@dataclass(frozen=True)
class Summary:
    """Quantiles of the samples. With a single sample there is only a median."""

    n: int
    p5: float | None
    p25: float | None
    median: float
    p75: float | None
    p95: float | None


@dataclass(frozen=True)
class Metric:
    """The samples of one quantity in SI units, in the order in which they were taken."""

    unit: str
    samples: tuple[float, ...]
    summary: Summary


@dataclass(frozen=True)
class Rate:
    """A quantity derived from the time of a call: ``per_call`` units of work divided by that time."""

    unit: str
    per_call: float


def summarise(samples: Sequence[float]) -> Summary:
    """Return the quantiles of ``samples``, interpolated linearly as numpy does by default."""
    ordered = sorted(samples)
    if len(ordered) == 1:
        return Summary(1, None, None, ordered[0], None, None)

    def quantile(q: float) -> float:
        position = q * (len(ordered) - 1)
        low = math.floor(position)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

    return Summary(n=len(ordered), **{name: quantile(q) for name, q in QUANTILES.items()})


def metric(unit: str, samples: Iterable[float]) -> Metric:
    """Return a metric with its summary computed.

    Samples are kept to seven significant digits, which is finer than any timer used here.

    Raises
    ------
    ValueError
        If there are no samples, or one is not finite: no record can hold that.
    """
    kept = tuple(float(f"{sample:.6e}") for sample in samples)
    if not kept or not all(map(math.isfinite, kept)):
        raise ValueError(f"a measurement is {next((x for x in kept if not math.isfinite(x)), 'without samples')}")
    return Metric(unit, kept, summarise(kept))

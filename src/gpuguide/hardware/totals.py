"""Totals of a GPU's readings: means over time, extremes, energy, and the time that reading took."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpuguide.hardware.quantities import NOT_AVERAGED


class Row(NamedTuple):
    """All readings of one moment."""

    seconds: float
    """Since the trace began, in the middle of the reading"""
    cost: float
    """Seconds that the reading itself took"""
    readings: Mapping[str, float]
    """Quantity to its value; NaN where the driver gave none this time"""


@dataclass(frozen=True)
class Span:
    """One quantity over a whole trace."""

    unit: str
    mean: float
    """Over time: the integral by trapezoids, divided by the duration"""
    least: float
    most: float


@dataclass(frozen=True)
class TraceTotals:
    """Totals of a trace."""

    duration: float
    """Seconds from the first reading to the last"""
    samples: int
    columns: Mapping[str, Span]
    """Mean of every quantity but :data:`gpuguide.hardware.quantities.NOT_AVERAGED`"""
    energy_from_power: float | None
    """J, power × time; from ``instant_power`` if there is one, else from ``power``"""
    energy_counted: float | None
    """J, by the driver's counter"""
    cost: float
    """Seconds that one reading took, in the mean"""
    share: float
    """Share of the duration that readings took, on the thread that makes them"""


class Tally:
    """Adds readings up as they come, and keeps none of them: a GPU may be watched for days."""

    def __init__(self) -> None:
        self.samples = 0
        self.clock_limits: Counter[float] = Counter()
        """Count of each combination of bits, where the driver gave any"""
        self._cost = 0.0
        self._begun = self._ended = 0.0
        self._columns: dict[str, _Running] = {}

    def add(self, row: Row) -> None:
        """Count a reading, which must be later than those before."""
        if not self.samples:
            self._begun = row.seconds
        self.samples, self._ended, self._cost = self.samples + 1, row.seconds, self._cost + row.cost
        for name, value in row.readings.items():
            if not math.isnan(value):
                self._columns.setdefault(name, _Running()).add(row.seconds, value)
        bits = row.readings.get("clock_limits", math.nan)
        if not math.isnan(bits):
            self.clock_limits[bits] += 1

    def totals(self, units: Mapping[str, str]) -> TraceTotals:
        """Return what the readings of quantities with these units add up to; there must be one."""
        duration = self._ended - self._begun
        columns = {
            name: self._columns[name].span(unit)
            for name, unit in units.items()
            if name in self._columns and name not in NOT_AVERAGED
        }
        source = "instant_power" if "instant_power" in columns else "power"
        energy = self._columns.get("energy")
        return TraceTotals(
            duration=duration,
            samples=self.samples,
            columns=columns,
            energy_from_power=columns[source].mean * duration if source in columns else None,
            energy_counted=energy.last - energy.first if energy is not None and energy.count > 1 else None,
            cost=self._cost / self.samples,
            share=self._cost / duration if duration > 0 else 1.0,
        )


class _Running:
    """The extremes of one quantity, and its integral over time by trapezoids."""

    def __init__(self) -> None:
        self.count, self.area, self.sum = 0, 0.0, 0.0
        self.first = self.last = self.begun = self.ended = 0.0
        self.least, self.most = math.inf, -math.inf

    def add(self, seconds: float, value: float) -> None:
        if self.count:
            self.area += (seconds - self.ended) * (value + self.last) / 2
        else:
            self.begun, self.first = seconds, value
        self.count, self.sum, self.ended, self.last = self.count + 1, self.sum + value, seconds, value
        self.least, self.most = min(self.least, value), max(self.most, value)

    def span(self, unit: str) -> Span:
        lasted = self.ended - self.begun
        return Span(unit, self.area / lasted if lasted > 0 else self.sum / self.count, self.least, self.most)

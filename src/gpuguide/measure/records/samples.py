"""Samples of one quantity and their quantiles: :class:`Metric`, :class:`SampleSummary`, and rates from a time."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

QUANTILES = {"p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95}


@dataclass(frozen=True)
class SampleSummary:
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
    summary: SampleSummary
    turns: tuple[int, ...] = ()
    """Number of samples of each turn, in order; empty where they were not taken in turns, or nobody knows"""

    @property
    def samples_by_turn(self) -> list[tuple[float, ...]]:
        """The samples of each turn; empty where turns are not known."""
        ends = list(itertools.accumulate(self.turns))
        return [self.samples[end - count : end] for end, count in zip(ends, self.turns, strict=True)]

    @property
    def spread_within_turns(self) -> float | None:
        """The spread within a turn: the range from p25 to p75 of its samples over their median, in the middle turn.

        Turns with a single sample have no spread. ``None`` if there are no others.
        """
        spreads = [
            (quantile(ordered, QUANTILES["p75"]) - quantile(ordered, QUANTILES["p25"])) / abs(median)
            for ordered in map(sorted, self.samples_by_turn)
            if len(ordered) > 1 and (median := statistics.median(ordered))
        ]
        return statistics.median(spreads) if spreads else None

    @property
    def spread_between_turns(self) -> float | None:
        """The spread between turns: from the lowest of their medians to the highest, over the median of all samples.

        ``None`` if there are not two turns.
        """
        medians = [statistics.median(samples) for samples in self.samples_by_turn]
        if len(medians) < 2 or not self.summary.median:
            return None
        return (max(medians) - min(medians)) / abs(self.summary.median)


@dataclass(frozen=True)
class Rate:
    """A quantity derived from the time of a call: ``per_call`` units of work divided by that time."""

    unit: str
    per_call: float


def summarise(samples: Sequence[float]) -> SampleSummary:
    """Return the quantiles of ``samples``, interpolated linearly as numpy does by default."""
    ordered = sorted(samples)
    if len(ordered) == 1:
        return SampleSummary(1, None, None, ordered[0], None, None)
    return SampleSummary(n=len(ordered), **{name: quantile(ordered, q) for name, q in QUANTILES.items()})


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return a quantile of samples that are in order, interpolated linearly.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def metric(unit: str, samples: Iterable[float], turns: Iterable[int] = ()) -> Metric:
    """Return a metric with its summary computed.

    Samples are kept to seven significant digits, which is finer than any timer used here.

    Parameters
    ----------
    unit : str
        As in the records.
    samples : iterable of float
        In SI units, in the order in which they were taken.
    turns : iterable of int, optional
        How many of them each turn took.

    Raises
    ------
    ValueError
        If there are no samples, one is not finite, or the turns took another number: no record can hold that.
    """
    kept = tuple(float(f"{sample:.6e}") for sample in samples)
    if not kept or not all(map(math.isfinite, kept)):
        raise ValueError(f"a measurement is {next((x for x in kept if not math.isfinite(x)), 'without samples')}")
    counts = tuple(turns)
    if counts and sum(counts) != len(kept):
        raise ValueError(f"turns of {sum(counts)} samples in all cannot have measured {len(kept)}")
    return Metric(unit, kept, summarise(kept), counts)

"""The same cases on two devices: what differs, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuguide.measure.records import Case, Key, Metric, Record, describe_keys
from gpuguide.units import format_quantity, significant

PREFERRED_METRICS = ("throughput", "bandwidth", "time")
"""Metrics to compare, the most informative first"""
LESS_IS_BETTER = ("time",)


@dataclass(frozen=True)
class Difference:
    """One contender of a benchmark on a reader's device, beside the published record."""

    contender: str
    case: str
    """The keys of the case that is shown: of several, the one whose speed is the median"""
    published: str
    """The median that was published, with its unit"""
    yours: str
    """The same on the reader's device, or why it has none"""
    speed: str
    """Speed of the reader's device relative to the published one; empty if it has no measurement"""
    all_cases: str
    """The lowest and the highest speed, and how many cases were measured on both; empty if it is one"""


def differences(published: Record, own: Record) -> list[Difference]:
    """Compare a reader's record with the published one, contender by contender.

    Parameters
    ----------
    published, own : Record
        Two records of one benchmark.

    Returns
    -------
    list of Difference
        One for each contender of the published record.
    """
    return [_difference(published.cases_of(contender), own) for contender in published.contenders]


def _difference(published: list[Case], own: Record) -> Difference:
    pairs = [(case, other) for case in published if (other := case_like(case, own))]
    if not pairs:
        first = published[0]
        return Difference(
            first.contender,
            describe_case(first),
            headline(first),
            _why_not(first.contender, own),
            speed="",
            all_cases="",
        )
    ranked = sorted(((speed(case, other), position) for position, (case, other) in enumerate(pairs)))
    middle, position = ranked[len(ranked) // 2]
    case, other = pairs[position]
    spread = f"{significant(ranked[0][0], 2)} to {significant(ranked[-1][0], 2)} ({len(pairs)})"
    return Difference(
        case.contender,
        describe_case(case),
        headline(case),
        headline(other),
        significant(middle, 2),
        spread if len(pairs) > 1 else "",
    )


def case_like(case: Case, record: Record) -> Case | None:
    """Return the good case of a record with the contender, the keys and the telling metric of ``case``, if any."""
    name, _ = telling(case)
    found = (other for other in record.cases_of(case.contender) if other.keys == case.keys)
    return next((other for other in found if name in other.metrics), None)


def _why_not(contender: str, own: Record) -> str:
    reasons = dict.fromkeys(f"{case.status}, {case.reason}" for case in own.cases if case.contender == contender)
    return "; ".join(reason for reason in reasons if not reason.startswith("ok,")) or "not measured"


def speed(published: Case, own: Case) -> float:
    """Return how many times as fast ``own`` is, from the medians of the most telling metric of both."""
    name, above = telling(published)
    below = own.metrics[name].summary.median
    ratio = below / above.summary.median if above.summary.median else float("inf")
    return 1 / ratio if name in LESS_IS_BETTER and ratio else ratio


def telling(case: Case) -> tuple[str, Metric]:
    """Return the most telling metric of a good case and its name."""
    metrics = case.metrics
    name = next((name for name in PREFERRED_METRICS if name in metrics), next(iter(metrics)))
    return name, metrics[name]


def headline(case: Case | None) -> str:
    """Return the median of the most telling metric of a case, in words."""
    if case is None:
        return "–"
    _, metric = telling(case)
    return format_quantity(metric.summary.median, metric.unit)


def describe_case(case: Case) -> str:
    """Return the keys of a case as they are written in a reference; nothing if there are none."""
    return describe_keys(case.keys) if case.keys else ""


def split_keys(cases: Sequence[Case]) -> tuple[dict[str, Key], list[str]]:
    """Return the keys that all cases share, and the names of those in which they differ."""
    names = list(cases[0].keys) if cases else []
    same = {name: cases[0].keys[name] for name in names if len({case.keys[name] for case in cases}) == 1}
    if len(cases) == 1:
        return {}, names
    return same, [name for name in names if name not in same]

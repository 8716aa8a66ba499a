"""References to measurements, as written in pages and in the ledger of claims.

``copy-size/copy:bandwidth working_set=65536`` names a benchmark, a contender, a metric and the case's keys;
``timing-mistakes/zeros/right:throughput shape=square`` the ratio of two contenders of one case.
The key ``device`` names another device than the reference GPU: ``cpu``, or ``8x`` for eight of it.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import TypeVar

from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure import records, reference_gpu, store
from gpuguide.measure.records import Case, Key, Metric, Record, Run, SampleSummary
from gpuguide.units import format_quantity, significant

_NAME = r"[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)*"
_PATTERN = re.compile(rf"({_NAME})/({_NAME})(?:/({_NAME}))?:([a-z0-9_]+)((?:\s+\w+=\S+)*)\s*")


@dataclass(frozen=True)
class CitedMeasurement:
    """One metric of one case."""

    record: Record
    case: Case
    name: str
    """The metric's name"""
    metric: Metric

    @property
    def value(self) -> float:
        """The median, in SI units."""
        return self.metric.summary.median

    @property
    def summary(self) -> SampleSummary:
        """The quantiles, in SI units."""
        return self.metric.summary

    @property
    def run(self) -> Run:
        """The circumstances in which it was measured."""
        return self.record.runs[self.case.run]

    @property
    def where(self) -> str:
        """The device on which the contender computed, or the host's processor."""
        return self.run.find_compute_device(self.case.libraries)

    @property
    def stamp(self) -> str:
        """Device, software and date of the measurement, with the libraries that the contender called."""
        return self.run.stamp(self.record.libraries([self.case.contender]))

    @property
    def text(self) -> str:
        """The median with its unit, as it stands in prose."""
        return format_quantity(self.value, self.metric.unit)


@dataclass(frozen=True)
class CitedRatio:
    """A metric of one contender over that of another, from samples taken in turn."""

    record: Record
    numerator: Case
    denominator: Case
    name: str
    summary: SampleSummary
    """Quantiles of the ratios of samples; ``n`` is the number of samples of the contender that has fewer"""
    unpaired: str = ""
    """Reason why samples could not be paired by the turn in which they were taken; empty if they were"""

    @property
    def value(self) -> float:
        """The median of the ratios of paired samples."""
        return self.summary.median

    @property
    def p25(self) -> float:
        """The lower quartile of the ratios: a ratio above one is certain enough if this is."""
        return self.summary.median if self.summary.p25 is None else self.summary.p25

    @property
    def p75(self) -> float:
        """The upper quartile of the ratios."""
        return self.summary.median if self.summary.p75 is None else self.summary.p75

    @property
    def run(self) -> Run:
        """The circumstances in which both were measured."""
        return self.record.runs[self.numerator.run]

    @property
    def stamp(self) -> str:
        """Device, software and date of both measurements, with the libraries that they call."""
        return self.run.stamp(self.record.libraries([self.numerator.contender, self.denominator.contender]))

    @property
    def text(self) -> str:
        """The ratio as it stands in prose."""
        return significant(self.value)


Found = TypeVar("Found", CitedMeasurement, CitedRatio)


def measurement(reference: str) -> CitedMeasurement:
    """Return the measurement that ``benchmark/contender:metric key=value …`` names.

    Raises
    ------
    GpuguideError
        If it is not written so, or does not match exactly one case.
    """
    benchmark, contender, other, name, keys, device = parse(reference)
    if other is not None:
        raise GpuguideError(f"{reference!r} names two contenders; a measurement has one. Use a ratio for two.")
    record = store.load_published(benchmark, device)
    case = record.case(contender, **keys)
    return CitedMeasurement(record, case, name, metric_of(case, name, reference))


def ratio(reference: str, record: Record | None = None) -> CitedRatio:
    """Return the ratio that ``benchmark/numerator/denominator:metric key=value …`` names.

    Every sample of a turn of the one is divided by every sample of the same turn of the other, so that a drift of the
    clocks from turn to turn cancels, and what remains is the spread of single samples. Where a record does not say
    which turn a sample is of, or the two were not measured in as many turns, the first sample of one is divided by the
    first of the other and so on, those without a partner are left out, and :attr:`CitedRatio.unpaired` says why.

    Parameters
    ----------
    reference : str
        Benchmark, contenders, metric and keys.
    record : Record, optional
        Take the ratio from this record of the benchmark, for example a reader's own, and not from a published one.

    Raises
    ------
    GpuguideError
        If it is not written so, does not match exactly one case, or the two were measured in different runs.
    """
    benchmark, contender, other, name, keys, device = parse(reference)
    if other is None:
        raise GpuguideError(f"{reference!r} names one contender; a ratio is written benchmark/one/other:metric.")
    record = record or store.load_published(benchmark, device)
    above, below = record.case(contender, **keys), record.case(other, **keys)
    if above.run != below.run:
        raise GpuguideError(f"{reference!r}: the two contenders were measured in different runs, so no ratio is given.")
    one, another = metric_of(above, name, reference), metric_of(below, name, reference)
    unpaired = why_unpaired(one, another)
    try:
        if unpaired:
            ratios = [a / b for a, b in zip(one.samples, another.samples, strict=False)]
        else:
            turns = zip(one.samples_by_turn or [one.samples], another.samples_by_turn or [another.samples], strict=True)
            ratios = [a / b for turn in turns for a, b in itertools.product(*turn)]
    except ZeroDivisionError:
        raise GpuguideError(f"{reference!r}: a sample of {other} is zero, so no ratio is given.") from None
    summary = replace(records.summarise(ratios), n=min(one.summary.n, another.summary.n))
    return CitedRatio(record, above, below, name, summary, unpaired)


def quotable(found: Found) -> Found:
    """Return a measurement or a ratio that text may speak of.

    Raises
    ------
    GpuguideError
        If it is neither of the reference GPU nor of a processor.
    """
    if not reference_gpu.is_quotable(found.record):
        raise GpuguideError(
            f"Text speaks of {reference_gpu.name()} and, where it says so, of a processor; "
            f"{found.record.device_name} is drawn in figures only. Leave 'device={found.record.device}' out, "
            "or name that GPU for the whole page in its front matter."
        )
    return found


def why_unpaired(one: Metric, another: Metric) -> str:
    """Return why the samples of two contenders cannot be paired by turns; an empty text if they can."""
    if one.summary.n == another.summary.n == 1:
        return ""
    if not one.turns or not another.turns:
        return "the record does not say which turn a sample is of"
    if len(one.turns) != len(another.turns):
        return f"one was measured in {len(one.turns)} turns and the other in {len(another.turns)}"
    return ""


def metric_of(case: Case, name: str, reference: str) -> Metric:
    """Return a case's metric, or raise with the metrics that there are."""
    if name not in case.metrics:
        raise unknown(f"metric in {reference!r}", name, case.metrics)
    return case.metrics[name]


def parse(reference: str) -> tuple[str, str, str | None, str, dict[str, Key], str | None]:
    """Return benchmark, contender, second contender, metric, keys and device of a reference, if it names one."""
    match = _PATTERN.fullmatch(reference.strip())
    if match is None:
        raise GpuguideError(
            f"{reference!r} is not a reference. Write benchmark/contender:metric and then the case's keys, "
            "for example copy-size/copy:bandwidth working_set=65536."
        )
    benchmark, contender, other, name, rest = match.groups()
    pairs: dict[str, str] = {}
    for key, text in (word.split("=", 1) for word in rest.split()):
        if key in pairs:
            raise GpuguideError(f"{reference!r} names the key {key!r} twice.")
        pairs[key] = text
    device = pairs.pop("device", None)
    return benchmark, contender, other, name, {key: key_value(text) for key, text in pairs.items()}, device


def key_value(text: str) -> Key:
    """Read the value of a key: ``true`` and ``false``, a number, or else a word."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

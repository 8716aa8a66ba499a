"""A record: runs with their circumstances, cases with their measurements, and their look-up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure import digest, libraries
from gpuguide.measure.digest import equivalent
from gpuguide.measure.records.samples import Metric, Rate, SampleSummary, metric

SCHEMA_VERSION = 3
HARNESS_VERSION = 2
"""Raised by one whenever the timing method changes, so that older records count as stale."""

Key = int | float | str | bool
Status = Literal["ok", "skipped", "failed", "out-of-memory"]
Correct = Literal["yes", "n/a"]
STATUSES: tuple[Status, ...] = ("ok", "skipped", "failed", "out-of-memory")
CORRECT: tuple[Correct, ...] = ("yes", "n/a")


@dataclass(frozen=True)
class Readings:
    """Readings of the driver at one moment; ``None`` where it gave none."""

    sm_clock: float | None = None
    """Hz"""
    memory_clock: float | None = None
    """Hz"""
    power: float | None = None
    """W"""
    power_limit: float | None = None
    """W; boards of one name are sold with different limits"""
    temperature: float | None = None
    """degrees Celsius"""


@dataclass(frozen=True)
class Run:
    """The circumstances of one invocation of the harness."""

    device_name: str
    driver: str | None
    cuda: str | None
    python: str
    versions: Mapping[str, str]
    """Library to version: torch, triton, numpy, gpuguide, and every one that a contender calls"""
    host_cpu: str
    """The model of the processor, as far as the machine tells"""
    host_cores: int
    """Processors of the machine, whether or not the run may use them"""
    before: Readings
    after: Readings
    started_at: str
    """ISO 8601, UTC"""
    finished_at: str
    elapsed: float
    """Seconds spent measuring this benchmark in this run"""
    commit: str | None
    seed: int
    command: str
    simulated: bool = False
    """True where the times come from a fake device; such a record is never published."""
    host_cores_available: float | None = None
    """Those that the run could use, by its affinity and its control group; ``None`` in records of before"""

    def stamp(self, called: Iterable[str] = ()) -> str:
        """Return one line that says where, with what and when the numbers were measured.

        Parameters
        ----------
        called : iterable of str, optional
            Libraries whose versions belong into the line, such as :meth:`Record.libraries` returns. Where one of them
            computes on the host, the line names the host's processor; where all do, it does not name the GPU.
        """
        named = list(called)
        parts = [] if self.driver and libraries.runs_on_host(named) else self._describe_device()
        parts += [self.host] * bool(self.driver and set(named) & set(libraries.ON_THE_HOST))
        for name in named:
            if name in self.versions and name != "torch":
                parts.append(f"{libraries.title(name)} {self.versions[name].split('+')[0]}")
        parts.append(self.started_at[:10])
        if self.simulated:
            parts.append("simulated, not measured")
        return " · ".join(parts)

    def find_compute_device(self, called: Iterable[str]) -> str:
        """Return the device, or the host's processor where all the libraries that were called compute there."""
        return self.host_cpu if self.driver and libraries.runs_on_host(called) else self.device_name

    @property
    def host(self) -> str:
        """The host's processor, with the cores that the run could use."""
        cores = self.host_cores if self.host_cores_available is None else self.host_cores_available
        return f"host {self.host_cpu}, {cores:g} of {self.host_cores} cores"

    def _describe_device(self) -> list[str]:
        """Return the device, its driver, and what PyTorch and CUDA it was called with."""
        parts = [self.device_name]
        if self.driver:
            parts.append(f"driver {self.driver}")
        if self.cuda:
            parts.append(f"CUDA {self.cuda}")
        if "torch" in self.versions:
            parts.append(f"torch {self.versions['torch'].split('+')[0]}")
        return parts


@dataclass(frozen=True)
class Case:
    """One contender on one set of keys: what happened, and what was measured."""

    keys: Mapping[str, Key]
    contender: str
    run: int
    """Index into the record's ``runs``"""
    status: Status
    reason: str = ""
    correct: Correct = "n/a"
    measured: Mapping[str, Metric] = field(default_factory=dict)
    rates: Mapping[str, Rate] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    """Libraries that the contender calls besides PyTorch, Triton and NumPy; their versions are those of the run"""

    @property
    def metrics(self) -> dict[str, Metric]:
        """The measured quantities and those derived from the time: bandwidth, throughput and the like."""
        if not self.rates:
            return dict(self.measured)
        time = self.measured["time"]
        derived = {
            name: metric(rate.unit, [rate.per_call / seconds for seconds in time.samples], time.turns)
            for name, rate in self.rates.items()
        }
        return {**self.measured, **derived}


@dataclass(frozen=True)
class Record:
    """All that is known of one benchmark on one device."""

    benchmark: str
    device: str
    """The device's slug, which is also the name of the folder"""
    harness_version: int
    code_digest: str
    runs: tuple[Run, ...]
    cases: tuple[Case, ...]
    path: Path | None = None

    @property
    def stale(self) -> bool:
        """True if the code that measured has changed since, or is gone; a change that is proved equivalent is none."""
        if self.harness_version != HARNESS_VERSION:
            return True
        try:
            today = digest.benchmark_digest(self.benchmark)
        except GpuguideError:  # a benchmark of another version of gpuguide
            return True
        if self.code_digest == today:
            return False
        listed = equivalent.rows(digest.PACKAGE_FOLDER / "records")
        return not equivalent.is_equivalent(listed, self.benchmark, self.code_digest, today)

    @property
    def simulated(self) -> bool:
        """True if any run came from a fake device."""
        return any(run.simulated for run in self.runs)

    @property
    def device_name(self) -> str:
        """The device as its driver names it."""
        return self.runs[-1].device_name

    @property
    def contenders(self) -> list[str]:
        """The contenders that have at least one good case, in the order of the file."""
        return list(dict.fromkeys(case.contender for case in self.cases if case.status == "ok"))

    def libraries(self, contenders: Collection[str] | None = None) -> list[str]:
        """Return the libraries that contenders call, all of them by default, each once, for :meth:`Run.stamp`."""
        cases = [case for case in self.cases if contenders is None or case.contender in contenders]
        return list(dict.fromkeys(name for case in cases for name in case.libraries))

    def cases_of(self, contender: str) -> list[Case]:
        """Return the good cases of one contender, in the order of the file."""
        return [case for case in self.cases if case.contender == contender and case.status == "ok"]

    def case(self, contender: str, **keys: Key) -> Case:
        """Return the one good case of ``contender`` whose keys include ``keys``.

        Raises
        ------
        GpuguideError
            If none or several match; the message lists what there is.
        """
        everyone = list(dict.fromkeys(case.contender for case in self.cases))
        if contender not in everyone:
            raise unknown(f"contender of {self.benchmark!r} on {self.device}", contender, everyone)
        found = [
            case
            for case in self.cases
            if case.contender == contender and all(case.keys.get(name) == value for name, value in keys.items())
        ]
        wanted = " ".join(f"{name}={value}" for name, value in keys.items()) or "no keys"
        if len(found) != 1:
            choices = "; ".join(describe_keys(c.keys) for c in (found or self.cases) if c.contender == contender)
            raise GpuguideError(
                f"{self.benchmark}/{contender} with {wanted} matches {len(found)} cases on {self.device}, "
                f"not one. There are: {choices}."
            )
        if found[0].status != "ok":
            raise GpuguideError(
                f"{self.benchmark}/{contender} with {wanted} on {self.device} has no measurement: "
                f"{found[0].status}, {found[0].reason}."
            )
        return found[0]

    def median(self, contender: str, metric: str, **keys: Key) -> float:
        """Return the median of one metric of the one good case that :meth:`case` finds, in SI units."""
        return self.case(contender, **keys).metrics[metric].summary.median

    def series(self, contender: str, x: str, metric: str, **keys: Key) -> list[tuple[Key, SampleSummary]]:
        """Return ``(value of key x, summary of metric)`` for one contender, sorted by ``x``.

        Cases are restricted to those whose keys include ``keys``.
        """
        points = [
            (case.keys[x], case.metrics[metric].summary)
            for case in self.cases_of(contender)
            if all(case.keys.get(name) == value for name, value in keys.items())
        ]
        return sorted(points, key=lambda point: point[0])


def describe_keys(keys: Mapping[str, Key]) -> str:
    """Return keys as they are written in a reference: ``size=8192 causal=true``."""
    written = (str(v).lower() if isinstance(v, bool) else str(v) for v in keys.values())
    return " ".join(f"{name}={value}" for name, value in zip(keys, written, strict=True)) or "(no keys)"

"""Records: what a benchmark measured, on which machine, in one JSON file a device and benchmark.

The format is described for readers in ``docs/record-format.md``. This module is the only one that knows it:
it reads a file into the dataclasses below, checks every field on the way, and writes them back.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure import digest

SCHEMA_VERSION = 1
HARNESS_VERSION = 1
"""Raised by one whenever the way of timing changes, so that older records count as stale."""

Key = int | float | str | bool
Status = Literal["ok", "skipped", "failed", "out-of-memory"]
Correct = Literal["yes", "n/a"]
STATUSES: tuple[Status, ...] = ("ok", "skipped", "failed", "out-of-memory")
CORRECT: tuple[Correct, ...] = ("yes", "n/a")
QUANTILES = {"p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95}


class DamagedRecord(GpuguideError):
    """A record file that cannot be trusted. The message names the file and the field."""

    def __init__(self, path: Path | None, where: str, problem: str) -> None:
        super().__init__(
            f"The record {path or '(in memory)'} is damaged at {where}: {problem}. "
            "Restore the file, or remove it and measure again with 'gpuguide bench run'."
        )
        self.where = where


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


@dataclass(frozen=True)
class Readings:
    """What the driver reported at one moment; ``None`` where it gave no reading."""

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
    """Library name to version: torch, triton, numpy, gpuguide and others that took part."""
    host_cpu: str
    host_cores: int
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

    def stamp(self) -> str:
        """Return one line that says where and when the numbers were measured."""
        parts = [self.device_name]
        if self.driver:
            parts.append(f"driver {self.driver}")
        if self.cuda:
            parts.append(f"CUDA {self.cuda}")
        if "torch" in self.versions:
            parts.append(f"torch {self.versions['torch'].split('+')[0]}")
        parts.append(self.started_at[:10])
        if self.simulated:
            parts.append("simulated, not measured")
        return " · ".join(parts)


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

    @property
    def metrics(self) -> dict[str, Metric]:
        """The measured quantities and those derived from the time: bandwidth, throughput and the like."""
        derived = {
            name: metric(rate.unit, [rate.per_call / seconds for seconds in self.measured["time"].samples])
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
        """True if the code that measured has changed since, or is gone."""
        if self.harness_version != HARNESS_VERSION:
            return True
        try:
            return self.code_digest != digest.benchmark_digest(self.benchmark)
        except GpuguideError:  # a benchmark of another version of gpuguide
            return True

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

    def series(self, contender: str, x: str, metric: str, **keys: Key) -> list[tuple[Key, Summary]]:
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


# --- writing ---------------------------------------------------------------------------------------------


def to_json(record: Record) -> str:
    """Return the text of a record's file: one run or case a line, so that changes read well in a diff."""
    runs = [json.dumps(asdict(run), ensure_ascii=False) for run in record.runs]
    cases = [json.dumps(_case_fields(case), ensure_ascii=False) for case in record.cases]
    head = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": record.benchmark,
        "device": record.device,
        "harness_version": record.harness_version,
        "code_digest": record.code_digest,
    }
    head["checksum"] = _checksum(
        {**head, "runs": [json.loads(r) for r in runs], "cases": [json.loads(c) for c in cases]}
    )
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    body = ' "runs": [\n  ' + ",\n  ".join(runs) + '\n ],\n "cases": [\n  ' + ",\n  ".join(cases) + "\n ]"
    return "{\n" + "\n".join(lines) + "\n" + body + "\n}\n"


def write(record: Record, path: Path) -> Record:
    """Write ``record`` to ``path`` so that no reader ever sees half a file, and return it with its path.

    Raises
    ------
    GpuguideError
        If the folder cannot be written; whatever stood at ``path`` before is still there.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
        temporary = Path(name)
        # A command line may hold bytes that are not UTF-8; backslashreplace writes them as JSON escapes.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(to_json(record))
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise GpuguideError(
            f"Cannot write the record {path}: {error.strerror or error}. Free some space, or choose another folder "
            "with --out or GPUGUIDE_RECORDS; the cases written before are kept."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return replace(record, path=path)


def _case_fields(case: Case) -> dict[str, Any]:
    return {
        "keys": dict(case.keys),
        "contender": case.contender,
        "run": case.run,
        "status": case.status,
        "reason": case.reason,
        "correct": case.correct,
        "metrics": {name: asdict(value) for name, value in case.measured.items()},
        "rates": {name: asdict(value) for name, value in case.rates.items()},
    }


def _checksum(fields: Mapping[str, Any]) -> str:
    """Return a digest of everything in the file but the checksum, so that an edit by hand is noticed."""
    text = json.dumps({k: v for k, v in fields.items() if k != "checksum"}, sort_keys=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


# --- reading ---------------------------------------------------------------------------------------------


def read(path: Path) -> Record:
    """Read and check a record file.

    Raises
    ------
    DamagedRecord
        If anything in it is not as it must be; the message names the file and the field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise GpuguideError(f"There is no record at {path}. Measure one with 'gpuguide bench run'.") from error
    except UnicodeDecodeError as error:
        raise DamagedRecord(path, f"byte {error.start}", "it is not UTF-8 text") from error
    except OSError as error:
        raise GpuguideError(f"Cannot read the record {path}: {error.strerror or error}.") from error
    return from_json(text, path)


def from_json(text: str, path: Path | None = None) -> Record:
    """Parse and check the text of a record file; ``path`` is only named in errors."""
    try:
        content = json.loads(text, object_pairs_hook=_Object)
    except json.JSONDecodeError as error:
        raise DamagedRecord(
            path, f"line {error.lineno}, column {error.colno}", f"it is not JSON ({error.msg})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DamagedRecord(path, "the text", str(error)) from error
    return _Reader(path).record(content)


class _Object(dict[str, Any]):
    """A JSON object that remembers a name which stands in it twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = next((name for name in self if names.count(name) > 1), None) if len(self) < len(names) else None


T = TypeVar("T")


class _Reader:
    """Turns parsed JSON into a record, and knows at which field it stands when something is wrong."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def fail(self, where: str, problem: str) -> DamagedRecord:
        return DamagedRecord(self.path, where, problem)

    def fields(self, value: Any, where: str, names: Sequence[str]) -> dict[str, Any]:
        """Check that ``value`` is an object with exactly ``names``."""
        self.object(value, where)
        for name in names:
            if name not in value:
                raise self.fail(f"{where}.{name}".lstrip("."), "the field is missing")
        for name in value:
            if name not in names:
                raise self.fail(f"{where}.{name}".lstrip("."), "no field of that name belongs here")
        return value

    def object(self, value: Any, where: str) -> None:
        if not isinstance(value, _Object):
            raise self.fail(where or "the top", f"expected an object, found {_kind(value)}")
        if value.twice is not None:
            raise self.fail(f"{where}.{value.twice}".lstrip("."), "the field stands twice")

    def items(self, value: Any, where: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise self.fail(where, f"expected a list, found {_kind(value)}")
        return tuple(read(item, f"{where}[{index}]") for index, item in enumerate(value))

    def table(self, value: Any, where: str, read: Callable[[Any, str], T]) -> dict[str, T]:
        self.object(value, where)
        for name in value:
            if not name:
                raise self.fail(where, "a name in it is empty")
        return {name: read(item, f"{where}.{name}") for name, item in value.items()}

    def text(self, value: Any, where: str, *, empty: bool = False) -> str:
        if not isinstance(value, str):
            raise self.fail(where, f"expected text, found {_kind(value)}")
        if not value and not empty:
            raise self.fail(where, "it is empty")
        return value

    def optional_text(self, value: Any, where: str) -> str | None:
        return None if value is None else self.text(value, where)

    def number(self, value: Any, where: str, *, least: float = -math.inf) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(where, f"expected a number, found {_kind(value)}")
        if not abs(value) <= sys.float_info.max:
            raise self.fail(where, "the number is not finite")
        if value < least:
            raise self.fail(where, f"the number {value} is below {least}")
        return value

    def optional_number(self, value: Any, where: str) -> float | None:
        return None if value is None else self.number(value, where)

    def integer(self, value: Any, where: str, *, least: int | None = None) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(where, f"expected an integer, found {_kind(value)}")
        if abs(value) >= 2**63:
            raise self.fail(where, "the number does not fit into 64 bits")
        if least is not None and value < least:
            raise self.fail(where, f"the number {value} is below {least}")
        return value

    def choice(self, value: Any, where: str, choices: Sequence[T]) -> T:
        for choice in choices:
            if value == choice and isinstance(value, str):
                return choice
        raise self.fail(where, f"{value!r} is none of {', '.join(map(str, choices))}")

    def moment(self, value: Any, where: str) -> str:
        text = self.text(value, where)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self.fail(where, f"{text!r} is not an ISO 8601 date and time") from None
        if not text.startswith(f"{moment.date().isoformat()}T"):
            raise self.fail(where, f"{text!r} is not written as 2026-11-21T01:10:26+00:00")
        if moment.utcoffset() != timedelta(0):
            raise self.fail(where, f"{text!r} is not in UTC (+00:00)")
        return text

    def digest(self, value: Any, where: str) -> str:
        text = self.text(value, where)
        head, _, digits = text.partition(":")
        if head != "sha256" or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
            raise self.fail(where, f"{text!r} is not 'sha256:' and 64 hexadecimal digits")
        return text

    def record(self, content: Any) -> Record:
        self.object(content, "")
        version = self.integer(content.get("schema_version"), "schema_version", least=1)
        if version > SCHEMA_VERSION:
            raise self.fail(
                "schema_version",
                f"it is version {version} and this gpuguide reads versions up to {SCHEMA_VERSION}; update gpuguide",
            )
        names = [
            "schema_version",
            "benchmark",
            "device",
            "harness_version",
            "code_digest",
            "checksum",
            "runs",
            "cases",
        ]
        top = self.fields(content, "", names)
        record = Record(
            benchmark=self.text(top["benchmark"], "benchmark"),
            device=self.text(top["device"], "device"),
            harness_version=self.integer(top["harness_version"], "harness_version", least=1),
            code_digest=self.digest(top["code_digest"], "code_digest"),
            runs=self.items(top["runs"], "runs", self.run),
            cases=self.items(top["cases"], "cases", self.case),
            path=self.path,
        )
        self.check_whole(record)
        if self.digest(top["checksum"], "checksum") != _checksum(content):
            raise self.fail("checksum", "the content does not match it, so the file was changed after it was measured")
        return record

    def check_whole(self, record: Record) -> None:
        """Check what no single field can show."""
        if not record.runs:
            raise self.fail("runs", "it is empty")
        for name in (record.benchmark, record.device):
            if name != name.lower() or set(name) & set("/\\ "):
                raise self.fail("benchmark" if name == record.benchmark else "device", f"{name!r} is not a file name")
        if self.path is not None:
            folder, file = os.path.split(os.path.abspath(self.path))
            if file != f"{record.benchmark}.json":
                raise self.fail("benchmark", f"the file is named {file} but holds {record.benchmark!r}")
            if os.path.basename(folder) != record.device:
                raise self.fail(
                    "device", f"the folder is {os.path.basename(folder)!r} but the record is of {record.device!r}"
                )
        seen: dict[tuple[Any, ...], int] = {}
        for index, case in enumerate(record.cases):
            if case.run >= len(record.runs):
                raise self.fail(f"cases[{index}].run", f"there is no run {case.run}")
            if set(case.keys) != set(record.cases[0].keys):
                raise self.fail(f"cases[{index}].keys", "the names differ from those of the first case")
            for name, value in case.keys.items():
                if _kind(value) != (expected := _kind(record.cases[0].keys[name])):
                    raise self.fail(
                        f"cases[{index}].keys.{name}", f"it is {_kind(value)}, and {expected} in the first case"
                    )
            identity = (case.contender, *sorted(case.keys.items()))
            if identity in seen:
                raise self.fail(f"cases[{index}]", f"it repeats cases[{seen[identity]}]")
            seen[identity] = index
        for index in range(len(record.runs)):
            if all(case.run != index for case in record.cases):
                raise self.fail(f"runs[{index}]", "no case was measured in it")

    def run(self, value: Any, where: str) -> Run:
        f = self.fields(value, where, list(Run.__dataclass_fields__))
        if not isinstance(f["simulated"], bool):
            raise self.fail(f"{where}.simulated", f"expected true or false, found {_kind(f['simulated'])}")
        return Run(
            device_name=self.text(f["device_name"], f"{where}.device_name"),
            driver=self.optional_text(f["driver"], f"{where}.driver"),
            cuda=self.optional_text(f["cuda"], f"{where}.cuda"),
            python=self.text(f["python"], f"{where}.python"),
            versions=self.table(f["versions"], f"{where}.versions", self.text),
            host_cpu=self.text(f["host_cpu"], f"{where}.host_cpu"),
            host_cores=self.integer(f["host_cores"], f"{where}.host_cores", least=1),
            before=self.readings(f["before"], f"{where}.before"),
            after=self.readings(f["after"], f"{where}.after"),
            started_at=self.moment(f["started_at"], f"{where}.started_at"),
            finished_at=self.moment(f["finished_at"], f"{where}.finished_at"),
            elapsed=self.number(f["elapsed"], f"{where}.elapsed", least=0),
            commit=self.optional_text(f["commit"], f"{where}.commit"),
            seed=self.integer(f["seed"], f"{where}.seed"),
            command=self.text(f["command"], f"{where}.command"),
            simulated=f["simulated"],
        )

    def readings(self, value: Any, where: str) -> Readings:
        f = self.fields(value, where, list(Readings.__dataclass_fields__))
        return Readings(**{name: self.optional_number(f[name], f"{where}.{name}") for name in f})

    def case(self, value: Any, where: str) -> Case:
        names = ["keys", "contender", "run", "status", "reason", "correct", "metrics", "rates"]
        f = self.fields(value, where, names)
        case = Case(
            keys=self.table(f["keys"], f"{where}.keys", self.key),
            contender=self.text(f["contender"], f"{where}.contender"),
            run=self.integer(f["run"], f"{where}.run", least=0),
            status=self.choice(f["status"], f"{where}.status", STATUSES),
            reason=self.text(f["reason"], f"{where}.reason", empty=True),
            correct=self.choice(f["correct"], f"{where}.correct", CORRECT),
            measured=self.table(f["metrics"], f"{where}.metrics", self.metric),
            rates=self.table(f["rates"], f"{where}.rates", self.rate),
        )
        if case.status == "ok" and not case.measured:
            raise self.fail(f"{where}.metrics", "a case that is ok must hold a measurement")
        if case.status == "ok" and case.reason:
            raise self.fail(f"{where}.reason", "a case that is ok needs none")
        if case.status != "ok" and (case.measured or case.rates or not case.reason):
            raise self.fail(where, f"a case that is {case.status} must hold a reason and no measurement")
        if case.status != "ok" and case.correct != "n/a":
            raise self.fail(f"{where}.correct", f"a case that is {case.status} has no result")
        if case.rates and "time" not in case.measured:
            raise self.fail(f"{where}.rates", "a rate needs the time it is derived from")
        for name in case.rates:
            if name in case.measured:
                raise self.fail(f"{where}.rates.{name}", "a metric of that name was measured")
        return case

    def key(self, value: Any, where: str) -> Key:
        if isinstance(value, (bool, str)):
            return value
        return self.number(value, where)

    def metric(self, value: Any, where: str) -> Metric:
        f = self.fields(value, where, ["unit", "samples", "summary"])
        samples = self.items(f["samples"], f"{where}.samples", self.number)
        if not samples:
            raise self.fail(f"{where}.samples", "it is empty")
        unit = self.text(f["unit"], f"{where}.unit")
        if where.endswith(".metrics.time"):
            if unit != "s":
                raise self.fail(f"{where}.unit", f"a time is in s, not in {unit}")
            if min(samples) <= 0:
                raise self.fail(f"{where}.samples", "a time is not positive")
        found = self.summary(f["summary"], f"{where}.summary")
        computed = summarise(samples)
        for name, expected in asdict(computed).items():
            given = getattr(found, name)
            if (given is None) != (expected is None) or (
                expected is not None and not math.isclose(given, expected, rel_tol=1e-9)
            ):
                raise self.fail(f"{where}.summary.{name}", f"it is {given} but the samples give {expected}")
        return Metric(unit, samples, computed)

    def summary(self, value: Any, where: str) -> Summary:
        f = self.fields(value, where, list(Summary.__dataclass_fields__))
        return Summary(
            n=self.integer(f["n"], f"{where}.n", least=1),
            median=self.number(f["median"], f"{where}.median"),
            **{name: self.optional_number(f[name], f"{where}.{name}") for name in ("p5", "p25", "p75", "p95")},
        )

    def rate(self, value: Any, where: str) -> Rate:
        f = self.fields(value, where, ["unit", "per_call"])
        per_call = self.number(f["per_call"], f"{where}.per_call", least=0)
        return Rate(self.text(f["unit"], f"{where}.unit"), per_call)


def _kind(value: Any) -> str:
    """Name a JSON value's type as JSON does."""
    names = {
        _Object: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)

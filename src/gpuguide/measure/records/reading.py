"""Read a record's file, and check every field on the way."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuguide.errors import GpuguideError
from gpuguide.measure.records.fields import DamagedRecord, Fields, kind_of, parse_json
from gpuguide.measure.records.record import CORRECT, SCHEMA_VERSION, STATUSES, Case, Key, Readings, Record, Run
from gpuguide.measure.records.samples import Metric, Rate, summarise
from gpuguide.measure.records.writing import checksum

SINCE = {"host_cores_available": 2, "libraries": 2, "turns": 2}
"""Fields that the first version of the format did not have, and the version that brought each"""
WITHOUT_EMPTY_FIELDS = 3
"""The version since which empty fields of a case, and quantiles other than the median, are left out"""
EMPTY: dict[str, Any] = parse_json('{"reason": "", "libraries": [], "metrics": {}, "rates": {}, "turns": []}', None)
"""What a field that is left out means"""


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


def load(path: Path) -> Record:
    """Read a record, or return it again if the file has not changed since."""
    status = path.stat()
    return _load(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=512)
def _load(path: Path, modified: int, size: int) -> Record:
    return read(path)


def from_json(text: str, path: Path | None = None) -> Record:
    """Parse and check the text of a record file; ``path`` is only named in errors."""
    return _FieldReader(path).record(parse_json(text, path))


class _FieldReader(Fields):
    """Turns parsed JSON into a record."""

    version = SCHEMA_VERSION

    def select_known(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that fields have in the version of the format that is being read."""
        return [name for name in names if SINCE.get(name, 1) <= self.version]

    def record(self, content: Any) -> Record:
        self.object(content, "")
        version = self.integer(content.get("schema_version"), "schema_version", least=1)
        if version > SCHEMA_VERSION:
            raise self.fail(
                "schema_version",
                f"it is version {version} and this gpuguide reads versions up to {SCHEMA_VERSION}; update gpuguide",
            )
        self.version = version
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
        if self.digest(top["checksum"], "checksum") != checksum(content):
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
            run = record.runs[case.run]
            for name in case.libraries:
                if case.status == "ok" and not run.simulated and name not in run.versions:
                    raise self.fail(f"runs[{case.run}].versions", f"{case.contender} calls {name}, and it is not there")
            if set(case.keys) != set(record.cases[0].keys):
                raise self.fail(f"cases[{index}].keys", "the names differ from those of the first case")
            for name, value in case.keys.items():
                if kind_of(value) != (expected := kind_of(record.cases[0].keys[name])):
                    raise self.fail(
                        f"cases[{index}].keys.{name}", f"it is {kind_of(value)}, and {expected} in the first case"
                    )
            identity = (case.contender, *sorted(case.keys.items()))
            if identity in seen:
                raise self.fail(f"cases[{index}]", f"it repeats cases[{seen[identity]}]")
            seen[identity] = index
        for index, run in enumerate(record.runs):
            if self.version >= SINCE["libraries"] and not run.simulated and "torch" not in run.versions:
                raise self.fail(f"runs[{index}].versions", "every run names torch, and it is not there")
            if all(case.run != index for case in record.cases):
                raise self.fail(f"runs[{index}]", "no case was measured in it")

    def run(self, value: Any, where: str) -> Run:
        f = self.fields(value, where, self.select_known(Run.__dataclass_fields__))
        available = f.get("host_cores_available")
        if not isinstance(f["simulated"], bool):
            raise self.fail(f"{where}.simulated", f"expected true or false, found {kind_of(f['simulated'])}")
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
            host_cores_available=self.optional_number(available, f"{where}.host_cores_available", least=0),
        )

    def readings(self, value: Any, where: str) -> Readings:
        f = self.fields(value, where, list(Readings.__dataclass_fields__))
        return Readings(**{name: self.optional_number(f[name], f"{where}.{name}") for name in f})

    def case(self, value: Any, where: str) -> Case:
        names = ["keys", "contender", "run", "status", "reason", "correct", "libraries", "metrics", "rates"]
        f = self.fields_without_empty(value, where, names)
        case = Case(
            keys=self.table(f["keys"], f"{where}.keys", self.key),
            contender=self.text(f["contender"], f"{where}.contender"),
            run=self.integer(f["run"], f"{where}.run", least=0),
            status=self.choice(f["status"], f"{where}.status", STATUSES),
            reason=self.text(f["reason"], f"{where}.reason", empty=True),
            correct=self.choice(f["correct"], f"{where}.correct", CORRECT),
            measured=self.table(f["metrics"], f"{where}.metrics", self.metric),
            rates=self.table(f["rates"], f"{where}.rates", self.rate),
            libraries=self.items(f["libraries"], f"{where}.libraries", self.text),
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

    def fields_without_empty(self, value: Any, where: str, names: Iterable[str]) -> dict[str, Any]:
        """Check the fields of a case or metric, and return those, too, that are empty and left out."""
        known = self.select_known(names)
        if self.version < WITHOUT_EMPTY_FIELDS:
            return EMPTY | self.fields(value, where, known)
        self.object(value, where)
        return EMPTY | self.fields(value, where, [name for name in known if name not in EMPTY or name in value])

    def key(self, value: Any, where: str) -> Key:
        if isinstance(value, (bool, str)):
            return value
        return self.number(value, where)

    def metric(self, value: Any, where: str) -> Metric:
        f = self.fields_without_empty(value, where, ["unit", "samples", "summary", "turns"])
        samples = self.items(f["samples"], f"{where}.samples", self.number)
        if not samples:
            raise self.fail(f"{where}.samples", "it is empty")
        unit = self.text(f["unit"], f"{where}.unit")
        if where.endswith(".metrics.time"):
            if unit != "s":
                raise self.fail(f"{where}.unit", f"a time is in s, not in {unit}")
            if min(samples) <= 0:
                raise self.fail(f"{where}.samples", "a time is not positive")
        computed = summarise(samples)
        for name, given in self.summary(f["summary"], f"{where}.summary").items():
            expected = getattr(computed, name)
            is_same = given == expected if given is None or expected is None else math.isclose(given, expected)
            if not is_same:
                raise self.fail(f"{where}.summary.{name}", f"it is {given} but the samples give {expected}")
        turns = self.items(f["turns"], f"{where}.turns", self.turn)
        if turns and sum(turns) != len(samples):
            raise self.fail(f"{where}.turns", f"they took {sum(turns)} samples in all, and there are {len(samples)}")
        return Metric(unit, samples, computed, turns)

    def turn(self, value: Any, where: str) -> int:
        return self.integer(value, where, least=1)

    def summary(self, value: Any, where: str) -> dict[str, float | None]:
        """Return the quantiles that the file gives, and the number of samples."""
        further = () if self.version >= WITHOUT_EMPTY_FIELDS else ("p5", "p25", "p75", "p95")
        f = self.fields(value, where, ["n", "median", *further])
        return {
            "n": self.integer(f["n"], f"{where}.n", least=1),
            "median": self.number(f["median"], f"{where}.median"),
            **{name: self.optional_number(f[name], f"{where}.{name}") for name in further},
        }

    def rate(self, value: Any, where: str) -> Rate:
        f = self.fields(value, where, ["unit", "per_call"])
        per_call = self.number(f["per_call"], f"{where}.per_call", least=0)
        return Rate(self.text(f["unit"], f"{where}.unit"), per_call)

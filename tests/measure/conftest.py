"""Made-up records and benchmarks for the tests of measuring."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuguide.hardware.device import Device
from gpuguide.measure import digest, records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate, Readings

DIGEST = "sha256:" + "1" * 64


@pytest.fixture
def known_code(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let benchmarks that stand in no file have a digest."""
    monkeypatch.setattr(digest, "benchmark_digest", lambda name: DIGEST)
    return DIGEST


def content() -> dict[str, Any]:
    """Return the fields of a record with two runs and cases of every status, as JSON holds them."""
    readings = dict.fromkeys(Readings.__dataclass_fields__, 310.5)
    run = {
        "device_name": "NVIDIA Test GPU",
        "driver": "580.1",
        "cuda": "13.0",
        "python": "3.12.3",
        "versions": {"torch": "2.11.0+cu130", "gpuguide": "0.1.0", "cudnn": "9.19.0"},
        "host_cpu": "A processor",
        "host_cores": 16,
        "host_cores_available": 1.5,
        "before": dict(readings),
        "after": {**readings, "power": None},
        "started_at": "2026-11-21T01:10:26.568+00:00",
        "finished_at": "2026-11-21T01:10:38.650+00:00",
        "elapsed": 12.083,
        "commit": "43e7d29",
        "seed": 0,
        "command": "gpuguide bench run",
        "simulated": False,
    }
    later = {**copy.deepcopy(run), "driver": None, "cuda": None, "commit": None, "simulated": True}
    time = {
        "unit": "s",
        "samples": [0.001, 0.002, 0.004, 0.008],
        "summary": {"n": 4, "median": 0.003},
        "turns": [1, 3],
    }
    memory = {
        "unit": "B",
        "samples": [4096],
        "summary": {"n": 1, "median": 4096},
        "turns": [],
    }

    def case(size: int, contender: str, run: int, **changed: Any) -> dict[str, Any]:
        good = {
            "keys": {"size": size, "causal": True, "shape": "square"},
            "contender": contender,
            "run": run,
            "status": "ok",
            "reason": "",
            "correct": "yes",
            "libraries": ["cudnn"] if contender == "fast" else [],
            "metrics": {"time": copy.deepcopy(time), "peak_memory": copy.deepcopy(memory)},
            "rates": {"bandwidth": {"unit": "B/s", "per_call": 6.0}},
        }
        nothing = {"correct": "n/a", "metrics": {}, "rates": {}} if changed else {}
        return {**good, **nothing, **changed}

    return {
        "schema_version": 3,
        "benchmark": "made-up",
        "device": "nvidia-test-gpu",
        "harness_version": 2,
        "code_digest": DIGEST,
        "checksum": "sha256:" + "0" * 64,
        "runs": [run, later],
        "cases": [
            case(1, "fast", 0),
            case(1, "slow", 0),
            case(2, "fast", 1),
            case(2, "slow", 1, status="skipped", reason="needs fp8"),
            case(4, "fast", 1, status="out-of-memory", reason="tried to allocate 80 GiB"),
            case(4, "slow", 1, status="failed", reason="wrong result: the relative error is 0.3"),
        ],
    }


def content_of_version_2() -> dict[str, Any]:
    """Return the same record as the second version of the format held it: with all quantiles."""
    quantiles = {
        "time": {"p5": 0.00115, "p25": 0.00175, "p75": 0.005, "p95": 0.0074},
        "peak_memory": dict.fromkeys(("p5", "p25", "p75", "p95")),
    }
    fields = content()
    fields["schema_version"] = 2
    for case in fields["cases"]:
        for name, metric in case["metrics"].items():
            metric["summary"] |= quantiles[name]
    return fields


def content_of_version_1() -> dict[str, Any]:
    """Return the same record as the first version of the format held it: without turns and libraries."""
    fields = content_of_version_2()
    fields |= {"schema_version": 1, "harness_version": 1}
    for run in fields["runs"]:
        del run["host_cores_available"]
    for case in fields["cases"]:
        del case["libraries"]
        for metric in case["metrics"].values():
            del metric["turns"]
    return fields


def signed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with the checksum that fits them."""
    text = json.dumps({name: value for name, value in fields.items() if name != "checksum"}, sort_keys=True)
    return {**fields, "checksum": "sha256:" + hashlib.sha256(text.encode()).hexdigest()}


class RecordFile:
    """A record's file that tests damage."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "nvidia-test-gpu" / "made-up.json"
        self.path.parent.mkdir()

    content = staticmethod(content)
    content_of_version_1 = staticmethod(content_of_version_1)
    content_of_version_2 = staticmethod(content_of_version_2)
    signed = staticmethod(signed)

    def write(self, fields: Mapping[str, Any], *, sign: bool = True) -> Path:
        """Write fields with a checksum that fits, so that nothing but the damage itself can be noticed."""
        self.path.write_text(json.dumps(signed(fields) if sign else fields), encoding="utf-8")
        return self.path


@pytest.fixture
def record_file(tmp_path: Path) -> RecordFile:
    return RecordFile(tmp_path)


class Scripted:
    """A benchmark whose timer returns made-up seconds, and which notes everything that it is asked to do.

    ``at`` is called with a description of every step before it happens; it may raise.
    """

    def __init__(
        self,
        name: str = "scripted",
        sizes: Sequence[int] = (1, 2, 3),
        contenders: Sequence[str] = ("fast", "slow"),
        *,
        needs: Mapping[str, frozenset[str]] | None = None,
        memory: Callable[[Keys], float] = lambda keys: 0.0,
        samples: int | None = 8,
        budget: float = 0.01,
        seconds: Callable[[str, int], float] | None = None,
        further: Callable[[], Mapping[str, Metric]] = dict,
        at: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.steps: list[str] = []
        self.at = at
        self.further = further
        self.seconds = seconds or (lambda contender, size: 1e-3 * size * (1 + contenders.index(contender)))
        self.benchmark = Benchmark(
            name=name,
            title="A made-up benchmark",
            question="What does the runner do?",
            contenders={
                contender: Contender(self.builder(contender), (needs or {}).get(contender, frozenset()))
                for contender in contenders
            },
            cases=lambda device: [{"size": size} for size in sizes],
            memory=memory,
            samples=samples,
            budget=budget,
        )

    def step(self, *words: object) -> None:
        text = " ".join(map(str, words))
        self.at(text)
        self.steps.append(text)

    def builder(self, contender: str) -> Callable[[Device, Keys], Work]:
        def build(device: Device, keys: Keys) -> Work:
            size = keys["size"]
            assert isinstance(size, int)
            self.step("build", contender, size)
            taken = iter(range(10**6))

            def check() -> None:
                self.step("check", contender, size)

            def sample() -> float:
                self.step("sample", contender, size)
                return self.seconds(contender, size) * (1 + next(taken) % 5 / 100)

            return Work(
                calls=[lambda: None],
                check=check,
                rates={"bandwidth": Rate("B/s", 1000.0 * size)},
                sample=sample,
                further=self.further,
            )

        return build


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


def a_processor() -> Device:
    """Return a device on which the scripted timers are used as on a real one."""
    return Device("A processor", "cpu", "cpu", 8 * 2**30, 0, None, frozenset({"bf16"}))


@pytest.fixture
def processor() -> Device:
    return a_processor()


def facts(record: records.Record) -> list[tuple[Any, ...]]:
    """Return what must be the same however often a run was interrupted."""
    return [(c.keys, c.contender, c.status, c.reason, c.correct, c.measured, c.rates) for c in record.cases]


@pytest.fixture
def facts_of() -> Callable[[records.Record], list[tuple[Any, ...]]]:
    return facts

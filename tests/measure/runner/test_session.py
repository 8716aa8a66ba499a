from __future__ import annotations

import contextlib
import errno
import math
import multiprocessing
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import stored

from gpuguide.errors import GpuguideError
from gpuguide.hardware.device import Device
from gpuguide.measure import digest, records, runner
from gpuguide.measure.records import DamagedRecord

pytestmark = pytest.mark.usefixtures("known_code")
COMMIT = "c0ffee"


LEFT_OVER = ".*.tmp"


class Killer:
    """Raises at the ``at``-th step of anything; counts the steps."""

    def __init__(self, at: float, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.at, self.error, self.steps = at, error, 0

    def __call__(self, step: object) -> None:
        self.steps += 1
        if self.steps == self.at:
            raise self.error


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Killer], None]]:
    """Let a killer also see every step of writing a record: before and after it has happened."""
    current: list[Killer] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            step(f"before {function.__name__}")
            result = function(*arguments, **options)
            step(f"after {function.__name__}")
            return result

        return call

    def step(name: str) -> None:
        for one in current:
            one(name)

    monkeypatch.setattr(os, "fsync", watched(os.fsync))
    monkeypatch.setattr(os, "replace", watched(os.replace))
    monkeypatch.setattr(records.writing, "to_json", watched(records.to_json))

    def use(one: Killer) -> None:
        current[:] = [one]

    yield use
    current.clear()


SIZES = (1, 2, 3)


def interruptible(scripted: Any, killer: Killer) -> list[Any]:
    return [
        scripted("scripted", SIZES, at=killer, samples=5),
        scripted("second", SIZES[:1], contenders=("only",), at=killer, samples=5),
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_killed_at_any_point_and_resumed_nothing_is_lost_or_doubled(
    measure: Any, scripted: Any, tmp_path: Path, killer: Any, facts_of: Any, error: type[BaseException]
) -> None:
    """Kill at every single point once, and go on; then kill again and again until a run comes through."""
    never = Killer(math.inf)
    killer(never)
    benches = interruptible(scripted, never)
    measure(*(bench.benchmark for bench in benches), folder=tmp_path / "whole", report=never)
    whole = {bench.benchmark.name: stored(tmp_path / "whole", bench.benchmark.name) for bench in benches}
    chance = random.Random(0)
    kills = 0
    for first in range(1, never.steps + 1):
        folder = tmp_path / str(first)
        at = first
        while True:
            deadly = Killer(at, error)
            killer(deadly)
            benches = interruptible(scripted, deadly)
            finished = finished_cases(folder)
            try:
                measure(*(bench.benchmark for bench in benches), folder=folder, report=deadly)
            except error:
                kills += 1
                at = chance.randint(1, 2 * never.steps)
            else:
                break
            finally:
                assert not list(folder.glob(f"**/{LEFT_OVER}"))
                assert finished <= finished_cases(folder)  # nothing is lost
                asked = {step.partition(" ")[2] for bench in benches for step in bench.steps}
                assert not {f"{c} {size}" for _, c, size in finished} & asked  # and nothing is measured twice
        for name, expected in whole.items():
            record = stored(folder, name)
            assert facts_of(record) == facts_of(expected)
            assert {case.run for case in record.cases} == set(range(len(record.runs)))
            assert not record.stale
    assert never.steps > 60
    assert kills >= 100


def finished_cases(folder: Path) -> set[tuple[str, str, Any]]:
    """Return what the files hold. Reading checks them: no reader ever sees half a file."""
    found = [records.read(path) for path in folder.glob("*/*.json")]
    return {(record.benchmark, case.contender, case.keys["size"]) for record in found for case in record.cases}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_killed_by_the_system_and_resumed(measure: Any, scripted: Any, tmp_path: Path, facts_of: Any) -> None:
    """SIGKILL runs no ``finally``: what counts then is that a record is renamed into place when it is whole."""
    sizes = range(1, 41)
    measure(scripted(sizes=sizes).benchmark, folder=tmp_path / "whole")
    processes = multiprocessing.get_context("fork")
    chance = random.Random(0)
    kills = 0
    for _ in range(200):
        process = processes.Process(target=measure, args=(scripted(sizes=sizes).benchmark,))
        process.start()
        process.join(chance.uniform(0.005, 0.03) if kills < 12 else None)
        if not process.is_alive():
            break
        before = finished_cases(tmp_path)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        kills += 1
        assert before <= finished_cases(tmp_path)
    assert process.exitcode == 0
    assert kills >= 3
    assert facts_of(stored(tmp_path)) == facts_of(stored(tmp_path / "whole"))


def test_a_run_that_is_resumed_keeps_what_was_measured_and_when(measure: Any, scripted: Any, tmp_path: Path) -> None:
    bench = scripted(at=Killer(25))
    with pytest.raises(KeyboardInterrupt):
        measure(bench.benchmark, commit="first")
    early = stored(tmp_path)
    assert [run.commit for run in early.runs] == ["first"]
    measure(scripted().benchmark, commit="second")
    record = stored(tmp_path)
    assert [run.commit for run in record.runs] == ["first", "second"]
    assert record.cases[: len(early.cases)] == early.cases
    assert {case.run for case in record.cases[len(early.cases) :]} == {1}


def test_a_finished_record_is_not_touched(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(scripted().benchmark)
    before = (tmp_path / "cpu" / "scripted.json").read_bytes()
    bench = scripted()
    outcome = measure(bench.benchmark)
    assert (outcome.measured, outcome.already_fresh, outcome.not_reached) == (0, 3, 0)
    assert bench.steps == []
    assert (tmp_path / "cpu" / "scripted.json").read_bytes() == before


def test_a_case_that_was_added_is_measured_and_takes_its_place(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(scripted(sizes=(1, 3)).benchmark)
    outcome = measure(scripted(sizes=(1, 2, 3)).benchmark)
    assert (outcome.measured, outcome.already_fresh) == (1, 2)
    assert [case.keys["size"] for case in stored(tmp_path).cases] == [1, 1, 2, 2, 3, 3]


def test_again_replaces_everything(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(scripted().benchmark, commit="first")
    outcome = measure(scripted(seconds=lambda contender, size: 5e-3).benchmark, commit="second", again=True)
    record = stored(tmp_path)
    assert outcome.measured == 3
    assert [run.commit for run in record.runs] == ["second"]
    assert len(record.cases) == 6
    assert {min(case.measured["time"].samples) for case in record.cases} == {5e-3}


def test_again_interrupted_keeps_the_old_values_of_what_was_not_reached(
    measure: Any, scripted: Any, tmp_path: Path
) -> None:
    measure(scripted().benchmark, commit="first")
    with pytest.raises(KeyboardInterrupt):
        measure(scripted(at=Killer(25)).benchmark, commit="second", again=True)
    record = stored(tmp_path)
    assert [record.runs[case.run].commit for case in record.cases] == ["second"] * 2 + ["first"] * 4
    measure(scripted().benchmark, commit="third")
    assert stored(tmp_path) == record


@pytest.mark.parametrize("why", ["code", "harness"])
def test_a_stale_record_is_measured_anew(
    measure: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    measure(scripted().benchmark, commit="first")
    if why == "code":
        monkeypatch.setattr(digest, "benchmark_digest", lambda name: "sha256:" + "2" * 64)
    else:
        newer = records.HARNESS_VERSION + 1
        for module in (records, records.record):
            monkeypatch.setattr(module, "HARNESS_VERSION", newer)
    before = stored(tmp_path)
    text = (tmp_path / "cpu" / "scripted.json").read_text()
    assert before.stale
    said: list[str] = []
    outcome = measure(scripted(sizes=(1, 2)).benchmark, commit="second", say=said.append)
    record = stored(tmp_path)
    assert outcome.measured == 2
    assert [run.commit for run in record.runs] == ["second"]
    assert len(record.cases) == 4
    assert not record.stale
    (kept,) = (tmp_path / "cpu").glob("scripted.json.*")  # its measurements are not lost
    assert kept.read_text() == text
    assert kept.name == f"scripted.json.{before.runs[0].finished_at[:19].replace(':', '-')}"
    (note,) = said
    assert "the code has changed since it was measured, so everything is measured anew" in note
    assert str(kept) in note
    assert measure(scripted(sizes=(1, 2)).benchmark, say=said.append).measured == 0
    assert said == [note]


def test_a_stale_record_stays_where_it_is_until_there_is_a_new_one(
    measure: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(scripted().benchmark)
    before = stored(tmp_path)
    monkeypatch.setattr(digest, "benchmark_digest", lambda name: "sha256:" + "2" * 64)
    with pytest.raises(KeyboardInterrupt):
        measure(scripted(at=Killer(3)).benchmark)
    assert measure(scripted().benchmark, time_limit=0).not_reached == 3
    assert measure(scripted().benchmark, quick=True).measured == 1
    assert stored(tmp_path) == before
    assert [path.name for path in (tmp_path / "cpu").iterdir()] == ["scripted.json"]


def test_another_processor_begins_a_record_of_its_own(
    measure: Any, scripted: Any, tmp_path: Path, processor: Device
) -> None:
    """All processors share the folder ``cpu``."""
    measure(scripted().benchmark)
    text = (tmp_path / "cpu" / "scripted.json").read_text()
    said: list[str] = []
    other = replace(processor, name="Another processor")
    assert measure(scripted(sizes=(1,)).benchmark, device=other, say=said.append).measured == 1
    assert {run.device_name for run in stored(tmp_path).runs} == {"Another processor"}
    (kept,) = (tmp_path / "cpu").glob("scripted.json.*")
    assert kept.read_text() == text
    assert "the record is of A processor, and this is Another processor" in said[0]


def test_a_benchmark_without_a_case_for_the_device_says_so(measure: Any, scripted: Any) -> None:
    for options in ({"quick": True}, {}):
        said: list[str] = []
        assert measure(scripted(sizes=()).benchmark, say=said.append, **options).measured == 0
        assert said == ["scripted: no case is meant for A processor."]


def test_the_time_limit_stops_between_cases_and_the_next_run_goes_on(
    measure: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts_of: Any
) -> None:
    now = iter(range(10**6))
    monkeypatch.setattr(runner.session.time, "monotonic", lambda: float(next(now)))
    outcome = measure(scripted().benchmark, time_limit=5)
    assert 1 <= outcome.measured < 3
    assert outcome.measured + outcome.not_reached == 3
    monkeypatch.undo()
    monkeypatch.setattr(digest, "benchmark_digest", lambda name: outcome.records[0].code_digest)
    rest = measure(scripted().benchmark)
    assert (rest.measured, rest.already_fresh, rest.not_reached) == (outcome.not_reached, outcome.measured, 0)
    measure(scripted().benchmark, folder=tmp_path / "whole")
    assert facts_of(stored(tmp_path)) == facts_of(stored(tmp_path / "whole"))


def test_no_time_at_all_measures_nothing(measure: Any, scripted: Any, tmp_path: Path) -> None:
    outcome = measure(scripted().benchmark, scripted("second").benchmark, time_limit=0)
    assert (outcome.measured, outcome.not_reached, outcome.records) == (0, 6, ())
    assert not list(tmp_path.glob("*/*.json"))


def test_quick_stores_nothing(measure: Any, scripted: Any, tmp_path: Path) -> None:
    bench = scripted(sizes=(1, 2))
    outcome = measure(bench.benchmark, quick=True)
    assert list(tmp_path.iterdir()) == []
    (record,) = outcome.records
    assert [(case.keys["size"], case.measured["time"].summary.n) for case in record.cases] == [(1, 3), (1, 3)]


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Be a user whom permissions bind."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_a_read_only_folder_is_named_before_anything_is_measured(measure: Any, scripted: Any) -> None:
    bench = scripted()
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        folder = Path(parent) / "records"
        folder.mkdir()
        folder.chmod(0o555)
        try:
            with without_privileges(), pytest.raises(GpuguideError, match=rf"{folder}.*--out or GPUGUIDE_RECORDS"):
                measure(bench.benchmark, folder=folder)
        finally:
            folder.chmod(0o755)
    assert bench.steps == []


def test_a_folder_that_cannot_be_made_is_named(measure: Any, scripted: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bench = scripted()
    with pytest.raises(GpuguideError, match="Cannot write to"):
        measure(bench.benchmark, folder=tmp_path / "file" / "records")
    assert bench.steps == []


def test_a_full_disk_keeps_the_cases_before(
    measure: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, written = os.fsync, []

    def full(file: int) -> None:
        written.append(file)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GpuguideError, match="No space left on device"):
        measure(scripted().benchmark)
    monkeypatch.setattr(os, "fsync", fsync)
    assert len(stored(tmp_path).cases) == 4
    assert not list(tmp_path.glob(f"**/{LEFT_OVER}"))
    assert measure(scripted().benchmark).measured == 1


def test_a_second_run_is_refused_while_one_is_going(measure: Any, scripted: Any, tmp_path: Path) -> None:
    refused: list[str] = []

    def second(step: str) -> None:
        if step == "build fast 1":
            with pytest.raises(GpuguideError, match="Another 'gpuguide bench run' is writing to") as caught:
                measure(scripted("second").benchmark)
            refused.append(str(caught.value))
            measure(scripted("second").benchmark, folder=tmp_path / "elsewhere")
            measure(scripted("second").benchmark, quick=True)

    measure(scripted(at=second).benchmark)
    assert len(refused) == 1
    assert "--out" in refused[0]
    assert len(stored(tmp_path).cases) == 6
    measure(scripted("second").benchmark)  # and afterwards it may


def test_the_folder_is_free_again_after_an_interruption(measure: Any, scripted: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(scripted(at=Killer(3)).benchmark)
    assert measure(scripted().benchmark).measured == 3


def test_a_damaged_record_in_the_way_is_named_and_not_overwritten(measure: Any, scripted: Any, tmp_path: Path) -> None:
    path = tmp_path / "cpu" / "second.json"
    path.parent.mkdir()
    path.write_text('{"schema_version": 1')
    bench = scripted()
    for again in (False, True):
        with pytest.raises(DamagedRecord, match=r"second\.json is damaged at line 1"):
            measure(bench.benchmark, scripted("second").benchmark, again=again)
    assert path.read_text() == '{"schema_version": 1'
    assert bench.steps == []
    assert measure(bench.benchmark, scripted("second").benchmark, quick=True).measured == 2

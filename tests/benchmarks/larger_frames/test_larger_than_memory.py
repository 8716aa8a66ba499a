"""The benchmark of queries beyond the memory, on small files, and on the host in place of a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpuguide.benchmarks.larger_frames import larger_than_memory, queries
from gpuguide.benchmarks.larger_frames.larger_than_memory import OneQuery
from gpuguide.dataframes.query import limited_polars
from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.measure.benchmark import Keys

DECLARED = declarations.get("larger-than-memory")
CPU, H100 = devices.cpu(), devices.fake("h100-sxm")
FILES = {"few-groups": 10, "many-groups": 5, "join": 10, "sort": 5}
FILE_ROWS = 2_000
every_query = pytest.mark.parametrize("name", larger_than_memory.QUERIES)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(larger_than_memory, "FILES", FILES)
    monkeypatch.setattr(larger_than_memory, "FILE_ROWS", FILE_ROWS)
    yield
    larger_than_memory.end()


class OnTheHost:
    """Stands for an executor on a GPU, and counts those that are open."""

    engine = "streaming"
    opened: list[OnTheHost] = []  # noqa: RUF012 (counted over all)

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.opened.append(self)

    def peak(self) -> int:
        return 7

    def close(self) -> None:
        self.opened.remove(self)


class InThisProcess:
    """Stands for a process of its own. ``failures`` are raised for a question, and end it."""

    failures: dict[str, Exception] = {}  # noqa: RUF012 (set by tests)

    def __init__(self, command: list[str]) -> None:
        self.engine, self.served, self.running = command[-1], OneQuery(OnTheHost), True

    def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        starts = question["do"] == "begin"
        assert seconds == (larger_than_memory.START_DEADLINE if starts else larger_than_memory.DEADLINE)
        if question["do"] not in self.failures:
            return self.served.answer(question)
        error = self.failures[question["do"]]
        if not isinstance(error, MemoryError):
            self.close()
        raise error

    def is_running(self) -> bool:
        return self.running

    def kill(self) -> None:
        self.close()

    def close(self) -> None:
        self.served.end()
        self.running = False


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(larger_than_memory, "TimedProcess", InThisProcess)
    monkeypatch.setattr(InThisProcess, "failures", {})


def keys(query: str, over_memory: float = 3.0) -> Keys:
    return {"query": query, "over_memory": over_memory}


def measure(case: Keys, *contenders: str) -> dict[str, Any]:
    """Measure some contenders of a case as if they could run here."""
    able = {name: declarations.Contender(DECLARED.contenders[name].build) for name in contenders}
    return {
        result.contender: result
        for result in runner.measure_case(dataclasses.replace(DECLARED, contenders=able), case, CPU, quick=True)
    }


def test_polars_gives_duckdbs_answer_in_a_process_of_its_own() -> None:
    for name in larger_than_memory.QUERIES:
        for over in (0.2, 1.0, 3.0):
            (case,) = measure(keys(name, over), "polars").values()
            assert (case.status, case.reason, case.correct) == ("ok", "", "yes"), (name, over)
            assert "peak_memory" not in case.metrics
            assert case.rates["throughput"].per_call == round(over * FILES[name]) * FILE_ROWS
    assert len(larger_than_memory.processes) == 1


def test_many_groups_are_more_than_half_of_the_rows() -> None:
    found = larger_than_memory.make_query("many-groups", larger_than_memory.list_files(keys("many-groups", 1.0)))
    pairs = queries.Query(found.source).group_by("id6", "id4", sum="v1").on("polars")
    assert pairs.num_rows > FILES["many-groups"] * FILE_ROWS / 2


@every_query
def test_more_data_is_copies_of_files_that_take_no_room(name: str) -> None:
    paths = larger_than_memory.list_files(keys(name, 3.0))
    assert len(paths) == len(set(paths)) == 3 * FILES[name]
    assert len({path.stat().st_ino for path in paths}) == FILES[name]
    assert larger_than_memory.list_files(keys(name, 0.2)) == paths[: FILES[name] // 5]


@every_query
def test_the_limit_is_the_bytes_of_what_is_read(name: str) -> None:
    rows = FILES[name] * FILE_ROWS
    assert larger_than_memory.limit_of(name) == larger_than_memory.ROW_BYTES[name] * rows // 256 * 256


def test_a_file_is_no_more_than_a_piece_of_the_streaming_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for name, row_bytes in larger_than_memory.ROW_BYTES.items():
        file = row_bytes * larger_than_memory.FILE_ROWS
        options = limited_polars.options_within(file * larger_than_memory.FILES[name])
        assert file <= options["target_partition_size"]
        for over in larger_than_memory.OVER_MEMORY:  # so many files, and not nearly so many
            assert (larger_than_memory.FILES[name] * over).is_integer()
            assert DECLARED.memory(keys(name, over)) < 0.9 * H100.memory


@every_query
def test_a_gpus_contenders_end_their_engines_with_the_case(name: str, in_this_process: None) -> None:
    for over in (0.2, 2.0):
        found = measure(keys(name, over), "streaming", "streaming-limited")
        for case in found.values():
            assert (case.status, case.reason) == ("ok", "")
            assert case.metrics["peak_memory"].summary.median == 7
        assert [each.limit for each in OnTheHost.opened] == [None, larger_than_memory.limit_of(name)]
    assert {name: process.engine for name, process in larger_than_memory.processes.items()} == {
        "streaming": "streaming",
        "streaming-limited": "streaming",
    }
    larger_than_memory.end()
    assert OnTheHost.opened == []


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (GpuguideError("It was not done."), "failed", "GpuguideError: It was not done."),
        (MemoryError("the query needs more"), "out-of-memory", "the query needs more"),
    ],
)
@pytest.mark.parametrize("question", ["begin", "run", "write"])
def test_a_query_that_fails_is_recorded_and_the_next_one_runs(
    question: str,
    error: Exception,
    status: str,
    reason: str,
    in_this_process: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(InThisProcess, "failures", {question: error})
    contenders = ("in-memory-limited", "streaming-limited")
    for case in measure(keys("few-groups", 1.0), *contenders).values():
        assert (case.status, case.reason) == (status, reason)
    first = dict(larger_than_memory.processes)
    monkeypatch.setattr(InThisProcess, "failures", {})
    for case in measure(keys("few-groups", 2.0), *contenders).values():
        assert case.status == "ok"
    same = {name: larger_than_memory.processes[name] is process for name, process in first.items()}
    assert same == {"in-memory-limited": status == "out-of-memory", "streaming-limited": False}


def test_an_engine_that_does_not_end_does_not_keep_the_next_case(
    in_this_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(keys("few-groups", 1.0), "streaming")
    monkeypatch.setattr(InThisProcess, "failures", {"end": GpuguideError("It was not done.")})
    (case,) = measure(keys("few-groups", 2.0), "streaming").values()
    assert case.status == "ok"


@pytest.mark.parametrize(
    "error", [MemoryError("of 3 lines\nTry"), RuntimeError("'cuda' failed: MemoryError: std::bad_alloc: out_of_memory")]
)
def test_memory_that_ran_out_is_told_in_a_line(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(MemoryError, match=r"^the query needs more than the 12 MiB that it may use$"):
        larger_than_memory.tell_out_of_memory(fail, 12 * 2**20)
    with pytest.raises(MemoryError, match=r"^the query needs more than the GPU's memory$"):
        larger_than_memory.tell_out_of_memory(fail, None)


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="no memory of it"):
        larger_than_memory.tell_out_of_memory(lambda: int("no memory of it"), 1)


def test_a_wrong_result_is_told(in_this_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(larger_than_memory, "multiply", lambda result, copies: result)
    (case,) = measure(keys("few-groups", 2.0), "streaming").values()
    assert (case.status, case.reason) == ("failed", "wrong result: few-groups: column 'v1_sum' differs")


def write(folder: Path, case: Keys, **changed: np.ndarray) -> None:
    """Write the sorted rows of the frame in two files, with changed columns."""
    paths = larger_than_memory.list_files(case)
    rows = pa.concat_tables(pq.read_table(path, columns=["id6", "v3"]) for path in paths)
    rows = rows.sort_by([("v3", "ascending"), ("id6", "ascending")])
    table = pa.table({name: changed.get(name, rows[name]) for name in ("id6", "v3")})
    larger_than_memory.empty(folder)
    (folder / "rows.parquet").mkdir()
    half = len(table) // 2
    for part, start in enumerate((0, half)):
        pq.write_table(table.slice(start, half), folder / "rows.parquet" / f"part.{part:06d}.parquet")


def test_files_of_wrongly_sorted_rows_are_told(tmp_path: Path) -> None:
    folder, case = tmp_path / "sorted", keys("sort", 2.0)
    write(folder, case)
    larger_than_memory.check_sorted(folder, case)
    with pytest.raises(AssertionError, match="20,000 rows were written, and 30,000 are right"):
        larger_than_memory.check_sorted(folder, keys("sort", 3.0))
    write(folder, case, v3=np.arange(20_000)[::-1].astype(float))
    with pytest.raises(AssertionError, match="not in order"):
        larger_than_memory.check_sorted(folder, case)
    write(folder, case, id6=np.ones(20_000, np.int32))
    with pytest.raises(AssertionError, match="others than the frame's"):
        larger_than_memory.check_sorted(folder, case)


def test_cases_are_those_of_a_gpu_and_what_has_no_limit_is_measured_once() -> None:
    assert DECLARED.cases(CPU) == []
    cases = DECLARED.cases(H100)
    assert len(cases) == 3 * len(larger_than_memory.OVER_MEMORY) + len(larger_than_memory.FEW_OVER_MEMORY)
    expected = {
        "in-memory": {1.0, 3.0},
        "in-memory-limited": {0.2, 1.0},
        "streaming-limited": {0.2, 1.0, 2.0, 3.0, 4.0},
        "streaming-large-limited": {1.0, 3.0},
    }
    for name, contender in DECLARED.contenders.items():
        measured = {case["over_memory"] for case in cases if contender.skip_reason(H100, case) is None}
        assert measured == expected.get(name, {1.0})


def test_an_older_engine_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DECLARED.contenders["streaming"].unavailable_reason()  # no GPU here, or no cudf-polars
    monkeypatch.setattr(limited_polars, "why_not_here", lambda engine: None)
    find = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(limited_polars, "importlib", find)
    assert "26.10" in (DECLARED.contenders["streaming-limited"].unavailable_reason() or "")


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@pytest.mark.apart
@every_query
def test_executors_on_a_gpu_give_duckdbs_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why := limited_polars.why_no_streaming():
        pytest.skip(why)
    monkeypatch.setattr(larger_than_memory, "FILES", dict.fromkeys(FILES, 40))
    monkeypatch.setattr(larger_than_memory, "FILE_ROWS", 10**6)
    for over in (0.2, 1.0, 3.0):
        results = runner.measure_case(dataclasses.replace(DECLARED, samples=1), keys(name, over), devices.current())
        found = {case.contender: case.status for case in results if case.status != "skipped"}
        if over == 1.0:
            assert found.pop("in-memory-limited") == "out-of-memory"
        if name == "sort":
            found.pop("streaming-limited")  # it may run out of memory
        assert found.pop("streaming-large-limited", "ok") in ("ok", "out-of-memory"), over
        assert set(found.values()) <= {"ok"}, over

"""The benchmark of queries beyond the memory, on small files, and on the host in place of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpuguide.benchmarks.dataframes import larger_than_memory, queries
from gpuguide.dataframes.query import limited_polars
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.measure.benchmark import Work

DECLARED = declarations.get("larger-than-memory")
CPU, H100 = devices.cpu(), devices.fake("h100-sxm")
ROWS = 20_000
every_query = pytest.mark.parametrize("name", larger_than_memory.QUERIES)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(larger_than_memory, "ROWS", ROWS)
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


def keys(query: str, over_memory: float = 3.0) -> dict[str, str | float]:
    return {"query": query, "over_memory": over_memory}


def check(work: Work) -> None:
    assert work.check
    work.check()


@every_query
def test_polars_gives_duckdbs_answer(name: str) -> None:
    work = DECLARED.contenders["polars"].build(CPU, keys(name))
    check(work)
    assert work.sample
    assert work.sample() > 0


def test_many_groups_are_more_than_half_of_the_rows() -> None:
    found = larger_than_memory.make_query("many-groups").source
    pairs = queries.Query(found).group_by("id6", "id4", sum="v1").on("polars")
    assert pairs.num_rows > ROWS / 2


def test_the_limit_is_a_part_of_the_columns_that_are_read() -> None:
    for name, row_bytes in (("few-groups", 9 + 4), ("many-groups", 4 + 4 + 4), ("sort", 4 + 8)):
        assert larger_than_memory.data_bytes(name) == row_bytes * ROWS
        limits = [larger_than_memory.limit_of(keys(name, over)) for over in (0.5, 1.0, 4.0)]
        assert limits == [
            2 * row_bytes * ROWS // 256 * 256,
            row_bytes * ROWS // 256 * 256,
            row_bytes * ROWS // 1024 * 256,
        ]
    medium = ROWS // queries.GROUPS * 9 // 10
    assert larger_than_memory.data_bytes("join") == (4 + 4) * ROWS + (4 + 8) * medium


@every_query
def test_a_gpus_contender_ends_its_engine_with_the_case(name: str) -> None:
    for over in (0.5, 4.0):
        works = [
            larger_than_memory.gpu_work(contender, OnTheHost, contender.endswith("limited"), keys(name, over))
            for contender in ("streaming", "streaming-limited")
        ]
        for work in works:
            check(work)
            assert work.further()["peak_memory"].summary.median == 7
        assert [each.limit for each in OnTheHost.opened] == [None, larger_than_memory.limit_of(keys(name, over))]
    larger_than_memory.end()
    assert OnTheHost.opened == []


@pytest.mark.parametrize(
    "error", [MemoryError("of 3 lines\nTry"), RuntimeError("'cuda' failed: MemoryError: std::bad_alloc: out_of_memory")]
)
def test_memory_that_ran_out_is_recorded_as_that(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(query: object, engine: object, folder: Path) -> None:
        raise error

    monkeypatch.setattr(larger_than_memory, "write_sorted", fail)
    contender = replace(DECLARED.contenders["polars"], skip_reason=lambda device, keys: None)
    few = replace(DECLARED, contenders={"polars": contender})
    (case,) = runner.measure_case(few, keys("sort"), CPU)
    assert (case.status, case.reason) == ("out-of-memory", "the query needs more than the GPU's memory")
    with pytest.raises(MemoryError, match=r"more than the 12 MiB that it may use"):
        larger_than_memory.tell_out_of_memory(lambda: fail(None, None, Path()), 12 * 2**20)


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="no memory of it"):
        larger_than_memory.tell_out_of_memory(lambda: int("no memory of it"), 1)


def write(folder: Path, **changed: np.ndarray) -> None:
    """Write the sorted rows of the frame in two files, with changed columns."""
    rows = pq.read_table(queries.write_files(ROWS) / "frame.parquet", columns=["id6", "v3"])
    rows = rows.sort_by([("v3", "ascending"), ("id6", "ascending")])
    table = pa.table({name: changed.get(name, rows[name]) for name in ("id6", "v3")})
    larger_than_memory.empty(folder)
    (folder / "rows.parquet").mkdir()
    for part, start in enumerate((0, ROWS // 2)):
        pq.write_table(table.slice(start, ROWS // 2), folder / "rows.parquet" / f"part.{part:06d}.parquet")


def test_files_of_wrongly_sorted_rows_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "sorted"
    write(folder)
    larger_than_memory.check_sorted(folder, ROWS)
    with pytest.raises(AssertionError, match="20,000 rows were written, and 20,001 are right"):
        larger_than_memory.check_sorted(folder, ROWS + 1)
    write(folder, v3=np.arange(ROWS)[::-1].astype(float))
    with pytest.raises(AssertionError, match="not in order"):
        larger_than_memory.check_sorted(folder, ROWS)
    write(folder, id6=np.ones(ROWS, np.int32))
    with pytest.raises(AssertionError, match="others than the frame's"):
        larger_than_memory.check_sorted(folder, ROWS)


def test_cases_are_those_of_a_gpu_and_what_has_no_limit_is_measured_once() -> None:
    assert DECLARED.cases(CPU) == []
    cases = DECLARED.cases(H100)
    assert len(cases) == len(larger_than_memory.QUERIES) * len(larger_than_memory.OVER_MEMORY)
    for name, contender in DECLARED.contenders.items():
        measured = {case["over_memory"] for case in cases if contender.skip_reason(H100, case) is None}
        assert measured == ({3.0} if name in ("polars", "streaming") else set(larger_than_memory.OVER_MEMORY))


def test_an_older_engine_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DECLARED.contenders["streaming"].unavailable_reason()  # no GPU here, or no cudf-polars
    monkeypatch.setattr(limited_polars, "why_not_here", lambda engine: None)
    find = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(limited_polars, "importlib", find)
    assert "26.10" in (DECLARED.contenders["streaming-limited"].unavailable_reason() or "")


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@every_query
def test_executors_on_a_gpu_give_duckdbs_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why := limited_polars.why_no_streaming():
        pytest.skip(why)
    monkeypatch.setattr(larger_than_memory, "ROWS", 10**7)
    results = runner.measure_case(replace(DECLARED, samples=1), keys(name), devices.current())
    found = {case.contender: case.status for case in results}
    assert found.pop("in-memory-limited") in ("out-of-memory", "ok")
    assert found.pop("streaming-limited") in ("out-of-memory", "ok")
    assert set(found.values()) == {"ok"}

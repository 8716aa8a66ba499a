"""The choice of a place, compared with measured queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import synthetic_records as synthetic

from gpuguide.benchmarks.dataframes import queries, query_places
from gpuguide.benchmarks.dataframes.speed import measurements
from gpuguide.dataframes import Query, cost
from gpuguide.dataframes.query.choice import ON_GPU, estimate
from gpuguide.measure import store
from gpuguide.measure.records import Case, Record

ROWS = 300_000
MORE_ROWS = 10**7


@pytest.fixture(scope="module")
def machine() -> cost.MachineParameters:
    return cost.fit_parameters(measurements(store.load_published("dataframe")), ("polars", "duckdb"), ("cudf",))


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(queries, "ROW_GROUP", ROWS // 3)
    yield queries.write_files(ROWS)
    queries.end()


@pytest.mark.parametrize("name", queries.QUERIES)
def test_few_rows_say_of_the_work_what_all_rows_say(name: str, whole: Path, tmp_path: Path) -> None:
    few = query_places.write_few_rows(tmp_path, ROWS).source
    assert few.rows == query_places.WRITTEN_ROWS < ROWS
    frame = query_places.with_rows(few, ROWS)
    steps, result_rows = estimate(queries.QUERIES[name](Query(frame), tmp_path))
    right, right_rows = estimate(queries.QUERIES[name](Query(whole / "frame.parquet"), whole))
    assert [step.operation for step in steps] == [step.operation for step in right]
    assert [step.rows for step in steps] == pytest.approx([step.rows for step in right], rel=0.02)
    assert [step.row_bytes for step in steps] == pytest.approx([step.row_bytes for step in right], rel=0.2)
    assert result_rows == pytest.approx(right_rows, rel=0.2)


def record(seconds: dict[str, float]) -> Record:
    keys = [{"query": name, "rows": MORE_ROWS} for name in queries.QUERIES]
    cases = [synthetic.case(each, engine, time, {}) for each in keys for engine, time in seconds.items()]
    return synthetic.record("frame-queries", cases, synthetic.PUBLISHED)


def test_a_choice_is_right_where_its_place_was_the_faster_one(machine: cost.MachineParameters) -> None:
    gpu_first = query_places.compare_places(record({"polars": 2.0, "duckdb": 3.0, "cudf": 1.0}), machine)
    host_first = query_places.compare_places(record({"polars": 2.0, "duckdb": 0.5, "polars-gpu": 1.0}), machine)
    assert [each.query for each in gpu_first] == [each.query for each in host_first] == list(queries.QUERIES)
    for one, other in zip(gpu_first, host_first, strict=True):
        assert one.host_seconds == pytest.approx(2, rel=0.02)
        assert other.host_seconds == pytest.approx(0.5, rel=0.02)
        assert one.gpu_seconds == pytest.approx(1, rel=0.02)
        assert (one.host, one.gpu, other.host, other.gpu) == ("polars", "cudf", "duckdb", "polars-gpu")
        assert one.chosen == other.chosen
        assert one.is_right is (one.chosen in ON_GPU) is not other.is_right
    assert {each.is_right for each in gpu_first} == {True, False}


def test_a_query_without_a_gpu_is_left_out(machine: cost.MachineParameters) -> None:
    assert query_places.compare_places(record({"polars": 2.0, "duckdb": 3.0}), machine) == []


def test_a_case_that_failed_counts_for_no_place(machine: cost.MachineParameters) -> None:
    good = record({"polars": 2.0})
    failed = [Case(case.keys, "cudf", 0, "failed", reason="out of memory") for case in good.cases]
    both = synthetic.record("frame-queries", [*good.cases, *failed], synthetic.PUBLISHED)
    assert query_places.compare_places(both, machine) == []

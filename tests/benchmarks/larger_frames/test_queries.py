"""The benchmark of whole queries, on small files."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpuguide.benchmarks.larger_frames import queries
from gpuguide.dataframes import Query, cost, where_to_run
from gpuguide.dataframes.cost import FilePrices, Line, MachineParameters
from gpuguide.dataframes.operations import OPERATIONS
from gpuguide.dataframes.query.choice import estimate, file_amounts, work_in_memory
from gpuguide.dataframes.query.source import Source, open_source
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations

DECLARED = declarations.get("frame-queries")
ROWS = 20_000


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    yield
    queries.end()


@pytest.mark.parametrize("name", queries.QUERIES)
@pytest.mark.parametrize("engine", ["polars", "duckdb"])
def test_every_query_gives_duckdbs_answer(name: str, engine: str) -> None:
    work = DECLARED.contenders[engine].build(devices.cpu(), {"query": name, "rows": ROWS})
    assert work.check
    work.check()
    assert work.calls[0]().num_rows > 10  # type: ignore[attr-defined]


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@pytest.mark.parametrize("name", queries.QUERIES)
@pytest.mark.parametrize("engine", ["cudf", "polars-gpu"])
def test_every_query_gives_duckdbs_answer_on_a_gpu(name: str, engine: str) -> None:
    if why := DECLARED.contenders[engine].unavailable_reason():
        pytest.skip(why)
    work = DECLARED.contenders[engine].build(devices.cpu(), {"query": name, "rows": ROWS})
    assert work.check
    work.check()


def test_the_frame_is_that_of_db_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "ROW_GROUP", ROWS // 4)
    folder = queries.write_files(ROWS)
    found = pq.read_table(folder / "frame.parquet")
    distinct = {name: pa.compute.count_distinct(found[name]).as_py() for name in found.column_names}
    assert found.num_rows == ROWS
    assert [distinct[name] for name in ("id1", "id2", "id4", "id5", "v1", "v2")] == [100, 100, 100, 100, 5, 15]
    assert distinct["id3"] == distinct["id6"] == ROWS // 100
    assert pq.ParquetFile(folder / "frame.parquet").num_row_groups == 4
    assert found.nbytes / ROWS < queries.ROW_BYTES
    assert pq.read_table(folder / "medium.parquet").num_rows == ROWS // 100 * 9 // 10


def test_differences_are_told() -> None:
    right = pa.table({"key": [1, 2], "v_sum": [0.5, 1.0]})
    assert queries.difference(pa.table({"key": [2, 1], "v_sum": [1.0 + 1e-14, 0.5]}), right) is None
    for wrong, told in (
        (pa.table({"key": [2, 1], "v_sum": [1.0 + 1e-9, 0.5]}), "'v_sum' differs"),
        (pa.table({"key": [1, 3], "v_sum": [0.5, 1.0]}), "'key' differs"),
        (pa.table({"key": [1], "v_sum": [0.5]}), "are right"),
    ):
        assert told in str(queries.difference(wrong, right))


def test_a_result_that_is_wrong_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    work = DECLARED.contenders["polars"].build(devices.cpu(), {"query": "q1", "rows": ROWS})
    monkeypatch.setattr(queries, "right_result", lambda name, rows: pa.table({"id1": ["id001"], "v1_sum": [3]}))
    assert work.check
    with pytest.raises(AssertionError, match="q1 on polars"):
        work.check()


def test_the_files_are_deleted_at_the_end() -> None:
    folder = queries.write_files(1000)
    assert (folder / "frame.parquet").is_file()
    queries.end()
    assert not folder.exists()


# --- what the prices of queries on files are fitted to ----------------------------------------------------

LINES = {(engine, op): Line(1e-4, 1e-9) for engine in ("polars", "cudf") for op in OPERATIONS}
MACHINE = MachineParameters(
    {pair: line for pair, line in LINES.items() if pair[0] == "polars"},
    {pair: Line(1e-3, 1e-11) for pair in LINES if pair[0] == "cudf"},
    {},
    {},
)


@pytest.mark.parametrize("name", queries.QUERIES)
def test_described_files_are_like_written_ones(name: str) -> None:
    compare(queries.make_query({"query": name, "rows": ROWS}), queries.describe_query(name, ROWS))


@pytest.mark.parametrize("name", queries.QUERIES)
@pytest.mark.parametrize("rows", [queries.ROWS_ON_CPU, *queries.ROWS])
def test_described_files_are_like_large_ones(name: str, rows: int, tmp_path: Path) -> None:
    """One row group of the large file tells what the others do, rows aside."""
    frame, many = write_row_group(rows), rows // queries.GROUPS
    for file, key, ids in (("small.parquet", "id4", queries.GROUPS), ("medium.parquet", "id6", many)):
        queries.write_joined(tmp_path / file, key, ids)
    compare(queries.QUERIES[name](Query(replace(frame, rows=rows)), tmp_path), queries.describe_query(name, rows))


@functools.cache
def write_row_group(rows: int) -> Source:
    """Return what is known of a file with the first row group of the frame."""
    few_texts = pa.array([f"id{number:03d}" for number in range(queries.GROUPS + 1)])
    many_texts = pa.array([f"id{number:010d}" for number in range(rows // queries.GROUPS + 1)])
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        pq.write_table(queries.make_row_group(0, rows, few_texts, many_texts), file.name)
        return open_source(file.name)


def compare(written: Query, described: Query) -> None:
    """Assert that two queries have nearly the same amounts and the same operations."""
    assert list(written.source.schema) == list(described.source.schema)
    assert written.schema == described.schema
    one, other = (vars(file_amounts(query, 0.0)) for query in (written, described))
    assert one == {name: pytest.approx(amount, rel=0.05) for name, amount in other.items()}
    (steps, _), (others, _) = estimate(written), estimate(described)
    assert [step.operation for step in steps] == [step.operation for step in others]
    for step, like in zip(steps, others, strict=True):
        assert step.rows == pytest.approx(like.rows, rel=0.05)
        assert step.row_bytes == pytest.approx(like.row_bytes, rel=0.05)


def made_up_record(prices: dict[str, FilePrices]) -> Any:
    """Return a record of ``frame-queries`` whose times the prices give."""
    cases = []
    for engine, own in prices.items():
        for keys in queries.cases(devices.fake("h100-sxm")):
            query = queries.describe_query(str(keys["query"]), int(keys["rows"]))
            work = work_in_memory(engine, estimate(query)[0], MACHINE)
            assert work is not None
            seconds = own.predict(file_amounts(query, work))
            measured = {"time": SimpleNamespace(summary=SimpleNamespace(median=seconds))}
            cases.append(SimpleNamespace(keys=keys, contender=engine, status="ok", measured=measured))
    return SimpleNamespace(cases=cases)


def test_prices_are_found_again_from_a_record() -> None:
    right = {
        "polars": FilePrices(numbers=2e-10, codes=4e-10, text=1e-9, work=0.5, query=1e-3),
        "cudf": FilePrices(numbers=1e-11, codes=2e-11, text=5e-11, work=1.2, query=1e-2),
        "polars-gpu": FilePrices(numbers=2e-11, codes=1e-11, text=4e-11, work=2.0, query=3e-2),
    }
    record = made_up_record(right)
    record.cases.append(SimpleNamespace(**{**vars(record.cases[0]), "status": "failed"}))
    record.cases.append(SimpleNamespace(**{**vars(record.cases[0]), "contender": "duckdb"}))
    times = queries.query_times(record, MACHINE)
    assert len(times) == len(right) * len(queries.ROWS) * len(queries.QUERIES)
    found = cost.fit_files(times)
    for engine, prices in right.items():
        assert vars(found[engine]) == {name: pytest.approx(price, rel=1e-5) for name, price in vars(prices).items()}
    verdicts = cost.unseen_queries(times)
    assert len(verdicts) == 20
    assert all(verdict.right for verdict in verdicts.values())
    asked = queries.make_query({"query": "q3", "rows": ROWS})
    choice = where_to_run(asked, machine=replace(MACHINE, files=found))
    assert choice.from_files
    assert set(choice.seconds) == set(right)

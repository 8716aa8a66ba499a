"""The benchmark of whole queries, on small files."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpuguide.benchmarks.larger_frames import queries
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

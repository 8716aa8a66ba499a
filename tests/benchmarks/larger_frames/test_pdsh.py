"""The benchmark of PDS-H, on small tables."""

from __future__ import annotations

import itertools
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpuguide.benchmarks.larger_frames import pdsh
from gpuguide.dataframes.pdsh import plans, statements, tables
from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import Work

DECLARED = declarations.get("pds-h")
SCALE = 0.1
"""The smallest at which every query finds something"""

pytestmark = pytest.mark.skipif(
    tables.find_generator() is None, reason="tpchgen-cli is not installed; it comes with the extra test"
)


@pytest.fixture(scope="module", autouse=True)
def files() -> Iterator[Path]:
    yield pdsh.write_files(SCALE)
    pdsh.end()


def work_of(engine: str, name: str) -> Work:
    return DECLARED.contenders[engine].build(devices.cpu(), {"query": name, "scale": SCALE})


@pytest.mark.parametrize("name", plans.PLANS)
def test_polars_gives_duckdbs_answer(name: str) -> None:
    work = work_of("polars", name)
    assert work.check
    work.check()
    assert pdsh.right_result(name, SCALE).num_rows > 0
    assert None not in pdsh.right_result(name, SCALE).to_pylist()[0].values()


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@pytest.mark.parametrize("name", plans.PLANS)
@pytest.mark.parametrize("engine", pdsh.ON_A_GPU)
def test_polars_gives_duckdbs_answer_on_a_gpu(engine: str, name: str) -> None:
    if why := DECLARED.contenders[engine].unavailable_reason():
        pytest.skip(why)
    work = work_of(engine, name)
    assert work.check
    work.check()


def test_there_are_22_queries_as_plans_and_in_sql() -> None:
    assert list(plans.PLANS) == list(statements.STATEMENTS) == [f"q{number:02}" for number in range(1, 23)]
    assert [case["query"] for case in DECLARED.cases(devices.cpu())] == list(plans.PLANS)


def test_tables_have_the_rows_of_the_specification_and_doubles_for_decimals(files: Path) -> None:
    found = {name: pq.read_table(files / name) for name in tables.ROWS}
    for name, rows in tables.ROWS.items():
        assert found[name].num_rows == pytest.approx(rows * SCALE, rel=1e-2) or not rows
        assert not any(pa.types.is_decimal(type) for type in found[name].schema.types)
    assert (found["nation"].num_rows, found["region"].num_rows) == (25, 5)
    price = found["lineitem"]["l_extendedprice"].to_numpy()
    assert (np.rint(price * 100) / 100 == price).all()
    assert {path.name for path in files.iterdir()} == set(tables.ROWS)


def test_a_large_table_is_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    monkeypatch.setattr(tables, "FILE_ROWS", 20_000)
    monkeypatch.setattr(tables, "ROW_GROUP", 2048)
    tables.write_tables(tmp_path, 0.01)
    paths = tables.list_files(tmp_path, "lineitem")
    assert len(paths) == 3
    assert pq.ParquetFile(paths[0]).num_row_groups > 5
    orders = [pq.read_table(path, columns=["l_orderkey"])["l_orderkey"].to_numpy() for path in paths]
    assert all((np.diff(keys) >= 0).all() for keys in orders)
    assert all(before[-1] < after[0] for before, after in itertools.pairwise(orders))
    for name in ("q01", "q18"):
        plan = plans.PLANS[name](tables.scan(tmp_path, 0.01))
        right = statements.run(name, tmp_path, 0.01)
        assert pdsh.difference(plan.collect(engine="streaming").to_arrow(), right) is None


def test_differences_are_told() -> None:
    right = pa.table({"key": ["a", "b"], "total": [0.5, 1.0], "rows": pa.array([1, 2], pa.decimal128(38, 0))})
    good = pa.table({"key": ["b", "a"], "total": [1.0 + 1e-12, 0.5], "rows": pa.array([2, 1], pa.uint32())})
    assert pdsh.difference(good, right) is None
    for column, values, told in (
        ("total", [1.0 + 1e-6, 0.5], "'total' differs"),
        ("rows", [1, 2], "'rows' differs"),
        ("key", ["b", "c"], "'key' differs"),
    ):
        position = good.column_names.index(column)
        assert told in str(pdsh.difference(good.set_column(position, column, pa.array(values)), right))
    assert "are right" in str(pdsh.difference(good.slice(1), right))


def test_a_result_that_is_wrong_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_of("polars", "q06")
    monkeypatch.setattr(pdsh, "right_result", lambda name, scale: pa.table({"revenue": [1.0]}))
    assert work.check
    with pytest.raises(AssertionError, match="q06 on polars"):
        work.check()


def test_without_the_generator_the_reason_has_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert DECLARED.contenders["polars"].unavailable_reason() == (
        "tpchgen-cli is not installed; pip install tpchgen-cli"
    )
    with pytest.raises(GpuguideError, match="pip install tpchgen-cli"):
        tables.write_part(tmp_path, 0.01, "nation", 1, 1)


def test_a_generator_that_fails_is_an_error_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_generator", lambda: shutil.which("false"))
    with pytest.raises(GpuguideError, match="cannot write nation: it gave no reason"):
        tables.write_part(tmp_path, 0.01, "nation", 1, 1)

"""All engines agree with Arrow's functions, and these with a few lines of Python, on everything that may be odd."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import pandas
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide import dataframes
from gpuguide.dataframes import data, engines, operations
from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.engines.cudf_frames import CuDF, check_fits
from gpuguide.dataframes.engines.dense_keys import DenseKeys
from gpuguide.dataframes.engines.interface import cannot_run
from gpuguide.dataframes.engines.pandas_like import Accelerated, PandasLike, fell_back, no_fallback
from gpuguide.errors import GpuguideError

ON_HOST = ["pandas", "polars", "polars-lazy", "duckdb"]
every_engine = pytest.mark.parametrize("name", ON_HOST)
every_operation = pytest.mark.parametrize("operation", operations.OPERATIONS)
Row = dict[str, Any]


@functools.cache
def engine(name: str) -> engines.DataframeEngine:
    return engines.engine(name)


def table_of(rows: list[tuple[int | None, int | None, float | None, str | None]]) -> pa.Table:
    types = (pa.int32(), pa.int64(), pa.float64(), pa.string())
    columns = zip(*rows, strict=True) if rows else [(), (), (), ()]
    arrays = [pa.array(list(column), type) for column, type in zip(columns, types, strict=True)]
    return data.normalize_table(pa.table(dict(zip(data.COLUMNS, arrays, strict=True))))


def lookup_of(rows: list[tuple[int | None, float]]) -> pa.Table:
    ids, weights = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"id": pa.array(ids, pa.int64()), "weight": pa.array(weights, pa.float64())})


LOOKUP = lookup_of([(1, 0.25), (1, 0.75), (2, 0.5), (None, 0.125), (9, 0.0)])
FRAMES = {
    "random": data.normalize_table(data.frame(3000, keys=20, ids=12)),
    "missing values and NaN": data.normalize_table(data.frame(3000, keys=20, ids=12, nulls=0.2, nans=0.2)),
    "empty": data.normalize_table(data.frame(0)),
    "one row": table_of([(7, 1, 0.75, "Zürich")]),
    "one row of nothing": table_of([(None, None, None, None)]),
    "NaN alone": table_of([(1, 1, math.nan, "ü")] * 3),
    "all keys equal": data.normalize_table(data.frame(2000, keys=1, ids=1)),
    "no key at all": table_of([(None, None, 0.1 * n, "ü") for n in range(10)]),
    "strings beyond ASCII": table_of(
        [(1, 1, 0.6, text) for text in ("", "ü", "u\u0308", "Ü", "🌍ü", "東京", "aüb" * 99)]
    ),
    "extremes": table_of([(-(2**31), -(2**63), 1e308, ""), (2**31 - 1, 2**63 - 1, -1e308, ""), (0, 0, math.inf, "")]),
    "equal values": table_of([(n % 3, n % 2, 0.5 + (n % 2), "ü") for n in range(30)]),
}


# --- the reference, in a few lines of Python --------------------------------------------------------------


def by_hand(operation: str, table: pa.Table, lookup: pa.Table) -> list[Row]:
    """Return the resulting rows, in any order."""
    rows: list[Row] = table.to_pylist()

    def is_large(row: Row) -> bool:
        return row["value"] is not None and row["value"] > 0.5

    def grouped(some: list[Row], key: str) -> list[Row]:
        values = {row[key]: [] for row in some if row[key] is not None}
        for row in some:
            if row[key] is not None and row["value"] is not None:
                values[row[key]].append(row["value"])
        return [{key: group, "count": len(them), "sum": math.fsum(them)} for group, them in values.items()]

    if operation == "filter":
        return [row for row in rows if is_large(row)]
    if operation == "groupby":
        return grouped(rows, "key")
    if operation == "groupby-many":
        return grouped(rows, "id")
    if operation == "filter-groupby":
        return grouped([row for row in rows if is_large(row)], "key")
    if operation == "join":
        return [row | other for row in rows for other in lookup.to_pylist() if row["id"] == other["id"] is not None]
    if operation == "sort":
        return sorted(rows, key=lambda row: (row["value"] is None, row["value"] or 0.0))
    if operation == "string":
        return [row | {"length": len(row["name"])} for row in rows if row["name"] is not None and "ü" in row["name"]]
    means = {group["key"]: group["sum"] / group["count"] for group in grouped(rows, "key") if group["count"]}
    return [row | {"mean": means.get(row["key"])} for row in rows]


@every_operation
@pytest.mark.parametrize("name", [name for name in FRAMES if name != "extremes"])
def test_the_reference_is_right(operation: str, name: str) -> None:
    table = FRAMES[name].slice(0, 300)
    found = operations.reference(operation, table, LOOKUP)
    wanted = pa.Table.from_pylist(
        by_hand(operation, table, LOOKUP), operations.reference(operation, table, LOOKUP).schema
    )
    assert operations.difference(operation, found, wanted) is None
    assert found.column_names == list(operations.get(operation).result_columns)


@every_operation
@pytest.mark.parametrize("name", FRAMES)
def test_the_number_of_resulting_rows_is_known_beforehand(operation: str, name: str) -> None:
    lookup = data.lookup(3000, ids=12)
    wanted = operations.reference(operation, FRAMES[name], lookup).num_rows
    assert operations.result_rows(operation, FRAMES[name], lookup) == wanted


# --- the engines ------------------------------------------------------------------------------------------


def agrees(name: str, operation: str, table: pa.Table, lookup: pa.Table = LOOKUP) -> None:
    found = engines.call_with_transfer(engine(name), operation, table, lookup, "in-out")()
    assert operations.difference(operation, found, operations.reference(operation, table, lookup)) is None


@every_engine
@every_operation
@pytest.mark.parametrize("frame", FRAMES)
def test_all_engines_agree(name: str, operation: str, frame: str) -> None:
    agrees(name, operation, FRAMES[frame])


@every_engine
@every_operation
def test_all_engines_agree_where_nothing_has_a_partner(name: str, operation: str) -> None:
    agrees(name, operation, FRAMES["random"], lookup_of([]))


ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-2, 2),
        st.none() | st.integers(0, 3),
        st.none() | st.floats(0, 4, allow_subnormal=False),
        st.none() | st.text("aü🌍 ", max_size=4),
    ),
    max_size=12,
)


@every_operation
@given(rows=ROWS)
def test_all_engines_agree_on_any_frame(operation: str, rows: list[Any]) -> None:
    for name in ON_HOST:
        agrees(name, operation, table_of(rows))


@every_engine
def test_sums_of_integers_have_64_bits_in_every_engine(name: str) -> None:
    table = pa.table(
        {
            "key": pa.array([1, 1, 2, 2, None], pa.int32()),
            "value": pa.array([2**31 - 1, 2**31 - 1, 5, None, 7], pa.int32()),
        }
    )
    found = engine(name).unload(engine(name).group_by(dataframes.load(table, engine(name)), "key"))
    rows = sorted(operations.canonical("groupby", found).to_pylist(), key=lambda row: row["key"])
    assert rows == [{"key": 1, "count": 2, "sum": 2**32 - 2}, {"key": 2, "count": 1, "sum": 5}]


@every_engine
@pytest.mark.parametrize("transfer", ["none", "in", "in-out"])
def test_what_is_timed_does_the_whole_work(name: str, transfer: str) -> None:
    """A call returns rows, not a plan, and can be repeated; brought back they are an Arrow table."""
    table = FRAMES["random"]
    call = engines.call_with_transfer(engine(name), "sort", table, None, transfer)
    for _ in range(2):
        result = call()
        assert len(result) == table.num_rows
        assert isinstance(result, pa.Table) is (transfer == "in-out" or name == "duckdb")


@every_engine
def test_a_frame_comes_back_as_it_went(name: str) -> None:
    back = engine(name).unload(engine(name).load(FRAMES["missing values and NaN"]))
    assert back.select(list(data.COLUMNS)).cast(FRAMES["random"].schema).equals(FRAMES["missing values and NaN"])


def test_duckdb_forgets_frames_that_nobody_holds() -> None:
    duckdb = engines.engine("duckdb")
    frame = duckdb.load(FRAMES["random"])
    shown = duckdb.connection.sql("SHOW TABLES")  # type: ignore[attr-defined]
    assert len(shown.fetchall()) == 1
    del frame
    assert duckdb.connection.sql("SHOW TABLES").fetchall() == []  # type: ignore[attr-defined]


@every_engine
def test_an_engine_is_checked_against_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engines.check(engine(name), "sort", 500)
    monkeypatch.setattr(engine(name), "sort", engine(name).filter)
    with pytest.raises(AssertionError, match=r"^sort on .*: there are \d+ rows, and 500 are right$"):
        engines.check(engine(name), "sort", 500)


@pytest.mark.parametrize("operation", ["filter", "groupby", "sort", "window", "string"])
def test_a_wrong_result_is_told(operation: str) -> None:
    table = FRAMES["random"]
    right = operations.reference(operation, table, LOOKUP)
    column = {"filter": "id", "groupby": "sum", "sort": "value", "window": "mean", "string": "length"}[operation]
    values = right[column].to_pylist()
    values[5] += 1e-11 * values[5] if column in operations.COMPUTED else 1
    wrong = right.set_column(right.column_names.index(column), column, pa.array(values, right[column].type))
    assert operations.difference(operation, wrong, right) is not None
    assert operations.difference(operation, right.drop_columns([column]), right) == f"there is no column {column!r}"
    assert operations.difference(operation, right.slice(1), right) is not None


def test_rounding_in_the_last_digits_is_no_difference() -> None:
    right = operations.reference("groupby", FRAMES["random"])
    near = pa.array([value * (1 + 1e-13) for value in right["sum"].to_pylist()])
    assert operations.difference("groupby", right.set_column(2, "sum", near), right) is None


def test_a_sort_in_the_wrong_order_is_told() -> None:
    right = operations.reference("sort", FRAMES["random"])
    assert operations.difference("sort", right.slice(0).take(list(range(2999, -1, -1))), right) == (
        "the rows are not in the order of their values"
    )


# --- users' functions -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:(?s).*map_elements is significantly slower")
@every_engine
def test_a_users_function_is_called_for_each_value(name: str) -> None:
    table = pa.table({"value": [1.0, 2.5, 4.0]})
    found = engine(name).unload(engine(name).apply(engine(name).load(table), lambda value: 2 * value + 1))
    assert found["result"].to_pylist() == [3.0, 6.0, 9.0]


@every_engine
def test_a_function_that_cannot_be_run_is_named(name: str) -> None:
    def opens_a_file(value: float) -> float:
        raise TypeError("no implementation of open() found")

    frame = engine(name).load(pa.table({"value": [1.0, 2.0]}))
    with pytest.raises(GpuguideError, match=r"cannot run the function 'opens_a_file' on column 'value' \(.*\)\. Write"):
        engine(name).apply(frame, opens_a_file)


# --- which engines are here -------------------------------------------------------------------------------


def test_engines_on_the_host_are_here_and_others_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudf_frames.torch.cuda, "is_available", lambda: False)
    found = engines.engines()
    assert list(found) == list(engines.ENGINES)
    assert [name for name, reason in found.items() if reason is None] == ON_HOST
    for name in ("cudf", "cudf-pandas", "polars-gpu"):
        assert found[name] == "cuDF needs an NVIDIA GPU, and PyTorch sees none"
        with pytest.raises(GpuguideError, match="Engines that can run here: pandas, polars, polars-lazy, duckdb"):
            engines.engine(name)


def test_an_old_gpu_and_a_missing_cudf_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudf_frames.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cudf_frames.torch.cuda, "get_device_capability", lambda: (6, 1))
    assert cudf_frames.why_not_here() == "cuDF needs a GPU of compute capability 7.0 or newer, and this one has 6.1"
    monkeypatch.setattr(cudf_frames.torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setitem(__import__("sys").modules, "cudf", None)
    reason = cudf_frames.why_not_here()
    assert reason is not None
    assert "it comes with the extra cuda12 or cuda13: pip install 'gpuguide[cuda13]'" in reason


def test_a_cudf_that_fails_while_it_is_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the error that cuDF raises where it finds no CUDA library, which is not an ``ImportError``."""

    def fails(name: str) -> None:
        raise RuntimeError('Failure finding "libnvJitLink.so.13": No such file\nand where it was looked for')

    monkeypatch.setattr(cudf_frames.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cudf_frames.torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("gpuguide.dataframes.libraries.importlib.import_module", fails)
    assert cudf_frames.why_not_here() == (
        'cudf cannot be imported (Failure finding "libnvJitLink.so.13": No such file); '
        "it comes with the extra cuda12 or cuda13: pip install 'gpuguide[cuda13]'"
    )


def test_pandas_under_the_accelerator_is_not_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    sys_modules = __import__("sys").modules
    monkeypatch.delitem(sys_modules, "cudf.pandas", raising=False)
    assert not engines.is_accelerated()
    for loaded in (False, True):
        monkeypatch.setitem(sys_modules, "cudf.pandas", SimpleNamespace(LOADED=loaded))
        assert engines.is_accelerated() is loaded
        assert (engines.why_not_here("pandas") is None) is not loaded


def test_a_missing_library_of_the_host_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None if name == "polars" else object())
    assert engines.engines()["polars"] == (
        "polars is not installed; it comes with the extra dataframes: pip install 'gpuguide[dataframes]'"
    )
    assert engines.engines()["duckdb"] is None


def test_unknown_names_list_the_near_ones() -> None:
    with pytest.raises(GpuguideError, match=r"no engine named 'pandsa'. Did you mean pandas"):
        engines.engine("pandsa")
    with pytest.raises(GpuguideError, match=r"no operation named 'sorted'. Did you mean sort"):
        dataframes.run("sorted", FRAMES["random"], engine="pandas")


def test_a_table_without_what_an_operation_needs_is_told() -> None:
    with pytest.raises(
        GpuguideError, match=r"'groupby' needs the column 'key'; the frame has value\. Give the .*'yours': 'key'"
    ):
        dataframes.run("groupby", pa.table({"value": [1.0]}), engine="pandas")
    with pytest.raises(GpuguideError, match="'join' needs a second table with the column 'id'"):
        dataframes.run("join", FRAMES["random"], engine="pandas")


@every_engine
def test_an_operation_on_arrow_tables_in_one_call(name: str) -> None:
    found = dataframes.run("join", FRAMES["random"], LOOKUP, engine=name)
    wanted = operations.reference("join", FRAMES["random"], LOOKUP)
    assert operations.difference("join", engine(name).unload(found), wanted) is None


# --- what runs on a GPU, as far as it can be tried without ------------------------------------------------


def test_cudf_and_the_accelerator_make_the_calls_that_pandas_is_tested_with() -> None:
    for kind in (CuDF, Accelerated):
        for method in ("filter", "group_by", "join", "sort", "filter_group_by", "search", "window", "apply"):
            assert getattr(kind, method) is getattr(PandasLike, method)


def test_a_frame_that_does_not_fit_is_refused_before_it_is_copied() -> None:
    copied: list[pa.Table] = []
    module = SimpleNamespace(DataFrame=SimpleNamespace(from_arrow=copied.append))
    table = data.frame(1000, columns=("value",))
    CuDF(module, lambda: 8000).load(table)  # type: ignore[arg-type]
    with pytest.raises(GpuguideError, match="Up to 999 such rows fit"):
        CuDF(module, lambda: 8000 - 1).load(table)  # type: ignore[arg-type]
    assert copied == [table]


def test_a_refusal_without_a_message_is_told_too() -> None:
    told = str(cannot_run("polars", abs, ValueError(), "Write it as expressions."))
    assert told == (
        "polars cannot run the function 'abs' on column 'value' (ValueError: no message). Write it as expressions."
    )


@pytest.mark.parametrize(
    ("operation", "size", "rows", "free"),
    [
        (None, 0, 0, 0),
        (None, 100, 10, 100),
        ("sort", 200, 10, 800),
        ("filter", 20 * 10**9, 10**9, 53 * 10**9),
        ("groupby", 12 * 10**9, 10**9, 44 * 10**9),
        ("groupby", 20 * 10**9, 10**9, 60 * 10**9),
    ],
)
def test_the_size_that_fits_is_accepted(operation: str | None, size: int, rows: int, free: int) -> None:
    check_fits(size, rows, free, operation)
    if size:
        with pytest.raises(GpuguideError, match="work on parts of that size") as caught:
            check_fits(size, rows, free - 1, operation)
        assert f"Up to {rows - 1:,} such rows fit" in str(caught.value)
        assert (f"the operation {operation!r} with it" in str(caught.value)) is (operation is not None)


def test_an_operation_that_does_not_fit_is_refused_before_its_frame_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sort needs more than a filter of the same frame."""
    table = data.frame(1000, columns=("key", "id", "value"))
    copied: list[pa.Table] = []
    cudf = CuDF(pandas, lambda: 60_000)
    monkeypatch.setattr(CuDF, "load", lambda self, table: copied.append(table) or PandasLike().load(table))
    monkeypatch.setattr(engines, "engine", lambda name: cudf)
    assert len(dataframes.run("filter", table, engine="cudf")) > 0
    assert len(copied) == 1
    with pytest.raises(GpuguideError, match="the operation 'sort' with it about"):
        dataframes.run("sort", table, engine="cudf")
    assert len(copied) == 1


def dense(groups: int) -> DenseKeys:
    return DenseKeys(groups, module=pandas, device="cpu")


@pytest.mark.parametrize("operation", ["group_by", "filter_group_by"])
def test_keys_that_are_no_group_of_ours_are_told_when_the_result_is_looked_at(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without a key are none of them."""
    monkeypatch.setattr(pandas.Series, "null_count", property(lambda self: self.isna().sum()), raising=False)
    ours = dense(3)
    for keys, strangers in (([0, 3, -1, 2, None], 2), ([0, 1, 2, 2, None], 0), ([0, 1, 5, 2, 2], 1)):
        frame = pandas.DataFrame({"key": pandas.array(keys, dtype="Int64"), "value": [0.75, 0.25, 1.0, 1.0, 1.0]})
        if None not in keys:
            frame["key"] = frame["key"].astype("int64")
        result = getattr(ours, operation)(frame, *(["key"] if operation == "group_by" else []))
        if strangers:
            with pytest.raises(GpuguideError, match=f"^{strangers} rows have a key that is not from 0 to 2"):
                ours.unload(result)
        else:
            assert sum(ours.unload(result)["count"].to_pylist()) == (4 if operation == "group_by" else 3)


@pytest.mark.parametrize("operation", ["groupby", "groupby-many", "filter-groupby"])
@pytest.mark.parametrize(
    "frame", ["random", "missing values and NaN", "NaN alone", "empty", "all keys equal", "no key at all"]
)
def test_our_group_by_agrees_with_the_engines(operation: str, frame: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On pandas' frames, whose columns are asked for as cuDF's are."""
    ours, table = dense(20), FRAMES[frame]
    monkeypatch.setattr(pandas.Series, "null_count", property(lambda self: self.isna().sum()), raising=False)
    monkeypatch.setattr(CuDF, "unload", lambda self, result: PandasLike().unload(result))
    found = ours.unload(engines.call(ours, operation, PandasLike().load(table))())
    assert operations.difference(operation, found, operations.reference(operation, table)) is None


def test_falling_back_is_an_error_within_a_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from os import environ

    for before in (None, "0"):
        monkeypatch.delenv("CUDF_PANDAS_FAIL_ON_FALLBACK", raising=False)
        if before is not None:
            monkeypatch.setenv("CUDF_PANDAS_FAIL_ON_FALLBACK", before)
        with no_fallback():
            assert environ["CUDF_PANDAS_FAIL_ON_FALLBACK"] == "1"
        assert environ.get("CUDF_PANDAS_FAIL_ON_FALLBACK") == before


def test_the_accelerators_frame_comes_back_from_cudfs() -> None:
    """Through methods that its objects have for everybody, and with no index among the columns."""
    asked = []

    class OnGpu:
        def to_arrow(self, preserve_index: bool) -> str:
            asked.append(preserve_index)
            return "table"

    engine = object.__new__(Accelerated)
    assert engine.unload(SimpleNamespace(as_gpu_object=OnGpu)) == "table"
    assert asked == [False]


@pytest.mark.parametrize(("state", "expected"), [("FAST", False), ("SLOW", True)])
def test_a_result_that_pandas_computed_is_noticed(state: str, expected: bool) -> None:
    assert fell_back(SimpleNamespace(_fsproxy_state=SimpleNamespace(name=state))) is expected
    assert not fell_back(FRAMES["random"])


# --- on a GPU ---------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@every_operation
@pytest.mark.parametrize("frame", FRAMES)
def test_cudf_agrees(operation: str, frame: str) -> None:
    agrees("cudf", operation, FRAMES[frame])


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@every_operation
def test_cudf_agrees_where_nothing_has_a_partner(operation: str) -> None:
    agrees("cudf", operation, FRAMES["random"], lookup_of([]))


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@every_operation
@pytest.mark.parametrize("frame", FRAMES)
def test_what_we_copied_is_to_cudf_as_if_it_had_copied_it(operation: str, frame: str) -> None:
    """With our group-by, where the keys are ours to group."""
    table, cudf = FRAMES[frame], engine("cudf")
    is_ours = operation in ("groupby", "filter-groupby")
    keys = [key for key in table["key"].to_pylist() if key is not None]
    if is_ours and not all(0 <= key < 20 for key in keys):
        pytest.skip("keys that are not 0, 1, … 19 are in no group of ours")
    ours = DenseKeys(20)
    found = ours.unload(engines.call(ours, operation, ours.load(table), cudf.load(LOOKUP))())
    assert operations.difference(operation, found, operations.reference(operation, table, LOOKUP)) is None


@pytest.mark.gpu
@pytest.mark.needs("cudf")
def test_sums_of_integers_have_64_bits_in_cudf() -> None:
    values = pa.array([2**31 - 1, 2**31 - 1, 5, None], pa.int32())
    table = pa.table({"key": pa.array([1, 1, 2, 2], pa.int32()), "value": values})
    found = engine("cudf").unload(engine("cudf").group_by(dataframes.load(table, engine("cudf")), "key"))
    rows = sorted(operations.canonical("groupby", found).to_pylist(), key=lambda row: row["key"])
    assert rows == [{"key": 1, "count": 2, "sum": 2**32 - 2}, {"key": 2, "count": 1, "sum": 5}]

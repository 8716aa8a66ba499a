"""Queries on a stranger's file: every engine agrees with SQL that was written by hand for DuckDB."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import taxi_like
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.dataframes import Query, query, where_to_run
from gpuguide.dataframes.cost import FileAmounts, FilePrices, Line, MachineParameters
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.operations import OPERATIONS, TOLERANCE
from gpuguide.dataframes.query import choice, polars_plan, source
from gpuguide.dataframes.query.cudf_calls import CuDFCalls
from gpuguide.dataframes.query.polars_plan import OPERATORS
from gpuguide.errors import GpuguideError, UnknownName

ON_HOST = ("polars", "duckdb")
ON_GPU = ("cudf", "polars-gpu")
Build = Callable[[Query, str], Query]


class PandasCalls(CuDFCalls):
    """The calls of cuDF, done by pandas on Arrow's types, whose missing values behave as cuDF's do."""

    def load(self, source: source.Source, columns: Sequence[str]) -> Any:
        table = pq.read_table(list(source.paths)) if source.paths else source.table
        table = source_of(table.select(list(columns))).table
        for index, name in enumerate(table.column_names):
            if pa.types.is_floating(table.schema.field(name).type):
                nan = pa.compute.is_nan(table[name])
                table = table.set_column(index, name, pa.compute.if_else(nan, None, table[name]))
            elif pa.types.is_date(table.schema.field(name).type):  # cuDF has no days
                table = table.set_column(index, name, table[name].cast(pa.timestamp("s")))
        return table.to_pandas(types_mapper=pandas.ArrowDtype)

    def unload(self, frame: Any) -> Any:
        return pa.Table.from_pandas(frame, preserve_index=False)

    def cast(self, column: Any, type: str) -> Any:
        return column.astype(pandas.ArrowDtype(pa.type_for_alias(type)))


source_of = source.open_source


def run(name: str, asked: Query) -> pa.Table:
    if name == "pandas":
        return query.finish(PandasCalls().run(asked), asked.schema)
    return asked.on(name)


# --- comparing --------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value with one form for one moment, whatever its zone and unit."""
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC) if value.tzinfo else value
    return value


def canonical(table: pa.Table, ordered: bool) -> list[dict[str, Any]]:
    """Return rows, sorted by what was not computed unless their order counts."""
    rows = [{name: plain(value) for name, value in row.items()} for row in table.to_pylist()]
    exact = [name for name in table.column_names if not name.endswith(("_sum", "_mean"))]
    return rows if ordered else sorted(rows, key=lambda row: [(row[name] is None, str(row[name])) for name in exact])


def close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE)
    return bool(one == other)


def assert_equal(found: pa.Table, right: pa.Table, ordered: bool = False) -> None:
    assert found.column_names == right.column_names
    assert found.num_rows == right.num_rows
    for one, other in zip(canonical(found, ordered), canonical(right, ordered), strict=True):
        assert all(close(one[name], other[name]) for name in one), f"{one} is not {other}"


# --- twenty queries ---------------------------------------------------------------------------------------

TIP = "CASE WHEN NOT isnan(tip) THEN tip END"
TRIPS = f"(SELECT * REPLACE ({TIP} AS tip) FROM trips)"
QUERIES: dict[str, tuple[Build, str]] = {
    "fares of zones": (
        lambda q, _: q.group_by("zone", sum="fare", mean="fare", count="fare"),
        "SELECT zone, sum(fare) AS fare_sum, avg(fare::DOUBLE) AS fare_mean, count(fare) AS fare_count FROM trips "
        "WHERE zone IS NOT NULL GROUP BY zone",
    ),
    "tips with NaN": (
        lambda q, _: q.group_by("zone", sum="tip", mean="tip", min="tip", max="tip", count="tip"),
        "SELECT zone, coalesce(sum(tip), 0) AS tip_sum, avg(tip) AS tip_mean, min(tip) AS tip_min, max(tip) AS "
        f"tip_max, count(tip) AS tip_count FROM {TRIPS} WHERE zone IS NOT NULL GROUP BY zone",
    ),
    "rows of payments": (
        lambda q, _: q.group_by("payment"),
        "SELECT payment, count(*) AS rows FROM trips WHERE payment IS NOT NULL GROUP BY payment",
    ),
    "two keys": (
        lambda q, _: q.group_by("zone", "payment", sum=["distance", "passengers"]),
        "SELECT zone, payment, coalesce(sum(distance::DOUBLE), 0) AS distance_sum, coalesce(sum(passengers), "
        "0)::BIGINT AS passengers_sum FROM trips WHERE zone IS NOT NULL AND payment IS NOT NULL GROUP BY zone, payment",
    ),
    "days": (
        lambda q, _: q.filter("day", ">=", "2024-02-10").group_by("day", sum="toll", min="pickup", max="logged"),
        "SELECT day, coalesce(sum(toll), 0) AS toll_sum, min(pickup) AS pickup_min, max(logged) AS logged_max FROM "
        "trips WHERE day >= DATE '2024-02-10' GROUP BY day",
    ),
    "shared trips": (
        lambda q, _: q.filter('is "shared"', "==", "true").group_by("vendor", mean="distance", max="distance"),
        "SELECT vendor, avg(distance::DOUBLE) AS distance_mean, max(distance) AS distance_max FROM trips "
        'WHERE "is ""shared""" GROUP BY vendor',
    ),
    "share of shared": (
        lambda q, _: q.group_by("zone", mean='is "shared"', sum='is "shared"'),
        'SELECT zone, avg("is ""shared"""::INT) AS "is ""shared""_mean", coalesce(sum("is ""shared"""::INT), '
        '0)::BIGINT AS "is ""shared""_sum" FROM trips WHERE zone IS NOT NULL GROUP BY zone',
    ),
    "a bool as key": (
        lambda q, _: q.group_by('is "shared"', count="tip"),
        f'SELECT "is ""shared""", count(tip) AS tip_count FROM {TRIPS} WHERE "is ""shared""" IS NOT NULL GROUP BY 1',
    ),
    "exact decimals": (
        lambda q, _: q.filter("fare", "==", "12.50").group_by("fare"),
        "SELECT fare, count(*) AS rows FROM trips WHERE fare = 12.50 GROUP BY fare",
    ),
    "refunds": (lambda q, _: q.filter("fare", "<", 0), f"SELECT * FROM {TRIPS} WHERE fare < 0"),
    "NaN is no large tip": (lambda q, _: q.filter("tip", ">", 9), f"SELECT * FROM {TRIPS} WHERE tip > 9"),
    "not this many": (
        lambda q, _: q.filter("passengers", "!=", 1).group_by("passengers"),
        "SELECT passengers, count(*) AS rows FROM trips WHERE passengers <> 1 GROUP BY passengers",
    ),
    "a moment": (
        lambda q, _: q.filter("logged", "<", "2024-01-02T03:00:00+01:00").filter("pickup", ">", "2024-01-01T12:00:00"),
        f"SELECT * FROM {TRIPS} WHERE logged < '2024-01-02 02:00:00+00'::TIMESTAMPTZ AND pickup > '2024-01-01 12:00'",
    ),
    "a search": (
        lambda q, _: q.search("payment", "ä").group_by("payment", max="payment_length", sum="payment_length"),
        "SELECT payment, max(length(payment)) AS payment_length_max, sum(length(payment))::BIGINT AS "
        "payment_length_sum FROM trips WHERE payment LIKE '%ä%' GROUP BY payment",
    ),
    "quotes": (
        lambda q, _: q.filter("payment", "==", taxi_like.PAYMENTS[-1]).group_by("vendor"),
        "SELECT vendor, count(*) AS rows FROM trips WHERE payment = 'it''s \"other\"' GROUP BY vendor",
    ),
    "join, two partners": (
        lambda q, zones: q.join(zones, on="zone").group_by("borough", sum="fare", mean="fare_right"),
        "SELECT borough, sum(t.fare) AS fare_sum, avg(z.fare) AS fare_right_mean FROM trips t JOIN zones z "
        "USING (zone) GROUP BY borough",
    ),
    "join, a name in both": (
        lambda q, zones: q.join(zones, on="zone").group_by("borough", count="fare_right"),
        "SELECT borough, count(*) AS fare_right_count FROM trips JOIN zones USING (zone) GROUP BY borough",
    ),
    "join with a query": (
        lambda q, zones: (
            q.filter("fare", ">", 150).join(Query(zones).search("borough", "ü"), on="zone").group_by("borough_length")
        ),
        "SELECT length(borough) AS borough_length, count(*) AS rows FROM trips t JOIN zones z USING (zone) WHERE "
        "t.fare > 150 AND borough LIKE '%ü%' GROUP BY 1",
    ),
    "sorted groups": (
        lambda q, _: q.group_by("drop off", sum="fare").sort("fare_sum", "drop off", descending=True),
        'SELECT "drop off", sum(fare) AS fare_sum FROM trips GROUP BY 1 ORDER BY 2 DESC, 1 DESC',
    ),
    "sorted with missing values last": (
        lambda q, _: q.filter("fare", "<", -4.5).sort("toll", "pickup", "tip", "distance"),
        f"SELECT * FROM {TRIPS} WHERE fare < -4.5 ORDER BY toll NULLS LAST, pickup, tip NULLS LAST, "
        "distance NULLS LAST",
    ),
    "window": (
        lambda q, _: q.window("zone", "passengers", mean="tip", sum="toll").filter("fare", ">", 190),
        f"SELECT * FROM (SELECT *, CASE WHEN zone IS NOT NULL AND passengers IS NOT NULL THEN avg(tip) OVER w END AS "
        "tip_mean, CASE WHEN zone IS NOT NULL AND passengers IS NOT NULL THEN coalesce(sum(toll) OVER w, 0) END AS "
        f"toll_sum FROM {TRIPS} WINDOW w AS (PARTITION BY zone, passengers)) WHERE fare > 190",
    ),
    "nothing but missing values": (
        lambda q, _: q.group_by("vendor", sum="nothing", mean="nothing", count="nothing", min="nothing"),
        "SELECT vendor, 0.0::DOUBLE AS nothing_sum, NULL::DOUBLE AS nothing_mean, 0 AS nothing_count, NULL::DOUBLE AS "
        "nothing_min FROM trips GROUP BY vendor",
    ),
    "no row": (
        lambda q, _: q.filter("fare", ">", 10**6).group_by("zone", sum="fare"),
        "SELECT zone, sum(fare) AS fare_sum FROM trips WHERE fare > 1000000 GROUP BY zone",
    ),
}
every_query = pytest.mark.parametrize("name", QUERIES)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return taxi_like.write(tmp_path_factory.mktemp("taxi"))


@pytest.fixture(scope="module")
def answer(files: tuple[str, str]) -> Iterator[Callable[[str], pa.Table]]:
    connection = library("duckdb").connect()
    for view, path in zip(("trips", "zones"), files, strict=True):
        connection.execute(f"CREATE VIEW {view} AS SELECT * FROM read_parquet('{path}')")
    yield lambda statement: connection.sql(statement).to_arrow_table()
    connection.close()


@every_query
@pytest.mark.parametrize("engine", [*ON_HOST, "pandas"])
def test_every_engine_gives_duckdbs_answer(
    name: str, engine: str, files: tuple[str, str], answer: Callable[[str], pa.Table]
) -> None:
    build, statement = QUERIES[name]
    assert_equal(run(engine, build(Query(files[0]), files[1])), answer(statement), name.startswith("sorted"))


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@every_query
@pytest.mark.parametrize("engine", ON_GPU)
def test_the_gpu_gives_duckdbs_answer(
    name: str, engine: str, files: tuple[str, str], answer: Callable[[str], pa.Table]
) -> None:
    if why := query.why_not_here(engine):
        pytest.skip(why)
    build, statement = QUERIES[name]
    asked = build(Query(files[0]), files[1])
    if choice.why_refused(engine, asked):
        with pytest.raises(GpuguideError, match="decimals of 'fare'"):
            asked.on(engine)
        return
    assert_equal(run(engine, asked), answer(statement), name.startswith("sorted"))


@pytest.mark.parametrize("engine", [*ON_HOST, "pandas"])
def test_a_table_gives_what_its_file_gives(engine: str, files: tuple[str, str]) -> None:
    """Also one of Polars, and one of pandas."""
    build, _ = QUERIES["two keys"]
    right = run("duckdb", build(Query(files[0]), files[1]))
    table = taxi_like.trips()
    for given_as in (table, polars.from_arrow(table), table.to_pandas(types_mapper=pandas.ArrowDtype)):
        assert_equal(run(engine, build(Query(files[0]), files[1]).over(given_as)), right)


@pytest.mark.parametrize("type", [polars.Categorical, polars.Enum(["x", "ß"])])
@pytest.mark.parametrize("engine", ON_HOST)
def test_a_dictionary_of_polars_is_text(engine: str, type: Any, tmp_path: Path) -> None:
    path = tmp_path / "frame.parquet"
    frame = polars.DataFrame({"key": polars.Series(["x", "ß", None, "x"], dtype=type), "value": [1, 2, 3, 4]})
    frame.write_parquet(path)
    found = Query(path).group_by("key", sum="value").sort("key").on(engine)
    assert found.to_pylist() == [{"key": "x", "value_sum": 5}, {"key": "ß", "value_sum": 2}]


def test_a_dictionary_is_read_as_text_which_a_gpu_can(files: tuple[str, str]) -> None:
    """cudf-polars refuses plans that read ``Categorical``, even if they cast it."""
    source = Query(files[0]).source
    assert source.schema["payment"] == pa.dictionary(pa.int8(), pa.string())
    plan = polars_plan.scan_files(source, ["zone", "payment"])
    assert plan.collect_schema()["payment"] == polars.String
    assert "cast" not in plan.explain()


# --- any frame --------------------------------------------------------------------------------------------

CELLS = st.tuples(
    st.one_of(st.none(), st.integers(-3, 3)),
    st.one_of(st.none(), st.sampled_from(["", "a", "ü", "aü", "'", '"'])),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.sampled_from([math.nan, 0.0, -0.5, 1e300, math.inf, 0.1])),
    st.one_of(st.none(), st.decimals(-99, 99, places=2)),
    st.one_of(st.none(), st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))),
)
COLUMNS = {
    "i": pa.int16(),
    "t": pa.string(),
    "b": pa.bool_(),
    "f": pa.float64(),
    "d": pa.decimal128(6, 2),
    "y": pa.date32(),
}
TESTS = st.sampled_from(
    [("i", 1), ("t", "a"), ("b", True), ("f", 0.1), ("f", 0), ("d", "0.50"), ("d", 3), ("y", "2000-01-01")]
)
KEYS = st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=2, unique=True)


@given(
    st.lists(CELLS, max_size=8),
    st.lists(CELLS, max_size=4),
    TESTS,
    st.sampled_from(sorted(OPERATORS)),
    KEYS,
    st.sampled_from(["group_by", "window", "join", "sort"]),
)
def test_engines_agree_on_any_frame(
    rows: list[Any], others: list[Any], test: tuple[str, Any], comparison: str, keys: list[str], step: str
) -> None:
    table, other = (
        pa.table(
            {name: pa.array([row[place] for row in each], type) for place, (name, type) in enumerate(COLUMNS.items())}
        )
        for each in (rows, others)
    )
    asked = Query(table).filter(test[0], comparison, test[1])
    if step == "join":
        asked = asked.join(other, on=keys)
    elif step == "sort":
        asked = asked.sort(*keys)
    else:
        asked = getattr(asked, step)(*keys, count="f", sum=["i", "d", "b"], mean=["i", "d"], min="t", max=["y", "f"])
    right = asked.on("duckdb")
    for engine in ("polars", "pandas"):
        found = run(engine, asked)
        assert found.schema.types == right.schema.types
        assert_equal(found, right)
        if step == "sort":
            assert found.select(keys).to_pylist() == right.select(keys).to_pylist()


def test_a_file_of_no_rows_is_a_frame_of_none(tmp_path: Path) -> None:
    for groups in (1, 0):
        empty = taxi_like.trips().slice(0, 0)
        with pq.ParquetWriter(tmp_path / "none.parquet", empty.schema) as writer:
            for _ in range(groups):
                writer.write_table(empty)
        asked = Query(tmp_path / "none.parquet").group_by("zone", sum="fare", max="payment")
        for engine in (*ON_HOST, "pandas"):
            assert run(engine, asked).num_rows == 0
        assert where_to_run(asked, machine=MACHINE).engine == "polars"


# --- types ------------------------------------------------------------------------------------------------


def one_column(values: list[Any], type: pa.DataType, **more: Any) -> pa.Table:
    return pa.table({"key": pa.array([1] * len(values)), "value": pa.array(values, type), **more})


REFUSED = [
    (pa.time64("us"), "cast it to int64"),
    (pa.time32("s"), "cast it to int32"),
    (pa.duration("ms"), "cast it to int64"),
    (pa.float16(), "cast it to float"),
    (pa.date64(), "cast it to date32"),
    (pa.binary(), "cast it to string"),
    (pa.list_(pa.int32()), "a column of its own"),
    (pa.struct({"x": pa.int32()}), "a column of its own"),
    (pa.decimal256(40, 2), r"cast it to decimal128\(38, s\)"),
]


@pytest.mark.parametrize(("type", "remedy"), REFUSED, ids=str)
def test_types_that_a_query_cannot_use_are_refused_with_the_cast(type: pa.DataType, remedy: str) -> None:
    """Only where the query uses them: other columns may hold anything."""
    table = one_column([None], type)
    for build in (
        lambda q: q.group_by("value"),
        lambda q: q.group_by("key", count="value"),
        lambda q: q.sort("value"),
        lambda q: q.filter("value", ">", 1),
    ):
        with pytest.raises(GpuguideError, match=remedy) as caught:
            build(Query(table))
        assert "'value'" in str(caught.value)
    for engine in ON_HOST:
        assert Query(table).group_by("key").on(engine).to_pylist() == [{"key": 1, "rows": 1}]


def test_a_type_that_an_engine_refuses_is_told_with_all_columns() -> None:
    """Where a column is carried along."""
    asked = Query(one_column([None], pa.float16())).filter("key", ">", 0)
    with pytest.raises(GpuguideError, match=r"duckdb cannot run this query .* It reads key int64, value halffloat"):
        asked.on("duckdb")
    assert asked.on("polars").num_rows == 1


@pytest.mark.parametrize("type", [pa.string(), pa.date32(), pa.timestamp("ns")], ids=str)
@pytest.mark.parametrize("how", ["sum", "mean"])
def test_what_has_no_sum_is_refused_with_the_cast(type: pa.DataType, how: str) -> None:
    with pytest.raises(GpuguideError, match=f"has no {how}; cast it to"):
        Query(one_column([None], type)).group_by("key", **{how: "value"})


@pytest.mark.parametrize("engine", [*ON_HOST, "pandas"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_moments_of_every_unit_stay_as_they_are(unit: str, engine: str) -> None:
    table = one_column([0, 1_700_000_000 * 10 ** {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit], None], pa.timestamp(unit))
    found = run(engine, Query(table).filter("value", ">", "2001-01-01").group_by("value"))
    assert found.schema.field("value").type == pa.timestamp(unit)
    assert found["value"].cast(pa.timestamp("s")).to_pylist() == [datetime.datetime(2023, 11, 14, 22, 13, 20)]


@pytest.mark.parametrize("engine", [*ON_HOST, "pandas"])
def test_decimals_are_added_up_exactly(engine: str) -> None:
    """Where doubles would not: 0.1 and 0.2."""
    cents = [decimal.Decimal(text) for text in ("0.10", "0.20", "99999999.99")] * 1000
    found = run(engine, Query(one_column(cents, pa.decimal128(10, 2))).group_by("key", sum="value"))
    assert found["value_sum"].to_pylist() == [decimal.Decimal("100000000.29") * 1000]


@pytest.mark.parametrize("engine", [*ON_HOST, "pandas"])
@pytest.mark.parametrize("type", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_sums_of_integers_have_64_bits(type: str, engine: str) -> None:
    largest = 2 ** (min(62, pa.type_for_alias(type).bit_width) - 2)
    found = run(engine, Query(one_column([largest] * 5, pa.type_for_alias(type))).group_by("key", sum="value"))
    assert found["value_sum"].to_pylist() == [5 * largest]
    assert found.schema.field("value_sum").type == pa.int64()


@pytest.mark.parametrize("engine", ON_HOST)
def test_a_sum_that_may_not_fit_64_bits_is_refused(engine: str, tmp_path: Path) -> None:
    table = one_column([2**62, 2**61, None], pa.int64())
    for statistics in (True, False):
        pq.write_table(table, tmp_path / "large.parquet", write_statistics=statistics)
        for of in (table, tmp_path / "large.parquet"):
            with pytest.raises(GpuguideError, match=r"'value' holds integers up to .* cast the column to double"):
                Query(of).group_by("key", sum="value").on(engine)
    assert Query(table.slice(1)).group_by("key", sum="value").on(engine)["value_sum"].to_pylist() == [2**61]
    with pytest.raises(GpuguideError, match="'value_right' holds integers"):
        Query(table).join(table, on="key").group_by("key", sum="value_right").on(engine)


@pytest.mark.parametrize("engine", [*ON_HOST, "pandas"])
def test_float32_compares_as_it_is_stored(engine: str) -> None:
    """The double 0.1 is no float32; the nearest float32 is what is meant."""
    found = run(engine, Query(one_column([0.1, 0.2], pa.float32())).filter("value", "<=", 0.1))
    assert found.num_rows == 1


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (pa.int32(), "many"),
        (pa.int32(), True),
        (pa.int32(), None),
        (pa.float64(), math.nan),
        (pa.float64(), [1.0]),
        (pa.string(), 3),
        (pa.bool_(), "perhaps"),
        (pa.date32(), "2024-13-01"),
        (pa.date32(), datetime.datetime(2024, 1, 1)),
        (pa.timestamp("us"), "noon"),
        (pa.timestamp("us"), "2024-01-01T00:00:00+01:00"),
        (pa.timestamp("us"), 3),
        (pa.decimal128(8, 2), "12,50"),
    ],
    ids=str,
)
def test_values_of_another_type_are_refused_with_an_example(type: pa.DataType, value: Any) -> None:
    with pytest.raises(GpuguideError, match="is no such value; write it as in"):
        Query(one_column([None], type)).filter("value", "==", value)


def test_values_that_mean_the_same_are_the_same() -> None:
    moment = datetime.datetime(2024, 1, 1, 12)
    for type, values in (
        (pa.bool_(), ["TRUE", True]),
        (pa.date32(), ["2024-01-01", moment.date()]),
        (pa.timestamp("us"), ["2024-01-01T12:00", moment]),
        (pa.timestamp("us", "UTC"), ["2024-01-01T12:00", moment, "2024-01-01T13:00+01:00"]),
        (pa.timestamp("us"), ["2024-01-01", moment.date()]),
        (pa.decimal128(8, 2), ["1.5", 1.5, decimal.Decimal("1.50")]),
        (pa.int16(), ["3", 3]),
        (pa.float64(), ["1e3", 1000]),
    ):
        steps = {Query(one_column([None], type)).filter("value", "<", value).steps[0][1] for value in values}
        assert len(steps) == 1, steps


# --- names ------------------------------------------------------------------------------------------------


def test_names_that_there_are_not_are_told_with_near_ones(files: tuple[str, str]) -> None:
    trips = Query(files[0])
    for build, near in (
        (lambda: trips.filter("fares", ">", 1), "fare"),
        (lambda: trips.group_by("zones"), "zone"),
        (lambda: trips.group_by("zone", mean="tips"), "tip"),
        (lambda: trips.sort("distanc"), "distance"),
        (lambda: trips.window("zone", sum="toll").filter("tol_sum", ">", 1), "toll_sum"),
        (lambda: trips.join(files[1], on="boroug"), "Known"),
        (lambda: trips.group_by("zone", summ="fare"), "sum"),
        (lambda: trips.filter("fare", "=>", 1), ">="),
        (lambda: trips.group_by("zone").on("polar"), "polars"),
    ):
        with pytest.raises(UnknownName, match=near):
            build()


def test_steps_that_make_no_sense_are_refused(files: tuple[str, str]) -> None:
    trips = Query(files[0])
    for build, told in (
        (lambda: trips.group_by(), "at least one column"),
        (lambda: trips.search("fare", "1"), "needs text"),
        (lambda: trips.group_by("zone", sum=["fare", "fare"]), "twice"),
        (lambda: trips.window("zone", sum="fare").window("day", sum="fare"), "two columns 'fare_sum'"),
        (lambda: trips.group_by("zone", min='is "shared"'), "take its sum or mean"),
        (lambda: trips.join(Query(files[1]).group_by("borough"), on="zone"), "no column named 'zone'"),
        (lambda: trips.join(pa.table({"zone": ["7"]}), on="zone"), "cast one to the type of the other"),
        (lambda: Query(3), "Arrow table"),
        (lambda: Query(pa.table([[1], [2]], ["a", "a"])), "two columns of one name"),
    ):
        with pytest.raises(GpuguideError, match=told):
            build()


def test_names_that_differ_by_case_are_no_columns_to_sql() -> None:
    asked = Query(pa.table({"a": [1, 1], "A": [2, 3]})).group_by("a", sum="A")
    assert asked.on("polars").to_pylist() == [{"a": 1, "A_sum": 5}]
    with pytest.raises(GpuguideError, match="ignores case"):
        asked.on("duckdb")


def test_only_the_columns_that_are_needed_are_read(files: tuple[str, str]) -> None:
    trips = Query(files[0])
    assert trips.filter("fare", ">", 1).group_by("zone", sum="tip").columns_read == ["zone", "fare", "tip"]
    assert trips.window("day", mean="tip").group_by("zone", max="tip_mean").columns_read == ["zone", "day", "tip"]
    assert trips.filter("fare", ">", 1).columns_read == list(trips.source.schema)
    plan = trips.filter("fare", ">", 1).group_by("zone", sum="tip").plan().explain()
    assert "PROJECT 3/14 COLUMNS" in plan


# --- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("trips.csv", b"zone,fare\n1,2.5\n", "is CSV, .*scan_csv.*sink_parquet"),
        ("trips.tsv", b"zone\tfare\n", "separator"),
        ("trips.jsonl", b'{"zone": 1}\n', "is JSON, .*scan_ndjson"),
        ("trips.parquet", b"zone,fare\n1,2.5\n", "no Parquet file"),
        ("trips.parquet", b"PAR1 and no more", "cut short"),
        ("trips.parquet", b"PAR1\0\0\0\0PAR1", "cannot be read as Parquet"),
        ("trips.parquet", b"", "no Parquet file"),
    ],
)
def test_files_that_are_not_parquet_are_told_how_to_become_it(
    name: str, content: bytes, told: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GpuguideError, match=told):
        Query(tmp_path / name)


def test_the_command_that_converts_a_csv_file_works(tmp_path: Path) -> None:
    path = tmp_path / "trips of 'may'.csv"
    path.write_text("zone,fare\n1,2.5\n1,4\n")
    with pytest.raises(GpuguideError) as caught:
        Query(path)
    exec(str(caught.value).split('python -c "')[1].removesuffix('"'), {})  # what the shell would hand to Python
    found = Query(path.with_suffix(".parquet")).group_by("zone", sum="fare").on("duckdb")
    assert found.to_pylist() == [{"zone": 1, "fare_sum": 6.5}]


def test_a_folder_of_files_is_one_frame(tmp_path: Path, files: tuple[str, str]) -> None:
    table = taxi_like.trips()
    for part in range(3):
        pq.write_table(table.slice(10_000 * part, 10_000), tmp_path / f"part {part}.parquet")
    build, _ = QUERIES["fares of zones"]
    right = run("duckdb", build(Query(files[0]), files[1]))
    for path in (tmp_path, tmp_path / "*.parquet", [tmp_path / f"part {part}.parquet" for part in range(3)]):
        for engine in (*ON_HOST, "pandas"):
            assert_equal(run(engine, build(Query(path), files[1])), right)
    assert Query(tmp_path).source.statistics == Query(files[0]).source.statistics
    pq.write_table(pa.table({"zone": [1.5]}), tmp_path / "part 3.parquet")
    with pytest.raises(GpuguideError, match=r"Column 'zone' is int32 in .*part 0.* and double in .*part 3"):
        Query(tmp_path)
    with pytest.raises(GpuguideError, match=r"no Parquet file in"):
        Query(tmp_path / "nothing*")
    with pytest.raises(GpuguideError, match="no file"):
        Query(tmp_path / "absent.parquet")


def test_signs_of_patterns_in_the_name_of_a_file_are_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "may [2024]"
    folder.mkdir()
    for name, number in (("trips [1]?.parquet", 1), ("trips 1x.parquet", 2)):
        pq.write_table(pa.table({"key": [number]}), folder / name)
    for engine in (*ON_HOST, "pandas"):
        assert run(engine, Query(folder / "trips [1]?.parquet").group_by("key"))["key"].to_pylist() == [1]
        assert sorted(run(engine, Query(folder).group_by("key"))["key"].to_pylist()) == [1, 2]


def test_one_huge_row_group_is_told_with_a_size_that_is_none(tmp_path: Path) -> None:
    rows = 2_500_000
    zeros = pa.py_buffer(bytes(8 * rows))
    column = pa.Array.from_buffers(pa.int64(), rows, [None, zeros])
    table = pa.table(dict.fromkeys(("key", *"abcdefg"), column))
    path = tmp_path / "one.parquet"
    pq.write_table(table, path, row_group_size=rows)
    asked = Query(path).group_by("key", sum="a")
    told = asked.source.describe_large_row_group()
    assert told is not None
    assert f"{rows:,} rows" in told
    assert told in where_to_run(asked, machine=MACHINE).reason
    size = int(told.split("row_group_size=")[1].split(")")[0])
    pq.write_table(table, path, row_group_size=size)
    assert Query(path).source.describe_large_row_group() is None
    for engine in ON_HOST:
        assert asked.on(engine).to_pylist() == [{"key": 0, "a_sum": 0}]


@pytest.mark.parametrize("engine", ON_HOST)
def test_a_join_of_a_skewed_key_is_refused_before_memory_runs_out(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skewed = pa.table({"key": [7] * 30_000 + list(range(10_000)), "value": [1.0] * 40_000})
    asked = Query(skewed).filter("value", ">", 0).join(skewed, on="key")
    monkeypatch.setattr(query, "free_memory", lambda engine: 2.0**30)
    with pytest.raises(GpuguideError, match=r"would have 900,0\d\d,\d\d\d rows.* The key key = 7 alone makes 100%"):
        asked.on(engine)
    unique = pa.table({"key": list(range(10_000)), "name": ["x"] * 10_000})
    assert Query(skewed).join(unique, on="key").on(engine).num_rows == 40_000


def test_the_size_of_a_join_is_counted(files: tuple[str, str]) -> None:
    asked = Query(files[0]).filter("fare", ">", 150).join(files[1], on="zone")
    rows, largest = query.join_size.count_rows(asked.first_steps(1), asked.steps[1][1])
    found = asked.on("duckdb")["zone"].to_pylist()
    assert rows == len(found)
    assert largest["rows"] == max(found.count(zone) for zone in set(found)) == found.count(largest["zone"])


# --- where to run -----------------------------------------------------------------------------------------

HOST = {(engine, op): Line(1e-4, each) for engine, each in (("polars", 1e-9), ("duckdb", 2e-9)) for op in OPERATIONS}
GPU = {("cudf", op): Line(1e-3, 1e-11) for op in OPERATIONS}
MACHINE = MachineParameters(HOST, GPU, {"cudf": Line(1e-4, 1e-11)}, {"cudf": Line(1e-4, 1e-11)})


def frame_of(rows: int, **types: pa.DataType) -> source.Source:
    """Return what a schema says of a frame that is nowhere."""
    statistics = {name: source.Statistics(0, 99, 0) for name in types}
    widths = {name: type.bit_width / 8 for name, type in types.items()}
    return source.Source(types, rows, ("nowhere.parquet",), statistics=statistics, widths=widths)


def grouped(rows: int) -> Query:
    return Query(frame_of(rows, key=pa.int32(), value=pa.float64())).group_by("key", sum="value")


def test_few_rows_stay_on_the_host_and_many_go_to_the_gpu() -> None:
    few, many = where_to_run(grouped(1000), machine=MACHINE), where_to_run(grouped(10**8), machine=MACHINE)
    assert (few.engine, many.engine) == ("polars", "cudf")
    assert "too few rows" in few.reason
    assert many.seconds["polars"] == pytest.approx(1e-4 + 0.1)
    moved = 2e-4 + 1e-11 * (12 * 10**8 + 100 * 12)
    assert many.copy_seconds == pytest.approx(moved)
    assert many.seconds["cudf"] == pytest.approx(moved + 1e-3 + 1e-3)
    assert where_to_run(grouped(1000), frame_of(10**8, key=pa.int32(), value=pa.float64()), machine=MACHINE) == many


def test_a_copy_that_takes_longer_than_the_gain_keeps_a_query_on_the_host() -> None:
    slow = MachineParameters(HOST, GPU, {"cudf": Line(0.0, 1e-9)}, {"cudf": Line(0.0, 1e-9)})
    choice = where_to_run(grouped(10**8), machine=slow)
    assert choice.engine == "polars"
    assert "not by as much as the copies" in choice.reason


def test_a_frame_larger_than_the_gpu_is_streamed_or_stays_on_the_host() -> None:
    asked = grouped(10**8)
    needed = where_to_run(asked, machine=MACHINE).gpu_bytes
    assert where_to_run(asked, machine=MACHINE, gpu_memory=needed).engine == "cudf"
    choice = where_to_run(asked, machine=MACHINE, gpu_memory=needed - 1)
    assert choice.engine == "polars-gpu"
    assert "GiB are free" in choice.refused["cudf"]
    assert where_to_run(asked, machine=MACHINE, gpu_memory=1, among=("polars", "cudf")).engine == "polars"


def test_cudf_is_passed_over_where_a_key_is_decimal() -> None:
    frame = frame_of(10**8, key=pa.decimal128(10, 2), value=pa.float64())
    asked = Query(frame).group_by("key", sum="value")
    assert [bool(choice.why_refused(engine, asked)) for engine in choice.ENGINES] == [False, False, True, False]
    assert choice.why_refused("cudf", Query(frame).group_by("value", sum="key")) is None
    assert choice.why_refused("cudf", Query(frame).join(asked, on="key"))
    found = where_to_run(asked, machine=MACHINE, among=("polars", "cudf"))
    assert found.engine == "polars"
    assert "decimals of 'key'" in found.refused["cudf"]
    for room in (None, 1.0):
        with pytest.raises(GpuguideError, match="decimals of 'key'"):
            where_to_run(asked, machine=MACHINE, gpu_memory=room, among=("cudf",))


def test_engines_that_were_not_measured_are_told() -> None:
    lacking = MachineParameters({}, {}, {}, {})
    with pytest.raises(GpuguideError, match=r"None of the engines polars, duckdb.* was measured with all of groupby"):
        where_to_run(grouped(10), machine=lacking)


FILES = {
    "polars": FilePrices(numbers=2e-10, codes=4e-10, text=1e-9, work=0.5, query=1e-3),
    "cudf": FilePrices(numbers=1e-11, codes=2e-11, text=5e-11, work=1.2, query=1e-2),
    "polars-gpu": FilePrices(numbers=1e-11, codes=2e-11, text=5e-11, work=2.0, query=2e-2),
}


def test_reading_is_in_the_times_of_files_where_it_was_measured() -> None:
    machine = replace(MACHINE, files=FILES)
    few, many = where_to_run(grouped(1000), machine=machine), where_to_run(grouped(10**8), machine=machine)
    assert (few.engine, many.engine) == ("polars", "cudf")
    assert set(many.seconds) == set(FILES), "duckdb was not measured on files, and cannot be compared"
    assert many.seconds["polars"] == pytest.approx(2e-10 * 12e8 + 0.5 * (1e-4 + 0.1) + 1e-3)
    assert many.seconds["cudf"] == pytest.approx(1e-11 * 12e8 + 1.2 * (1e-3 + 1e-3) + 1e-2)
    assert many.seconds["polars-gpu"] == pytest.approx(1e-11 * 12e8 + 2.0 * (1e-3 + 1e-3) + 2e-2), "work like cudf's"
    assert many.from_files
    assert "from the file" in many.reason
    assert where_to_run(grouped(10**8), machine=machine, among=("duckdb",)).from_files is False
    table = pa.table({"key": [1, 2], "value": [0.5, 1.5]})
    in_memory = Query(table).group_by("key", sum="value")
    assert where_to_run(in_memory, machine=machine) == where_to_run(in_memory, machine=MACHINE)


def test_a_file_larger_than_the_gpu_goes_where_it_takes_least_in_pieces() -> None:
    machine = replace(MACHINE, files=FILES)
    assert where_to_run(grouped(10**8), machine=machine, gpu_memory=1).engine == "polars-gpu"
    assert where_to_run(grouped(10**6), machine=machine, gpu_memory=1).engine == "polars"


def test_bytes_to_decode_are_counted_by_how_a_file_holds_them(tmp_path: Path) -> None:
    rows = 5000
    names, towns = [f"name {number:08d}" for number in range(rows)], ["Zürich", "Łódź"] * (rows // 2)
    pq.write_table(pa.table({"name": names, "town": towns, "fare": [1.0] * rows}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"town": towns[:2], "toll": [1, 2]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"name": names}), tmp_path / "c.parquet", use_dictionary=False)
    assert [source_of(tmp_path / "a.parquet").is_written_out(name) for name in ("name", "town", "fare")] == [
        True,  # a dictionary that has every value once
        False,
        False,
    ]
    assert source_of(tmp_path / "c.parquet").is_written_out("name")
    asked = Query(tmp_path / "a.parquet").join(tmp_path / "b.parquet", on="town").group_by("town", sum=["fare", "toll"])
    width = asked.source.widths["town"]
    found = choice.file_amounts(asked, 0.25)
    few = source_of(tmp_path / "b.parquet").bytes(["town"])  # whose dictionary is as long as they are
    assert found == FileAmounts(8.0 * (rows + 2), pytest.approx(width * rows), pytest.approx(few), 0.25)
    many = choice.file_amounts(Query(tmp_path / "c.parquet").group_by("name"), 0.0)
    assert (many.codes, many.numbers) == (0.0, 0.0)
    assert many.text == pytest.approx(4 * rows + sum(4 + len(name) for name in names), rel=0.05)
    ids = Query(tmp_path / "c.parquet").group_by("name")
    assert choice.estimate(ids)[1] == rows / choice.ROWS_AN_ID


def test_steps_are_like_measured_operations() -> None:
    many_keys = frame_of(10**6, key=pa.int32(), value=pa.float64())
    many_keys = source.Source(
        many_keys.schema,
        10**8,
        ("nowhere.parquet",),
        statistics={"key": source.Statistics(0, 10**7, 0), "value": source.Statistics(0.0, 1.0, 0)},
        widths=many_keys.widths,
    )
    asked = Query(many_keys)
    for build, operations in (
        (asked.filter("value", ">", 0.75), ["filter"]),
        (asked.group_by("key"), ["groupby-many"]),
        (asked.filter("value", ">", 0.75).sort("key"), ["filter", "sort"]),
        (asked.window("key", mean="value").sort("value"), ["window", "sort"]),
        (asked.join(grouped(100), on="key"), ["groupby", "join"]),
        (grouped(10**6), ["groupby"]),
        (Query(grouped(10**6).source).filter("value", ">", 49.5).group_by("key"), ["filter-groupby"]),
    ):
        steps, _ = choice.estimate(build)
        assert [step.operation for step in steps] == operations
    wide = frame_of(10**6, key=pa.int32(), value=pa.float64(), other=pa.float64())
    grouping = Query(wide).filter("value", ">", 49.5).join(Query(frame_of(100, key=pa.int32())), on="key")
    assert [step.row_bytes for step in choice.estimate(grouping)[0]] == [20.0, 20.0], "all columns are in the result"
    (kept, joined, grouped_by), _ = choice.estimate(grouping.group_by("key", sum="value"))
    assert (kept.row_bytes, joined.row_bytes, grouped_by.row_bytes) == (12.0, 12.0, 12.0), "one is never read"
    steps, rows = choice.estimate(asked.filter("value", ">", 0.75).sort("key"))
    assert (steps[1].rows, rows) == (pytest.approx(0.25e8), pytest.approx(0.25e8))


@given(least=st.integers(-100, 100), span=st.integers(1, 200), value=st.integers(-400, 400))
def test_the_share_that_a_filter_keeps_is_estimated(least: int, span: int, value: int) -> None:
    """On every whole number once, it is right within a number; and both sides of a comparison add up."""
    numbers = range(least, least + span + 1)
    known = Query(pa.table({"value": list(numbers)}))
    found = {how: choice.share_kept(known.filter("value", how, value).steps[0][1], known.source) for how in OPERATORS}
    for how, share in found.items():
        right = sum(OPERATORS[how](number, value) for number in numbers) / len(numbers)
        assert share == pytest.approx(right, abs=1.01 / span)
    assert found["<"] + found[">"] == pytest.approx(1.0)
    assert found["=="] + found["!="] == pytest.approx(1.0)


def test_estimates_of_a_strangers_file_are_near(files: tuple[str, str]) -> None:
    trips = Query(files[0])
    for build, within in (
        (trips.filter("fare", ">", 150), 1.1),
        (trips.filter("day", "<", "2024-02-01"), 1.1),
        (trips.filter("logged", "<", "2024-02-01"), 1.1),
        (trips.group_by("zone"), 1.5),
        (trips.group_by("day"), 1.1),
        (trips.group_by('is "shared"'), 1.1),
        (trips.group_by("payment"), 4),
    ):
        _, rows = choice.estimate(build)
        assert 1 / within <= rows / build.on("duckdb").num_rows <= within, build.steps


def test_auto_takes_what_can_run_here(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    build, _ = QUERIES["fares of zones"]
    asked = build(Query(files[0]), files[1])
    monkeypatch.setattr(choice.available, "why_not_here", lambda name: None if name == "duckdb" else "not here")
    assert choice.choose(asked, machine=MACHINE).engine == choice.choose(asked, machine=None).engine == "duckdb"
    assert_equal(asked.on("auto"), asked.on("duckdb"))
    monkeypatch.setattr(choice.available, "why_not_here", lambda name: "not here")
    with pytest.raises(GpuguideError, match="not here"):
        asked.on("auto")


def test_auto_without_measurements_goes_by_rows_and_room(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [2.0**40]
    monkeypatch.setattr(choice.available, "why_not_here", lambda name: None)
    monkeypatch.setattr(choice, "free_memory", lambda engine: free[0])
    assert choice.choose(grouped(1000), machine=None).engine == "polars"
    assert choice.choose(grouped(10**7), machine=None).engine == "cudf"
    free[0] = 10.0**8
    assert choice.choose(grouped(10**7), machine=None).engine == "polars-gpu"


# --- versions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("installed", "works"), [("1.44.0", True), ("1.45.0", False), ("2.1.0", False)])
def test_a_polars_too_new_for_the_gpu_is_told_with_both_versions(
    installed: str, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def requires(package: str) -> list[str]:
        if package != "cudf-polars-cu12":
            raise choice.metadata.PackageNotFoundError(package)
        return ["polars-runtime-32<9", "polars<1.45,>=1.30", "pylibcudf-cu12==26.10.*"]

    versions = {"polars": installed, "cudf-polars-cu12": "26.10.2"}
    monkeypatch.setattr(choice.metadata, "requires", requires)
    monkeypatch.setattr(choice.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(choice.available, "why_not_here", lambda name: None)
    told = query.why_not_here("polars-gpu")
    assert (told is None) is works
    if told is not None:
        assert all(text in told for text in (*versions.values(), "pip install 'polars<1.45,>=1.30'"))
        with pytest.raises(GpuguideError, match="cudf-polars-cu12"):
            Query(pa.table({"key": [1]})).group_by("key").on("polars-gpu")


def test_what_polars_cannot_do_on_a_gpu_is_told(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is none refuses everything."""

    def refuse(*_: Any, engine: Any, **__: Any) -> None:
        raise NotImplementedError("Decimal of 40 digits")

    monkeypatch.setattr(query, "why_not_here", lambda name: None)
    monkeypatch.setattr(query, "free_memory", lambda engine: 2.0**40)
    monkeypatch.setattr(polars.LazyFrame, "collect", refuse)
    with pytest.raises(GpuguideError, match=r"polars-gpu .*Decimal of 40 digits.*fare decimal128\(10, 2\)"):
        Query(files[0]).group_by("zone", sum="fare").on("polars-gpu")


def test_a_gpu_that_is_not_here_is_told_with_what_is(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "why_not_here", lambda name: "no GPU" if name in ON_GPU else None)
    for engine in ON_GPU:
        with pytest.raises(GpuguideError, match=r"no GPU. Engines that can run here: polars, duckdb"):
            Query(files[0]).group_by("zone").on(engine)

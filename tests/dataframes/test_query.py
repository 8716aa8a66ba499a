"""Queries on a stranger's file: every engine agrees with SQL that was written by hand for DuckDB."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import taxi_like
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.dataframes import Query, query, where_to_run
from gpuguide.dataframes.cost import Line, MachineParameters
from gpuguide.dataframes.operations import OPERATIONS, TOLERANCE
from gpuguide.dataframes.query import choice, source
from gpuguide.dataframes.query.cudf_calls import CuDFCalls
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
        "SELECT zone, payment, coalesce(sum(distance::DOUBLE), 0) AS distance_sum, coalesce(sum(passengers), 0)::BIGINT "
        "AS passengers_sum FROM trips WHERE zone IS NOT NULL AND payment IS NOT NULL GROUP BY zone, payment",
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
        'SELECT zone, avg("is ""shared"""::INT) AS "is ""shared""_mean", coalesce(sum("is ""shared"""::INT), 0)::BIGINT '
        'AS "is ""shared""_sum" FROM trips WHERE zone IS NOT NULL GROUP BY zone',
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
        "SELECT borough, sum(t.fare) AS fare_sum, avg(z.fare) AS fare_right_mean FROM trips t JOIN zones z USING (zone) "
        "GROUP BY borough",
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
        f"SELECT * FROM {TRIPS} WHERE fare < -4.5 ORDER BY toll NULLS LAST, pickup, tip NULLS LAST, distance NULLS LAST",
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
def answer(files: tuple[str, str]) -> Callable[[str], pa.Table]:
    connection = duckdb.connect()
    for view, path in zip(("trips", "zones"), files, strict=True):
        connection.execute(f"CREATE VIEW {view} AS SELECT * FROM read_parquet('{path}')")
    return lambda statement: connection.sql(statement).to_arrow_table()


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
    if why := query.available.why_not_here(engine):
        pytest.skip(why)
    build, statement = QUERIES[name]
    assert_equal(run(engine, build(Query(files[0]), files[1])), answer(statement), name.startswith("sorted"))


@pytest.mark.parametrize("engine", [*ON_HOST, "pandas"])
def test_a_table_gives_what_its_file_gives(engine: str, files: tuple[str, str]) -> None:
    """Also one of Polars, and one of pandas."""
    build, _ = QUERIES["two keys"]
    right = run("duckdb", build(Query(files[0]), files[1]))
    table = taxi_like.trips()
    for given_as in (table, polars.from_arrow(table), table.to_pandas(types_mapper=pandas.ArrowDtype)):
        assert_equal(run(engine, build(Query(files[0]), files[1]).over(given_as)), right)

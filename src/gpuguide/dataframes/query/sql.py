"""A query as SQL for DuckDB: each step selects from the one before it."""

from __future__ import annotations

import datetime
import decimal
import glob
from collections.abc import Sequence
from typing import Any

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query.source import Source
from gpuguide.dataframes.query.steps import Aggregate, Chain, Filter, GroupBy, Join, Search, Sort, Step
from gpuguide.dataframes.query.types import Schema, column_kind, kind
from gpuguide.errors import GpuguideError


def run(query: Chain) -> Any:
    """Return the query's result as an Arrow table."""
    connection = library("duckdb").connect(":memory:")
    try:
        return connection.sql(select(query, connection)).to_arrow_table()
    finally:
        connection.close()


def select(query: Chain, connection: Any) -> str:
    """Return the query as a SELECT, with the tables that it reads registered."""
    found = read(query.source, query.columns_read, connection)
    for schema, step in query.steps:
        check_names(schema)
        found = add_step(found, step, schema, connection)
    return found


def read(source: Source, columns: Sequence[str], connection: Any) -> str:
    """Return the SELECT of columns of a source, in which NaN is a missing value."""
    if source.paths:
        origin = f"read_parquet([{', '.join(literal(glob.escape(path)) for path in source.paths)}])"
    else:
        origin = name(f"source {id(source)}")
        connection.register(f"source {id(source)}", source.table.select(list(columns)))
    chosen = [
        f"CASE WHEN NOT isnan({name(column)}) THEN {name(column)} END AS {name(column)}"
        if kind(source.schema[column]) == "float"
        else name(column)
        for column in columns
    ]
    return f"SELECT {', '.join(chosen)} FROM {origin}"


def add_step(before: str, step: Step, schema: Schema, connection: Any) -> str:
    """Return a SELECT with a step more. ``schema`` has the columns before it."""
    if isinstance(step, Filter):
        comparison = "=" if step.comparison == "==" else step.comparison
        return f"SELECT * FROM ({before}) WHERE {name(step.column)} {comparison} {literal(step.value)}"
    if isinstance(step, Search):
        column = name(step.column)
        return (
            f"SELECT *, length({column}) AS {name(step.length)} FROM ({before}) "
            f"WHERE contains({column}, {literal(step.text)})"
        )
    if isinstance(step, Sort):
        order = ", ".join(f"{name(key)} {'DESC' if step.descending else 'ASC'} NULLS LAST" for key in step.columns)
        return f"SELECT * FROM ({before}) ORDER BY {order}"
    if isinstance(step, Join):
        right = step.other.schema
        check_names(right)
        chosen = ["l.*"] + [
            f"r.{name(column)} AS {name(step.renamed(column, schema))}" for column in right if column not in step.on
        ]
        return (
            f"SELECT {', '.join(chosen)} FROM ({before}) AS l JOIN ({select(step.other, connection)}) AS r "
            f"ON {' AND '.join(f'l.{name(key)} = r.{name(key)}' for key in step.on)}"
        )
    keys = ", ".join(map(name, step.keys))
    has_keys = " AND ".join(f"{name(key)} IS NOT NULL" for key in step.keys)
    if isinstance(step, GroupBy):
        totals = [f"{total(each, schema)} AS {name(each.name)}" for each in step.aggregates]
        return f"SELECT {', '.join([keys, *totals])} FROM ({before}) WHERE {has_keys} GROUP BY {keys}"
    over = f" OVER (PARTITION BY {keys})"
    beside = [
        f"CASE WHEN {has_keys} THEN {total(each, schema, over)} END AS {name(each.name)}" for each in step.aggregates
    ]
    return f"SELECT *, {', '.join(beside)} FROM ({before})"


def total(aggregate: Aggregate, schema: Schema, over: str = "") -> str:
    """Return an aggregate as SQL. The sum of no values is 0, as in the other engines."""
    if aggregate.how == "rows":
        return f"count(*){over}"
    column = name(aggregate.column)
    if aggregate.how == "mean":
        return f"avg(CAST({column} AS DOUBLE)){over}"
    if aggregate.how != "sum":
        return f"{aggregate.how}({column}){over}"
    held = column_kind(schema, aggregate.column)
    if held == "decimal":
        return f"coalesce(sum({column}){over}, 0)"
    if held == "float":
        return f"coalesce(sum(CAST({column} AS DOUBLE)){over}, 0)"
    return f"CAST(coalesce(sum(CAST({column} AS BIGINT)){over}, 0) AS BIGINT)"


def name(column: str) -> str:
    """Return a column's name in quotes."""
    return '"' + column.replace('"', '""') + '"'


def literal(value: Any) -> str:
    """Return a value as SQL."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, float):
        return f"'{value!r}'::DOUBLE"
    if isinstance(value, datetime.datetime):
        return f"'{value.isoformat(' ')}'::{'TIMESTAMP' if value.tzinfo is None else 'TIMESTAMPTZ'}"
    if isinstance(value, datetime.date):
        return f"'{value.isoformat()}'::DATE"
    return format(value, "f") if isinstance(value, decimal.Decimal) else str(value)


def check_names(schema: Schema) -> None:
    """Refuse columns whose names differ in case alone: to SQL they are one."""
    seen: dict[str, str] = {}
    for column in schema:
        other = seen.setdefault(column.lower(), column)
        if other != column:
            raise GpuguideError(
                f"The columns {other!r} and {column!r} have one name in DuckDB, which ignores case; rename one, or use "
                "the engine 'polars'."
            )

"""A query as a lazy plan of Polars, which its optimizer rearranges and which runs on the host or on a GPU."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query.gpu_defaults import set_gpu_defaults
from gpuguide.dataframes.query.source import Source
from gpuguide.dataframes.query.steps import RIGHT, Aggregate, Chain, Filter, GroupBy, Join, Search, Sort, Step
from gpuguide.dataframes.query.types import Schema, column_kind, kind

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


def plan(query: Chain) -> Any:
    """Return the query as a ``polars.LazyFrame``."""
    frame = scan(query.source, query.columns_read)
    for schema, step in query.steps:
        frame = add_step(frame, step, schema)
    return frame


def collect(plan: Any, engine: str, **options: Any) -> Any:
    """Run a plan on ``polars``, the streaming engine on the host, or ``polars-gpu``; return its Arrow table.

    What cannot run on a GPU is an error, and is not run on the host instead. ``options`` are those of ``GPUEngine``.
    """
    if engine == "polars":
        return plan.collect(engine="streaming").to_arrow()
    set_gpu_defaults()
    return plan.collect(engine=library("polars").GPUEngine(raise_on_fail=True, **options)).to_arrow()


def scan(source: Source, columns: Sequence[str]) -> Any:
    """Return the beginning of a plan: NaN becomes a missing value, and a dictionary of text is text."""
    polars = library("polars")
    frame = (
        scan_files(source, columns) if source.paths else polars.from_arrow(source.table.select(list(columns))).lazy()
    )
    floats = [name for name in columns if kind(source.schema[name]) == "float"]
    return frame.with_columns(polars.col(name).fill_nan(None) for name in floats)


def scan_files(source: Source, columns: Sequence[str]) -> Any:
    """Return a plan that reads columns of files.

    A dictionary of text is ``Categorical`` to Polars, which cudf-polars does not know, but text in the file.
    """
    polars, types = library("polars"), source.schema
    is_dictionary = library("pyarrow").types.is_dictionary
    texts = [name for name in columns if is_dictionary(types[name]) and kind(types[name]) == "text"]
    options = {}
    if texts:
        held = polars.scan_parquet(source.paths[0], glob=False).collect_schema()
        read_as_text = [name for name in texts if held[name] == polars.Categorical]
        options["schema"] = {**held, **dict.fromkeys(read_as_text, polars.String)}
        options["cast_options"] = polars.ScanCastOptions(categorical_to_string="allow")
    frame = polars.scan_parquet(list(source.paths), glob=False, **options).select(columns)
    return frame.with_columns(polars.col(name).cast(polars.String) for name in texts)  # an Enum is none yet


def add_step(frame: Any, step: Step, schema: Schema) -> Any:
    """Return a plan with a step more. ``schema`` has the columns before it."""
    polars = library("polars")
    col = polars.col
    if isinstance(step, Filter):
        return frame.filter(OPERATORS[step.comparison](col(step.column), polars.lit(step.value)))
    if isinstance(step, Search):
        found = frame.filter(col(step.column).str.contains(step.text, literal=True))
        return found.with_columns(col(step.column).str.len_chars().cast(polars.Int64).alias(step.length))
    if isinstance(step, Sort):
        return frame.sort(step.columns, descending=step.descending, nulls_last=True)
    if isinstance(step, Join):
        return join_plans(frame, plan(step.other), step, schema)
    has_keys = polars.all_horizontal(col(key).is_not_null() for key in step.keys)
    totals = {each.name: total(each, schema) for each in step.aggregates}
    if isinstance(step, GroupBy):
        return frame.filter(has_keys).group_by(step.keys).agg(**totals)
    beside = {name: polars.when(has_keys).then(each.over(step.keys)) for name, each in totals.items()}
    return frame.with_columns(**beside)


def join_plans(left: Any, right: Any, step: Join, schema: Schema) -> Any:
    """Return the join of two plans. ``schema`` has the columns of the left one.

    Polars joins equal types only; a key that does not fit the left one's type has no partner there.
    """
    polars = library("polars")
    integers = {key: str(schema[key]) for key in step.on if kind(schema[key]) == "integer"}
    types = {key: getattr(polars, type.replace("uint", "UInt").replace("int", "Int")) for key, type in integers.items()}
    same = right.with_columns(polars.col(key).cast(type, strict=False) for key, type in types.items())
    return left.join(same, on=list(step.on), how="inner", suffix=RIGHT)


def total(aggregate: Aggregate, schema: Schema) -> Any:
    """Return an aggregate as an expression: integers are added up in 64 bits, and means are taken of doubles."""
    polars = library("polars")
    if aggregate.how == "rows":
        return polars.len().cast(polars.Int64)
    column = polars.col(aggregate.column)
    held = column_kind(schema, aggregate.column)
    if aggregate.how == "mean" or (aggregate.how == "sum" and held == "float"):
        column = column.cast(polars.Float64)
    elif aggregate.how == "sum" and held != "decimal":
        column = column.cast(polars.Int64)
    found = getattr(column, aggregate.how)()
    return found.cast(polars.Int64) if aggregate.how == "count" else found

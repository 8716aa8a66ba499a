"""A query as calls of cuDF."""

from __future__ import annotations

import datetime
import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query.gpu_defaults import set_gpu_defaults
from gpuguide.dataframes.query.polars_plan import OPERATORS
from gpuguide.dataframes.query.source import Source
from gpuguide.dataframes.query.steps import RIGHT, Aggregate, Chain, Filter, GroupBy, Join, Search, Sort, Step
from gpuguide.dataframes.query.types import Schema, column_kind


class CuDFCalls:
    """The steps of a query on frames of cuDF."""

    def load(self, source: Source, columns: Sequence[str]) -> Any:
        """Return columns of a source as a frame on the GPU, with NaN as a missing value."""
        set_gpu_defaults()
        cudf = library("cudf")
        if source.paths:
            frame = cudf.read_parquet(list(source.paths), columns=list(columns))
        else:
            frame = cudf.DataFrame.from_arrow(source.table.select(list(columns)))
        return frame.nans_to_nulls()

    def unload(self, frame: Any) -> Any:
        """Return a frame as an Arrow table."""
        return frame.to_arrow(preserve_index=False)

    def cast(self, column: Any, type: str) -> Any:
        """Return a column as ``int64`` or ``float64``."""
        return column.astype(type)

    def run(self, query: Chain) -> Any:
        """Return the query's result as an Arrow table."""
        return self.unload(self.frame(query))

    def frame(self, query: Chain) -> Any:
        """Return the query's result on the GPU."""
        frame = self.load(query.source, query.columns_read)
        for schema, step in query.steps:
            frame = self.add_step(frame, step, schema)
        return frame

    def add_step(self, frame: Any, step: Step, schema: Schema) -> Any:
        """Return the frame after a step. ``schema`` has the columns before it."""
        if isinstance(step, Filter):
            column = frame[step.column]
            return frame[OPERATORS[step.comparison](column, self.literal(step.value, column))]
        if isinstance(step, Search):
            found = frame[frame[step.column].str.contains(step.text, regex=False)]
            return found.assign(**{step.length: found[step.column].str.len()})
        if isinstance(step, Sort):
            ascending = not step.descending
            return frame.sort_values(list(step.columns), ascending=ascending, na_position="last", ignore_index=True)
        if isinstance(step, Join):
            other = self.frame(step.other).dropna(subset=list(step.on))  # missing keys would match each other
            return frame.merge(other, on=list(step.on), how="inner", suffixes=("", RIGHT))
        keys = list(step.keys)
        chosen = frame.dropna(subset=keys) if isinstance(step, GroupBy) else frame
        added = chosen.assign(**{each.name: self.values(chosen, keys, each, schema) for each in step.aggregates})
        groups = added.groupby(keys, sort=False)
        hows = {each.name: "count" if each.how == "rows" else each.how for each in step.aggregates}
        if isinstance(step, GroupBy):
            found = groups.agg(hows).reset_index()
        else:
            found = frame.assign(**{name: groups[name].transform(how) for name, how in hows.items()})
        sums = {each.name: found[each.name].fillna(0) for each in step.aggregates if each.how == "sum"}
        if isinstance(step, GroupBy):
            return found.assign(**sums)
        has_keys = functools.reduce(operator.and_, (frame[key].notna() for key in keys))
        return found.assign(**{name: column.where(has_keys) for name, column in sums.items()})

    def literal(self, value: Any, column: Any) -> Any:
        """Return a value as the type that a column is compared with.

        cuDF reads days as seconds, and may read a moment with a time zone as UTC without one.
        """
        if not isinstance(value, datetime.date):
            return value
        if not isinstance(value, datetime.datetime):
            return np.datetime64(value, "s")
        return value.replace(tzinfo=None) if isinstance(column.dtype, np.dtype) else value

    def values(self, frame: Any, keys: Sequence[str], aggregate: Aggregate, schema: Schema) -> Any:
        """Return the column that an aggregate is computed of: integers as 64 bits, what has a mean as doubles."""
        if aggregate.how == "rows":
            return frame[keys[0]]
        column, held = frame[aggregate.column], column_kind(schema, aggregate.column)
        if aggregate.how == "mean" or (aggregate.how == "sum" and held == "float"):
            return self.cast(column, "float64")
        return self.cast(column, "int64") if aggregate.how == "sum" and held != "decimal" else column

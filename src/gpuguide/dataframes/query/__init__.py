"""Queries on a frame of one's own: the eight operations with the names of columns, on any of four engines.

>>> import pyarrow
>>> trips = pyarrow.table({"city": ["Zürich", "Łódź", "Zürich"], "fare": [10.0, 4.0, 6.0]})
>>> query = Query(trips).filter("fare", ">", 5).group_by("city", sum="fare")
>>> query.on("polars").to_pylist()
[{'city': 'Zürich', 'fare_sum': 16.0}]

A missing value compares with nothing, belongs to no group and finds no partner, and NaN counts as missing, as in
:mod:`gpuguide.dataframes.operations`. The order of the resulting rows is defined only where the last step is a sort.
The sum of no values is 0.
"""

from __future__ import annotations

from typing import Any, Self

from gpuguide.dataframes.cost import MachineParameters
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query import polars_plan, sql
from gpuguide.dataframes.query.choice import (
    ENGINES,
    QueryChoice,
    choose,
    free_memory,
    where_to_run,
    why_not_here,
    why_refused,
)
from gpuguide.dataframes.query.cudf_calls import CuDFCalls
from gpuguide.dataframes.query.join_size import check_joins
from gpuguide.dataframes.query.source import Source
from gpuguide.dataframes.query.steps import (
    AGGREGATES,
    RIGHT,
    ROWS,
    Aggregate,
    Chain,
    Filter,
    GroupBy,
    Join,
    Search,
    Sort,
    Window,
)
from gpuguide.dataframes.query.types import Schema, kind
from gpuguide.errors import GpuguideError, unknown

__all__ = ["ENGINES", "Query", "QueryChoice", "where_to_run"]

LARGEST_SUM = 2**63 - 1


class Query(Chain):
    """A source and the steps that are done with it. Each method returns a new query with a step more.

    A step is checked when it is added, so that an error is raised where it was written. Nothing is read before
    :meth:`on` but the schema, the statistics of Parquet files and the least and greatest values of a table.

    Parameters
    ----------
    table_or_path : pyarrow.Table, a frame of Polars or pandas, str, Path or a list of these paths
        A path may be a Parquet file, a folder of them, or a pattern such as ``trips/*.parquet``.
    """

    def filter(self, column: str, comparison: str, value: Any) -> Self:
        """Keep the rows whose column compares so with a value.

        Parameters
        ----------
        column : str
            Of numbers, text, bools, dates or timestamps.
        comparison : str
            ``>``, ``>=``, ``<``, ``<=``, ``==`` or ``!=``.
        value : object
            Of the column's type, or text that says it, such as ``2024-01-31`` for a date.
        """
        return self.add(Filter(column, comparison, value))

    def search(self, column: str, text: str) -> Self:
        """Keep the rows whose column contains a text, and add ``<column>_length``, the number of its characters."""
        return self.add(Search(column, text))

    def group_by(self, *keys: str, **aggregates: str | list[str]) -> Self:
        """Compute a number for each group: ``group_by("city", sum="fare", mean=["fare", "tip"])``.

        Parameters
        ----------
        keys : str
            The columns whose values make a group.
        aggregates : str or list of str
            ``sum``, ``mean``, ``min``, ``max`` or ``count`` of which columns. A result is named after both, such as
            ``fare_sum``. Without any, ``rows`` counts the rows of each group.
        """
        return self.add(GroupBy(keys, _aggregates(aggregates)))

    def window(self, *keys: str, **aggregates: str | list[str]) -> Self:
        """Add a number of its group to each row; parameters as for :meth:`group_by`."""
        return self.add(Window(keys, _aggregates(aggregates)))

    def join(self, other: Any, *, on: str | list[str]) -> Self:
        """Put each row beside each row of another query or source with the same keys, and drop the others.

        A column of the other that has the name of one of this query gets the suffix ``_right``.
        """
        right = other if isinstance(other, Chain) else Chain(other)
        return self.add(Join(right, (on,) if isinstance(on, str) else tuple(on)))

    def sort(self, *columns: str, descending: bool = False) -> Self:
        """Order the rows by columns, with missing values last."""
        return self.add(Sort(columns, descending))

    def plan(self) -> Any:
        """Return the query as a ``polars.LazyFrame``, whose method ``explain`` shows what Polars will do."""
        return polars_plan.plan(self)

    def on(self, engine: str = "auto", *, machine: MachineParameters | None = None) -> Any:
        """Run the query, and return its result as an Arrow table.

        Text is ``large_string`` in a result, sums are int64, double or decimal128, and a dictionary is decoded.

        Parameters
        ----------
        engine : str
            ``polars`` (its streaming engine), ``duckdb``, ``cudf``, ``polars-gpu`` (the plan of :meth:`plan` on a GPU),
            or ``auto``, which takes the engine that :func:`~gpuguide.dataframes.query.choice.where_to_run` names among
            those that can run here.
        machine : MachineParameters, optional
            The measured times that ``auto`` goes by. Without it, a GPU is taken from
            :data:`gpuguide.dataframes.cost.accuracy.RULE_ROWS` rows upwards.

        Raises
        ------
        GpuguideError
            If there is no such engine, it cannot run here, or cannot run this query; if a sum of integers might not fit
            64 bits; or if a join would have more rows than the memory holds.
        """
        if engine not in (*ENGINES, "auto"):
            raise unknown("engine", engine, (*ENGINES, "auto"))
        check_sums(self)
        if engine == "auto":
            engine = choose(self, machine=machine).engine
        if why := why_not_here(engine):
            here = [other for other in ENGINES if why_not_here(other) is None]
            raise GpuguideError(f"{why}. Engines that can run here: {', '.join(here) or 'none'}.")
        if why := why_refused(engine, self):
            raise GpuguideError(why)
        check_joins(self, free_memory(engine))
        try:
            return finish(self.compute(engine), self.schema)
        except GpuguideError:
            raise
        except Exception as error:
            said = (str(error).splitlines() or ["no message"])[0]
            types = ", ".join(f"{name} {self.source.schema[name]}" for name in self.columns_read)
            raise GpuguideError(
                f"{engine} cannot run this query ({type(error).__name__}: {said}). It reads {types}. If it refuses "
                "one of these types, cast that column, leave it out, or use another engine."
            ) from error

    def compute(self, engine: str) -> Any:
        """Run the query without the checks of :meth:`on`, and return the Arrow table as the engine gives it.

        What cannot run on a GPU is an error, and is not run on the host instead.
        """
        if engine == "duckdb":
            return sql.run(self)
        if engine == "cudf":
            return CuDFCalls().run(self)
        return polars_plan.collect(self.plan(), engine)


def _aggregates(asked: dict[str, str | list[str]]) -> tuple[Aggregate, ...]:
    """Return aggregates from the keywords of a call."""
    found = []
    for how, columns in asked.items():
        if how not in AGGREGATES:
            raise unknown("aggregate", how, AGGREGATES)
        found += [Aggregate(column, how) for column in ([columns] if isinstance(columns, str) else columns)]
    return tuple(found) or (Aggregate("", ROWS),)


def check_sums(query: Chain) -> None:
    """Refuse a sum of integers that may need more than 64 bits, which most engines would wrap without a word.

    The largest value comes from the statistics, and otherwise from the type. A join may repeat rows, so that the rows
    of both sides are multiplied. What a step computed is not checked.
    """
    rows, stored = query.source.rows, {name: [query.source] for name in query.source.schema}
    for schema, step in query.steps:
        if isinstance(step, Join):
            check_sums(step.other)
            rows *= step.other.source.rows
            for name in step.other.source.schema:
                stored.setdefault(step.renamed(name, schema), []).append(step.other.source)
        for each in step.aggregates if isinstance(step, (GroupBy, Window)) else ():
            if each.how != "sum" or each.column not in stored or kind(schema[each.column]) != "integer":
                continue
            largest = max(largest_integer(source, each.column, schema) for source in stored[each.column])
            if largest * rows > LARGEST_SUM:
                raise GpuguideError(
                    f"Column {each.column!r} holds integers up to {largest:,}, and the sum of {rows:,} rows may not "
                    "fit 64 bits; cast the column to double."
                )
        if isinstance(step, GroupBy):
            return


def largest_integer(source: Source, column: str, schema: Schema) -> int:
    """Return the largest absolute value of a column that statistics or else its type allow."""
    known = source.statistics.get(column if column in source.schema else column.removesuffix(RIGHT))
    if known is not None:
        return max(abs(known.least or 0), abs(known.greatest or 0))
    return int(2 ** (schema[column].bit_width - (0 if str(schema[column]).startswith("u") else 1)))


def finish(result: Any, schema: Schema) -> Any:
    """Return an engine's Arrow table with the columns and types that a query promises."""
    arrow = library("pyarrow")
    columns = {}
    for name, type in schema.items():
        if arrow.types.is_dictionary(type):
            type = type.value_type
        columns[name] = result[name].cast(arrow.large_string() if kind(type) == "text" else type)
    return arrow.table(columns)

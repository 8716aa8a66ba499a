"""The steps of a query: what each needs of the columns before it, and which columns it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query.source import Source, open_source
from gpuguide.dataframes.query.types import REMEDIES, SUMMED, Schema, coerce, column_kind
from gpuguide.errors import GpuguideError, unknown

COMPARISONS = (">=", "<=", "==", "!=", ">", "<")
AGGREGATES = ("sum", "mean", "min", "max", "count")
ROWS = "rows"
"""The column of a group-by without aggregates: how many rows each group has"""
RIGHT = "_right"
"""What is added to the name of a joined column that the left table has too, as in Polars"""


@dataclass(frozen=True)
class Aggregate:
    """One number for each group."""

    column: str
    how: str
    """Of :data:`AGGREGATES`, or ``rows``"""

    @property
    def name(self) -> str:
        """The resulting column, such as ``fare_sum``."""
        return ROWS if self.how == ROWS else f"{self.column}_{self.how}"

    def result_type(self, schema: Schema) -> Any:
        """Return the Arrow type of the result.

        Raises
        ------
        GpuguideError
            If the column has no sum or mean; the message says the cast.
        """
        arrow = library("pyarrow")
        if self.how == ROWS:
            return arrow.int64()
        held = column_kind(schema, self.column)
        if self.how in ("sum", "mean") and held not in SUMMED:
            raise GpuguideError(
                f"Column {self.column!r} has the type {schema[self.column]}, which has no {self.how}; "
                f"{REMEDIES[held]}, or take its min, max or count."
            )
        if self.how == "count":
            return arrow.int64()
        if self.how == "mean" or (self.how, held) == ("sum", "float"):
            return arrow.float64()
        if self.how == "sum":
            return arrow.decimal128(38, schema[self.column].scale) if held == "decimal" else arrow.int64()
        if held == "bool":
            raise GpuguideError(f"Column {self.column!r} is bool, which has no {self.how}; take its sum or mean.")
        return schema[self.column]


@dataclass(frozen=True)
class Filter:
    """Keep the rows whose column compares so with a value. A missing value compares with nothing."""

    column: str
    comparison: str
    value: Any

    def resolve(self, schema: Schema) -> tuple[Filter, Schema]:
        """Return the step with its value as the column's type, and the columns after it."""
        if self.comparison not in COMPARISONS:
            raise unknown("comparison", self.comparison, COMPARISONS)
        return Filter(self.column, self.comparison, coerce(self.value, schema, self.column)), schema


@dataclass(frozen=True)
class Search:
    """Keep the rows whose text contains another, and count the characters."""

    column: str
    text: str

    @property
    def length(self) -> str:
        """The column of the count."""
        return f"{self.column}_length"

    def resolve(self, schema: Schema) -> tuple[Search, Schema]:
        """Return the step, and the columns after it."""
        if column_kind(schema, self.column) != "text":
            raise GpuguideError(
                f"Column {self.column!r} has the type {schema[self.column]}, and a search needs text; cast it to "
                "string, or use filter."
            )
        return self, _add(schema, {self.length: library("pyarrow").int64()})


@dataclass(frozen=True)
class GroupBy:
    """Count and add up the rows of each group. A row with a missing key belongs to none."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    def resolve(self, schema: Schema) -> tuple[GroupBy, Schema]:
        """Return the step, and the columns after it."""
        _check_keys("group_by", self.keys, schema)
        return self, _add({key: schema[key] for key in self.keys}, _results(self.aggregates, schema))


@dataclass(frozen=True)
class Window:
    """Put numbers of its group beside each row. A row with a missing key has none."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]

    def resolve(self, schema: Schema) -> tuple[Window, Schema]:
        """Return the step, and the columns after it."""
        _check_keys("window", self.keys, schema)
        return self, _add(schema, _results(self.aggregates, schema))


@dataclass(frozen=True)
class Sort:
    """Order the rows; missing values come last."""

    columns: tuple[str, ...]
    descending: bool = False

    def resolve(self, schema: Schema) -> tuple[Sort, Schema]:
        """Return the step, and the columns after it."""
        _check_keys("sort", self.columns, schema)
        return self, schema


@dataclass(frozen=True)
class Join:
    """Put each row beside each row of another query with the same keys; rows without a partner are dropped."""

    other: Chain
    on: tuple[str, ...]

    def resolve(self, schema: Schema) -> tuple[Join, Schema]:
        """Return the step, and the columns after it."""
        right = self.other.schema
        _check_keys("join", self.on, schema)
        _check_keys("join", self.on, right)
        for key in self.on:
            kinds = {column_kind(schema, key), column_kind(right, key)}
            if len(kinds) > 1 or (kinds <= {"decimal", "float", "timestamp"} and schema[key] != right[key]):
                raise GpuguideError(
                    f"The join compares {key!r} of the type {schema[key]} with {key!r} of the type {right[key]}; "
                    "cast one to the type of the other."
                )
        return self, _add(schema, {self.renamed(name, schema): right[name] for name in right if name not in self.on})

    def renamed(self, name: str, schema: Schema) -> str:
        """Return the name that a column of the other table has in the result."""
        return f"{name}{RIGHT}" if name in schema else name


Step = Filter | Search | GroupBy | Window | Sort | Join


class Chain:
    """A source and the steps that are done with it.

    Parameters
    ----------
    table_or_path : object
        As for :func:`gpuguide.dataframes.query.source.open_source`.
    """

    def __init__(self, table_or_path: Any) -> None:
        self.source: Source = open_source(table_or_path)
        self.schema: Schema = self.source.schema
        """The Arrow type of each column of the result"""
        self.steps: tuple[tuple[Schema, Step], ...] = ()
        """Each step with the columns before it"""

    def add(self, step: Step) -> Self:
        """Return the chain with a step more, which is checked against the columns there are."""
        resolved, schema = step.resolve(self.schema)
        chain = type(self)(self.source)
        chain.schema, chain.steps = schema, (*self.steps, (self.schema, resolved))
        return chain

    def over(self, table_or_path: Any) -> Self:
        """Return the same steps on another source."""
        chain = type(self)(table_or_path)
        for _, step in self.steps:
            chain = chain.add(step)
        return chain

    def first_steps(self, count: int) -> Self:
        """Return the chain that ends after so many steps."""
        chain = type(self)(self.source)
        chain.schema, chain.steps = self.steps[count][0] if count < len(self.steps) else self.schema, self.steps[:count]
        return chain

    @property
    def columns_read(self) -> list[str]:
        """The columns of the source that are used up to the first group-by, or all if there is none."""
        if not any(isinstance(step, GroupBy) for _, step in self.steps):
            return list(self.source.schema)
        used: set[str] = set()
        for _, step in self.steps:
            used |= _columns_of(step)
            if isinstance(step, GroupBy):
                break
        return [name for name in self.source.schema if name in used]


def _columns_of(step: Step) -> set[str]:
    """Return the columns that a step uses."""
    if isinstance(step, (GroupBy, Window)):
        return {*step.keys, *(each.column for each in step.aggregates)}
    if isinstance(step, Join):
        return set(step.other.schema)  # the keys, and the columns whose names make others end with _right
    return set(step.columns) if isinstance(step, Sort) else {step.column}


def _results(aggregates: Sequence[Aggregate], schema: Schema) -> dict[str, Any]:
    names = [each.name for each in aggregates]
    if twice := [name for name in names if names.count(name) > 1]:
        raise GpuguideError(f"The query asks twice for {twice[0]!r}; ask once.")
    return {each.name: each.result_type(schema) for each in aggregates}


def _check_keys(step: str, keys: Sequence[str], schema: Schema) -> None:
    if not keys:
        raise GpuguideError(f"The step {step} needs at least one column.")
    for key in keys:
        column_kind(schema, key)


def _add(schema: Schema, more: Schema) -> Schema:
    """Return columns with others after them.

    Raises
    ------
    GpuguideError
        If a new column has a name that there is already.
    """
    for name in more:
        if name in schema:
            raise GpuguideError(f"The result would have two columns {name!r}; rename the one of the table first.")
    return {**schema, **more}

"""What is asked of the engines: eight operations, in words and as Arrow's own functions compute them.

In all of them a missing value is greater than nothing, belongs to no group, and finds no partner. The order of the
resulting rows is not told, except after a sort. A group's sum is null or 0 where the group has no values; its count
says which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpuguide.dataframes.libraries import library
from gpuguide.errors import GpuguideError, unknown

THRESHOLD = 0.5
"""A filter keeps rows with a greater ``value``"""
PATTERN = "ü"
"""The string operation looks for names with this letter"""
COMPUTED = ("sum", "mean")
"""Columns of results that depend on the order in which numbers are added up"""
TOLERANCE = 1e-12
"""Relative, for these columns"""


@dataclass(frozen=True)
class DataframeOperation:
    """One thing to do with a frame."""

    name: str
    title: str
    result: str
    """In words"""
    columns: tuple[str, ...]
    """Of the frame that it needs"""
    result_columns: tuple[str, ...]
    has_lookup: bool = False
    """Whether it takes a second table"""


OPERATIONS = {
    operation.name: operation
    for operation in (
        DataframeOperation(
            "filter",
            "Filter",
            f"The rows whose value is greater than {THRESHOLD}, with all their columns.",
            ("key", "id", "value"),
            ("key", "id", "value"),
        ),
        DataframeOperation(
            "groupby",
            "Group-by, 1000 keys",
            "For each key, how many values there are and their sum.",
            ("key", "value"),
            ("key", "count", "sum"),
        ),
        DataframeOperation(
            "groupby-many",
            "Group-by, many keys",
            "For each id, how many values there are and their sum.",
            ("id", "value"),
            ("id", "count", "sum"),
        ),
        DataframeOperation(
            "join",
            "Join",
            "Each row beside each row of the lookup with the same id; rows without a partner fall away.",
            ("id", "value"),
            ("id", "value", "weight"),
            has_lookup=True,
        ),
        DataframeOperation(
            "sort",
            "Sort",
            "All rows in the order of their values, missing values last. Rows of one value stand in any order.",
            ("key", "id", "value"),
            ("key", "id", "value"),
        ),
        DataframeOperation(
            "filter-groupby",
            "Filter, then group-by",
            f"For each key that has any, how many values are greater than {THRESHOLD}, and the sum of these.",
            ("key", "value"),
            ("key", "count", "sum"),
        ),
        DataframeOperation(
            "string",
            "Search in strings",
            f"The names with {PATTERN!r} in them, and how many characters each has.",
            ("name",),
            ("name", "length"),
        ),
        DataframeOperation(
            "window",
            "Window",
            "Each row with the mean of its key's values beside it; rows without a key have none.",
            ("key", "value"),
            ("key", "value", "mean"),
        ),
    )
}


def get(name: str) -> DataframeOperation:
    """Return the operation of that name.

    Raises
    ------
    GpuguideError
        If there is none; the message lists the near names.
    """
    if name not in OPERATIONS:
        raise unknown("operation", name, OPERATIONS)
    return OPERATIONS[name]


def check_columns(operation: DataframeOperation, table: Any, lookup: Any | None) -> None:
    """Check that the tables of an operation have the columns that it needs.

    Raises
    ------
    GpuguideError
        The message names the column or the table that is missing.
    """
    for column in operation.columns:
        if column not in table.column_names:
            raise GpuguideError(
                f"The operation {operation.name!r} needs the column {column!r}; the frame has "
                f"{', '.join(table.column_names) or 'none'}. Give the column that is meant this name: "
                f"table.rename_columns({{'yours': {column!r}}})."
            )
    if operation.has_lookup and (lookup is None or "id" not in lookup.column_names):
        raise GpuguideError(f"The operation {operation.name!r} needs a second table with the column 'id'.")


# --- the reference ---------------------------------------------------------------------------------------


def reference(name: str, table: Any, lookup: Any | None = None) -> Any:
    """Return the result of an operation, computed by Arrow's functions, which none of the engines uses.

    Parameters
    ----------
    name : str
        Of :data:`OPERATIONS`.
    table, lookup : pyarrow.Table
        From :func:`gpuguide.dataframes.data.normalize_table`.
    """
    compute = library("pyarrow.compute")
    field = compute.field
    operation = get(name)
    above = field("value") > THRESHOLD
    if name == "filter":
        found = table.filter(above)
    elif name in ("groupby", "groupby-many"):
        found = _group_by(table, operation.columns[0])
    elif name == "filter-groupby":
        found = _group_by(table.filter(above), "key")
    elif name == "join":
        found = table.join(lookup, "id", join_type="inner")
    elif name == "sort":
        found = table.sort_by([("value", "ascending")])
    elif name == "string":
        found = table.filter(compute.match_substring(field("name"), PATTERN))
        found = found.append_column("length", compute.utf8_length(found["name"]))
    else:
        means = table.group_by("key").aggregate([("value", "mean")]).rename_columns(["key", "mean"])
        found = table.join(means, "key", join_type="left outer")
    return found.select(list(operation.result_columns))


def _group_by(table: Any, key: str) -> Any:
    """Return count and sum of each key's values."""
    compute = library("pyarrow.compute")
    totals = table.group_by(key).aggregate([("value", "count"), ("value", "sum")])
    return totals.rename_columns([key, "count", "sum"]).filter(compute.is_valid(compute.field(key)))


def result_rows(name: str, table: Any, lookup: Any | None = None) -> int:
    """Return how many rows an operation's result has, from a count that is cheap at any size.

    The ids of ``lookup`` must be unique.
    """
    compute = library("pyarrow.compute")
    if name in ("sort", "window"):
        return int(table.num_rows)
    if name == "filter":
        counted = compute.greater(table["value"], THRESHOLD)
    elif name == "join":
        assert lookup is not None
        counted = compute.is_in(table["id"], value_set=lookup["id"].drop_null())
    elif name == "string":
        counted = compute.match_substring(table["name"], PATTERN)
    else:
        if name == "filter-groupby":
            table = table.filter(compute.greater(table["value"], THRESHOLD))
        return int(compute.count_distinct(table[get(name).columns[0]]).as_py())
    return int(compute.sum(counted).as_py() or 0)


# --- comparing -------------------------------------------------------------------------------------------


def canonical(name: str, result: Any) -> Any:
    """Return a result in one form: integers as int64, sums of nothing as 0, columns and rows in order."""
    arrow, compute = library("pyarrow"), library("pyarrow.compute")
    columns = {}
    for column in get(name).result_columns:
        values = result[column]
        if arrow.types.is_integer(values.type) or arrow.types.is_decimal(values.type):
            values = values.cast(arrow.int64())
        elif arrow.types.is_floating(values.type):
            values = values.cast(arrow.float64())
            values = compute.if_else(compute.is_nan(values), arrow.scalar(None, arrow.float64()), values)
        else:
            values = values.cast(arrow.string())
        columns[column] = compute.fill_null(values, 0) if column == "sum" else values
    exact = [column for column in columns if column not in COMPUTED]
    return arrow.table(columns).sort_by([(column, "ascending") for column in exact])


def difference(name: str, result: Any, wanted: Any) -> str | None:
    """Return what differs between a result and the reference, order aside, or ``None`` if they agree.

    Numbers that were added up may differ by :data:`TOLERANCE`, all others not at all. After a sort the order counts.

    Parameters
    ----------
    name : str
        Of :data:`OPERATIONS`.
    result, wanted : pyarrow.Table
    """
    missing = [column for column in get(name).result_columns if column not in result.column_names]
    if missing:
        return f"there is no column {missing[0]!r}"
    if result.num_rows != wanted.num_rows:
        return f"there are {result.num_rows:,} rows, and {wanted.num_rows:,} are right"
    if name == "sort" and not _same(_plain(result["value"]), _plain(wanted["value"]), 0.0):
        return "the rows are not in the order of their values"
    found, right = canonical(name, result), canonical(name, wanted)
    for column in right.column_names:
        tolerance = TOLERANCE if column in COMPUTED else 0.0
        if not _same(_plain(found[column]), _plain(right[column]), tolerance):
            return f"column {column!r} differs"
    return None


def _plain(column: Any) -> list[Any]:
    """Return Python's values, with NaN as ``None``."""
    return [None if isinstance(value, float) and math.isnan(value) else value for value in column.to_pylist()]


def _same(found: list[Any], right: list[Any], tolerance: float) -> bool:
    """Return whether two lists agree, numbers within a relative tolerance."""
    if tolerance == 0.0:
        return found == right
    return all(
        one == other or (None not in (one, other) and math.isclose(one, other, rel_tol=tolerance))
        for one, other in zip(found, right, strict=True)
    )

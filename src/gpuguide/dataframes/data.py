"""Frames for measurements, the same numbers for every engine, and what a frame must be like for engines to agree.

A frame is an Arrow table. Its columns:

=========  =========  =================================================================
``key``    int32      one of 1000 values, for groups of many rows
``id``     int64      one of ``rows / 100`` values, for many groups and for joins
``value``  float64    between 0 and 1
``name``   string     one of 64 names, most of them with letters beyond ASCII
=========  =========  =================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuguide.dataframes.libraries import library
from gpuguide.errors import GpuguideError, unknown

COLUMNS = ("key", "id", "value", "name")
KEYS = 1000
ROWS_AN_ID = 100
MISSING_FROM_LOOKUP = 10
"""One id in so many has no row in the lookup, and finds no partner in a join"""
WORDS = ("Ångström", "naïve", "Zürich", "Łódź", "Αθήνα", "Київ", "東京", "서울", "🌍 globe", "plain")
NAMES = tuple(f"{WORDS[index % len(WORDS)]} {index}" for index in range(64))
INTEGERS = ("int8", "int16", "int32", "int64")
TYPES = (*INTEGERS, "float", "double", "string", "large_string")
"""Arrow's names of the types that all engines take"""
LARGEST_SUM = 2**63 - 1


def frame(
    rows: int,
    *,
    columns: Sequence[str] = COLUMNS,
    seed: int = 0,
    keys: int = KEYS,
    ids: int | None = None,
    nulls: float = 0.0,
    nans: float = 0.0,
) -> Any:
    """Return a frame of random numbers.

    A column depends on the seed and its name alone, so that a frame with fewer columns holds the same numbers.

    Parameters
    ----------
    rows : int
        How many.
    columns : sequence of str
        Of :data:`COLUMNS`.
    seed : int
        Anything from 0 on.
    keys, ids : int
        How many different values ``key`` and ``id`` have; 1000, and one for 100 rows.
    nulls : float
        The share of missing values in every column.
    nans : float
        The share of NaN in ``value``.

    Returns
    -------
    pyarrow.Table
    """
    arrow = library("pyarrow")
    made = {}
    for name in columns:
        if name not in COLUMNS:
            raise unknown("column", name, COLUMNS)
        random = np.random.default_rng([seed, COLUMNS.index(name)])
        values = _draw(name, rows, random, keys, ids or max(1, rows // ROWS_AN_ID), nans)
        missing = random.random(rows) < nulls if nulls else None
        if name == "name":
            places = arrow.array(values, mask=missing)
            made[name] = arrow.array(NAMES).take(places)
        else:
            made[name] = arrow.array(values, mask=missing)
    return arrow.table(made)


def _draw(name: str, rows: int, random: np.random.Generator, keys: int, ids: int, nans: float) -> np.ndarray:
    """Return the numbers of a column; for names, their places in :data:`NAMES`."""
    if name == "key":
        return random.integers(0, keys, rows, dtype=np.int32)
    if name == "id":
        return random.integers(0, ids, rows, dtype=np.int64)
    if name == "name":
        return random.integers(0, len(NAMES), rows, dtype=np.int32)
    values = random.random(rows)
    if nans:
        values[random.random(rows) < nans] = np.nan
    return values


def lookup(rows: int, *, seed: int = 0, ids: int | None = None) -> Any:
    """Return the table that a frame of so many rows is joined with: most ids once, in random order, with a weight.

    Returns
    -------
    pyarrow.Table
        ``id`` int64 and ``weight`` float64. One id in ten is missing.
    """
    random = np.random.default_rng([seed, len(COLUMNS)])
    known = random.permutation(ids or max(1, rows // ROWS_AN_ID)).astype(np.int64)
    known = known[known % MISSING_FROM_LOOKUP != MISSING_FROM_LOOKUP - 1]
    return library("pyarrow").table({"id": known, "weight": random.random(len(known))})


def normalize_table(table: Any) -> Any:
    """Return a table as all engines can take it, so that they agree.

    - NaN becomes a missing value. Some libraries tell the two apart and others cannot.
    - Integers in ``value`` become int64, because they are summed, and not every library widens a sum.

    Parameters
    ----------
    table : pyarrow.Table
        With columns of the types in :data:`TYPES`.

    Raises
    ------
    GpuguideError
        If a column has another type, or a sum of integers in ``value`` might not fit 64 bits.
    """
    arrow, compute = library("pyarrow"), library("pyarrow.compute")
    for field in table.schema:
        if str(field.type) not in TYPES:
            raise refuse_type(field.name, field.type, TYPES, "not every engine takes")
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if field.name == "value" and str(field.type) in INTEGERS:
            _check_sum(column, compute)
            table = table.set_column(place, field.name, column.cast(arrow.int64()))
        if str(field.type) in ("float", "double") and compute.any(compute.is_nan(column)).as_py():
            missing = arrow.scalar(None, field.type)
            table = table.set_column(place, field.name, compute.if_else(compute.is_nan(column), missing, column))
    return table


def refuse_type(name: str, type: Any, known: Sequence[str], problem: str) -> GpuguideError:
    """Return the refusal of a column's type, with the cast that helps.

    Parameters
    ----------
    name : str
        The column's.
    type : pyarrow.DataType
        Its type.
    known : sequence of str
        Arrow's names of the types that would do.
    problem : str
        What is wrong with the type, after "which".
    """
    types = library("pyarrow").types
    if types.is_dictionary(type):
        remedy = f"decode it with .cast({str(type.value_type)!r})"
    elif types.is_decimal(type):
        remedy = "cast it to double, or multiply it by a power of ten and cast it to int64"
    elif types.is_boolean(type):
        remedy = "cast it to int8"
    elif types.is_date32(type):
        remedy = "cast it to int32, days since 1970"
    elif types.is_temporal(type):
        remedy = "cast it to int64, moments since 1970"
    else:
        remedy = f"cast it to one of {', '.join(known)}"
    return GpuguideError(f"Column {name!r} has the type {type}, which {problem}; {remedy}, or leave it out.")


def _check_sum(column: Any, compute: Any) -> None:
    """Refuse integers of which so many may add up to more than 64 bits hold."""
    extremes = compute.min_max(column).as_py()
    largest = max(abs(extremes["min"] or 0), abs(extremes["max"] or 0))
    if largest * len(column) > LARGEST_SUM:
        raise GpuguideError(
            f"Column 'value' holds integers up to {largest:,}, and the sum of {len(column):,} of them may not fit "
            "64 bits; cast the column to double."
        )

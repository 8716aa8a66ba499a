"""The types of columns that a query works with, and the values that a person writes to compare them with."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuguide.dataframes.libraries import library
from gpuguide.errors import GpuguideError, unknown

Schema = Mapping[str, Any]
"""The Arrow type of each column, in order"""
SUMMED = ("integer", "float", "decimal", "bool")
"""Kinds of columns that have a sum and a mean"""
REMEDIES = {
    "date": "cast it to int32, which counts days since 1970",
    "timestamp": "cast it to int64, which counts time since 1970",
    "text": "cast it to double if it holds numbers",
}
"""What to do with a column that has no sum"""


def kind(type: Any) -> str | None:
    """Return what a column of an Arrow type holds; ``None`` if no engine of a query takes it.

    A dictionary has the kind of its values: it is decoded on the way to every engine.
    """
    types = library("pyarrow").types
    if types.is_dictionary(type):
        return kind(type.value_type)
    checks = {
        "integer": types.is_integer,
        "float": lambda type: types.is_float32(type) or types.is_float64(type),
        "decimal": types.is_decimal128,
        "bool": types.is_boolean,
        "text": lambda type: types.is_string(type) or types.is_large_string(type) or types.is_string_view(type),
        "date": types.is_date32,
        "timestamp": types.is_timestamp,
    }
    return next((name for name, check in checks.items() if check(type)), None)


def column_kind(schema: Schema, name: str) -> str:
    """Return what a column holds.

    Raises
    ------
    UnknownName
        If there is no such column; the message lists the near names.
    GpuguideError
        If no engine of a query takes its type; the message says the cast to write.
    """
    if name not in schema:
        raise unknown("column", name, schema)
    found = kind(schema[name])
    if found is None:
        raise GpuguideError(
            f"Column {name!r} has the type {schema[name]}, which a query cannot use; {_cast(schema[name])}, "
            "or leave it out of the query."
        )
    return found


def _cast(type: Any) -> str:
    """Return what to do with a column of a type that no engine takes."""
    types = library("pyarrow").types
    if types.is_float16(type):
        return "cast it to float"
    if types.is_date64(type):
        return "cast it to date32"
    if types.is_time(type) or types.is_duration(type):
        return f"cast it to {'int32' if type.bit_width == 32 else 'int64'}, which counts its units"
    if types.is_decimal(type):
        return "cast it to decimal128(38, s) or to double"
    if types.is_struct(type) or types.is_nested(type):
        return "write the field that you need as a column of its own (in Polars, .unnest or .explode)"
    return "cast it to string"


def coerce(value: Any, schema: Schema, column: str) -> Any:
    """Return a value as the type of the column that it is compared with, so that every engine compares alike.

    Text becomes a number, a date (``2024-01-31``), a timestamp or a bool (``true``) where the column holds those.

    Raises
    ------
    GpuguideError
        If the value is none of that type.
    """
    wanted = column_kind(schema, column)
    try:
        return _coerce(value, wanted, schema[column])
    except (ValueError, TypeError, ArithmeticError) as error:
        raise GpuguideError(
            f"Column {column!r} has the type {schema[column]}, and {value!r} is no such value; "
            f"write it as in {EXAMPLES[wanted]}."
        ) from error


EXAMPLES = {
    "integer": "3",
    "float": "0.5",
    "decimal": "12.50",
    "bool": "true",
    "text": "Zürich",
    "date": "2024-01-31",
    "timestamp": "2024-01-31T12:30:00",
}


def _coerce(value: Any, wanted: str, type: Any) -> Any:
    if value is None or (isinstance(value, float) and value != value):
        raise ValueError("nothing is equal to a missing value")
    if wanted == "text":
        if not isinstance(value, str):
            raise TypeError("only text is compared with text")
        return value
    if wanted == "bool":
        known = {"true": True, "false": False, True: True, False: False}
        if isinstance(value, str):
            value = value.lower()
        if value not in known:
            raise ValueError("neither true nor false")
        return known[value]
    if wanted == "date":
        if isinstance(value, str):
            return datetime.date.fromisoformat(value)
        if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
            raise TypeError("not a date")
        return value
    if wanted == "timestamp":
        return _timestamp(value, type)
    if isinstance(value, bool):
        raise TypeError("a bool is no number")
    if wanted == "decimal":
        return decimal.Decimal(str(value))
    if isinstance(value, str):
        value = float(value) if set(value) & set(".eEn") else int(value)
    if not isinstance(value, (int, float)):
        raise TypeError("not a number")
    if type.bit_width == 32 and wanted == "float":
        return float(np.float32(value))  # or some engines would compare in fp32, and others in fp64
    return value


def _timestamp(value: Any, type: Any) -> datetime.datetime:
    """Return a moment; one without a time zone counts as UTC where the column has a zone."""
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    if not isinstance(value, datetime.date):
        raise TypeError("not a moment")
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if type.tz is None:
        if value.tzinfo is not None:
            raise ValueError("the column has no time zone")
        return value
    utc = datetime.UTC
    return (value if value.tzinfo else value.replace(tzinfo=utc)).astimezone(utc)

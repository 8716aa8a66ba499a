"""Evaluate the expressions of a claim, with the library functions that its row names."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable

from gpuguide.claims import expression
from gpuguide.claims.claim import Claim
from gpuguide.claims.expression import ExpressionError, RecordedValue, Value


def evaluate(claim: Claim, text: str) -> Value:
    """Return the value of an expression that stands in a claim."""
    return expression.evaluate(text, _functions(claim))


def _functions(claim: Claim) -> dict[str, Callable[..., Value]]:
    """Import the library functions that the row names."""
    found: dict[str, Callable[..., Value]] = {}
    for full_name in claim.functions:
        module_name, _, name = full_name.rpartition(".")
        try:
            function = getattr(importlib.import_module(module_name), name)
        except (ImportError, AttributeError) as error:
            raise ExpressionError(f"The function {full_name} cannot be imported: {error}.") from error
        if not callable(function):
            raise ExpressionError(f"{full_name} is no function.")
        found[name] = function
    return found


def look_up_records(lookups: Iterable[tuple[str, tuple[str, ...]]]) -> list[RecordedValue]:
    """Return what the records say, for those lookups that read a record."""
    values = [expression.FUNCTIONS[function](*arguments) for function, arguments in lookups]
    return [value for value in values if isinstance(value, RecordedValue)]


def numbers(value: Value) -> float | tuple[float, ...]:
    """Return a computed value as a number or a tuple of numbers."""
    if isinstance(value, list):
        return tuple(_number(each) for each in value)
    return _number(value)


def _number(value: Value) -> float:
    if isinstance(value, RecordedValue):
        value = value.quantile("median")
    if isinstance(value, (bool, str, list)) or not math.isfinite(value):
        raise ExpressionError(f"The expression gives {value!r}, which is no finite number.")
    return value

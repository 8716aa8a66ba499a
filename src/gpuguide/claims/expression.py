"""Expressions of the ledger: Python's arithmetic, a few functions, and look-ups of records and data sheets.

An expression is compiled once. What it looks up is found in its syntax tree, so the names of records and data sheets
stand in it as literal text. Examples::

    2 * 4096**3
    [generation * 16 / 8 * 128 / 130 for generation in (8, 16, 32)]
    datasheet("h100-sxm", "memory_bandwidth") / 1e12
    datasheet("reference", "sms") * 2048
    quantity(2 * 6738415616, "GiB")
    gpu("a short")
    measurement("ceilings/copy:bandwidth").p25 > 2e12
    16e9 / ceiling("read")
    ratio("timing-mistakes/zeros/right:throughput shape=square").p25 > 1
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

from gpuguide.claims.quantity import LedgerQuantity
from gpuguide.errors import GpuguideError, unknown

if TYPE_CHECKING:
    from gpuguide.measure.records import Record, Run, SampleSummary


class ExpressionError(GpuguideError):
    """An expression that cannot be read or has no value."""


QUANTILES = ("value", "p5", "p25", "median", "p75", "p95")
"""The attributes of a measurement or a ratio in an expression; ``value`` is the median."""


@dataclass(frozen=True)
class RecordedValue:
    """Facts of a record about one case, or about two contenders of one case."""

    reference: str
    """The reference as the row writes it, for example ``ceilings/copy:bandwidth``"""
    text: str
    """The value as a reader sees it, for example ``3.02 TB/s``"""
    unit: str
    summary: SampleSummary
    record: Record
    run: Run
    stamp: str
    """The GPU, the software and the day of the measurement"""

    def quantile(self, name: str) -> LedgerQuantity:
        """Return one quantile; a case with a single sample has only a median."""
        value = getattr(self.summary, "median" if name == "value" else name)
        if value is None:
            raise ExpressionError(f"{self.reference} has a single sample, so it has no {name}; use .median.")
        return LedgerQuantity(value, self.unit)

    def __getattr__(self, name: str) -> LedgerQuantity:
        if name not in QUANTILES:
            raise AttributeError(f"a measurement has {', '.join(QUANTILES)}, and no {name!r}")
        return self.quantile(name)


Value: TypeAlias = "bool | int | float | str | RecordedValue | list[Value]"
Lookup: TypeAlias = tuple[str, tuple[str, ...]]
"""A function that looks something up, and its arguments"""


# --- functions -------------------------------------------------------------------------------------------


def _datasheet(gpu: str, figure: str) -> LedgerQuantity:
    """Look up one figure of the hardware table, in SI units; ``reference`` is the GPU that prose speaks of."""
    from gpuguide.measure import reference_gpu

    figures = reference_gpu.sheet(gpu).figures
    if figure not in figures:
        raise unknown(f"datasheet figure of {gpu}", figure, figures)
    return LedgerQuantity(figures[figure].value, figures[figure].unit)


def _ceiling(name: str) -> LedgerQuantity:
    """Look up a ceiling of the GPU that prose speaks of, such as ``read`` or ``bf16 sustained``, in SI units."""
    from gpuguide.measure import measured_ceilings

    ceiling, unit = measured_ceilings.find_quoted_ceiling(name)
    return LedgerQuantity(ceiling.value, unit)


def _gpu(form: str) -> str:
    """Return what to call the reference GPU, for the text of a row."""
    from gpuguide.measure import reference_gpu

    return reference_gpu.word(form)


def _measurement(reference: str) -> RecordedValue:
    from gpuguide.measure import citation

    quote = citation.quotable(citation.measurement(reference))
    return RecordedValue(reference, quote.text, quote.metric.unit, quote.summary, quote.record, quote.run, quote.stamp)


def _ratio(reference: str) -> RecordedValue:
    from gpuguide.measure import citation

    quote = citation.quotable(citation.ratio(reference))
    return RecordedValue(reference, quote.text, "1", quote.summary, quote.record, quote.run, quote.stamp)


def _quantity(value: float | RecordedValue, unit: str, digits: int = 3) -> LedgerQuantity:
    """Return a number (SI) that is written with a unit: ``B/s`` with the prefix that reads well, ``GB/s`` as it is."""
    number = value.quantile("median") if isinstance(value, RecordedValue) else value
    quantity = LedgerQuantity(number, unit, digits)
    if isinstance(number, LedgerQuantity) and number.base_unit != quantity.base_unit:
        raise ExpressionError(f"A quantity in {number.unit} cannot be written in {unit!r}.")
    return quantity


def _digits(value: float | RecordedValue, count: int) -> LedgerQuantity:
    """Return a number that is written with more or fewer significant digits than three."""
    number = value.quantile("median") if isinstance(value, RecordedValue) else value
    return LedgerQuantity(number, getattr(number, "unit", "1"), count)


LOOKUPS: Mapping[str, Callable[..., Value]] = {
    "ceiling": _ceiling,
    "datasheet": _datasheet,
    "gpu": _gpu,
    "measurement": _measurement,
    "ratio": _ratio,
}
"""Functions that look something up. Their arguments are literal text."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in ("ceil", "cos", "exp", "floor", "log", "log10", "log2", "sqrt")},
    **{function.__name__: function for function in (abs, max, min, range, round, sum)},
    **LOOKUPS,
    "digits": _digits,
    "quantity": _quantity,
}
"""Functions that an expression may call, besides the library functions that its row names."""

_CONSTANTS = {"pi": math.pi, "e": math.e}


# --- reading and evaluating ------------------------------------------------------------------------------


def parse(text: str, extra: frozenset[str] = frozenset()) -> ast.expr:
    """Return the syntax tree of an expression, whose names are all known.

    Parameters
    ----------
    text : str
        The expression.
    extra : frozenset of str
        Names of library functions that it may call too.

    Raises
    ------
    ExpressionError
        If the text is no expression, names something unknown, or looks up a name that is not literal text.
    """
    return _compile(text, extra)[0]


@functools.cache
def _compile(text: str, extra: frozenset[str]) -> tuple[ast.expr, CodeType]:
    try:
        tree = ast.parse(text.strip(), mode="eval")
        code = compile(tree, "<ledger>", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{text!r} is not an expression ({getattr(error, 'msg', error)}).") from None
    nodes = list(ast.walk(tree))
    known = {*FUNCTIONS, *_CONSTANTS, *extra}
    known |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in known:
            raise ExpressionError(str(unknown(f"name in the expression {text!r}", node.id, known)))
        if isinstance(node, ast.Attribute) and node.attr not in QUANTILES:
            raise ExpressionError(str(unknown("quantile of a measurement", node.attr, QUANTILES)))
    if any(not isinstance(argument, str) for call in _lookup_calls(tree) for argument in _arguments(call)):
        raise ExpressionError(f"{text!r} looks up a name that is no literal text.")
    return tree.body, code


def _lookup_calls(tree: ast.AST) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in LOOKUPS]


def _arguments(call: ast.Call) -> tuple[str | None, ...]:
    """Return the literal texts that a call passes, with ``None`` for what is no literal text."""
    values = (argument.value if isinstance(argument, ast.Constant) else None for argument in call.args)
    return tuple(value if isinstance(value, str) else None for value in values)


def lookups(tree: ast.expr) -> list[Lookup]:
    """Return what an expression looks up: function and arguments, each once, in the order of the text.

    >>> lookups(parse("measurement('ceilings/copy:bandwidth').p25 > datasheet('v100', 'memory_bandwidth')"))
    [('measurement', ('ceilings/copy:bandwidth',)), ('datasheet', ('v100', 'memory_bandwidth'))]
    """
    calls = sorted(_lookup_calls(tree), key=lambda call: (call.lineno, call.col_offset))
    return list(dict.fromkeys((ast.unparse(call.func), tuple(map(str, _arguments(call)))) for call in calls))


def evaluate(text: str, extra: Mapping[str, Callable[..., Value]] | None = None) -> Value:
    """Evaluate an expression.

    Parameters
    ----------
    text : str
        The expression.
    extra : mapping, optional
        Library functions that it may call, by the name it uses.

    Returns
    -------
    bool, int, float, str, RecordedValue or list of these
        The value, in SI units where it has one.

    Raises
    ------
    ExpressionError
        If the expression cannot be read or has no value (a division by zero, a single sample's p25).
    GpuguideError
        If a record, case or datasheet figure that it names does not exist.
    """
    _, code = _compile(text, frozenset(extra or {}))
    names = {"__builtins__": {}, **_CONSTANTS, **FUNCTIONS, **(extra or {})}
    try:
        value = eval(code, names)
    except (ArithmeticError, AttributeError, NameError, TypeError, ValueError) as error:
        advice = "; name the .median or another quantile of a measurement" * (RecordedValue.__name__ in str(error))
        raise ExpressionError(f"{text!r} has no value: {error}{advice}.") from error
    return _check_value(text, value)


def _check_value(text: str, value: object) -> Value:
    if isinstance(value, (list, tuple)):
        return [_check_value(text, element) for element in value]
    if isinstance(value, (bool, int, float, str, RecordedValue)):
        return value
    raise ExpressionError(f"{text!r} is {value!r}, which is neither a number, a text nor a measurement.")

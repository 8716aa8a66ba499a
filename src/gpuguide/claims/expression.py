"""The language of the ledger: arithmetic, a few functions, and readings of records. Nothing else runs.

An expression is parsed to a syntax tree, every node of it is checked against a short list, and the tree is
walked by this module. Python's ``eval`` is never called, so an expression can neither import nor reach an
attribute that is not listed in :data:`QUANTILES`.

Examples of what can be written::

    2 * 4096**3
    [generation * 16 / 8 * 128 / 130 for generation in (8, 16, 32)]
    datasheet("h100-sxm", "memory_bandwidth") / 1e12
    datasheet("reference", "sms") * 2048
    gpu("a short")
    measurement("ceilings/copy:bandwidth").p25 > 2e12
    16e9 / ceiling("read")
    ratio("timing-mistakes/zeros/right:throughput shape=square").p25 > 1
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpuguide.errors import GpuguideError, unknown

if TYPE_CHECKING:
    from gpuguide.measure.records import Record, Run, Summary


class ExpressionError(GpuguideError):
    """An expression that is not in the language, or that cannot be evaluated."""


class Quantity(float):
    """A number with its unit, so that it can be written for a reader. Arithmetic gives plain numbers."""

    unit: str
    digits: int

    def __new__(cls, value: float, unit: str, digits: int = 3) -> Quantity:
        """Return ``value`` (SI) with the unit it is in, and how many significant digits a reader needs."""
        number = super().__new__(cls, value)
        number.unit, number.digits = unit, digits
        return number


@dataclass(frozen=True)
class Measured:
    """What a record says about one case or about two contenders of one case."""

    reference: str
    """As written in the row, for example ``ceilings/copy:bandwidth``"""
    text: str
    """Rendered for a reader, for example ``3.02 TB/s``"""
    unit: str
    summary: Summary
    record: Record
    run: Run
    stamp: str
    """Where, with what and when it was measured"""

    def quantile(self, name: str) -> Quantity:
        """Return one quantile; a case with a single sample has only a median."""
        value = getattr(self.summary, "median" if name == "value" else name)
        if value is None:
            raise ExpressionError(f"{self.reference} has a single sample, so it has no {name}; use .median.")
        return Quantity(value, self.unit)


Value: TypeAlias = "bool | int | float | str | Measured | list[Value]"

QUANTILES = ("value", "p5", "p25", "median", "p75", "p95")
"""The attributes that a measurement or a ratio has in an expression; ``value`` is the median."""

LONGEST = 2000
"""Characters in an expression."""

MOST_STEPS = 100_000
"""Nodes evaluated in one expression, comprehensions unrolled."""

LARGEST_BITS = 4096
"""Bits of the largest integer power."""

_LOOKUPS = {"measurement": 1, "ratio": 1, "ceiling": 1, "datasheet": 2, "gpu": 1}
"""Functions that look something up, and how many names they take. The names must stand in the text."""

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}

_CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e}


def _range(*bounds: int) -> list[Value]:
    numbers = range(*bounds)
    if len(numbers) > MOST_STEPS:
        raise ValueError(f"range is longer than {MOST_STEPS}")
    return list(numbers)


def _datasheet(gpu: str, figure: str) -> Quantity:
    """Look up one figure of the hardware table, in SI units; ``reference`` is the GPU that prose speaks of."""
    from gpuguide.measure import reference_gpu

    figures = reference_gpu.sheet(gpu).figures
    if figure not in figures:
        raise unknown(f"datasheet figure of {gpu}", figure, figures)
    return Quantity(figures[figure].value, figures[figure].unit)


def _ceiling(name: str) -> Quantity:
    """Look up a ceiling of the GPU that prose speaks of, such as ``read`` or ``bf16 sustained``, in SI units."""
    from gpuguide.measure import machines

    found, unit = machines.quoted(name)
    return Quantity(found.value, unit)


def _gpu(form: str) -> str:
    """Return what to call the reference GPU, for the text of a row."""
    from gpuguide.measure import reference_gpu

    return reference_gpu.word(form)


def _measurement(reference: str) -> Measured:
    from gpuguide.measure import reference as reader

    found = reader.quotable(reader.measurement(reference))
    return Measured(reference, found.text, found.metric.unit, found.summary, found.record, found.run, found.stamp)


def _ratio(reference: str) -> Measured:
    from gpuguide.measure import reference as reader

    found = reader.quotable(reader.ratio(reference))
    return Measured(reference, found.text, "1", found.summary, found.record, found.run, found.stamp)


def _digits(value: float | Measured, count: int) -> Quantity:
    """Write a number with more or fewer significant digits than three."""
    number = value.quantile("median") if isinstance(value, Measured) else value
    return Quantity(number, getattr(number, "unit", "1"), count)


FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    **{name: getattr(math, name) for name in ("ceil", "cos", "exp", "floor", "log", "log10", "log2", "sqrt")},
    **{function.__name__: function for function in (abs, max, min, round, sum)},
    "range": _range,
    "digits": _digits,
    "ceiling": _ceiling,
    "datasheet": _datasheet,
    "gpu": _gpu,
    "measurement": _measurement,
    "quantity": Quantity,
    "ratio": _ratio,
}
"""What an expression may call, besides the library functions that its row names."""


def parse(text: str, extra: frozenset[str] = frozenset()) -> ast.expr:
    """Parse and check an expression without evaluating it.

    Parameters
    ----------
    text : str
        The expression.
    extra : frozenset of str
        Names of library functions that it may call too.

    Raises
    ------
    ExpressionError
        If the text is not an expression, or holds anything that the language does not have.
    """
    if len(text) > LONGEST:
        raise ExpressionError(f"The expression has {len(text)} characters; the most is {LONGEST}.")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{text!r} is not an expression ({getattr(error, 'msg', error)}).") from None
    _check(tree, frozenset(FUNCTIONS) | extra, frozenset(_CONSTANTS))
    return tree


def _refuse(node: ast.AST, why: str) -> ExpressionError:
    return ExpressionError(f"{ast.unparse(node)!r} is not allowed in an expression: {why}.")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _check(node: ast.AST, functions: frozenset[str], names: frozenset[str]) -> None:
    """Raise unless ``node`` and everything below it belong to the language."""
    match node:
        case ast.Constant(value=bool() | int() | float()):
            return
        case ast.Constant(value=str()):
            raise _refuse(node, "text stands only as an argument of a function")
        case ast.Constant():
            raise _refuse(node, "it is no number")
        case ast.Name(id=name):
            if name in functions:
                raise _refuse(node, "a function must be called")
            if name not in names:
                raise _refuse(node, f"the name is not known (functions: {', '.join(sorted(functions))})")
            return
        case ast.Attribute(value=ast.Call(func=ast.Name(id="measurement" | "ratio")) as call):
            if node.attr not in QUANTILES:
                raise _refuse(node, f"a measurement or a ratio has only {', '.join(QUANTILES)}")
            _check(call, functions, names)
            return
        case ast.Attribute():
            raise _refuse(node, "only a measurement or a ratio has attributes")
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in functions:
            if name in _LOOKUPS and [_is_text(argument) for argument in arguments] != [True] * _LOOKUPS[name]:
                raise _refuse(node, f"{name} takes {_LOOKUPS[name]} literal text{'s' * (_LOOKUPS[name] > 1)}")
            for argument in arguments:
                if not _is_text(argument):
                    _check(argument, functions, names)
            return
        case ast.Call():
            raise _refuse(node, "only the functions of the language can be called, and without keywords")
        case ast.BinOp(op=op) if type(op) in _BINARY:
            pass
        case ast.UnaryOp(op=unary) if type(unary) in _UNARY or isinstance(unary, ast.Not):
            pass
        case ast.Compare(ops=operators) if all(type(each) in _COMPARE for each in operators):
            pass
        case ast.BoolOp() | ast.List(ctx=ast.Load()) | ast.Tuple(ctx=ast.Load()):
            pass
        case ast.ListComp() | ast.GeneratorExp():
            for generator in node.generators:
                _check(generator.iter, functions, names)
                if generator.is_async or not isinstance(generator.target, ast.Name):
                    raise _refuse(node, "a comprehension binds one plain name at a time")
                if generator.target.id.startswith("_") or generator.target.id in functions:
                    raise _refuse(node, f"{generator.target.id!r} cannot be bound")
                names = names | {generator.target.id}
                for condition in generator.ifs:
                    _check(condition, functions, names)
            _check(node.elt, functions, names)
            return
        case _:
            raise _refuse(node, f"the language has no {type(node).__name__}")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            _check(child, functions, names)


def lookups(tree: ast.expr) -> list[tuple[str, tuple[str, ...]]]:
    """Return what a checked expression looks up: function and arguments, each once, in the order of the text.

    >>> lookups(parse("measurement('ceilings/copy:bandwidth').p25 > datasheet('v100', 'memory_bandwidth')"))
    [('measurement', ('ceilings/copy:bandwidth',)), ('datasheet', ('v100', 'memory_bandwidth'))]
    """
    found = [
        (node.lineno, node.col_offset, node.func.id, tuple(ast.literal_eval(each) for each in node.args))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LOOKUPS
    ]
    return list(dict.fromkeys((function, arguments) for _, _, function, arguments in sorted(found)))


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
    bool, int, float, str, Measured or list of these
        The value, in SI units where it has one.

    Raises
    ------
    ExpressionError
        If the expression is not in the language or has no value (a division by zero, a single sample's p25).
    GpuguideError
        If a record, case or datasheet figure that it names does not exist.
    """
    functions = {**FUNCTIONS, **(extra or {})}
    tree = parse(text, frozenset(extra or {}))
    try:
        return _Evaluation(functions).value(tree, _CONSTANTS)
    except GpuguideError:
        raise
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ExpressionError(f"{text!r} has no value: {error}.") from error


class _Evaluation:
    """Walks one checked tree, counting its steps."""

    def __init__(self, functions: Mapping[str, Callable[..., Value]]) -> None:
        self.functions = functions
        self.steps = 0

    def value(self, node: ast.expr, names: Mapping[str, Value]) -> Value:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise ExpressionError(f"The expression takes more than {MOST_STEPS} steps.")
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as constant):
                return constant
            case ast.Name(id=name):
                return names[name]
            case ast.Attribute(value=call, attr=attribute):
                reading = self.value(call, names)
                assert isinstance(reading, Measured)
                return reading.quantile(attribute)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self.functions[name](*[self.value(argument, names) for argument in arguments])
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(type(op), self.number(left, names), self.number(right, names))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self.truth(operand, names)
            case ast.UnaryOp(op=unary, operand=operand):
                return _UNARY[type(unary)](self.number(operand, names))
            case ast.BoolOp(op=ast.And(), values=values):
                return all(self.truth(each, names) for each in values)
            case ast.BoolOp(values=values):
                return any(self.truth(each, names) for each in values)
            case ast.Compare(left=left, ops=operators, comparators=others):
                sides = [self.number(each, names) for each in (left, *others)]
                pairs = zip(operators, sides, sides[1:], strict=False)
                return all(_COMPARE[type(each)](a, b) for each, a, b in pairs)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self.value(element, names) for element in elements]
            case ast.ListComp() | ast.GeneratorExp():
                return self.comprehension(node.elt, node.generators, names)
        raise _refuse(node, f"the language has no {type(node).__name__}")

    def number(self, node: ast.expr, names: Mapping[str, Value]) -> float:
        value = self.value(node, names)
        if isinstance(value, Measured):
            raise ExpressionError(f"{value.reference} is a distribution; name its .median or a quantile.")
        if isinstance(value, (bool, str, list)):
            raise ExpressionError(f"{ast.unparse(node)!r} is no number.")
        return value

    def truth(self, node: ast.expr, names: Mapping[str, Value]) -> bool:
        value = self.value(node, names)
        if not isinstance(value, bool):
            raise ExpressionError(f"{ast.unparse(node)!r} is neither true nor false.")
        return value

    def binary(self, op: type[ast.operator], left: float, right: float) -> float:
        whole = isinstance(left, int) and isinstance(right, int)
        if op is ast.Pow and whole and int(left).bit_length() * right > LARGEST_BITS:
            raise ExpressionError(f"The power {left}**{right} is too large.")
        result = _BINARY[op](left, right)
        if isinstance(result, complex):
            raise ExpressionError(f"The power {left}**{right} is no real number.")
        return result

    def comprehension(
        self, element: ast.expr, generators: list[ast.comprehension], names: Mapping[str, Value]
    ) -> list[Value]:
        if not generators:
            return [self.value(element, names)]
        first, *rest = generators
        items = self.value(first.iter, names)
        if not isinstance(items, list):
            raise ExpressionError(f"{ast.unparse(first.iter)!r} is no list of numbers.")
        assert isinstance(first.target, ast.Name)
        results: list[Value] = []
        for item in items:
            inner = {**names, first.target.id: item}
            if all(self.truth(condition, inner) for condition in first.ifs):
                results += self.comprehension(element, rest, inner)
        return results

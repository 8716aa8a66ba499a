"""The units of an expression: what a sum may add, and in which unit a number stands in a sentence.

Only what a program can see is judged. A figure of a datasheet and a measurement have a unit, ``quantity`` gives one,
a ratio is a plain number. A number that is typed has whatever unit the expression needs, and so has the result of a
library function.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gpuguide.claims import expression
from gpuguide.claims.expression import ExpressionError, Measured, Quantity

Dimension: TypeAlias = frozenset[tuple[str, int]]
"""Base units with their powers: ``B/s`` is ``{("B", 1), ("s", -1)}``, and nothing at all is a plain number"""

PLAIN: Dimension = frozenset()


@dataclass(frozen=True)
class Unit:
    """A unit as it stands behind a number in a sentence."""

    name: str
    dimension: Dimension | None
    """``None`` for words such as "million", which count anything"""
    factor: float
    """How many SI units it is"""


def dimension(unit: str) -> Dimension:
    """Return the base units of a unit as records write it.

    >>> sorted(dimension("FLOP/s")), dimension("1")
    ([('FLOP', 1), ('s', -1)], frozenset())
    """
    above, _, below = unit.partition("/")
    return _product(Counter(_base(above)), Counter({name: -power for name, power in _base(below).items()}))


def _base(name: str) -> dict[str, int]:
    return {} if name in ("", "1") else {name: 1}


def _product(*factors: Mapping[str, int]) -> Dimension:
    powers: Counter[str] = Counter()
    for factor in factors:
        powers.update(factor)
    return frozenset((name, power) for name, power in powers.items() if power)


def _units() -> dict[str, Unit]:
    decimal = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
    found = {
        "KiB": Unit("KiB", dimension("B"), 2.0**10),
        "MiB": Unit("MiB", dimension("B"), 2.0**20),
        "GiB": Unit("GiB", dimension("B"), 2.0**30),
        "TiB": Unit("TiB", dimension("B"), 2.0**40),
        "bytes": Unit("bytes", dimension("B"), 1.0),
        "ms": Unit("ms", dimension("s"), 1e-3),
        "µs": Unit("µs", dimension("s"), 1e-6),
        "ns": Unit("ns", dimension("s"), 1e-9),
        "seconds": Unit("seconds", dimension("s"), 1.0),
        "minutes": Unit("minutes", dimension("s"), 60.0),
        "hours": Unit("hours", dimension("s"), 3600.0),
        "days": Unit("days", dimension("s"), 86400.0),
        "°C": Unit("°C", dimension("°C"), 1.0),
        "nats": Unit("nats", dimension("nat"), 1.0),
        "%": Unit("%", PLAIN, 1e-2),
        "times": Unit("times", PLAIN, 1.0),
        "million": Unit("million", None, 1e6),
        "billion": Unit("billion", None, 1e9),
        "trillion": Unit("trillion", None, 1e12),
    }
    for base in ("B", "B/s", "FLOP", "FLOP/s", "s", "W", "Hz"):
        for prefix, factor in decimal.items():
            found.setdefault(prefix + base, Unit(prefix + base, dimension(base), factor))
    return found


UNITS = _units()
"""Units by the name that stands behind a number"""
UNIT = re.compile(rf"(?:{'|'.join(sorted(map(re.escape, UNITS), key=len, reverse=True))})(?![\w/])")

DECIMAL = {1e3, 1e6, 1e9, 1e12, 1e15}
BINARY = {2.0**power for power in (10, 20, 30, 40)}
_SCALES = DECIMAL | BINARY
"""What one divides by to write a number in a larger unit"""
_MULTIPLES = {100.0, 1e3, 1e6, 1e9}
"""What one multiplies by to write it in a smaller one"""
_WRAPPERS = ("round", "ceil", "floor", "digits", "abs")


def scale(tree: ast.expr) -> float:
    """Return how many SI units the result counts as one, as the expression's outermost factors say.

    >>> scale(ast.parse("5.5e6 * 512 * 2 / 1e9", mode="eval").body), scale(ast.parse("100 * 5 / 9", mode="eval").body)
    (1000000000.0, 0.01)
    """
    while isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in _WRAPPERS and tree.args:
        tree = tree.args[0]
    found = 1.0
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Mult, ast.Div, ast.FloorDiv)):
        right = _literal(tree.right)
        if right in _SCALES and not isinstance(tree.op, ast.Mult):
            found *= right
        elif right in _MULTIPLES and isinstance(tree.op, ast.Mult):
            found /= right
        tree = tree.left
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Sub)):
        sides = [scale(tree.left), scale(tree.right)]
        return found * next((side for side in sides if side != 1), 1.0)
    first = _literal(tree)
    return found / first if first in _MULTIPLES else found


def _literal(tree: ast.expr) -> float | None:
    """Return the value of a number that is written out, as ``1e9`` or ``2**30``; ``None`` for anything else."""
    match tree:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = _literal(left), _literal(right)
            return None if base is None or power is None or abs(power) > 64 else float(base**power)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div() | ast.FloorDiv() as op, right=right):
            one, other = _literal(left), _literal(right)
            if one is None or other is None or (other == 0 and not isinstance(op, ast.Mult)):
                return None
            return one * other if isinstance(op, ast.Mult) else one / other
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _literal(operand)
            return None if number is None else -number
    return None


def of(tree: ast.expr) -> Dimension | None:
    """Return the unit that an expression's value has, in base units; ``None`` where it cannot be told.

    Raises
    ------
    ExpressionError
        If quantities of different kinds are added or compared.
    """
    match tree:
        case ast.Attribute(value=reading):
            return of(reading)
        case ast.Call(func=ast.Name(id="measurement" | "ratio" | "ceiling" | "datasheet" as name), args=arguments):
            found = expression.FUNCTIONS[name](*(ast.literal_eval(argument) for argument in arguments))
            assert isinstance(found, (Measured, Quantity))
            return dimension(found.unit)
        case ast.Call(func=ast.Name(id="quantity"), args=[value, ast.Constant(value=str() as unit)]):
            return _alike(tree, [of(value), dimension(unit)])
        case ast.Call(func=ast.Name(id="digits" | "round" | "abs" | "floor" | "ceil"), args=[value, *_]):
            return of(value)
        case ast.Call(func=ast.Name(id="max" | "min"), args=arguments):
            return _alike(tree, [of(argument) for argument in arguments])
        case ast.Call(args=arguments):
            for argument in arguments:
                of(argument)
            return None
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _alike(tree, [of(left), of(right)])
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div() | ast.FloorDiv() as op, right=right):
            one, other = _factor(left), _factor(right)
            if _literal(tree) is not None or one is None or other is None:
                return None
            sign = 1 if isinstance(op, ast.Mult) else -1
            return _product(dict(one), {name: sign * power for name, power in other})
        case ast.Compare(left=left, comparators=others):
            _alike(tree, [of(left), *(of(other) for other in others)])
            return PLAIN
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            found_all = [of(element) for element in elements]
            return found_all[0] if len(set(found_all)) == 1 else None
        case ast.ListComp(elt=element, generators=generators) | ast.GeneratorExp(elt=element, generators=generators):
            for generator in generators:
                of(generator.iter)
            return of(element)
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.expr):
            of(child)
    return None


def _factor(tree: ast.expr) -> Dimension | None:
    """Return the unit of a factor. A typed number changes no unit if it is small, or writes another prefix."""
    number = _literal(tree)
    if number is None:
        return of(tree)
    return PLAIN if number in _SCALES or 1e-3 < abs(number) < 1e3 else None


def _alike(tree: ast.expr, found: list[Dimension | None]) -> Dimension | None:
    """Return the unit that all have, where it can be told, or raise if two differ."""
    known = list(dict.fromkeys(each for each in found if each is not None))
    if len(known) > 1:
        names = " with ".join(named(each) for each in known)
        raise ExpressionError(f"{ast.unparse(tree)!r} puts together quantities of different kinds: {names}.")
    return known[0] if known else None


def named(powers: Dimension) -> str:
    """Write base units as records do: ``B/s``, and ``1`` for a plain number."""
    above = "·".join(name for name, power in sorted(powers) if power > 0 for _ in range(power))
    below = "·".join(name for name, power in sorted(powers) if power < 0 for _ in range(-power))
    return f"{above or '1'}/{below}" if below else above or "1"

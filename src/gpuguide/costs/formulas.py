"""Formulas as data: written once in a TOML file, computed by Python and by the scripts of the calculators alike.

A formula is an expression of Python over names: fields that somebody fills in, constants, and other formulas. It may
use ``+ - * / // % **``, comparisons, ``and``, ``or``, ``not``, ``a if b else c``, ``min``, ``max``, ``ceil`` and
``table[key]``. Python reads it once into a tree of lists, which the site hands to the browser as JSON; both walk the
same tree.

>>> known = Formulas({"area": "width * height", "long": "area if width > 10 else 0"})
>>> known.values({"width": 20, "height": 3})["long"]
60
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from gpuguide.errors import GpuguideError

Tree: TypeAlias = Any
"""A number or truth value; a name, as a string; or a list of an operation and the trees that it works on"""

OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "not": operator.not_,
    "negative": operator.neg,
    "min": min,
    "max": max,
    "ceil": math.ceil,
    "at": operator.getitem,
    "in": lambda value, *options: value in options,
}
"""What is computed from the values of all trees that it works on. ``if``, ``and`` and ``or`` leave some alone."""

_SIGNS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Not: "not",
    ast.USub: "negative",
    ast.And: "and",
    ast.Or: "or",
}


class Formulas:
    """Named formulas, each of which may use the others.

    Parameters
    ----------
    texts : Mapping
        Name to expression.
    constants : Mapping
        Name to a number, or to a table of numbers.
    """

    def __init__(self, texts: Mapping[str, str], constants: Mapping[str, Any] | None = None) -> None:
        self.trees = {name: tree_of(text) for name, text in texts.items()}
        self.constants = dict(constants or {})

    def values(self, given: Mapping[str, Any]) -> Values:
        """Return the values of all formulas for what is ``given``; each is computed when it is asked for."""
        return Values(self, given)


class Values(Mapping[str, Any]):
    """The values of formulas for one input. A formula that nobody asks for is not computed, so it may not apply."""

    def __init__(self, formulas: Formulas, given: Mapping[str, Any]) -> None:
        self.formulas = formulas
        self._known: dict[str, Any] = {**formulas.constants, **given}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            if name not in self.formulas.trees:
                raise KeyError(name)
            self._known[name] = self.evaluate(self.formulas.trees[name])
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._known, **self.formulas.trees})

    def __len__(self) -> int:
        return len({**self._known, **self.formulas.trees})

    def evaluate(self, tree: Tree) -> Any:
        """Return the value of a tree."""
        if isinstance(tree, str):
            return self[tree]
        if not isinstance(tree, list):
            return tree
        sign, *parts = tree
        if sign == "text":
            return parts[0]
        if sign == "if":
            return self.evaluate(parts[1] if self.evaluate(parts[0]) else parts[2])
        if sign == "and":
            return all(self.evaluate(part) for part in parts)
        if sign == "or":
            return any(self.evaluate(part) for part in parts)
        return OPERATIONS[sign](*map(self.evaluate, parts))


def names_in(tree: Tree) -> set[str]:
    """Return the names that a tree uses."""
    if isinstance(tree, str):
        return {tree}
    if not isinstance(tree, list) or tree[0] == "text":
        return set()
    return set().union(*map(names_in, tree[1:]))


def tree_of(text: str) -> Tree:
    """Read an expression.

    Raises
    ------
    GpuguideError
        If it is no expression, or uses what formulas do not know.
    """
    try:
        return _tree(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError) as error:
        raise GpuguideError(f"The formula {text!r} cannot be read: {error}.") from error


def _tree(node: ast.expr) -> Tree:
    match node:
        case ast.Constant(value=str(text)):
            return ["text", text]
        case ast.Constant(value=bool() | int() | float()):
            return node.value
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=sign, right=right):
            return [_SIGNS[type(sign)], _tree(left), _tree(right)]
        case ast.UnaryOp(op=sign, operand=operand):
            return [_SIGNS[type(sign)], _tree(operand)]
        case ast.BoolOp(op=sign, values=parts):
            return [_SIGNS[type(sign)], *map(_tree, parts)]
        case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.Tuple(elts=options)]):
            return ["in", _tree(left), *map(_tree, options)]
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return [_SIGNS[type(sign)], _tree(left), _tree(right)]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ["if", _tree(test), _tree(body), _tree(orelse)]
        case ast.Subscript(value=table, slice=key):
            return ["at", _tree(table), _tree(key)]
        case ast.Call(func=ast.Name(id="min" | "max" | "ceil" as name), args=args, keywords=[]):
            return [name, *map(_tree, args)]
    raise KeyError(ast.unparse(node))

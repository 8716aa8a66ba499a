"""Syntax trees as text: without comments, docstrings and layout, and the same on every version of Python."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuguide.measure.digest.source import is_docstring, names_bound

_SKIPPED = {"ctx", "kind", "type_comment", "type_ignores", "is_lazy"}
"""Fields of syntax trees that say nothing, or not the same in every version of Python"""
_INSIDE = {"body", "elt", "key", "value", "generators"}
"""The fields of functions, classes and comprehensions in which the names hold that these bind"""
_BINDING = {"name", "rest"}
"""The fields in which a statement or a pattern holds a name that it binds"""


@dataclass(frozen=True)
class Scope:
    """Names that are bound nearer than in the module."""

    seen_below: Mapping[str, str] = field(default_factory=dict)
    """Also in functions that are defined here: parameters, which keep their names, and locals, each with a number"""
    here: frozenset[str] = frozenset()
    """Here alone: what the body of a class binds"""
    depth: int = 0
    """Number of functions and comprehensions around this place"""
    is_class: bool = False
    """True in the body of a class, where an annotation declares a field"""

    def __contains__(self, name: str) -> bool:
        return name in self.seen_below or name in self.here

    def number(self, name: str) -> str:
        """Return what stands for a name of this scope whatever it is called: a local's depth and number."""
        return name if name in self.here else self.seen_below.get(name, name)

    def inside(self, node: ast.AST) -> Scope:
        """Return the scope that holds inside a node, for those of its fields that are inside."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            body = node.body if isinstance(node.body, list) else [node.body]
            parameters = [found.arg for found in ast.walk(node.args) if isinstance(found, ast.arg)]
            return self._below(parameters, names_bound(body), _find_outer_names(body))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return self._below([], names_bound(generator.target for generator in node.generators), set())
        if isinstance(node, ast.ClassDef):
            return Scope(self.seen_below, frozenset(names_bound(node.body)), self.depth, is_class=True)
        return self

    def _below(self, parameters: Sequence[str], bound: Sequence[str], outside: Collection[str]) -> Scope:
        local = [name for name in bound if name not in parameters and name not in outside]
        numbers = {name: f"{self.depth}.{number}" for number, name in enumerate(local)}
        return Scope({**self.seen_below, **{name: name for name in parameters}, **numbers}, depth=self.depth + 1)


def _find_outer_names(body: Iterable[ast.AST]) -> set[str]:
    """Return the names that a function declares as the module's or as those of a function around it."""
    found: set[str] = set()
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Global | ast.Nonlocal):
            found |= set(node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return found


class SyntaxWriter:
    """Writes syntax trees, names as they stand."""

    def text(self, node: ast.AST) -> str:
        """Return the text of a tree."""
        return "".join(self.node(node, Scope()))

    def node(self, node: ast.AST, scope: Scope) -> Iterator[str]:
        """Yield the text of a node in a scope."""
        if isinstance(node, ast.Name | ast.Attribute) and (parts := split_dotted_name(node)):
            yield f"({self.name(parts, scope)})"
        elif isinstance(node, ast.Constant):
            yield f"({literal(node.value)})"
        elif isinstance(node, ast.JoinedStr):
            yield from self.f_string(node, scope)
        else:
            yield f"({type(node).__name__}"
            inside = scope.inside(node)
            for name, value in ast.iter_fields(node):
                if name not in _SKIPPED and value is not None and value != []:
                    yield f" {name}="
                    if name in _BINDING and isinstance(value, str):
                        yield self.binding(value, scope)
                    else:
                        yield from self.value(value, inside if name in _INSIDE else scope)
            yield ")"

    def value(self, value: object, scope: Scope) -> Iterator[str]:
        """Yield the text of a field: a node, a list of them, or a plain value."""
        if isinstance(value, ast.AST):
            yield from self.node(value, scope)
        elif isinstance(value, list):
            yield "["
            for item in value:
                if not self.is_dropped(item):
                    yield from self.value(item, scope)
            yield "]"
        else:
            yield literal(value)

    def f_string(self, node: ast.JoinedStr, scope: Scope) -> Iterator[str]:
        """Yield a formatted string: versions of Python divide the text between its values differently."""
        text = ""
        yield "(f"
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
            else:
                yield literal(text)
                yield from self.node(part, scope)
                text = ""
        yield literal(text) + ")"

    def name(self, parts: list[str], scope: Scope) -> str:
        """Return what is written for a dotted name."""
        return ".".join(parts)

    def binding(self, name: str, scope: Scope) -> str:
        """Return what is written for a name that a definition, an ``except`` or a pattern binds."""
        return literal(name)

    def is_dropped(self, item: object) -> bool:
        """Return whether an item of a list is left out."""
        return is_docstring(item)


def split_dotted_name(node: ast.expr) -> list[str]:
    """Return the parts of ``a.b.c``; none for what is no dotted name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := split_dotted_name(node.value)):
        return [*before, node.attr]
    return []


def literal(value: object) -> str:
    """Write a constant in a way that does not depend on the version of Python."""
    return json.dumps(value) if isinstance(value, str) else f"{type(value).__name__} {value!r}"

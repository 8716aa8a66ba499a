"""Syntax trees as text: without comments, docstrings and layout, and the same on every version of Python."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuguide.measure.digest.source import is_docstring, names_bound

_SKIPPED = {"ctx", "kind", "type_comment", "type_ignores", "is_lazy"}
"""Fields of syntax trees that say nothing, or not the same in every version of Python"""
_INSIDE = {"body", "elt", "key", "value", "generators"}
"""The fields of functions, classes and comprehensions in which the names hold that these bind"""


@dataclass(frozen=True)
class Scope:
    """Names that are bound nearer than in the module."""

    seen_below: frozenset[str] = frozenset()
    """Also in functions that are defined here"""
    here: frozenset[str] = frozenset()
    """Here alone: what the body of a class binds"""

    def __contains__(self, name: str) -> bool:
        return name in self.seen_below or name in self.here

    def inside(self, node: ast.AST) -> Scope:
        """Return the scope that holds inside a node, for those of its fields that are inside."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            body = node.body if isinstance(node.body, list) else [node.body]
            arguments = {found.arg for found in ast.walk(node.args) if isinstance(found, ast.arg)}
            shared = {name for found in ast.walk(node) if isinstance(found, ast.Global) for name in found.names}
            return self._with((arguments | names_bound(body)) - shared)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return self._with(names_bound(generator.target for generator in node.generators))
        if isinstance(node, ast.ClassDef):
            return Scope(self.seen_below, frozenset(names_bound(node.body)))
        return self

    def _with(self, names: Iterable[str]) -> Scope:
        return Scope(self.seen_below.union(names))


class Writer:
    """Writes syntax trees, names as they stand."""

    def text(self, node: ast.AST) -> str:
        """Return the text of a tree."""
        return "".join(self.node(node, Scope()))

    def node(self, node: ast.AST, scope: Scope) -> Iterator[str]:
        """Yield the text of a node in a scope."""
        if isinstance(node, ast.Name | ast.Attribute) and (parts := dotted(node)):
            yield f"({self.name(parts, node, scope)})"
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

    def name(self, parts: list[str], node: ast.expr, scope: Scope) -> str:
        """Return what is written for a dotted name."""
        return ".".join(parts)

    def is_dropped(self, item: object) -> bool:
        """Return whether an item of a list is left out."""
        return is_docstring(item)


def dotted(node: ast.expr) -> list[str]:
    """Return the parts of ``a.b.c``; none for what is no dotted name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return [*before, node.attr]
    return []


def literal(value: object) -> str:
    """Write a constant in a way that does not depend on the version of Python."""
    return json.dumps(value) if isinstance(value, str) else f"{type(value).__name__} {value!r}"

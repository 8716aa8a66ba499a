"""Definitions as text: what a top-level statement says, and which other definitions of the package it uses.

A name stands for what it means and not for how it was imported: ``cost.bytes_read``, after ``from gpuguide.attention
import cost``, is written as ``bytes_read`` with a digest of the definition that it leads to. So a definition keeps its
text when it is moved, when its module is renamed or split, and when it comes to be imported in another way.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from gpuguide.measure.digest.source import PACKAGE, Place, Tree, is_docstring, is_import, names_bound
from gpuguide.measure.digest.syntax import Scope, Writer

HARNESS = ("gpuguide.measure", "gpuguide.hardware", "gpuguide.errors")
"""Modules that count through the harness version only, not through a benchmark's digest"""


def is_harness(module: str) -> bool:
    """Return whether a module belongs to the harness (or is the package's root, which holds the version)."""
    return module == PACKAGE or any(module == part or module.startswith(part + ".") for part in HARNESS)


@dataclass(frozen=True)
class Definition:
    """A top-level statement of a module."""

    module: str
    name: str
    """The first of the names that it binds; a number in brackets if it binds none"""


@dataclass(frozen=True)
class Written:
    """What a definition says."""

    text: str
    uses: frozenset[Definition]


def reached(tree: Tree, start: Iterable[Definition]) -> dict[Definition, str]:
    """Return ``start`` and every definition that it uses, directly or not, each with its text.

    Statements that bind no name, and functions that are registered with something else, count as soon as anything of
    their module does. The harness is left out.
    """
    found: dict[Definition, str] = {}
    waiting = list(start)
    while waiting:
        definition = waiting.pop()
        if definition not in found:
            said = written(tree, definition)
            found[definition] = said.text
            waiting += said.uses
            module = tree.module(definition.module)
            waiting += [Definition(module.name, f"[{number}]") for number in range(len(module.unnamed))]
            waiting += [defining(tree, module.name, name) for name in module.registered]
    return found


def defining(tree: Tree, module: str, name: str) -> Definition:
    """Return the definition that binds a name of a module."""
    return Definition(module, min(names_bound([tree.module(module).defined[name]])))


@cache
def written(tree: Tree, definition: Definition) -> Written:
    """Return what a definition says, each name marked with a digest of what it leads to."""
    writer = _NamesResolved(tree, definition, marked=True)
    return Written(writer.text(writer.statement), frozenset(writer.uses))


@cache
def _mark(tree: Tree, definition: Definition) -> str:
    """Return a digest of what a definition says itself, whatever the definitions that it uses say."""
    writer = _NamesResolved(tree, definition, marked=False)
    return hashlib.sha256(writer.text(writer.statement).encode()).hexdigest()[:16]


class _NamesResolved(Writer):
    """Writes a definition, with what its names mean, and notes the definitions that it uses."""

    def __init__(self, tree: Tree, definition: Definition, *, marked: bool) -> None:
        self.tree = tree
        self.module = tree.module(definition.module)
        self.marked = marked
        self.uses: set[Definition] = set()
        name = definition.name
        self.statement = self.module.unnamed[int(name[1:-1])] if name[0] == "[" else self.module.defined[name]
        self.imported_within = tree.imports(ast.walk(self.statement), self.module.name)
        self.imported = {**self.module.imported, **self.imported_within}
        self._note_names_in_programs()

    def _note_names_in_programs(self) -> None:
        """Count what is named in a program that a definition writes for another process, which imports its module."""
        nodes = list(ast.walk(self.statement))
        if any(isinstance(node, ast.Name) and node.id == "__name__" for node in nodes):
            texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
            words = {word for text in texts for word in re.findall(r"\w+", text)}
            self.uses |= {defining(self.tree, self.module.name, word) for word in words & set(self.module.defined)}

    def name(self, parts: list[str], node: ast.expr, scope: Scope) -> str:
        """Return what a dotted name stands for."""
        first, *rest = parts
        if first in scope or not isinstance(getattr(node, "ctx", None), ast.Load):
            return ".".join(parts)
        if first in self.module.defined:
            own = self.meaning(Place(self.module.name, tuple(parts)))
            if first not in self.imported_within:  # else it may mean either, as each function has imports of its own
                return own
        if first not in self.imported:
            return ".".join(parts)
        full = ".".join([self.imported[first], *rest])
        place = self.tree.locate(full)
        return self.meaning(place) if place else full

    def meaning(self, place: Place) -> str:
        """Return a name of the package without its module, and note the definition that it leads to."""
        if is_harness(place.module):
            return ".".join(place.inside) or "a module"
        defined = self.tree.module(place.module).defined
        if not place.inside or place.inside[0] not in defined:  # the module itself, or what it makes when asked
            self.uses |= {defining(self.tree, place.module, name) for name in defined}
            return ".".join(place.inside) or "a module"
        found = defining(self.tree, place.module, place.inside[0])
        self.uses.add(found)
        mark = f"@{_mark(self.tree, found)}" if self.marked else ""
        return ".".join([place.inside[0] + mark, *place.inside[1:]])

    def is_dropped(self, item: object) -> bool:
        """Return whether an item of a list is left out: what is imported stands in the names."""
        return is_docstring(item) or is_import(item)

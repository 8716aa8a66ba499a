"""The library's source, read and never imported: its modules, what they import, and what their names stand for.

A :class:`Tree` is a folder that holds the package, this one or another version of it. Nothing is kept of comments,
docstrings and the layout of lines. What is kept is written in the same way by every version of Python.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpuguide.errors import GpuguideError

PACKAGE = "gpuguide"


@dataclass(frozen=True)
class Module:
    """Content of a file of the package."""

    name: str
    statements: tuple[ast.stmt, ...]
    """Its top-level statements, without imports, docstrings and ``__all__``"""
    defined: Mapping[str, ast.stmt]
    """The statement that binds each of its names"""
    imported: Mapping[str, str]
    """Meaning of each imported name: ``torch.nn.functional``, ``gpuguide.costs.roofline.ridge``"""

    @property
    def bare_statements(self) -> list[ast.stmt]:
        """The statements that bind no name and are run for what they do."""
        named = {id(statement) for statement in self.defined.values()}
        return [statement for statement in self.statements if id(statement) not in named]

    @property
    def registered_functions(self) -> list[str]:
        """The functions that a decorator registers with something else, such as the kernels of an operator.

        They are run without being named: by whoever calls the operator.
        """
        return [name for name, statement in self.defined.items() if any(map(_registers, _decorators(statement)))]


@dataclass(frozen=True)
class SourceLocation:
    """Target of a dotted name: a module, or something in it."""

    module: str
    inside: tuple[str, ...] = ()
    """Name in the module, then attributes of what that is; empty for the module itself"""


@dataclass(frozen=True)
class Tree:
    """The package as it stands in a folder."""

    folder: Path

    @cache  # noqa: B019 - a tree is a place, of which there are two at most
    def module(self, name: str) -> Module:
        """Return a module of the package, for example ``gpuguide.units``."""
        parsed = ast.parse(self.path(name).read_text(encoding="utf-8"))
        statements = tuple(statement for statement in parsed.body if not _is_dropped(statement))
        defined = {bound: statement for statement in statements for bound in names_bound([statement])}
        outside = [statement for statement in parsed.body if not _is_definition(statement)]
        return Module(name, statements, defined, self.imports(itertools.chain(*map(ast.walk, outside)), name))

    def path(self, name: str) -> Path:
        """Return the file of a module."""
        base = self.folder.joinpath(*name.split(".")[1:])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
        raise GpuguideError(f"There is no module {name} in {self.folder}.")

    def has(self, name: str) -> bool:
        """Return whether ``name`` is a module or package of this tree."""
        base = self.folder.joinpath(*name.split(".")[1:])
        return name.split(".")[0] == PACKAGE and (base.with_suffix(".py").is_file() or (base / "__init__.py").is_file())

    def modules_imported(self, source: str, parent: str = "") -> set[str]:
        """Return the package's modules that a piece of source imports, wherever in it the imports stand.

        Parameters
        ----------
        source : str
            Python source: a module, or the code cells of a page joined.
        parent : str
            The package that the module is in, needed only to resolve relative imports.
        """
        found: set[str] = set()
        for target in _targets(ast.walk(ast.parse(source)), parent):
            found |= {name for name in (target, target.rpartition(".")[0]) if self.has(name)}
        return found

    @cache  # noqa: B019
    def find_imports(self, name: str) -> frozenset[str]:
        """Return the package's modules that a module of the package imports, in a function or outside."""
        return frozenset(self.modules_imported(self.path(name).read_text(encoding="utf-8"), self._parent(name)))

    def transitive(self, modules: Iterable[str]) -> set[str]:
        """Return ``modules`` and every module of the package that they import, directly or not.

        Importing ``gpuguide.a.b`` also runs ``gpuguide/__init__.py`` and ``gpuguide/a/__init__.py``, so these count.
        """
        found: set[str] = set()
        waiting = list(modules)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                parts = name.split(".")
                waiting += [".".join(parts[:length]) for length in range(1, len(parts))]
                waiting += self.find_imports(name)
        return found

    def imports(self, nodes: Iterable[ast.AST], module: str) -> dict[str, str]:
        """Return what each name stands for that the imports among ``nodes``, of a module of the package, bind."""
        bound = {}
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    bound[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom):
                for alias, target in zip(node.names, _targets([node], self._parent(module)), strict=True):
                    bound[alias.asname or alias.name] = target
        return bound

    def locate(self, dotted: str) -> SourceLocation | None:
        """Return what a dotted name of the package stands for, followed to where it is defined; else nothing."""
        seen: set[str] = set()
        while dotted not in seen:
            seen.add(dotted)
            parts = dotted.split(".")
            held = next((n for n in range(len(parts), 0, -1) if self.has(".".join(parts[:n]))), 0)
            if not held:
                return None
            module, inside = self.module(".".join(parts[:held])), parts[held:]
            if not inside or inside[0] in module.defined or inside[0] not in module.imported:
                return SourceLocation(module.name, tuple(inside))
            dotted = ".".join([module.imported[inside[0]], *inside[1:]])
        return None

    def _parent(self, name: str) -> str:
        return name if self.path(name).name == "__init__.py" else name.rpartition(".")[0]


def names_bound(statements: Iterable[ast.AST]) -> list[str]:
    """Return the names that statements bind where they stand, imports aside: not in functions and classes of theirs.

    Each stands once, in the order in which they are first bound.
    """
    return list(dict.fromkeys(name for statement in statements for name in _bound_by(statement)))


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        inner: Iterable[ast.AST] = node.decorator_list
    elif isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        yield from (n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
        inner = ()
    else:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        inner = ast.iter_child_nodes(node)
    for child in inner:
        yield from _bound_by(child)


def is_docstring(statement: object) -> bool:
    """Return whether a statement is a string that documents: a module, a function, or the attribute above it."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def is_import(statement: object) -> bool:
    """Return whether a statement imports."""
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _decorators(statement: ast.stmt) -> list[ast.expr]:
    return statement.decorator_list if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) else []


def _registers(decorator: ast.expr) -> bool:
    """Return whether a decorator's name says that it registers: ``torch.library.impl`` and all ``register…``."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name == "impl" or name.startswith("register")


def _is_definition(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _is_dropped(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):  # imports for the type checker
        return all(map(is_import, statement.body)) and not statement.orelse
    names = [target for target in getattr(statement, "targets", []) if isinstance(target, ast.Name)]
    return is_import(statement) or is_docstring(statement) or any(target.id == "__all__" for target in names)


def _targets(nodes: Iterable[ast.AST], parent: str) -> Iterator[str]:
    """Yield what imports name, in full."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parent.split(".")[: len(parent.split(".")) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{start}.{alias.name}" for alias in node.names)

"""Digests of source: has the code that measured this number, or made this page, changed since?

A benchmark's digest is that of the definitions that it reaches, sorted: moving one, renaming its module or splitting a
file leaves it as it is, and so does a change of what the benchmark does not use. Nothing is imported for it, and it is
the same on every version of Python.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure.digest import definitions, remembered
from gpuguide.measure.digest.definitions import DefinitionText, SourceDefinition
from gpuguide.measure.digest.source import PACKAGE, Module, Tree
from gpuguide.measure.digest.syntax import SyntaxWriter

PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
"""The folder of the library that is running

:meta hide-value:
"""


def tree() -> Tree:
    """Return the library's own source."""
    return Tree(PACKAGE_FOLDER)


def module_path(name: str) -> Path:
    """Return the source file of a module of this package, for example ``gpuguide.units``."""
    return tree().path(name)


def imports_of(source: str) -> set[str]:
    """Return the gpuguide modules that a piece of source imports, such as the cells of a page."""
    return tree().modules_imported(source)


def transitive(modules: Iterable[str]) -> set[str]:
    """Return ``modules`` and every gpuguide module that they import, directly or not."""
    names = sorted(set(modules))
    return set(remembered.answer(f"transitive {' '.join(names)}", lambda: sorted(tree().transitive(names))))


def source_digest(modules: Iterable[str]) -> str:
    """Return one digest of modules (themselves only, not what they import), with their names and imports."""
    total = hashlib.sha256()
    for name in sorted(set(modules)):
        total.update(_module_digest(name).encode())
    return "sha256:" + total.hexdigest()


@functools.cache
def _module_digest(name: str) -> str:
    def compute() -> str:
        text = SyntaxWriter().text(ast.parse(module_path(name).read_text(encoding="utf-8")))
        return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()

    return str(remembered.answer(f"module {name}", compute))


@functools.cache
def benchmark_modules() -> dict[str, str]:
    """Return the module that declares each benchmark, found by reading the files of ``benchmarks/``."""
    return dict(remembered.answer("benchmarks", lambda: declarations(tree())))


@functools.cache
def declarations(tree: Tree) -> dict[str, str]:
    """Return the module of a tree that declares each benchmark."""
    files = sorted((tree.folder / "benchmarks").rglob("*.py"))
    names = [".".join([PACKAGE, *path.relative_to(tree.folder).with_suffix("").parts]) for path in files]
    modules = [tree.module(name.removesuffix(".__init__")) for name in names]
    return {benchmark: module.name for module in modules for benchmark in find_declarations(module)}


def find_declarations(module: Module) -> dict[str, ast.stmt]:
    """Return the benchmarks that a module declares, each with the statement that does."""
    found: dict[str, ast.stmt] = {}
    for statement in module.statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Benchmark":
                name = next((keyword.value for keyword in node.keywords if keyword.arg == "name"), None)
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    found[name.value] = statement
    return found


@functools.cache
def benchmark_digest(name: str) -> str:
    """Return the digest of the code that a benchmark runs, the harness aside.

    Raises
    ------
    GpuguideError
        If there is no such benchmark.
    """
    return str(remembered.answer(f"benchmark {name}", lambda: digest_in(tree(), name)))


def digest_in(tree: Tree, name: str) -> str:
    """Return the digest that a benchmark has in a tree."""
    meanings = definitions.meanings(find_reached_definitions(tree, name))
    return "sha256:" + hashlib.sha256("\n".join(meanings).encode()).hexdigest()


def find_reached_definitions(tree: Tree, name: str) -> dict[SourceDefinition, DefinitionText]:
    """Return the definitions that a benchmark's digest is made of, each as it is written."""
    declared = declarations(tree)
    if name not in declared:
        raise unknown("benchmark", name, declared)
    module = tree.module(declared[name])
    statement = find_declarations(module)[name]
    start = next(bound for bound, made in module.defined.items() if made is statement)
    return definitions.find_reached_definitions(tree, [definitions.defining(tree, module.name, start)])


@functools.cache
def benchmark_files(name: str) -> frozenset[Path]:
    """Return the files in which the definitions stand that a benchmark's digest is made of."""
    return _files_of(f"files of the benchmark {name}", lambda: find_reached_definitions(tree(), name))


@functools.cache
def files_reached(name: str) -> frozenset[Path]:
    """Return the files in which the definitions stand that something of the library uses: a full name."""
    place = tree().locate(name)
    if place is None or not place.inside or place.inside[0] not in tree().module(place.module).defined:
        raise GpuguideError(f"There is no {name} in the library.")
    start = definitions.defining(tree(), place.module, place.inside[0])
    return _files_of(f"files of {name}", lambda: definitions.find_reached_definitions(tree(), [start]))


def _files_of(question: str, find: Callable[[], Iterable[SourceDefinition]]) -> frozenset[Path]:
    modules = remembered.answer(question, lambda: sorted({definition.module for definition in find()}))
    return frozenset(map(module_path, modules))

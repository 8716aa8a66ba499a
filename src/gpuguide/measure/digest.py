"""Digests of source text: has the code that measured this number, or made this page, changed since?

Everything here reads files and never imports the modules it looks at. Comments, docstrings and blank lines
do not count. The result is the same on every Python version, because it is taken from the text and not from
a syntax tree or a token stream, both of which change between versions.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path

from gpuguide.errors import GpuguideError, unknown

PACKAGE = "gpuguide"
PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
HARNESS = ("gpuguide.measure", "gpuguide.hardware", "gpuguide.errors")
"""Modules that count through the harness version only, not through a benchmark's digest."""


def is_harness(module: str) -> bool:
    """Return whether a module belongs to the harness (or is the package's root, which holds the version)."""
    return module == PACKAGE or any(module == part or module.startswith(part + ".") for part in HARNESS)


def module_path(name: str) -> Path:
    """Return the source file of a module of this package, for example ``gpuguide.measure.units``."""
    base = PACKAGE_FOLDER.joinpath(*name.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    raise GpuguideError(f"There is no module {name} in {PACKAGE_FOLDER}.")


def module_exists(name: str) -> bool:
    """Return whether ``name`` is a module or package of gpuguide, without importing it."""
    base = PACKAGE_FOLDER.joinpath(*name.split(".")[1:])
    return base.with_suffix(".py").is_file() or (base / "__init__.py").is_file()


def imports_of(source: str, module: str = "") -> set[str]:
    """Return the gpuguide modules that a piece of source imports, wherever in it the imports stand.

    Parameters
    ----------
    source : str
        Python source: a module, or the code cells of a page joined.
    module : str
        The dotted name of the module, needed only to resolve relative imports.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = node.module or ""
            if node.level:
                parent = ".".join([*module.split(".")[: -node.level], *([node.module] if node.module else [])])
            names = [parent, *(f"{parent}.{alias.name}" for alias in node.names)]
        else:
            continue
        found.update(name for name in names if name.split(".")[0] == PACKAGE and module_exists(name))
    return found


def transitive(modules: Iterable[str]) -> set[str]:
    """Return ``modules`` and every gpuguide module that they import, directly or not.

    Importing ``gpuguide.a.b`` also runs ``gpuguide/__init__.py`` and ``gpuguide/a/__init__.py``, so these count.
    """
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        parts = name.split(".")
        waiting.extend(".".join(parts[:length]) for length in range(1, len(parts)))
        waiting.extend(imports_of_module(name))
    return found


@functools.cache
def imports_of_module(name: str) -> frozenset[str]:
    """Return the gpuguide modules that a module of gpuguide imports."""
    path = module_path(name)
    relative_base = f"{name}.__init__" if path.name == "__init__.py" else name
    return frozenset(imports_of(path.read_text(encoding="utf-8"), relative_base))


def significant_source(source: str) -> str:
    """Return source text without comments, docstrings, blank lines and trailing spaces."""
    lines = source.split("\n")  # as Python counts them: a form feed ends no line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for statement in node.body:  # also the strings that document an attribute
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                if isinstance(statement.value.value, str):
                    _blank(lines, statement)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _blank(lines: list[str], statement: ast.stmt) -> None:
    """Replace a statement by spaces; code beside it on its first or last line stays."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    for row in range(first, last + 1):
        line = lines[row - 1].encode()  # the columns of a syntax tree count bytes
        start = statement.col_offset if row == first else 0
        end = statement.end_col_offset or 0 if row == last else len(line)
        lines[row - 1] = (line[:start] + b" " * (end - start) + line[end:]).decode()


def source_digest(modules: Iterable[str]) -> str:
    """Return one digest of the significant source of ``modules`` (themselves only, not what they import)."""
    total = hashlib.sha256()
    for name in sorted(set(modules)):
        total.update(f"{name}\n{significant_source_of(name)}\n".encode())
    return "sha256:" + total.hexdigest()


@functools.cache
def significant_source_of(name: str) -> str:
    """Return the significant source of a module of gpuguide."""
    return significant_source(module_path(name).read_text(encoding="utf-8"))


@functools.cache
def benchmark_modules() -> dict[str, str]:
    """Return the module that declares each benchmark, found by reading the files of ``benchmarks/``."""
    declared: dict[str, str] = {}
    for path in sorted((PACKAGE_FOLDER / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Benchmark":
                name = next((k.value for k in node.keywords if k.arg == "name"), None)
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    declared[name.value] = f"{PACKAGE}.benchmarks.{path.stem}"
    return declared


@functools.cache
def benchmark_digest(name: str) -> str:
    """Return the digest of a benchmark: its file and the topic modules that it imports, transitively."""
    declared = benchmark_modules()
    if name not in declared:
        raise unknown("benchmark", name, declared)
    return source_digest(module for module in transitive([declared[name]]) if not is_harness(module))

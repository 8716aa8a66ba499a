"""Which versions of other packages a page's outputs were made with: those that it imports, and what these require.

A page imports packages itself, and through the modules of gpuguide that it imports. Other packages may come and go.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import platform
import re
import sys
from collections.abc import Iterable
from importlib import metadata

from gpuguide.measure import digest
from gpuguide.measure.digest import remembered
from gpuguide.measure.digest.source import PACKAGE

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def versions(code: str, modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of the packages that a page uses, by name.

    Parameters
    ----------
    code : str
        The page's cells, joined.
    modules : iterable of str
        The modules of gpuguide that they import, directly or not.
    """
    names = set(_find_imports_in(code)).union(*map(_find_imports_of, modules))
    found = {"python": platform.python_version()}
    waiting = [package for name in names for package in _find_packages(name)]
    while waiting:
        package = _normalise(waiting.pop())
        if package not in found and (installed := _get_distribution(package)) is not None:
            found[package], required = installed
            waiting += required
    return dict(sorted(found.items()))


def find_imports(code: str) -> set[str]:
    """Return the names of what a piece of source imports, that are neither Python's own nor this package's.

    What is no Python imports nothing: the cell that fails will say so.
    """
    names: set[str] = set()
    try:
        parsed = ast.parse(code)
    except SyntaxError:
        return names
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {PACKAGE}


def _find_imports_in(code: str) -> list[str]:
    question = f"packages of code {hashlib.sha256(code.encode()).hexdigest()}"
    return list(remembered.answer(question, lambda: sorted(find_imports(code))))


@functools.cache
def _find_imports_of(module: str) -> frozenset[str]:
    def find() -> list[str]:
        return sorted(find_imports(digest.module_path(module).read_text(encoding="utf-8")))

    return frozenset(remembered.answer(f"packages of {module}", find))


def _find_packages(name: str) -> tuple[str, ...]:
    """Return the packages that bring what is imported under a name: mostly one of that name."""
    return (
        (name,)
        if _get_distribution(_normalise(name)) is not None
        else tuple(package.metadata["Name"] for package in _map_imports_to_packages().get(name, ()))
    )


@functools.cache
def _map_imports_to_packages() -> dict[str, list[metadata.Distribution]]:
    """Return which packages bring each name that can be imported.

    By hand, because :func:`importlib.metadata.packages_distributions` looks for every installed file, which takes long.
    """
    found: dict[str, list[metadata.Distribution]] = {}
    for package in metadata.distributions():
        listed = package.read_text("top_level.txt") or package.read_text("RECORD") or ""
        for name in {re.split("[/.,]", line, maxsplit=1)[0] for line in listed.splitlines()}:
            found.setdefault(name, []).append(package)
    return found


@functools.cache
def _get_distribution(package: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the version of a package and what it requires, extras aside, or ``None`` if it is not installed."""
    try:
        found = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None
    required = [text for text in found.requires or () if not re.search(r"\bextra\s*==", text)]
    return found.version, tuple(match[0] for text in required if (match := _NAME.match(text)))


def _normalise(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()

"""Who may import whom, read from the source text, and what `import gpuguide` costs."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest
from rooms import MAY_IMPORT, imported, modules, room

HEAVY = ("torch", "numpy", "matplotlib", "triton", "sphinx", "pyarrow", "rich", "typer", "IPython")


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    """The modules that each module imports."""
    return {module: imported(module) for module in modules()}


def circle(arrows: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names on a circle of arrows, or nothing if there is none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_run_one_way(arrows: dict[str, set[str]]) -> None:
    wrong = [
        f"{module} imports {other}"
        for module, others in arrows.items()
        for other in sorted(others)
        if room(other) not in {"gpuguide", room(module), *MAY_IMPORT.get(room(module), ())}
    ]
    assert not wrong


def test_no_arrow_leads_up() -> None:
    """The rooms themselves have an order: nobody may import a room that may import theirs."""
    assert not circle(MAY_IMPORT)


def test_no_module_imports_itself_by_a_circle(arrows: dict[str, set[str]]) -> None:
    """The face of a package may import its parts, which then import one another and not the face."""
    assert not circle(arrows)


def test_no_package_imports_itself_by_a_circle(arrows: dict[str, set[str]]) -> None:
    between: dict[str, set[str]] = {}
    for module, others in arrows.items():
        own = package(module)
        between.setdefault(own, set()).update(package(other) for other in others if package(other) != own)
    assert not circle(between)


def package(module: str) -> str:
    """The room or topic that holds a module: ``gpuguide.attention`` for ``gpuguide.attention.cost.sizes``."""
    return ".".join(module.split(".")[:2])


def test_every_room_is_there() -> None:
    assert {room(name) for name in modules()} == {"gpuguide", *MAY_IMPORT}


def test_import_gpuguide_is_light() -> None:
    code = f"import gpuguide, sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module",
    [name for name, path in modules().items() if re.search(r"(?m)^ *>>> ", path.read_text(encoding="utf-8"))],
)
def test_examples_in_docstrings(module: str) -> None:
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(importlib.import_module(module), optionflags=options)
    assert result.attempted
    assert not result.failed

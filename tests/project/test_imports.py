"""Who may import whom, read from the source text, and what `import gpuguide` costs."""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGE = SOURCE / "gpuguide"
HEAVY = ("torch", "numpy", "matplotlib", "triton", "sphinx", "pyarrow", "rich", "typer", "IPython")

ROOMS = {"hardware", "measure", "benchmarks", "records", "claims", "plotting", "site", "cli"}
"""What is none of these is a topic, but for ``errors``, which everyone may import."""

FORBIDDEN = {
    "hardware": {"measure", "benchmarks", "claims", "plotting", "site", "cli", "topic"},
    "measure": {"benchmarks", "claims", "plotting", "site", "cli", "topic"},
    "benchmarks": {"claims", "plotting", "site", "cli"},
    "topic": {"measure", "benchmarks", "claims", "plotting", "site", "cli"},
    "claims": {"plotting", "site", "cli"},
    "plotting": {"claims", "site", "cli"},
    "site": {"cli"},
    "cli": {"site"},
    "errors": {"hardware", "measure", "benchmarks", "claims", "plotting", "site", "cli", "topic"},
}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room(module: str) -> str:
    """The room that a module is in: one of ROOMS, `errors`, `gpuguide` or `topic`."""
    parts = module.split(".")
    if len(parts) == 1:
        return "gpuguide"
    if parts[1] == "__main__":
        return "cli"
    return parts[1] if parts[1] in ROOMS | {"errors"} else "topic"


def imported(module: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The gpuguide modules that a file imports anywhere in it, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}, line {node.lineno}: import by the full name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return {name for name in names if name in known}


def test_imports_run_one_way() -> None:
    known = modules()
    wrong = [
        f"{module} imports {other}"
        for module, path in known.items()
        for other in sorted(imported(module, path, known))
        if room(other) in FORBIDDEN.get(room(module), set())
    ]
    assert not wrong


def test_every_room_is_known() -> None:
    assert {"hardware", "measure", "benchmarks", "claims", "plotting", "topic"} <= {room(name) for name in modules()}
    assert set(FORBIDDEN) - {"topic"} >= ROOMS - {"records"}


def test_import_gpuguide_is_light() -> None:
    code = f"import gpuguide, sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module", [name for name, path in modules().items() if ">>> " in path.read_text(encoding="utf-8")]
)
def test_examples_in_docstrings(module: str) -> None:
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(importlib.import_module(module), optionflags=options)
    assert result.attempted
    assert not result.failed

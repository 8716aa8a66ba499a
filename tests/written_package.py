"""A package in place of gpuguide, in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuguide.measure.digest.source import Tree


def write(folder: Path, files: Mapping[str, str]) -> Tree:
    """Write a package's files into a folder, with the faces of its packages where they are not given."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        (path / "__init__.py").touch()
    return Tree(folder)

"""The library as a wheel beside the tutorials, so that a reader installs what the site was built with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from sphinx.errors import SphinxError

import gpuguide

PARTS = ("pyproject.toml", "README.md", "LICENSE", "src/gpuguide")
"""What the wheel is made of, from the root of the repository"""


def write(root: Path, target: Path) -> None:
    """Build the wheel of the project at ``root``, without a network and without another environment.

    Raises
    ------
    SphinxError
        If hatchling, which builds it, is missing, or the project has another version than the library that is imported.
    """
    try:
        from hatchling.builders.wheel import WheelBuilder
    except ImportError as error:
        raise SphinxError(
            "The tutorials' downloads hold the library as a wheel. Install hatchling (site extra)."
        ) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    (built,) = WheelBuilder(str(root)).build(directory=str(target.parent), versions=["standard"])
    if Path(built).name != target.name:
        raise SphinxError(
            f"The project in {root} makes {Path(built).name}, but {target.name} was expected: the library that is "
            f"imported has version {gpuguide.__version__}. Make the versions agree."
        )


def digest(root: Path) -> str:
    """Return a digest of all that decides the wheel's bytes: its files, and the date that it gives them."""
    total = hashlib.sha256(os.environ.get("SOURCE_DATE_EPOCH", "").encode())
    for path in _files(root):
        total.update(f"{path.relative_to(root).as_posix()}\n".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _files(root: Path) -> Iterator[Path]:
    for part in PARTS:
        found = [root / part] if (root / part).is_file() else sorted((root / part).rglob("*"))
        yield from (path for path in found if path.is_file() and path.suffix not in (".pyc", ".pyo"))

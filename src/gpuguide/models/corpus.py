"""Training corpus of the models, the Python standard library, and a text of our own that no training sees."""

from __future__ import annotations

import hashlib
import sysconfig
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuguide.errors import GpuguideError

EXCLUDED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings"}
)
"""Tests, what is not part of the library, and ``encodings``, which is mostly tables that a script made"""
EXCLUDED_FILES = ("_sysconfigdata",)
"""Prefix of the names of files that describe one machine"""
VALIDATION_SHARE = 0.05
"""Shares of the files"""
LARGEST_VALIDATION_FILE = 200_000
"""Characters. A larger file would be most of the text to validate on, so it is trained on."""
HELD_OUT = Path(__file__).parent / "held_out.txt"


@dataclass(frozen=True)
class CorpusFile:
    """One file of the library: its name, such as ``json/decoder.py``, and its text."""

    name: str
    text: str


def standard_library(folder: Path | None = None) -> list[CorpusFile]:
    """Return the files of the interpreter's standard library, without its tests, by name.

    Parameters
    ----------
    folder : Path, optional
        Where the library is. By default that of the interpreter that runs this.

    Raises
    ------
    GpuguideError
        If there are no Python files, as in an interpreter whose library is one archive.
    """
    root = folder or Path(sysconfig.get_path("stdlib"))
    found = [_read(path, root) for path in sorted(root.rglob("*.py")) if _belongs(path.relative_to(root))]
    sources = [source for source in found if source is not None]
    if not sources:
        raise GpuguideError(f"There are no Python files in {root}, so there is nothing to train on.")
    return sources


def _belongs(path: Path) -> bool:
    return not EXCLUDED_FOLDERS.intersection(path.parts) and not path.name.startswith(EXCLUDED_FILES)


def _read(path: Path, root: Path) -> CorpusFile | None:
    """Return a file in the encoding that it declares, or None if that is not what it holds."""
    try:
        with tokenize.open(path) as file:
            return CorpusFile(path.relative_to(root).as_posix(), file.read())
    except (SyntaxError, UnicodeDecodeError):
        return None


def split(sources: Iterable[CorpusFile]) -> tuple[list[CorpusFile], list[CorpusFile]]:
    """Divide files into those to train on and those to validate on.

    A file's name decides, so that the same files go the same way with every Python version.
    """
    training: list[CorpusFile] = []
    validation: list[CorpusFile] = []
    for source in sources:
        drawn = int.from_bytes(hashlib.sha256(source.name.encode()).digest()[:4], "big") / 2**32
        chosen = drawn < VALIDATION_SHARE and len(source.text) <= LARGEST_VALIDATION_FILE
        (validation if chosen else training).append(source)
    return training, validation


def digest(sources: Sequence[CorpusFile]) -> str:
    """Return the SHA-256 of all names and texts, in hexadecimal."""
    total = hashlib.sha256()
    for source in sources:
        for part in (source.name, source.text):
            data = part.encode()
            total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()


def load_held_out() -> str:
    """Return the text that the published losses are measured on: small Python programs written for this project."""
    return HELD_OUT.read_text(encoding="utf-8")

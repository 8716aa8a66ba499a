"""Digests remembered from the build before: while no file of the library or of the records changed, they hold.

To work a digest out takes seconds, for all that it follows through the library; to see that no file has another time or
size takes none.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuguide.measure import digest, store

NAME = "digests.json"


class Digests:
    """Digests by name, in a file beside Sphinx's notes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._state = state()
        try:
            before = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = {}
        self._known: dict[str, str] = before.get("digests", {}) if before.get("state") == self._state else {}

    def get(self, name: str, work_out: Callable[[], str]) -> str:
        """Return a digest: that of the build before, or one that is worked out."""
        if name not in self._known:
            self._known[name] = work_out()
        return self._known[name]

    def save(self) -> None:
        """Remember the digests for the next build."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"state": self._state, "digests": self._known}), encoding="utf-8")


def state() -> str:
    """Return a digest of the names, sizes and times of all files that a digest may be made from."""
    total = hashlib.sha256(sys.version.encode())
    for path in sorted(files()):
        status = path.stat()
        total.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return total.hexdigest()


def files() -> Iterator[Path]:
    """Yield the files of the library, and those that hold records of the reader's own."""
    for folder in {digest.PACKAGE_FOLDER, *store.folders()}:
        yield from (path for path in folder.glob("**/*") if path.suffix != ".pyc" and path.is_file())

"""What a build that failed or was stopped leaves for the next one: nothing half done.

Sphinx notes what it has read before it has written the pages, and does not warn again about what it has not read again.
So a build that did not get to its end, or had warnings, is forgotten once that note is written, and the next one reads
every page; what pages printed is kept elsewhere. A build that stops earlier, while it reads, leaves the note of the
build before, which still holds: an author who mends a failing cell need not wait for the other pages.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "half-done"
NOTE = "environment.pickle"


@contextmanager
def protect_doctrees(folder: Path) -> Iterator[Path]:
    """Give one build a folder without what an earlier one left half done; yield the file that marks this one so.

    The build creates the file when it has read everything, and removes it at its end.
    """
    mark, note = folder / MARK, folder / NOTE
    if mark.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    before = note.read_bytes() if note.exists() else None
    try:
        yield mark
    finally:
        if before is not None and not mark.exists() and not note.exists():  # Sphinx removes it on errors
            note.write_bytes(before)

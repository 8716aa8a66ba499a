"""What a build that failed or was stopped leaves for the next one: nothing half done.

Sphinx notes what it has read before it has written the pages, and does not warn again about what it has not read again.
So a build that did not get to its end, or had warnings, is forgotten once that note is written, and the next one reads
every page; what pages printed is kept elsewhere. A build that stops earlier, while it reads, leaves the note of the
build before, which still holds: an author who mends a failing cell need not wait for the other pages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

MARK = "half-done"
NOTE = "environment.pickle"


class Doctrees:
    """Sphinx's notes about the pages, during one build."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = folder / MARK
        self._before = folder / f"{NOTE}.before"

    def follow(self, app: Sphinx) -> None:
        """Note when the build has read everything: from then on it is half done."""
        app.connect("env-updated", self._begin, priority=1000)

    def whole(self) -> None:
        """Say that the build got to its end without a warning."""
        self._mark.unlink(missing_ok=True)

    def _begin(self, app: Sphinx, env: BuildEnvironment) -> list[str]:
        self._mark.touch()
        return []

    def prepare(self) -> None:
        """Forget a build that was left half done; put the note of a whole one aside, which Sphinx removes on errors."""
        if self._mark.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._before.unlink(missing_ok=True)
        if (self.folder / NOTE).exists():
            shutil.copy2(self.folder / NOTE, self._before)

    def settle(self) -> None:
        """Take the note of the build before again, if this one wrote none."""
        if self._before.exists():
            if not self._mark.exists() and not (self.folder / NOTE).exists():
                os.replace(self._before, self.folder / NOTE)
            self._before.unlink(missing_ok=True)


@contextmanager
def protect_doctrees(folder: Path) -> Iterator[Doctrees]:
    """Keep what was whole from what is half done, for one build."""
    doctrees = Doctrees(folder)
    doctrees.prepare()
    try:
        yield doctrees
    finally:
        doctrees.settle()

"""What a build prints: a line a page as it has run, warnings, faults, and where to look. The rest is logged."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

SPOKEN = "sphinx.gpuguide.site.execution.running"
"""The logger whose messages are for people"""


class BuildScreen:
    """The screen and the log of one build. Sphinx writes its warnings to it."""

    def __init__(self, log: Path, root: Path, only: str = "") -> None:
        self.warnings = 0
        """How many there were"""
        self.only = only
        """The one page that is built, if it is one"""
        self.log = log.open("w", encoding="utf-8", buffering=1)
        self.where = f"Log: {os.path.relpath(log)}"
        """Where to read more"""
        self._root = f"{root}{os.sep}"

    def __enter__(self) -> BuildScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log.close()

    def say(self, text: str) -> None:
        """Print, and log, something for people."""
        text = text.replace(self._root, "")
        self.log.write(text + "\n")
        print(text, flush=True)

    def write(self, text: str) -> int:
        """Take a warning or an error of Sphinx."""
        if text.strip():
            self.warnings += 1
            if not self.only or self.only in text:
                print(text.rstrip().replace(self._root, ""), file=sys.stderr, flush=True)
                self.log.write(text)
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def follow(self, app: Sphinx) -> None:
        """Say how far the build is."""
        handler = _LineHandler(self)
        logging.getLogger(SPOKEN).addHandler(handler)
        app.connect("env-before-read-docs", self._reading, priority=1000)
        app.connect("env-check-consistency", self._writing)

    def _reading(self, app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
        if docnames:
            self.say(f"Reading {len(docnames)} page{'s' * (len(docnames) > 1)}")

    def _writing(self, app: Sphinx, env: BuildEnvironment) -> None:
        self.say("Writing the pages")


class _LineHandler(logging.Handler):
    """Says what the logger of the pages that run says."""

    def __init__(self, screen: BuildScreen) -> None:
        super().__init__(logging.INFO)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        """Say one message."""
        self._screen.say(record.getMessage())

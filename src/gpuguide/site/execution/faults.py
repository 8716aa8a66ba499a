"""Faults in roles and directives: each is reported with its file and line, and together they stop the build.

A warning would stop only the first build, because an unchanged page is not read again. Stopping before the
environment is saved makes every build find the same faults.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx.errors import SphinxError
from sphinx.util import logging

from gpuguide.errors import GpuguideError

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

logger = logging.getLogger(__name__)

_found: list[str] = []


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    _found.clear()
    app.connect("env-updated", stop_if_any)


class error_location:
    """Turn an error about a page into one that stops the build and names the place: a file, or ``file:line``."""

    def __init__(self, place: Path | str) -> None:
        self.place = place

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, GpuguideError):
            raise SphinxError(f"{self.place}: {error}") from error


class report_errors:
    """Report an error that the ``with`` block raises, at ``location``, and go on reading."""

    def __init__(self, location: Any) -> None:
        self.location = location

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Return whether the error was a fault of the page."""
        if not isinstance(error, GpuguideError):
            return False
        _found.append(str(error))
        logger.error("%s", error, location=self.location)
        return True


def stop_if_any(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """After all pages are read: stop if any had a fault."""
    if _found:
        count = len(_found)
        raise SphinxError(f"{count} fault{'s' * (count > 1)} in the pages, reported above. First: {_found[0]}")
    return []

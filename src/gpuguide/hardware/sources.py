"""The documents that figures and claims come from, and whether and when each was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from gpuguide.errors import GpuguideError
from gpuguide.hardware.tables import only, text_of

NOT_VERIFIED = "not verified"
SOURCE_KEYS = ("title", "url", "publisher", "looked_at")


@dataclass(frozen=True)
class Source:
    """A document that figures come from."""

    key: str
    title: str
    url: str
    publisher: str
    looked_at: str
    """The day (ISO 8601) on which it was read for the figures that cite it, or ``"not verified"``."""
    note: str = ""
    """How it was read, where that is worth saying"""

    @property
    def is_verified(self) -> bool:
        """Whether the document itself was looked at."""
        return self.looked_at != NOT_VERIFIED

    @property
    def verification(self) -> str:
        """Whether the document was looked at, and when, as pages say it."""
        return f"looked at on {self.looked_at}" if self.is_verified else "not verified by us"


def read_source(key: str, table: Mapping[str, Any], origin: str) -> Source:
    """Return the document that a table ``[sources.KEY]`` describes, here or in another table of published figures.

    Parameters
    ----------
    key : str
        The name by which figures cite the document.
    table : Mapping
        Its title, url, publisher and looked_at, and a note if there is one.
    origin : str
        The name of the file, for messages.

    Raises
    ------
    GpuguideError
        If a key is unknown, a text is missing or empty, the url does not begin with ``https://``, or ``looked_at`` is
        neither a date nor ``"not verified"``.
    """
    where = f"{origin}, sources.{key}"
    if not isinstance(table, Mapping):
        raise GpuguideError(f"{where} is {table!r}; write a table.")
    only(table, (*SOURCE_KEYS, "note"), where)
    title, url, publisher, looked_at = (text_of(table, name, where) for name in SOURCE_KEYS)
    if looked_at != NOT_VERIFIED:
        try:
            date.fromisoformat(looked_at)
        except ValueError:
            raise GpuguideError(
                f"{where}: looked_at is {looked_at!r}; write a date such as 2026-11-21, or {NOT_VERIFIED!r}."
            ) from None
    if not url.startswith("https://"):
        raise GpuguideError(f"{where}: the url {url!r} does not begin with https://.")
    note = text_of(table, "note", where) if "note" in table else ""
    return Source(key, title, url, publisher, looked_at, note)

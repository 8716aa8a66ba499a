"""The documents that figures and claims come from, and whether and when each was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Any

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.tables import only, parse_toml, text_of

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
    """Remark on how it was read, where that is worth saying"""

    @property
    def is_verified(self) -> bool:
        """True if the document itself was looked at."""
        return self.looked_at != NOT_VERIFIED

    @property
    def verification(self) -> str:
        """Date on which the document was looked at, if it was, as pages say it."""
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
    return Source(key, title, url, publisher, looked_at, read_note(table, where))


@dataclass(frozen=True)
class PrintedValue:
    """One published value in SI units, with the key of its source."""

    value: float
    unit: str
    source: str
    note: str = ""

    @property
    def is_derived(self) -> bool:
        """True if the value stands in no document but follows from printed ones as the note says."""
        return "derived" in self.note


def read_tables(text: str, origin: str, group: str) -> tuple[Mapping[str, Source], Mapping[str, Mapping[str, Any]]]:
    """Return the documents and the tables of published figures that a TOML text holds.

    Parameters
    ----------
    text : str
        Tables ``[sources.KEY]`` and ``[GROUP.ID]``.
    origin : str
        The name of the file, for messages.
    group : str
        The name that the tables of figures have in common, for example ``gpu``.

    Raises
    ------
    GpuguideError
        At the first thing that is wrong; the message names the file, the table and the key.
    """
    content = parse_toml(text, origin)
    only(content, ("sources", group), origin)
    for name in ("sources", group):
        if not isinstance(content.get(name), dict) or not content[name]:
            raise GpuguideError(f"{origin} has no [{name}.…] tables.")
    for key, table in content[group].items():
        if not isinstance(table, dict):
            raise GpuguideError(f"{origin}: {group}.{key} is {table!r}; write a table [{group}.{key}].")
    sources = {key: read_source(key, table, origin) for key, table in content["sources"].items()}
    return MappingProxyType(sources), content[group]


def read_value(entry: Any, key: str, unit: str, sources: Mapping[str, Source], where: str) -> PrintedValue:
    """Return the figure ``{ value = …, source = "…" }`` that stands at ``key`` of a table.

    Raises
    ------
    GpuguideError
        If it is no such figure, its value is not above zero, or its source is not one of ``sources``.
    """
    where = f"{where}, {key}"
    if not isinstance(entry, dict):
        raise GpuguideError(f'{where} is {entry!r}; write {{ value = …, source = "…" }}.')
    only(entry, ("value", "source", "note"), where)
    value = entry.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise GpuguideError(f"{where}: value is {value!r}; write a number above zero, in {unit}.")
    return PrintedValue(float(value), unit, read_citation(entry, sources, where), read_note(entry, where))


def read_citation(entry: Mapping[str, Any], sources: Mapping[str, Source], where: str) -> str:
    """Return the key of the document that an entry cites.

    Raises
    ------
    GpuguideError
        If it cites none, or one that is not among ``sources``.
    """
    if "source" not in entry:
        raise GpuguideError(f"{where} has no source; name one of [sources].")
    source = text_of(entry, "source", where)
    if source not in sources:
        raise GpuguideError(f"{where}: {unknown('source', source, sources)}")
    return source


def read_note(entry: Mapping[str, Any], where: str) -> str:
    """Return the note of an entry; empty if it has none."""
    return text_of(entry, "note", where) if "note" in entry else ""

"""Bandwidths of links: ``links.toml`` beside this module, each figure with its source.

A rate counts one direction. The bits on the wire, what the line code leaves of them and what the protocol leaves of
that are three figures, since texts that compare links often mix them.

>>> link = get("pcie-5-x16")
>>> [round(rate / 1e9, 1) for rate in (link.raw, link.per_direction.value, link.payload)]
[64.0, 63.0, 57.6]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import isclose
from types import MappingProxyType
from typing import Any

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.sources import PrintedValue, Source, read_citation, read_note, read_tables, read_value
from gpuguide.hardware.tables import only, text_of

JOINS: Mapping[str, str] = MappingProxyType(
    {"host": "host and GPU", "gpus": "GPUs", "machines": "machines", "storage": "storage and host"}
)
"""Kinds of ends that a link may join"""
UNITS: Mapping[str, str] = MappingProxyType(
    {"signalling": "bit/s", "per_link": "B/s", "per_direction": "B/s", "printed_total": "B/s"}
)
ROUNDING = 1e-3
"""Largest relative difference between figures that follow from one another, for a document rounds them"""


@dataclass(frozen=True)
class Share:
    """Share of what goes in that comes out: ``carried`` of every ``of``."""

    carried: int
    of: int
    source: str
    note: str = ""

    @property
    def value(self) -> float:
        """The share, above 0 and at most 1."""
        return self.carried / self.of


@dataclass(frozen=True)
class Link:
    """A connection, as its standard or its vendor describes it. What is None, nobody prints."""

    id: str
    name: str
    family: str
    joins: str
    """A key of :data:`JOINS`"""
    per_direction: PrintedValue
    """B/s after coding, one way"""
    lanes: int | None = None
    links: int = 1
    """Number of links that are used together"""
    signalling: PrintedValue | None = None
    """Bit/s on one lane, one way"""
    coding: Share | None = None
    """Share that line code and error correction leave"""
    protocol: Share | None = None
    """Share that headers and checksums leave, at the size of packets that the note gives"""
    per_link: PrintedValue | None = None
    """B/s of one of ``links``, one way"""
    printed_total: PrintedValue | None = None
    """B/s both ways together, as the vendor prints it"""

    @property
    def raw(self) -> float | None:
        """Return what is on the wire, one way, B/s."""
        return self.lanes * self.signalling.value / 8 if self.lanes and self.signalling else None

    @property
    def payload(self) -> float | None:
        """Return what is left for data, one way, B/s."""
        return self.per_direction.value * self.protocol.value if self.protocol else None

    @property
    def per_lane(self) -> float | None:
        """Return the rate of a lane after coding, one way, B/s."""
        return self.per_direction.value / self.lanes if self.lanes else None


@dataclass(frozen=True)
class Links:
    """The whole table, checked."""

    sources: Mapping[str, Source]
    links: Mapping[str, Link]


def load() -> Mapping[str, Link]:
    """Return all links by id, in the table's order.

    Raises
    ------
    GpuguideError
        If the table is damaged: an unknown key, a figure without a source, figures that contradict each other.
    """
    return _table().links


def sources() -> Mapping[str, Source]:
    """Return the documents that the figures come from, by key."""
    return _table().sources


def get(name: str) -> Link:
    """Return a link by its id, such as ``"pcie-5-x16"``.

    Raises
    ------
    GpuguideError
        If there is none; the message lists the near ones.
    """
    if name not in load():
        raise unknown("link", str(name), load())
    return load()[name]


@cache
def _table() -> Links:
    file = resources.files("gpuguide.hardware").joinpath("links.toml")
    return parse(file.read_text(encoding="utf-8"), "links.toml")


def parse(text: str, origin: str) -> Links:
    """Return the table that the TOML ``text`` holds.

    Parameters
    ----------
    text : str
        Tables ``[sources.KEY]`` and ``[link.ID]``.
    origin : str
        The name of the file, for messages.

    Raises
    ------
    GpuguideError
        At the first thing that is wrong; the message names the file, the table and the key.
    """
    known, tables = read_tables(text, origin, "link")
    return Links(known, MappingProxyType({key: _link(key, table, known, origin) for key, table in tables.items()}))


def _link(key: str, table: Mapping[str, Any], known: Mapping[str, Source], origin: str) -> Link:
    where = f"{origin}, link.{key}"
    only(table, ("name", "family", "joins", "lanes", "links", "coding", "protocol", *UNITS), where)
    joins = text_of(table, "joins", where)
    if joins not in JOINS:
        raise GpuguideError(f"{where}: {unknown('kind of ends', joins, JOINS)}")
    if "per_direction" not in table:
        raise GpuguideError(f"{where} has no per_direction; every link needs that figure.")
    figures = {name: read_value(table[name], name, UNITS[name], known, where) for name in UNITS if name in table}
    shares = {name: _share(table[name], name, known, where) for name in ("coding", "protocol") if name in table}
    link = Link(
        key,
        text_of(table, "name", where),
        text_of(table, "family", where),
        joins,
        figures["per_direction"],
        lanes=_count(table["lanes"], "lanes", where) if "lanes" in table else None,
        links=_count(table.get("links", 1), "links", where),
        signalling=figures.get("signalling"),
        coding=shares.get("coding"),
        protocol=shares.get("protocol"),
        per_link=figures.get("per_link"),
        printed_total=figures.get("printed_total"),
    )
    _check(link, where)
    return link


def _check(link: Link, where: str) -> None:
    """Refuse figures that contradict each other."""
    rate = link.per_direction.value
    if link.raw and link.coding:
        coded = link.raw * link.coding.value
        if not isclose(coded, rate, rel_tol=ROUNDING):
            raise GpuguideError(f"{where}: lanes × signalling × coding ÷ 8 is {coded:g}, not {rate:g}.")
    if link.per_link and not isclose(link.links * link.per_link.value, rate, rel_tol=ROUNDING):
        raise GpuguideError(f"{where}: links × per_link is {link.links * link.per_link.value:g}, not {rate:g}.")


def _share(entry: Any, key: str, known: Mapping[str, Source], where: str) -> Share:
    where = f"{where}, {key}"
    if not isinstance(entry, dict):
        raise GpuguideError(f'{where} is {entry!r}; write {{ carried = …, of = …, source = "…" }}.')
    only(entry, ("carried", "of", "source", "note"), where)
    carried, of = (_count(entry.get(name), name, where) for name in ("carried", "of"))
    if carried > of:
        raise GpuguideError(f"{where}: {carried} of {of} is more than all; swap them.")
    return Share(carried, of, read_citation(entry, known, where), read_note(entry, where))


def _count(value: Any, key: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise GpuguideError(f"{where}: {key} is {value!r}; write a whole number above zero.")
    return value

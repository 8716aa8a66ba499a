"""The memory that drivers report for GPUs, where that is published: ``capacities.toml`` beside this module.

>>> load_capacities()["rtx-3060"].bytes == 12 * 2**30
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

from gpuguide.errors import GpuguideError
from gpuguide.hardware.sources import Source, read_citation, read_tables
from gpuguide.hardware.tables import only


@dataclass(frozen=True)
class Capacity:
    """The memory of a card as its driver reports it."""

    id: str
    """That of the data sheet table, or one of its own"""
    name: str
    """Empty for a GPU of the data sheet table"""
    bytes: float
    source: Source
    note: str = ""


@cache
def load_capacities() -> Mapping[str, Capacity]:
    """Return all cards by id, in the table's order.

    Raises
    ------
    GpuguideError
        If the table is damaged.
    """
    file = resources.files("gpuguide.hardware").joinpath("capacities.toml")
    return parse(file.read_text(encoding="utf-8"), "capacities.toml")


def parse(text: str, origin: str) -> Mapping[str, Capacity]:
    """Return the cards that the TOML ``text`` holds.

    Parameters
    ----------
    text : str
        Tables ``[sources.KEY]`` and ``[card.ID]``.
    origin : str
        The name of the file, for messages.

    Raises
    ------
    GpuguideError
        At the first thing that is wrong; the message names the file, the table and the key.
    """
    sources, tables = read_tables(text, origin, "card")
    cards = {}
    for key, table in tables.items():
        where = f"{origin}, card.{key}"
        only(table, ("name", "mib", "bytes", "source", "note"), where)
        source = read_citation(table, sources, where)
        size = table.get("bytes", table.get("mib", 0) * 2**20)
        if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
            raise GpuguideError(f"{where} has no memory; write mib or bytes, a whole number above zero.")
        cards[key] = Capacity(key, table.get("name", ""), float(size), sources[source], table.get("note", ""))
    return MappingProxyType(cards)

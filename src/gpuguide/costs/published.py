"""Memory that others measured and published, beside what :mod:`gpuguide.costs.memory` predicts.

The cases stand in ``memory/published.toml``, each with its source.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gpuguide.costs import memory, presets
from gpuguide.hardware.sources import Source, read_source

PUBLISHED = "published.toml"
UNITS = {"gb": 1e9, "gib": 2.0**30, "mib": 2.0**20}


@dataclass(frozen=True)
class PublishedCase:
    """One published number."""

    name: str
    source: Source
    model: str
    """The id of a model in :mod:`gpuguide.costs.presets`"""
    measured: float
    """Bytes"""
    setup: memory.Setup
    part: str
    """The part of the prediction that is meant, or nothing for all"""
    assumed: str
    """What the source does not say"""
    differs: str
    """Why the software does something else than the prediction assumes; such a case checks nothing"""

    @property
    def predicted_bytes(self) -> float:
        """Bytes that the cost model predicts."""
        found = memory.predict(presets.get(self.model).shape, self.setup)
        return found.highest.parts[self.part] if self.part else found.total

    @property
    def error(self) -> float:
        """Share by which the prediction is above what was measured."""
        return self.predicted_bytes / self.measured - 1


@cache
def cases() -> tuple[PublishedCase, ...]:
    """Return all cases, in the order of the table."""
    file = resources.files("gpuguide.costs.memory").joinpath(PUBLISHED)
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    sources = {key: read_source(key, table, PUBLISHED) for key, table in tables["sources"].items()}
    return tuple(_case(table, sources) for table in tables["case"])


def _case(table: dict[str, Any], sources: dict[str, Source]) -> PublishedCase:
    unit = next(unit for unit in UNITS if unit in table)
    return PublishedCase(
        table["name"],
        sources[table["source"]],
        table["model"],
        table[unit] * UNITS[unit],
        memory.Setup(**table["setup"]),
        table.get("part", ""),
        table.get("assumed", ""),
        table.get("differs", ""),
    )

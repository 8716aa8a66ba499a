"""The cost model of memory: what stands in ``model.toml``, read once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from gpuguide.costs.fields import Field, Rule, read_fields, read_rules
from gpuguide.costs.formulas import Formulas, Tree, tree_of

TABLES: Mapping[str, Any] = tomllib.loads(
    resources.files("gpuguide.costs.memory").joinpath("model.toml").read_text(encoding="utf-8")
)
FORMULAS = Formulas({**TABLES["formulas"], **TABLES["changed"]}, TABLES["constants"])
SHAPE_FIELDS: Mapping[str, Field] = read_fields(TABLES["shape"])
SHAPE_RULES: list[Rule] = read_rules(TABLES["shape_rules"])
SETUP_FIELDS: Mapping[str, Field] = read_fields(TABLES["setup"])
SETUP_RULES: list[Rule] = read_rules(TABLES["setup_rules"])


@dataclass(frozen=True)
class Change:
    """A change to a setup: whether it is one, in words, and what its fields become."""

    when: Tree
    says: str
    fields: Mapping[str, Tree]


MOMENTS: Mapping[str, Mapping[str, Mapping[str, Tree]]] = {
    kind: {name: {part: tree_of(text) for part, text in parts.items()} for name, parts in moments.items()}
    for kind, moments in TABLES["moments"].items()
}
"""``train`` or ``use`` to the name of a moment to what is in memory then"""
CHANGES = [
    Change(tree_of(table["when"]), table["says"], {name: tree_of(text) for name, text in table["set"].items()})
    for table in TABLES["changes"]
]


def choices(field: str) -> tuple[str, ...]:
    """Return the choices of a field of the setup or the shape, whatever the other fields are."""
    found = (SETUP_FIELDS | SHAPE_FIELDS)[field].choices  # type: ignore[operator]
    if isinstance(found, Mapping):
        return tuple(dict.fromkeys(option for options in found.values() for option in options))
    return tuple(found)

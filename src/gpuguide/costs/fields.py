"""What a calculator asks for: fields, what each accepts, and one sentence for each that makes no sense.

Fields are described in the same TOML files as the formulas, so that Python and the scripts of the site refuse the same
values with the same words. A field is a whole number (``whole = [1, 1000]``), a choice (``choices = ["a", "b"]``, or
one list for each value of the field that ``by`` names) or a flag (``flag = true``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuguide.costs.formulas import Formulas, Tree, names_in, tree_of
from gpuguide.errors import GpuguideError


@dataclass(frozen=True)
class Field:
    """One thing to fill in."""

    name: str
    label: str
    """As the form shows it"""
    whole: tuple[int, int] | None = None
    """The least and the largest number"""
    choices: tuple[Any, ...] | Mapping[str, tuple[Any, ...]] = ()
    by: str = ""
    words: Mapping[str, str] | None = None
    """How the form names the choices, where that differs from what code writes"""
    when: str = "True"
    """A formula: whether the form shows it"""

    def options(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the choices that there are, given the other fields."""
        if isinstance(self.choices, Mapping):
            return self.choices.get(values[self.by], ())
        return self.choices


@dataclass(frozen=True)
class Rule:
    """What must hold between several fields."""

    field: str
    """The one that is told"""
    holds: Tree
    says: str
    """The rest of the sentence after the name of the field; names in braces are replaced by their values"""


def read_fields(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Field]:
    """Return fields from tables ``name = { label = …, … }``."""
    found = {}
    for name, table in tables.items():
        entry = {key: value for key, value in table.items() if key != "flag"}
        if "whole" in entry:
            entry["whole"] = tuple(entry["whole"])
        if isinstance(entry.get("choices"), list):
            entry["choices"] = tuple(entry["choices"])
        elif "choices" in entry:
            entry["choices"] = {key: tuple(options) for key, options in entry["choices"].items()}
        found[name] = Field(name, **entry)
    return found


def read_rules(tables: Sequence[Mapping[str, str]]) -> list[Rule]:
    """Return rules from tables with the keys of :class:`Rule`."""
    return [Rule(table["field"], tree_of(table["holds"]), table["says"]) for table in tables]


def faults_of(
    fields: Mapping[str, Field], rules: Sequence[Rule], values: Mapping[str, Any], formulas: Formulas
) -> dict[str, str]:
    """Return a sentence for each field whose value makes no sense.

    A rule is asked only where the fields that it speaks of make sense by themselves.
    """
    faults: dict[str, str] = {}
    for name, field in fields.items():
        if field.by in faults:
            continue
        if fault := _fault(field, values):
            faults[name] = f"{name} is {values[name]}; {fault}"
    for rule in rules:
        if not faults.keys() & ({rule.field} | names_in(rule.holds)) and not formulas.values(values).evaluate(
            rule.holds
        ):
            faults[rule.field] = f"{rule.field} is {rule.says.format(**values)}"
    return faults


def _fault(field: Field, values: Mapping[str, Any]) -> str:
    value = values[field.name]
    if field.whole:
        low, high = field.whole
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            return f"it must be a whole number from {low} to {high}."
    options = field.options(values)
    if options and (isinstance(value, bool) or value not in options):
        return f"choose one of {', '.join(map(str, options))}."
    return ""


def raise_first(faults: Mapping[str, str]) -> None:
    """Raise the first of the sentences as a :class:`~gpuguide.errors.GpuguideError`, if there is one."""
    for fault in faults.values():
        raise GpuguideError(fault)

"""Read the ledger: ``claims.toml`` with topics and sources, and the files beside it with the rows of a topic each.

Every row is checked on the way; an error names the file, the row and the field.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuguide.claims import pages
from gpuguide.claims.claim import BRACES, DEFAULT_TOLERANCE, KINDS, VERDICTS, Claim
from gpuguide.claims.expression import ExpressionError
from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.sources import Source, read_source

LEDGER = Path(__file__).with_name("claims.toml")
_ID = re.compile(r'id\s*=\s*"([^"]*)"')


class LedgerError(GpuguideError):
    """A row that cannot be read. The message names the file, the row and the field."""


def load(path: Path = LEDGER) -> list[Claim]:
    """Read the ledger and check that every row is complete.

    Parameters
    ----------
    path : Path
        The file of topics and sources; the published ledger by default. Rows stand in it or in files beside it.

    Returns
    -------
    list of Claim
        In the order of the topics, and of the rows in their file.

    Raises
    ------
    LedgerError
        If a row is incomplete, repeated or not in the language; the message names file, row and field.
    GpuguideError
        If two pages of one topic speak of different GPUs.
    """
    content = _content(path)
    sources = {key: read_source(key, table, path.name) for key, table in content["sources"].items()}
    titles = content["topics"]
    gpus = pages.gpus_of_topics()
    claims: dict[str, Claim] = {}
    for file, rows in _rows(path, content).items():
        lines = _lines_of_ids(file)
        for number, row in enumerate(rows, start=1):
            claim = _claim(_LedgerRow(file, f"row {number}", row), titles, sources)
            if claim.id in claims:
                raise LedgerError(f"{file.name}, row {number}: the id {claim.id!r} stands twice.")
            line, gpu = lines.get(claim.id, 1), gpus.get(claim.topic, "")
            claims[claim.id] = replace(claim, path=file, line=line, gpu=gpu)
    if not claims:
        raise LedgerError(f"There is no list of rows named 'claims' in the ledger {path}, nor in a file beside it.")
    order = list(titles)
    return sorted(claims.values(), key=lambda claim: order.index(claim.topic))


def files(path: Path = LEDGER) -> list[Path]:
    """Return the files that make up the ledger: ``claims.toml``, and those beside it with the rows of a topic each."""
    return [path, *sorted(beside for beside in path.parent.glob("*.toml") if beside != path)]


def topics(path: Path = LEDGER) -> dict[str, str]:
    """Return the topics of the ledger in order: the name that rows use, and the title for readers."""
    return dict(_content(path)["topics"])


def group_by_topic(claims: Iterable[Claim] | None = None) -> dict[str, list[Claim]]:
    """Group claims by the name of their topic, in the order in which they come.

    Parameters
    ----------
    claims : iterable of Claim, optional
        The published ledger by default.
    """
    groups: dict[str, list[Claim]] = {}
    for claim in load() if claims is None else claims:
        groups.setdefault(claim.topic, []).append(claim)
    return groups


def _content(path: Path) -> dict[str, Any]:
    """Read the file of topics and sources, and check its top level."""
    content = _toml(path)
    for name in ("topics", "sources"):
        if not isinstance(content.get(name), dict):
            raise LedgerError(f"The ledger {path} has no table named {name!r}.")
    _only(path, content, ("topics", "sources", "claims"))
    for name, title in content["topics"].items():
        if not isinstance(title, str) or not title:
            raise LedgerError(f"{path.name}, topic {name!r}: the title must be text.")
    return content


def _rows(path: Path, content: dict[str, Any]) -> dict[Path, list[Any]]:
    """Return the rows of each file: those of the file of topics, if it has any, and those beside it."""
    found: dict[Path, list[Any]] = {path: content.get("claims", [])}
    for file in files(path)[1:]:
        beside = _toml(file)
        _only(file, beside, ("claims",))
        found[file] = beside.get("claims", [])
    for file, rows in found.items():
        if not isinstance(rows, list):
            raise LedgerError(f"{file}: 'claims' is no list of rows; begin each row with [[claims]].")
    return found


def _lines_of_ids(path: Path) -> dict[str, int]:
    """Return the line on which each id is set, counted from one. TOML's own reader does not say."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [(_ID.match(line), number) for number, line in enumerate(lines, start=1)]
    return {match[1]: number for match, number in found if match}


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LedgerError(f"Cannot read the ledger {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"The ledger {path} is not TOML: {error}.") from error


def _only(path: Path, content: dict[str, Any], known: Sequence[str]) -> None:
    for name in content:
        if name not in known:
            raise LedgerError(f"The ledger {path} has {name!r}, which is none of {', '.join(known)}.")


class _LedgerRow:
    """One table of the file, read field by field; knows the file and the row when something is wrong."""

    def __init__(self, path: Path, name: str, table: Any) -> None:
        self.path, self.name = path, name
        if not isinstance(table, dict):
            raise self.error("it is not a table of fields")
        self.table: dict[str, Any] = table

    def error(self, problem: str) -> LedgerError:
        return LedgerError(f"{self.path.name}, {self.name}: {problem}.")

    def text(self, field: str) -> str:
        value = self.table.get(field)
        if value is None:
            raise self.error(f"the field {field!r} is missing")
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"the field {field!r} must be text, not {value!r}")
        return value

    def choice(self, field: str, choices: Sequence[str]) -> str:
        value = self.text(field)
        if value not in choices:
            raise self.error(f"the {field} {value!r} is none of {', '.join(choices)}")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        value = self.table.get(field, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.error(f"the field {field!r} must be a list of texts, not {value!r}")
        return tuple(value)

    def number(self, field: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(f"the field {field!r} must be a finite number, not {value!r}")
        return float(value)

    def only(self, allowed: Iterable[str], why: str) -> None:
        for field in self.table:
            if field not in allowed:
                raise self.error(f"there is no field {field!r} {why}")


_COMMON = ("id", "topic", "note", "claim", "verdict", "right", "kind", "taught", "sources", "given")
_FIELDS = {
    "computed": (*_COMMON, "expression", "value", "unit", "tolerance", "functions"),
    "measured": (*_COMMON, "predicate"),
    "cited": _COMMON,
}


def _claim(row: _LedgerRow, titles: Mapping[str, str], sources: Mapping[str, Source]) -> Claim:
    if isinstance(row.table.get("id"), str):
        row.name = f"row {row.table['id']!r}"
    kind = row.choice("kind", KINDS)
    row.only(_FIELDS[kind], f"in a {kind} row")
    for key in row.texts("sources"):
        if key not in sources:
            raise row.error(str(unknown("source", key, sources)).rstrip("."))
    claim = Claim(
        id=row.text("id"),
        topic=row.choice("topic", list(titles)),
        note=row.text("note"),
        claim=row.text("claim"),
        verdict=row.choice("verdict", VERDICTS),
        right=row.text("right"),
        kind=kind,
        taught=row.text("taught") if "taught" in row.table else "",
        sources=tuple(sources[key] for key in row.texts("sources")),
        given=row.texts("given"),
        **_means_of_check(row, kind),
    )
    if kind == "cited" and not claim.sources:
        raise row.error("a cited row needs at least one entry in 'sources'")
    try:
        reads_records = bool(claim.benchmarks)
    except ExpressionError as error:
        raise row.error(str(error).rstrip(".")) from None
    if kind == "measured" and not reads_records:
        raise row.error("the predicate of a measured row must read a measurement or a ratio")
    if "{" in BRACES.sub("", claim.right) or "}" in BRACES.sub("", claim.right):
        raise row.error("the braces in 'right' do not pair up")
    return claim


def _means_of_check(row: _LedgerRow, kind: str) -> dict[str, Any]:
    """Read the fields that only one kind of row has."""
    if kind == "measured":
        return {"expression": row.text("predicate")}
    if kind == "cited":
        return {}
    functions = row.texts("functions")
    for name in functions:
        if not re.fullmatch(r"gpuguide(\.[a-z][a-z0-9_]*){2,}", name):
            raise row.error(f"the function {name!r} is not the full name of a public gpuguide function")
    value = row.table.get("value")
    if value is None:
        raise row.error("the field 'value' is missing")
    many = isinstance(value, list)
    tolerance = row.number("tolerance", row.table.get("tolerance", DEFAULT_TOLERANCE))
    if not 0 <= tolerance < 1:
        raise row.error(f"the tolerance {tolerance} is not between 0 and 1")
    return {
        "expression": row.text("expression"),
        "value": tuple(row.number("value", each) for each in value) if many else row.number("value", value),
        "unit": row.text("unit") if "unit" in row.table else "1",
        "tolerance": tolerance,
        "functions": functions,
    }

"""Read, check and word the rows of the ledger: ``claims.toml``, and the files beside it, a topic each.

A row states a claim that one hears, a verdict and what is right, and carries the means to check it:

computed
    an expression, and the value that it must equal within a relative tolerance;
measured
    a predicate over the published records, true if the verdict stands;
cited
    one or more primary sources, each with the day on which it was read, or ``not verified``.

The text of ``right`` may hold expressions in braces, ``{measurement('ceilings/copy:bandwidth')}``. They are
written out when the text is rendered, so that the text follows the data.
"""

from __future__ import annotations

import datetime
import importlib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gpuguide.claims import expression
from gpuguide.claims.expression import ExpressionError, Quantity, Reading, Value
from gpuguide.errors import GpuguideError, unknown

LEDGER = Path(__file__).with_name("claims.toml")
VERDICTS = ("true", "conditional", "misleading", "false", "outdated")
KINDS = ("computed", "measured", "cited")
NOT_VERIFIED = "not verified"
DEFAULT_TOLERANCE = 0.005
"""Relative tolerance of a computed row that names none: half a percent, so three digits agree."""

_ID = re.compile(r'id\s*=\s*"([^"]*)"')
_BRACES = re.compile(r"\{([^{}]*)\}")


class LedgerError(GpuguideError):
    """A row that cannot be read. The message names the file, the row and the field."""


@dataclass(frozen=True)
class Source:
    """A primary source."""

    key: str
    title: str
    publisher: str
    url: str
    looked_at: str
    """ISO date on which it was read, or ``not verified``"""
    note: str = ""

    @property
    def verified(self) -> bool:
        """True if somebody has read it."""
        return self.looked_at != NOT_VERIFIED


@dataclass(frozen=True)
class Claim:
    """One row of the ledger."""

    id: str
    topic: str
    note: str
    """Number of the note that makes the claim, for example ``"002"``"""
    claim: str
    verdict: str
    right: str
    """What is right, with expressions in braces; :func:`right` writes them out"""
    kind: str
    taught: str = ""
    """Name of the page that settles it, for example ``00-measure-a-gpu``; empty until there is one"""
    expression: str = ""
    """Computed rows: what is evaluated. Measured rows: the predicate."""
    value: float | tuple[float, ...] = ()
    """Computed rows: what the expression must equal, in SI units"""
    unit: str = "1"
    tolerance: float = DEFAULT_TOLERANCE
    functions: tuple[str, ...] = ()
    """Library functions that the expression calls, as ``gpuguide.costs.roofline.ridge``"""
    sources: tuple[Source, ...] = ()
    path: Path | None = None
    """The file in which it stands"""
    line: int = 1
    """The line of its id there, counted from one"""

    @property
    def place(self) -> str:
        """Where the row stands, as editors understand it: ``path:line``."""
        return f"{self.path}:{self.line}"

    @property
    def expressions(self) -> list[str]:
        """Every expression of the row: its own, and those in its text."""
        return [text for text in (self.expression, *_BRACES.findall(self.right)) if text]

    @property
    def lookups(self) -> list[tuple[str, tuple[str, ...]]]:
        """What the row reads: ``measurement``, ``ratio`` or ``datasheet`` with its arguments, each once."""
        found = [lookup for text in self.expressions for lookup in _lookups(text, self)]
        return list(dict.fromkeys(found))

    @property
    def benchmarks(self) -> list[str]:
        """The benchmarks whose records the row reads, each once."""
        found = [
            arguments[0].partition("/")[0]
            for function, arguments in self.lookups
            if function in ("measurement", "ratio")
        ]
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Outcome:
    """What checking one row gave."""

    claim: Claim
    ok: bool
    detail: str
    """One line: the value found, or what is wrong"""


# --- reading ---------------------------------------------------------------------------------------------


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
    """
    content = _content(path)
    sources = {key: _source(path, key, table) for key, table in content["sources"].items()}
    titles = content["topics"]
    claims: dict[str, Claim] = {}
    for file, rows in _rows(path, content).items():
        lines = _lines_of_ids(file)
        for number, row in enumerate(rows, start=1):
            claim = _claim(_Row(file, f"row {number}", row), titles, sources)
            if claim.id in claims:
                raise LedgerError(f"{file.name}, row {number}: the id {claim.id!r} stands twice.")
            claims[claim.id] = replace(claim, path=file, line=lines.get(claim.id, 1))
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


def by_topic(claims: Iterable[Claim] | None = None) -> dict[str, list[Claim]]:
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


class _Row:
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


def _source(path: Path, key: str, table: Any) -> Source:
    row = _Row(path, f"source {key!r}", table)
    row.only([field.name for field in fields(Source) if field.name != "key"], "in a source")
    source = Source(
        key=key,
        title=row.text("title"),
        publisher=row.text("publisher"),
        url=row.text("url"),
        looked_at=row.text("looked_at"),
        note=row.text("note") if "note" in row.table else "",
    )
    if not source.url.startswith("https://"):
        raise row.error(f"the url {source.url!r} does not begin with https://")
    if source.verified:
        try:
            datetime.date.fromisoformat(source.looked_at)
        except ValueError:
            raise row.error(
                f"looked_at is {source.looked_at!r}, neither a date like 2026-01-31 nor {NOT_VERIFIED!r}"
            ) from None
    return source


_COMMON = ("id", "topic", "note", "claim", "verdict", "right", "kind", "taught", "sources")
_FIELDS = {
    "computed": (*_COMMON, "expression", "value", "unit", "tolerance", "functions"),
    "measured": (*_COMMON, "predicate"),
    "cited": _COMMON,
}


def _claim(row: _Row, titles: Mapping[str, str], sources: Mapping[str, Source]) -> Claim:
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
    if "{" in _BRACES.sub("", claim.right) or "}" in _BRACES.sub("", claim.right):
        raise row.error("the braces in 'right' do not pair up")
    return claim


def _means_of_check(row: _Row, kind: str) -> dict[str, Any]:
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


# --- checking --------------------------------------------------------------------------------------------


def check(claims: Iterable[Claim] | None = None) -> list[Outcome]:
    """Evaluate every claim: its computation, its predicate or its sources, and the text of its correction.

    Parameters
    ----------
    claims : iterable of Claim, optional
        The published ledger by default.

    Returns
    -------
    list of Outcome
        One a claim, in order. A missing record or case is a failed check, not an exception.
    """
    return [_outcome(claim) for claim in (load() if claims is None else claims)]


def _outcome(claim: Claim) -> Outcome:
    try:
        ok, detail = _CHECKS[claim.kind](claim)
        right(claim)
    except GpuguideError as error:
        return Outcome(claim, False, str(error))
    return Outcome(claim, ok, detail)


def _check_computed(claim: Claim) -> tuple[bool, str]:
    found = _numbers(_evaluate(claim, claim.expression))
    expected = claim.value if isinstance(claim.value, tuple) else (claim.value,)
    same_shape = isinstance(found, tuple) == isinstance(claim.value, tuple)
    values = found if isinstance(found, tuple) else (found,)
    agree = (
        same_shape
        and len(values) == len(expected)
        and all(math.isclose(a, b, rel_tol=claim.tolerance) for a, b in zip(values, expected, strict=True))
    )
    if agree:
        return True, _written(found, claim.unit)
    is_now, row_says = (", ".join(f"{each:.9g}" for each in numbers) for numbers in (values, expected))
    return False, f"{claim.expression} is {is_now}, but the row says {row_says} (unit {claim.unit})"


def _check_measured(claim: Claim) -> tuple[bool, str]:
    holds = _evaluate(claim, claim.expression)
    if not isinstance(holds, bool):
        raise ExpressionError(f"{claim.expression!r} is neither true nor false; write a comparison.")
    readings = _readings(_lookups(claim.expression, claim))
    stale = sorted({reading.record.benchmark for reading in readings if reading.record.stale})
    detail = "; ".join(f"{reading.reference} = {reading.text}" for reading in readings)
    if stale:
        detail += f" (stale: {', '.join(stale)})"
    return holds, detail if holds else f"{claim.expression} does not hold: {detail}"


def _check_cited(claim: Claim) -> tuple[bool, str]:
    return True, "; ".join(f"{source.title}, {_looked_at(source)}" for source in claim.sources)


_CHECKS = {"computed": _check_computed, "measured": _check_measured, "cited": _check_cited}


def _looked_at(source: Source) -> str:
    return f"read on {source.looked_at}" if source.verified else NOT_VERIFIED


def _evaluate(claim: Claim, text: str) -> Value:
    return expression.evaluate(text, _functions(claim))


def _lookups(text: str, claim: Claim) -> list[tuple[str, tuple[str, ...]]]:
    """Return what an expression of the claim looks up: function and arguments."""
    names = frozenset(name.rpartition(".")[2] for name in claim.functions)
    return expression.lookups(expression.parse(text, names))


def _functions(claim: Claim) -> dict[str, Callable[..., Value]]:
    """Import the library functions that the row names."""
    found: dict[str, Callable[..., Value]] = {}
    for full_name in claim.functions:
        module_name, _, name = full_name.rpartition(".")
        try:
            function = getattr(importlib.import_module(module_name), name)
        except (ImportError, AttributeError) as error:
            raise ExpressionError(f"The function {full_name} cannot be imported: {error}.") from error
        if not callable(function):
            raise ExpressionError(f"{full_name} is no function.")
        found[name] = function
    return found


def _readings(lookups: Iterable[tuple[str, tuple[str, ...]]]) -> list[Reading]:
    """Return what the records say, for those lookups that read a record."""
    values = [expression.FUNCTIONS[function](*arguments) for function, arguments in lookups]
    return [value for value in values if isinstance(value, Reading)]


def _numbers(value: Value) -> float | tuple[float, ...]:
    """Return a computed value as a number or a tuple of numbers."""
    if isinstance(value, list):
        return tuple(_number(each) for each in value)
    return _number(value)


def _number(value: Value) -> float:
    if isinstance(value, Reading):
        value = value.quantile("median")
    if isinstance(value, (bool, str, list)) or not math.isfinite(value):
        raise ExpressionError(f"The expression gives {value!r}, which is no finite number.")
    return value


# --- wording ---------------------------------------------------------------------------------------------


def right(claim: Claim) -> str:
    """Return what is right, as Markdown, with every expression in braces written out.

    Raises
    ------
    GpuguideError
        If a record, case or figure that the text names does not exist.
    """
    return _BRACES.sub(lambda match: _render(_evaluate(claim, match[1])), claim.right)


def how_we_know(claim: Claim) -> str:
    """Return, as Markdown, the evidence: the computation, the records with their stamps, or the sources.

    Raises
    ------
    GpuguideError
        If a record, case or figure that the claim names does not exist.
    """
    parts: list[str] = []
    if claim.kind == "computed":
        found = _numbers(_evaluate(claim, claim.expression))
        parts.append(f"Computed: `{claim.expression}` = {_written(found, claim.unit)}.")
    if claim.kind == "measured":
        readings = _readings(_lookups(claim.expression, claim))
        found_text = ", ".join(f"`{reading.reference}` {_spread(reading)}" for reading in readings)
        parts.append(f"Measured: {found_text}. Checked: `{claim.expression}`.")
    stamps = dict.fromkeys(reading.run.stamp() for reading in _readings(claim.lookups))
    if stamps:
        parts.append(f"Measured on: {'; '.join(stamps)}.")
    sources = [*_datasheets(claim), *claim.sources]
    if sources:
        listed = "; ".join(
            f"[{source.title}]({source.url}), {source.publisher} ({_looked_at(source)})"
            for source in {source.url: source for source in sources}.values()
        )
        parts.append(f"{'Source' if len(sources) == 1 else 'Sources'}: {listed}.")
    return " ".join(parts)


def _datasheets(claim: Claim) -> list[Source]:
    """Return the sources of the datasheet figures that a claim uses, each once."""
    figures = [arguments for function, arguments in claim.lookups if function == "datasheet"]
    if not figures:
        return []
    from gpuguide.hardware import datasheet

    documents = datasheet.sources()
    keys = dict.fromkeys(datasheet.get(gpu).figures[figure].source for gpu, figure in figures)
    return [
        Source(key, documents[key].title, documents[key].publisher, documents[key].url, documents[key].looked_at)
        for key in keys
    ]


def _spread(reading: Reading) -> str:
    """Write a reading with its spread, where it has one."""
    from gpuguide.measure.units import format_quantity

    summary = reading.summary
    if summary.p25 is None or summary.p75 is None:
        return reading.text
    low, high = format_quantity(summary.p25, reading.unit), format_quantity(summary.p75, reading.unit)
    return f"{reading.text} (p25–p75 {low} to {high}, n = {summary.n})"


def _render(value: Value) -> str:
    """Write one value for a reader."""
    from gpuguide.measure.units import significant

    if isinstance(value, Reading):
        return value.text
    if isinstance(value, Quantity):
        return _written(float(value), value.unit)
    if isinstance(value, (bool, str, list)):
        raise ExpressionError(f"{value!r} cannot stand in a text; a number, a measurement or a ratio can.")
    return f"{value:,}" if isinstance(value, int) else significant(value)


def _written(value: float | tuple[float, ...], unit: str) -> str:
    """Write one number or several with their unit."""
    from gpuguide.measure.units import format_quantity

    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(format_quantity(each, unit) for each in values)

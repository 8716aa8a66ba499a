"""Check that a row's sentence and its evidence name the same quantities, as far as a program can see it.

Five rules:

- A number that is typed in ``right`` stands in the row's evidence too, or in the claim, or is declared in ``given``:
  a version, a product's name, a premise, what a source says. What the row computes is never typed, and a rate is never
  given: it comes from a record or a data sheet.
- No unit is typed behind an expression: a quantity is written with its own, ``{quantity(2 * 2**30, 'GiB')}``.
- What a measured row shows is what its predicate tests, and what it tests it shows.
- The words around a measured number are those of its metric: only a time is taken, only a time is "as long".
- A row that shows a measurement takes the name of the GPU from the record, ``{gpu("short")}``. It names another GPU
  where it reads that one's data sheet.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuguide.claims.claim import BRACES, Claim
from gpuguide.claims.evaluation import evaluate
from gpuguide.claims.expression import RecordedValue
from gpuguide.claims.quantity import LedgerQuantity
from gpuguide.hardware import datasheet
from gpuguide.measure import citation, reference_gpu
from gpuguide.units import UNITS, Unit

NUMBER = re.compile(
    r"(?<![\w.,])(?<![A-Za-z]-)(?!(?:8|16|32|64|128)[- ]bits?\b)"
    r"([0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)(?:\s?([KMGBT])(?![\w/]))?"
)
"""A number in a sentence, with a letter that counts thousands. One that ends a name (FP16, GPT-2) is none, and neither
is the width of a number format, which is its name (16 bits, 32-bit)."""
_WORDS = {
    "times": Unit("1", 1.0),
    "million": Unit("", 1e6),
    "billion": Unit("", 1e9),
    "trillion": Unit("", 1e12),
}
"""Words behind a number that are no units; they count anything"""
_BASE_UNITS = {name: Unit(name, 1.0) for name in ("B", "B/s", "FLOP", "FLOP/s", "s", "W", "Hz", "°C")}
_BEHIND_NUMBERS = {**UNITS, **_BASE_UNITS, **_WORDS}
_UNIT = re.compile(rf"(?:{'|'.join(sorted(map(re.escape, _BEHIND_NUMBERS), key=len, reverse=True))})(?![\w/])")
_LETTERS = {"K": (1e3, 1024.0), "M": (1e6,), "G": (1e9,), "B": (1e9,), "T": (1e12,)}
_SCALES = (100.0, 1e3, 1e6, 1e9, 1e12, 1e15)
"""Factors by which expressions divide and multiply to write units; no premises"""
_KEY = re.compile(r"=(\d+(?:\.\d+)?)(?=\s|$)")

_COMPARED = re.compile(r" times (as (?:long|fast|much memory)|the (?:time|rate|throughput|bandwidth|memory))\b")
_SAID_OF = {
    "as long": ("time",),
    "the time": ("time",),
    "as fast": ("throughput", "bandwidth"),
    "the rate": ("throughput", "bandwidth", "rate"),
    "the throughput": ("throughput",),
    "the bandwidth": ("bandwidth",),
    "as much memory": ("peak_memory",),
    "the memory": ("peak_memory",),
}
"""Words for a ratio, and the metrics that they fit"""
_TAKEN = re.compile(r"\b(?:takes?|took) $")
_RUN_AT = re.compile(r"\b(?:runs?|ran|reach|reaches|reached)(?: at)? $")


def disagreements(claim: Claim) -> list[str]:
    """Return, a sentence each, where the words of a row name another quantity than its evidence.

    Raises
    ------
    GpuguideError
        If an expression has no value, or reads what does not exist.
    """
    return [*_find_typed_numbers(claim), *_units(claim), *_find_untested(claim), *_words(claim), *_gpus(claim)]


# --- numbers that are typed ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Typed:
    """A number that stands in a sentence as it was typed."""

    text: str
    start: int
    values: tuple[float, ...]
    """Values that it may mean, with the unit behind it and without"""
    unit: str


def _numbers(sentence: str) -> Iterator[_Typed]:
    for match in NUMBER.finditer(sentence):
        value = float(match[1].replace(",", ""))
        factors = [1.0, *_LETTERS.get(match[2] or "", ())]
        unit = _unit_at(sentence, match.end())
        factors += [_BEHIND_NUMBERS[unit].factor] if unit else []
        yield _Typed(match[0], match.start(), tuple(value * factor for factor in factors), unit)


def _find_typed_numbers(claim: Claim) -> Iterator[str]:
    """Yield the numbers that are typed though nothing gives them, or though the row computes them."""
    sentence = BRACES.sub(lambda match: "\N{REPLACEMENT CHARACTER}" * len(match[0]), claim.right)
    evidence = _constants(claim)
    said = [value for number in _numbers(claim.claim) for value in number.values]
    values = claim.value if isinstance(claim.value, tuple) else (claim.value,)
    unused = set(claim.given)
    for number in _numbers(sentence):
        if _is_among(number, evidence) or _is_among(number, said):
            continue
        given = [text for text in claim.given if _covers(text, sentence, number)]
        unused -= set(given)
        if _is_among(number, [abs(value) for value in values]) and len(number.text) > 1:
            yield f"{number.text!r} is typed in 'right', and the row computes it; write the expression in braces"
        elif given and _base(number.unit).endswith("/s"):
            yield f"{number.text} {number.unit} is given; take a rate from a record or a data sheet"
        elif not given:
            yield (
                f"{number.text!r} is typed in 'right' and stands neither in the row's evidence nor in the claim; "
                "write an expression in braces, or declare in 'given' that it is given"
            )
    for text in sorted(unused):
        yield f"{text!r} in 'given' gives no number that needs it"


def _constants(claim: Claim) -> list[float]:
    """Return the numbers that stand in a row's expressions: constants, and the keys of the cases it reads."""
    found: list[float] = []
    for text in claim.expressions:
        for node in ast.walk(claim.parse_expression(text)):
            match node:
                case ast.Constant(value=str() as name):
                    found += [float(value) for value in _KEY.findall(name)]
                case ast.Constant(value=int() | float() as number) if number not in _SCALES:
                    found.append(float(number))
    return found


def _is_among(number: _Typed, values: list[float]) -> bool:
    return any(abs(value - other) <= 1e-9 * abs(other) for value in number.values for other in values)


def _covers(given: str, sentence: str, number: _Typed) -> bool:
    """Return whether a given text stands in the sentence around this number."""
    end = number.start + len(number.text)
    places = [match.start() for match in re.finditer(re.escape(given), sentence)]
    return any(place <= number.start and end <= place + len(given) for place in places)


# --- units -----------------------------------------------------------------------------------------------


def _units(claim: Claim) -> Iterator[str]:
    """Yield the units that are typed behind expressions, and the unit of the row where its sentence has none of it."""
    for match in BRACES.finditer(claim.right):
        typed = _unit_at(claim.right, match.end())
        if typed and typed not in _WORDS:
            yield f"{typed!r} is typed behind {match[0]}; write {{quantity(…, {typed!r})}}, of a number in SI units"
    if claim.kind == "computed" and claim.unit != "1":
        yield from _unit_of_the_row(claim)


def _unit_of_the_row(claim: Claim) -> Iterator[str]:
    value = evaluate(claim, claim.expression)
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, LedgerQuantity) and _base(number.unit) != claim.unit:
            yield f"the row's unit is {claim.unit}, and its expression gives {number.unit}"
    shown = [_base_unit_of(claim, text) for text in BRACES.findall(claim.right)]
    typed = [_base(_unit_at(claim.right, match.end(1))) for match in NUMBER.finditer(claim.right)]
    if claim.unit not in (*shown, *typed):
        yield f"the row's unit is {claim.unit}, and the sentence names nothing in it"


def _unit_at(sentence: str, end: int) -> str:
    """Return the unit that stands behind a number that ends there; empty where there is none."""
    match = _UNIT.match(sentence, end + sentence[end:].startswith(" "))
    return match[0] if match else ""


def _base(unit: str) -> str:
    return _BEHIND_NUMBERS[unit].base if unit in _BEHIND_NUMBERS else unit


def _base_unit_of(claim: Claim, text: str) -> str:
    """Return the unit of an expression in the sentence, without its prefix; empty for a plain number."""
    value = evaluate(claim, text)
    return _base(value.unit) if isinstance(value, (RecordedValue, LedgerQuantity)) else ""


# --- measurements ----------------------------------------------------------------------------------------


def _find_untested(claim: Claim) -> Iterator[str]:
    """Yield what is shown and not tested, and what is tested of a benchmark of which nothing is shown."""
    tested = {each for text in _readings(claim, [claim.expression]) for each in _cases(text)}
    shown = _readings(claim, BRACES.findall(claim.right))
    for text in shown:
        if not set(_cases(text)) <= tested:
            yield f"the sentence shows {text!r}, which the {_EVIDENCE[claim.kind]} does not read"
    if claim.kind == "measured":
        names = {text.partition("/")[0] for text in shown}
        for name in dict.fromkeys(text.partition("/")[0] for text in _readings(claim, [claim.expression])):
            if name not in names:
                yield f"the predicate reads {name!r}, of which the sentence shows no number"


_EVIDENCE = {"measured": "predicate", "computed": "expression", "cited": "cited row"}


def _readings(claim: Claim, texts: list[str]) -> list[str]:
    """Return the references to records in some expressions, each once."""
    found = [
        arguments[0]
        for text in texts
        if text
        for name, arguments in claim.lookups_of(text)
        if name in ("measurement", "ratio")
    ]
    return list(dict.fromkeys(found))


def _cases(text: str) -> Iterator[tuple[object, ...]]:
    """Yield what a reference reads: two contenders of a ratio are two."""
    benchmark, contender, other, metric, keys, device = citation.parse(text)
    for name in (contender, other):
        if name is not None:
            yield benchmark, name, metric, frozenset(keys.items()), device


def _words(claim: Claim) -> Iterator[str]:
    """Yield the words around a measured number that belong to another metric."""
    for match in BRACES.finditer(claim.right):
        unit = _base_unit_of(claim, match[1])
        if unit.endswith("/s") and _TAKEN.search(claim.right[: match.start()]):
            yield f"what is taken in the words before {match[0]} is a rate"
        if unit == "s" and _RUN_AT.search(claim.right[: match.start()]):
            yield f"what is reached in the words before {match[0]} is a time"
        said = _COMPARED.match(claim.right, match.end())
        ratios = [arguments[0] for name, arguments in claim.lookups_of(match[1]) if name == "ratio"]
        for metric in (citation.parse(text)[3] for text in ratios if said):
            if said and metric not in _SAID_OF[said[1]]:
                yield f"{match[0]} is a ratio of {metric}, and {said[1]!r} is said of {' and '.join(_SAID_OF[said[1]])}"


def _gpus(claim: Claim) -> Iterator[str]:
    """Yield the names of GPUs that are typed in a row that reads records, though it reads no data sheet of theirs."""
    sheets = {arguments[0] for name, arguments in claim.lookups if name == "datasheet"}
    sentence = BRACES.sub("", claim.right)
    for name, ids in _gpu_names().items() if claim.benchmarks else ():
        typed = re.search(rf"\b{re.escape(name)}\b", sentence)
        if typed and not ids & sheets and name not in claim.claim and not any(name in text for text in claim.given):
            yield f'{name!r} is typed in a row that reads records; write {{gpu("short")}} or {{gpu("a short")}}'


def _gpu_names() -> dict[str, set[str]]:
    """Return each name that people use for a GPU of the table, with the ids of what it stands for."""
    found: dict[str, set[str]] = {}
    for gpu in datasheet.load().values():
        for alias in (gpu.name, *gpu.aliases):
            found.setdefault(reference_gpu.short_name(alias), set()).add(gpu.id)
    return found

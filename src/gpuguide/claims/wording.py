"""Word claims for readers: what is right with its numbers written out, and the evidence."""

from __future__ import annotations

import re
from math import ceil, log10
from string import ascii_lowercase

from gpuguide.claims.claim import BRACES, Claim
from gpuguide.claims.evaluation import evaluate, look_up_records, numbers
from gpuguide.claims.expression import ExpressionError, RecordedValue, Value
from gpuguide.claims.quantity import LedgerQuantity, format_number
from gpuguide.hardware.sources import NOT_VERIFIED, Source

_READ = re.compile(r"(?:measurement|ratio)\((?:'[^']*'|\"[^\"]*\")\)")
"""Functions with which an expression reads a record"""


def right(claim: Claim) -> str:
    """Return what is right, as Markdown, with every expression in braces written out.

    Raises
    ------
    GpuguideError
        If a record, case or figure that the text names does not exist.
    """
    with claim.speaking():
        return BRACES.sub(lambda match: _render(evaluate(claim, match[1])), claim.right)


def how_we_know(claim: Claim) -> str:
    """Return, as Markdown, the evidence: the computation, the records with their stamps, or the sources.

    Raises
    ------
    GpuguideError
        If a record, case or figure that the claim names does not exist.
    """
    with claim.speaking():
        return " ".join(_evidence(claim))


def _evidence(claim: Claim) -> list[str]:
    """Return the sentences that say how we know: what was computed or measured, on what, and the sources."""
    parts: list[str] = []
    if claim.kind == "computed":
        found = numbers(evaluate(claim, claim.expression))
        parts.append(f"Computed: `{claim.expression}` = {format_value(found, claim.unit, digits_checked(claim))}.")
    if claim.kind == "measured":
        parts.append(_describe_measurements(claim))
    stamps = dict.fromkeys(reading.stamp for reading in look_up_records(claim.lookups))
    if stamps:
        parts.append(f"Measured on: {'; '.join(stamps)}.")
    sources = _sources(claim)
    if sources:
        listed = "; ".join(
            f"[{source.title}]({source.url}), {source.publisher} ({describe_verification(source)})"
            for source in sources
        )
        parts.append(f"{'Source' if len(sources) == 1 else 'Sources'}: {listed}.")
    return parts


def _describe_measurements(claim: Claim) -> str:
    """Return what a row reads, each with a letter, and what was checked of it, with the letters in place of the names.

    A name may be 100 characters long and stand in a comparison several times.
    """
    found = look_up_records(claim.lookups_of(claim.expression))
    letters = dict(
        zip(dict.fromkeys(match[0] for match in _READ.finditer(claim.expression)), ascii_lowercase, strict=False)
    )
    listed = (
        f"*{letter}* `{reading.reference}` {spread(reading)}"
        for letter, reading in zip(letters.values(), found, strict=True)
    )
    checked = _READ.sub(lambda match: letters[match[0]], claim.expression)
    outcome = "" if _holds(claim) else ", which does not hold"
    return f"Measured: {', '.join(listed)}. Checked: `{checked}`{outcome}."


def _holds(claim: Claim) -> bool:
    try:
        return evaluate(claim, claim.expression) is True
    except ExpressionError:  # the check says what is wrong with it
        return False


def unread(claim: Claim) -> list[Source]:
    """Return the documents that a row rests on and that nobody could look at, those of datasheet figures too."""
    with claim.speaking():
        return [source for source in _sources(claim) if not source.is_verified]


def _sources(claim: Claim) -> list[Source]:
    """Return what a row rests on beside records and arithmetic, each document once."""
    return list({source.url: source for source in [*_datasheets(claim), *claim.sources]}.values())


def _datasheets(claim: Claim) -> list[Source]:
    """Return the sources of the datasheet figures that a claim uses, each once."""
    figures = [arguments for function, arguments in claim.lookups if function == "datasheet"]
    if not figures:
        return []
    from gpuguide.hardware import datasheet
    from gpuguide.measure import reference_gpu

    documents = datasheet.sources()
    keys = dict.fromkeys(reference_gpu.sheet(gpu).figures[figure].source for gpu, figure in figures)
    return [documents[key] for key in keys]


def spread(reading: RecordedValue) -> str:
    """Write a reading with its spread, where it has one."""
    from gpuguide.units import format_quantity

    summary = reading.summary
    if summary.p25 is None or summary.p75 is None:
        return reading.text
    low, high = format_quantity(summary.p25, reading.unit), format_quantity(summary.p75, reading.unit)
    return f"{reading.text} (p25–p75 {low} to {high}, n = {summary.n})"


def _render(value: Value) -> str:
    """Write one value for a reader."""
    if isinstance(value, RecordedValue):
        return value.text
    if isinstance(value, LedgerQuantity):
        return value.text()
    if isinstance(value, str):  # what the GPU is called: no other text is a value
        return value
    if isinstance(value, (bool, list)):
        raise ExpressionError(f"{value!r} cannot stand in a text; a number, a measurement or a ratio can.")
    return format_value(value, "1")


def format_value(value: float | tuple[float, ...], unit: str, digits: int = 3) -> str:
    """Write one number or several with their unit."""
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(format_number(number, unit, digits) for number in values)


def digits_checked(claim: Claim) -> int:
    """Return how many digits of a computed row its tolerance checks, so that the evidence shows them."""
    return 12 if claim.tolerance == 0 else min(max(ceil(-log10(claim.tolerance)), 3), 12)


def describe_verification(source: Source) -> str:
    """Return whether a source was read, and when, in words."""
    return f"read on {source.looked_at}" if source.is_verified else NOT_VERIFIED

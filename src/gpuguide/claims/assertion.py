"""A comparison in words with the predicate over records that makes it true: ``faster | ratio("…").p25 > 1``.

A page writes it as a role, and the build stops where the records say otherwise. The predicate is in the language of
the ledger (:mod:`gpuguide.claims.expression`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuguide.claims import expression
from gpuguide.claims.evaluation import look_up_records
from gpuguide.claims.expression import ExpressionError, RecordedValue
from gpuguide.claims.wording import spread
from gpuguide.errors import GpuguideError


class DoesNotHold(GpuguideError):
    """Words that the records contradict."""


@dataclass(frozen=True)
class Assertion:
    """A sentence that a reader reads, and the condition that must hold for it."""

    words: str
    predicate: str


def read(text: str) -> Assertion:
    """Return the assertion that ``words | predicate`` writes.

    Raises
    ------
    GpuguideError
        If one of the two is missing, or the predicate is not in the language or reads no record.
    """
    words, bar, predicate = (part.strip() for part in text.rpartition("|"))
    if not (bar and words and predicate):
        raise ExpressionError(f'{text!r} is no assertion. Write the words, | and what must hold: ratio("…").p25 > 1.')
    if not {"measurement", "ratio"} & {function for function, _ in expression.lookups(expression.parse(predicate))}:
        raise ExpressionError(f"{predicate!r} reads no record, so no measurement could ever contradict {words!r}.")
    return Assertion(words, predicate)


def check(assertion: Assertion) -> list[RecordedValue]:
    """Return the measurements behind words that hold.

    Raises
    ------
    DoesNotHold
        If they do not; the message has the words, the predicate and the values found.
    GpuguideError
        If a record or case does not exist, or the predicate is no comparison.
    """
    holds = expression.evaluate(assertion.predicate)
    if not isinstance(holds, bool):
        raise ExpressionError(f"{assertion.predicate!r} is neither true nor false; write a comparison.")
    found = look_up_records(expression.lookups(expression.parse(assertion.predicate)))
    if not holds:
        values = "; ".join(f"{reading.reference} is {spread(reading)}" for reading in found)
        devices = " and ".join(dict.fromkeys(reading.run.device_name for reading in found))
        raise DoesNotHold(
            f"{assertion.words!r} does not hold on {devices}: {assertion.predicate} is false. Found: {values}."
        )
    return found

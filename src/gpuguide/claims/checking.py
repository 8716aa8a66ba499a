"""Check claims: what is computed equals the row, what was measured satisfies it, what is cited has a source.

And the sentence names the quantities that the evidence holds, as far as a program can see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpuguide.claims.agreement import disagreements
from gpuguide.claims.claim import Claim, ClaimOutcome
from gpuguide.claims.evaluation import evaluate, look_up_records, numbers
from gpuguide.claims.expression import ExpressionError
from gpuguide.claims.reading import load
from gpuguide.claims.wording import describe_verification, digits_checked, format_value, right
from gpuguide.errors import GpuguideError


def check(claims: Iterable[Claim] | None = None) -> list[ClaimOutcome]:
    """Evaluate every claim: its computation, its predicate or its sources, and the text of what is right.

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


def _outcome(claim: Claim) -> ClaimOutcome:
    try:
        with claim.speaking():
            ok, detail = _CHECKS[claim.kind](claim)
            right(claim)
            faults = disagreements(claim)
    except GpuguideError as error:
        return ClaimOutcome(claim, False, str(error))
    if ok and faults:
        return ClaimOutcome(claim, False, f"{'; '.join(faults)}.")
    return ClaimOutcome(claim, ok, detail)


def _check_computed(claim: Claim) -> tuple[bool, str]:
    found = numbers(evaluate(claim, claim.expression))
    expected = claim.value if isinstance(claim.value, tuple) else (claim.value,)
    same_shape = isinstance(found, tuple) == isinstance(claim.value, tuple)
    values = found if isinstance(found, tuple) else (found,)
    agree = (
        same_shape
        and len(values) == len(expected)
        and all(math.isclose(a, b, rel_tol=claim.tolerance) for a, b in zip(values, expected, strict=True))
    )
    if agree:
        return True, format_value(found, claim.unit, digits_checked(claim))
    is_now, row_says = (", ".join(f"{each:.9g}" for each in numbers) for numbers in (values, expected))
    return False, f"{claim.expression} is {is_now}, but the row says {row_says} (unit {claim.unit})"


def _check_measured(claim: Claim) -> tuple[bool, str]:
    holds = evaluate(claim, claim.expression)
    if not isinstance(holds, bool):
        raise ExpressionError(f"{claim.expression!r} is neither true nor false; write a comparison.")
    found = look_up_records(claim.lookups_of(claim.expression))
    stale = sorted({reading.record.benchmark for reading in found if reading.record.stale})
    detail = "; ".join(f"{reading.reference} = {reading.text}" for reading in found)
    if stale:
        detail += f" (stale: {', '.join(stale)})"
    return holds, detail if holds else f"{claim.expression} does not hold: {detail}"


def _check_cited(claim: Claim) -> tuple[bool, str]:
    return True, "; ".join(f"{source.title}, {describe_verification(source)}" for source in claim.sources)


_CHECKS = {"computed": _check_computed, "measured": _check_measured, "cited": _check_cited}

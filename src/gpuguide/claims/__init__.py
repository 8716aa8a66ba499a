"""The ledger of claims: what one hears about GPUs and language models, what is right, and how we know.

A row states a claim that one hears, a verdict and what is right, and carries the means to check it:

computed
    an expression, and the value that it must equal within a relative tolerance;
measured
    a predicate over the published records, true if the verdict stands;
cited
    one or more primary sources, each with the day on which it was read, or ``not verified``.

The text of ``right`` may hold expressions in braces, ``{measurement('ceilings/copy:bandwidth')}``. They are
written out when the text is rendered, so that the text follows the data.

Topics and sources stand in ``claims.toml``, rows in the files beside it. :mod:`~gpuguide.claims.reading` reads them,
:mod:`~gpuguide.claims.checking` checks them and :mod:`~gpuguide.claims.wording` words them;
:mod:`~gpuguide.claims.expression` evaluates what rows
compute and look up, with the functions that :mod:`~gpuguide.claims.evaluation` imports for a row.
Importing this package imports neither torch nor matplotlib.
"""

from __future__ import annotations

from gpuguide.claims.checking import check
from gpuguide.claims.claim import Claim, ClaimOutcome
from gpuguide.claims.reading import LEDGER, LedgerError, files, group_by_topic, load, topics
from gpuguide.claims.wording import how_we_know, right, unread

__all__ = [
    "LEDGER",
    "Claim",
    "ClaimOutcome",
    "LedgerError",
    "check",
    "files",
    "group_by_topic",
    "how_we_know",
    "load",
    "right",
    "topics",
    "unread",
]

"""The ledger of claims: what one hears about GPUs and language models, what is right, and how we know.

Topics and sources stand in ``claims.toml``, rows in the files beside it. :mod:`gpuguide.claims.ledger` reads, checks
and words them; :mod:`gpuguide.claims.expression` evaluates the small arithmetic language that rows are written in.
Importing this package imports neither torch nor matplotlib.
"""

from __future__ import annotations

from gpuguide.claims.ledger import (
    Claim,
    LedgerError,
    Outcome,
    Source,
    by_topic,
    check,
    files,
    how_we_know,
    load,
    right,
    topics,
)

__all__ = [
    "Claim",
    "LedgerError",
    "Outcome",
    "Source",
    "by_topic",
    "check",
    "files",
    "how_we_know",
    "load",
    "right",
    "topics",
]

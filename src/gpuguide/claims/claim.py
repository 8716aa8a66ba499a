"""A row of the ledger: the claim that one hears, the verdict, what is right, and the means to check it."""

from __future__ import annotations

import ast
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gpuguide.claims import expression
from gpuguide.hardware.sources import Source
from gpuguide.measure import page_gpu

VERDICTS = ("true", "conditional", "misleading", "false", "outdated")
KINDS = ("computed", "measured", "cited")
DEFAULT_TOLERANCE = 0.005
"""Relative tolerance of a computed row that names none: half a percent, so three digits agree."""

BRACES = re.compile(r"\{([^{}]*)\}")
"""An expression in the text of ``right``"""


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
    """Right statement, with expressions in braces; :func:`gpuguide.claims.wording.right` writes them out"""
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
    given: tuple[str, ...] = ()
    """Pieces of ``right`` whose numbers are typed: versions, names, premises, what a source says"""
    path: Path | None = None
    """The file in which it stands"""
    line: int = 1
    """The line of its id there, counted from one"""
    gpu: str = ""
    """The GPU on which it is checked: that of its topic's pages; empty for the default"""

    @property
    def place(self) -> str:
        """Place of the row, as editors understand it: ``path:line``."""
        return f"{self.path}:{self.line}"

    def speaking(self) -> AbstractContextManager[None]:
        """Return a context in which the reference GPU is that of the row."""
        return page_gpu.use_current_gpu(self.gpu, self.place)

    @property
    def expressions(self) -> list[str]:
        """Every expression of the row: its own, and those in its text."""
        return [text for text in (self.expression, *BRACES.findall(self.right)) if text]

    @property
    def lookups(self) -> list[tuple[str, tuple[str, ...]]]:
        """Look-ups of the row, each once: a function that looks something up, with its arguments."""
        found = [lookup for text in self.expressions for lookup in self.lookups_of(text)]
        return list(dict.fromkeys(found))

    def lookups_of(self, text: str) -> list[tuple[str, tuple[str, ...]]]:
        """Return what one expression of the row reads: function and arguments."""
        return expression.lookups(self.parse_expression(text))

    def parse_expression(self, text: str) -> ast.expr:
        """Return the checked syntax tree of one expression of the row."""
        return expression.parse(text, frozenset(name.rpartition(".")[2] for name in self.functions))

    @property
    def benchmarks(self) -> list[str]:
        """The benchmarks whose records the row reads, each once; ``ceilings`` for a ceiling."""
        found = [
            "ceilings" if function == "ceiling" else arguments[0].partition("/")[0]
            for function, arguments in self.lookups
            if function in ("measurement", "ratio", "ceiling")
        ]
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class ClaimOutcome:
    """Result of checking one row."""

    claim: Claim
    ok: bool
    detail: str
    """One line: the value found, or what is wrong"""

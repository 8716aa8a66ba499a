"""What a rule is, what it finds, and the list of all rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuguide.site.checks.page_lint.source import LintedPage

Findings = Iterator[tuple[int, str, str]]
"""Of one page: line, what is wrong, and what to do"""
Check = Callable[[LintedPage], Findings]


@dataclass(frozen=True)
class LintFinding:
    """One thing on a page that breaks a rule."""

    path: Path
    line: int
    rule: str
    problem: str
    remedy: str
    is_warning: bool = False
    """Whether the page passes all the same"""

    def __str__(self) -> str:
        """Return it as one line: file, line, rule, problem, remedy."""
        warning = "warning: " * self.is_warning
        return f"{self.path}:{self.line}: {warning}[{self.rule}] {self.problem} {self.remedy}"


@dataclass(frozen=True)
class LintRule:
    """One rule for pages."""

    name: str
    sentence: str
    """What it asks for, as ``--help`` lists it"""
    check: Check
    tutorials_only: bool = False
    warning: bool = False

    def findings(self, source: LintedPage) -> Iterator[LintFinding]:
        """Yield what breaks the rule on a page, nothing where it does not apply."""
        if self.tutorials_only and not source.is_tutorial:
            return
        for line, problem, remedy in self.check(source):
            yield LintFinding(source.path, line, self.name, problem, remedy, self.warning)


RULES: dict[str, LintRule] = {}


def rule(name: str, *, tutorials_only: bool = False, warning: bool = False) -> Callable[[Check], Check]:
    """Add the function below to the rules. Its docstring is what the rule asks for."""

    def add(check: Check) -> Check:
        RULES[name] = LintRule(name, (check.__doc__ or "").strip(), check, tutorials_only, warning)
        return check

    return add

"""The lint for pages: what a tutorial and a page must have, as rules.

``python -m gpuguide.site.checks.page_lint`` looks at all pages, and names file, line and remedy of each thing that it
finds. ``--help`` lists the rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuguide.errors import GpuguideError
from gpuguide.site.checks.page_lint import (
    answer_rules,
    cell_rules,
    form_rules,
    record_rules,
    site_rules,
    text_rules,
    tutorial_rules,
)
from gpuguide.site.checks.page_lint.rules import RULES, LintFinding
from gpuguide.site.checks.page_lint.source import LintedPage
from gpuguide.site.execution import page_gpus

__all__ = ["Finding", "findings", "page_files", "sentences"]

_RULE_MODULES = (
    cell_rules,
    record_rules,
    text_rules,
    tutorial_rules,
    form_rules,
    answer_rules,
)  # importing one adds its rules


def page_files(root: Path) -> list[Path]:
    """Return all pages below a folder, those first that others link to."""
    return [
        path
        for path in (root / "index.md", *sorted(root.glob("docs/**/*.md")), *sorted(root.glob("tutorials/*.md")))
        if path.is_file()
    ]


def findings(paths: Iterable[Path]) -> list[LintFinding]:
    """Return what breaks a rule on these pages, by file and line."""
    found: list[LintFinding] = []
    sources: list[LintedPage] = []
    for path in paths:
        source = LintedPage(path, path.read_text(encoding="utf-8"))
        try:
            with page_gpus.use_gpu_of(source.page):
                found += [finding for rule in RULES.values() for finding in rule.findings(source)]
            sources.append(source)
        except GpuguideError as error:
            found.append(
                LintFinding(path, 1, "front-matter", str(error), "Correct it as it is in tutorials/template.md.")
            )
    for across_pages in site_rules.RULES:
        found += across_pages(sources)
    return sorted(found, key=lambda finding: (str(finding.path), finding.line, finding.rule))


def sentences() -> dict[str, str]:
    """Return what each rule asks for, by its name."""
    return {**{rule.name: rule.sentence for rule in RULES.values()}, **site_rules.SENTENCES}

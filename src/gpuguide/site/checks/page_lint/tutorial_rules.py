"""Rules for the form of a tutorial: its file, its front matter, its skeleton."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuguide.claims import topics as known_topics
from gpuguide.errors import GpuguideError
from gpuguide.measure import digest, measured_ceilings, reference_gpu
from gpuguide.site.checks.page_lint.rules import RULES, Findings, LintRule, rule
from gpuguide.site.checks.page_lint.source import TEMPLATE, LintedPage
from gpuguide.site.execution import declared_records
from gpuguide.site.pages import reading
from gpuguide.site.pages.page_source import CodeCell

FRONT_MATTER: dict[str, dict[str, Any]] = {
    "jupytext": {"text_representation": {"extension": ".md", "format_name": "myst", "format_version": 0.13}},
    "kernelspec": {"display_name": "Python 3", "name": "python3"},
}
"""What every tutorial has beside its own entry ``gpuguide``, so that no tool leaves its version there"""
SECTIONS = (
    "In short",
    "Predict",
    "Build",
    "Measure",
    "Explain",
    "In your own code",
    "Claims checked",
    "Exercises",
    "Further reading",
)
"""How the headings of a tutorial begin, in this order; others may stand between them"""
UNSEEN = ("inline", "myst_line_comment", "myst_target")
"""Tokens that are no block of their own"""
EXERCISES = 3
_USES_CEILINGS = re.compile(r"\{ceiling\}`|\bmeasured_ceilings\.(?:load|load_reference|find_quoted_ceiling)\(")
"""Code and roles that read records for ceilings, without naming a record"""
_NUMBERED = re.compile(r"\*\*\d+\.? ")


@dataclass(frozen=True)
class RequiredDirective:
    """A directive that a tutorial has at a certain place."""

    sentence: str
    """What the rule asks for"""
    directive: str
    section: str
    """The section that it stands in: ``""`` for above the first, ``"*"`` for any"""
    problem: str
    remedy: str
    is_needed: Callable[[LintedPage], bool] = lambda source: True

    def check(self, source: LintedPage) -> Findings:
        """Yield a finding if the directive is needed and not in its place."""
        first = next((heading.line for heading in source.headings if heading.level == 2), len(source.lines))
        places = {"": (0, first), "*": (0, len(source.lines) + 1)}
        lines = places.get(self.section) or source.section(self.section)
        if lines is None or not self.is_needed(source):
            return  # another rule says that the section is missing
        if not any(found.name == self.directive and lines[0] < found.line < lines[1] for found in source.directives):
            yield max(lines[0], 1), self.problem, self.remedy


DIRECTIVES = {
    "cost-card": RequiredDirective(
        "A cost card, which becomes the line under the title, stands before the first section.",
        "cost-card",
        "",
        "The page has no cost card.",
        "Put ```{cost-card} and ``` below the first sentence.",
    ),
    "claims": RequiredDirective(
        "Claims checked shows rows of the ledger.",
        "claims",
        "Claims checked",
        "The section shows no claim.",
        "Add ```{claims} TOPIC and ```.",
    ),
    "your-records": RequiredDirective(
        "A tutorial with benchmarks has the place where a reader's own records are compared.",
        "your-records",
        "*",
        "A reader's own records are compared nowhere.",
        "Put ```{your-records} and ``` below the figures.",
        lambda source: bool(source.page.benchmarks),
    ),
}
RULES.update(
    {name: LintRule(name, each.sentence, each.check, tutorials_only=True) for name, each in DIRECTIVES.items()}
)


@rule("file-name", tutorials_only=True)
def file_name(source: LintedPage) -> Findings:
    """A tutorial's file is called `NN-short-title.md`."""
    if not re.fullmatch(r"\d{2}(-[a-z0-9]+)+", source.path.stem) and source.path.stem != TEMPLATE:
        yield 1, f"{source.path.name} is no name for a tutorial.", "Call it NN-short-title.md, in lower case."


@rule("front-matter", tutorials_only=True)
def front_matter(source: LintedPage) -> Findings:
    """The front matter is that of the template: `gpuguide`, `jupytext` and `kernelspec`, as they stand there."""
    front = dict(source.page.front_matter)
    if "gpuguide" not in front:
        yield 1, "The front matter has no entry gpuguide.", "Add it: gpuguide: {topics: [], benchmarks: []}."
    for key, wanted in FRONT_MATTER.items():
        expected = {**wanted, "language": "python"} if _needs_language(front, key) else wanted
        if front.get(key) != expected:
            yield source.front_line(key), f"The entry {key} is not the template's.", f"Write it as {expected}."
    for key in sorted(set(front) - {"gpuguide", "mystnb", *FRONT_MATTER}):
        yield source.front_line(key), f"Nothing reads the entry {key!r}.", "Remove it."


def _needs_language(front: dict[str, Any], key: str) -> bool:
    """Return whether the kernel names its language: on a page that is not executed, nothing else tells it."""
    return key == "kernelspec" and (front.get("mystnb") or {}).get("execution_mode") == "off"


@rule("topics", tutorials_only=True)
def topics(source: LintedPage) -> Findings:
    """A tutorial names its topics, by names that `claims.toml` lists."""
    known = known_topics()
    if "gpuguide" in source.page.front_matter and not source.page.topics:
        yield source.front_line("gpuguide"), "The page names no topic.", "Add to gpuguide: topics: [NAME]."
    for name in source.page.topics:
        if name not in known:
            line = source.front_line("topics")
            yield line, f"There is no topic {name!r}.", f"Name one of {', '.join(sorted(known))}."


@rule("benchmarks")
def benchmarks(source: LintedPage) -> Findings:
    """Every benchmark that the front matter declares exists, and the page reads it."""
    known = digest.benchmark_modules()
    body = source.text.partition("\n---\n")[2] + reading.code_of_drawings(source.page.code)
    for name in source.page.benchmarks:
        line = source.front_line("benchmarks")
        if name not in known:
            yield line, f"There is no benchmark {name!r}.", f"Declare one of {', '.join(sorted(known))}."
        elif not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", body) and not (
            name == measured_ceilings.CEILINGS and _USES_CEILINGS.search(body)
        ):
            yield line, f"The page declares {name!r} and does not read it.", "Remove it from the front matter."


@rule("gpu")
def gpu(source: LintedPage) -> Findings:
    """The GPU that the front matter names has published records, and one of every benchmark that the page declares."""
    if source.page.gpu:
        try:
            reference_gpu.check_records()
            declared_records.check_published(source.page)
        except GpuguideError as error:
            yield source.front_line("gpu"), str(error), "Name another GPU, or measure on this one what is missing."


@rule("opening", tutorials_only=True)
def opening(source: LintedPage) -> Findings:
    """Title, then one sentence that says what one will do; the two become a notebook's first cell."""
    blocks = [(line, token) for line, token in source.tokens if token.map and token.level == 0]
    after = next((position for position, (_, token) in enumerate(blocks) if token.type == "heading_open"), None)
    rest = [] if after is None else [block for block in blocks[after + 1 :] if block[1].type not in UNSEEN]
    title = source.headings[0].line if source.headings else 1
    if not rest or rest[0][1].type != "paragraph_open":
        yield title, "No sentence follows the title.", "Say in one sentence what the reader will do."
        return
    line = rest[0][0]
    text = next(token.content for at, token in source.tokens if at == line and token.type == "inline")
    if re.search(r"[.!?]\s+\S", text) or not text.rstrip().endswith("."):
        yield line, "The title is not followed by one sentence.", "Say what the reader will do in one; the rest below."


@rule("skeleton", tutorials_only=True)
def skeleton(source: LintedPage) -> Findings:
    """The sections are In short to Further reading, as the skeleton lists them; others may stand between them."""
    titles = [heading.text for heading in source.headings if heading.level == 2]
    place = -1
    for section in SECTIONS:
        found = next((at for at, title in enumerate(titles) if at > place and title.startswith(section)), None)
        if found is None:
            where = f"after {titles[place]!r}" if place >= 0 else "before the others"
            yield 1, f"The section {section!r} is missing.", f"Add a heading '## {section}' {where}."
        else:
            place = found


@rule("equality", tutorials_only=True)
def equality(source: LintedPage) -> Findings:
    """In Build, a cell asserts that the result equals a reference."""
    lines = source.section("Build")
    asserts = [node.lineno for cell, node in source.nodes() if isinstance(node, ast.Assert) and is_seen(cell)]
    checks = [call.lineno for cell, call, name in source.calls() if "assert_" in name and is_seen(cell)]
    if lines and not any(lines[0] < line < lines[1] for line in [*asserts, *checks]):
        yield lines[0], "No cell of this section asserts anything.", "Compare with a reference in a cell of its own."


def is_seen(cell: CodeCell) -> bool:
    """Return whether a reader sees a cell, folded or not."""
    return "remove-cell" not in cell.tags


@rule("exercises", tutorials_only=True)
def exercises(source: LintedPage) -> Findings:
    """There are three exercises or more, numbered, each with a solution in a cell tagged `hide-cell` or in a fold."""
    lines = source.section("Exercises")
    if lines is None:
        return  # another rule says so
    first, end = lines
    count = sum(bool(_NUMBERED.match(line)) for line in source.lines[first : end - 1])
    folded = sum("hide-cell" in cell.tags and first < cell.line < end for cell in source.cells)
    folded += sum(found.name == "folded" and first < found.line < end for found in source.directives)
    if count < EXERCISES:
        remedy = "Number them: **1. Title.** Text."
        yield first, f"The page has {count} exercises, and should have {EXERCISES} or more.", remedy
    if folded < count:
        remedy = "Tag the cell with its solution hide-cell."
        yield first, f"Only {folded} of {count} exercises have a folded solution.", remedy


@rule("notebook-markdown", tutorials_only=True)
def notebook_markdown(source: LintedPage) -> Findings:
    """A tutorial holds nothing that plain Markdown lacks: no reStructuredText, no cells over several rows."""
    for directive in source.directives:
        if directive.name == "eval-rst" or directive.name.startswith("auto"):
            yield directive.line, f"{{{directive.name}}} has no place in a notebook.", "Write it in Markdown, or link."

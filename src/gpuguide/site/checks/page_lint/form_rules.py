"""Rules for the form of a page: the answer first, a drawing, and what there is to read."""

from __future__ import annotations

import ast
import re

from gpuguide.site.checks.page_lint.rules import Findings, rule
from gpuguide.site.checks.page_lint.source import LintedPage
from gpuguide.site.pages import reading, tabs
from gpuguide.site.pages.page_source import CodeCell

VISIBLE_WORDS = 3000
ANSWER_MINUTES = 10
APART = 600
"""Words that may stand between two things to look at"""
ABOVE_THE_DRAWING = 120
"""Words that may stand above the drawing, title and first sentence included, so that a first screen shows it"""
ANSWER, SNIPPET_LINES = 120, 12
NUMBERS = 3
"""Numbers that one can keep in mind from a paragraph"""
CLAIMS = 3
IN_SHORT = "In short"
WITHOUT_TAKEAWAY = (IN_SHORT, "Claims checked", *reading.NOT_COUNTED)
NUMBER_ROLES = {"measured", "ratio", "ceiling", "datasheet", "glue:text"}
_SHOWS = re.compile(r"^(?:print|.*\bshow|.*\bshow_table|(?:plotting|pictures)\.[\w.]+)\(", re.MULTILINE)
_WITH_UNIT = re.compile(r"\d[\d.,]*\s?(?:%|[kMGTP]?i?B\b|[kMGT]?FLOP|[nµm]?s\b|W\b|[MG]?Hz\b|times\b)")


@rule("in-short", tutorials_only=True)
def in_short(source: LintedPage) -> Findings:
    """`In short` is the first section: an answer of at most 120 words, a figure or table, snippets of 12 lines."""
    lines = source.section(IN_SHORT)
    first = next((heading for heading in source.headings if heading.level == 2), None)
    if lines is None or first is None or first.line != lines[0]:
        yield first.line if first else 1, "The page does not begin with its answer.", "Begin it with '## In short'."
        return
    parts = [part for part in source.reading.parts if part.section == IN_SHORT and part.line > lines[0]]
    if (words := sum(part.words for part in parts)) > ANSWER:
        yield lines[0], f"The answer has {words} words.", f"Say it in {ANSWER}; the rest belongs below."
    if not any(part.shown in ("figure", "table") for part in parts):
        yield lines[0], "The answer has no figure and no table.", "Show what the reader came for."
    snippets = [cell for cell in source.cells if reading.SNIPPET in cell.tags]
    in_tabs = [{cell.line for cell in group} for group in tabs.group_cells(source.lines, source.cells)]
    one_place = len(snippets) == 1 or {cell.line for cell in snippets} in in_tabs
    if not one_place or not lines[0] < snippets[0].line < lines[1]:
        remedy = f"Tag the cell that readers copy {reading.SNIPPET}, or those of one group of tabs."
        yield lines[0], f"The answer has {len(snippets)} snippets of its own.", remedy
    for cell in snippets:
        if (count := len(cell.code.strip().splitlines())) > SNIPPET_LINES:
            yield cell.line, f"The snippet has {count} lines.", f"Shorten it to {SNIPPET_LINES}."


@rule("tabs")
def tab_labels(source: LintedPage) -> Findings:
    """Cells with the option `tab` are snippets, two or more in a row; only the tab `gpuguide` imports the library."""
    for group in tabs.group_cells(source.lines, source.cells):
        labels = [tabs.label_of(cell.options) for cell in group]
        if len(group) == 1:
            remedy = "Put the cell with the other tab below it, with nothing between them, or remove the option."
            yield group[0].line, f"The tab {labels[0]!r} stands alone.", remedy
        for position, (cell, label) in enumerate(zip(group, labels, strict=True)):
            if not label:
                yield cell.line, "The tab has no label.", "Name what its code uses: :tab: PyTorch."
            elif label.casefold() in [other.casefold() for other in labels[:position]]:
                yield cell.line, f"A second tab is called {label!r}.", "Name what only this one uses."
            if reading.SNIPPET not in cell.tags:
                remedy = f"Tag it {reading.SNIPPET}, so that it is run by itself: :tags: [{reading.SNIPPET}]."
                yield cell.line, f"The tab {label!r} is no snippet.", remedy
            if label != tabs.OWN and (name := _find_own_import(source, cell)):
                remedy = f"Write it without the library, or call the tab {tabs.OWN}."
                yield cell.line, f"The tab {label!r} imports {name}.", remedy


def _find_own_import(source: LintedPage, cell: CodeCell) -> str:
    """Return what a cell imports of the library, empty if it does without."""
    for other, node in source.nodes():
        if other.line != cell.line or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for name in names:
            if name.partition(".")[0] == tabs.OWN:
                return name
    return ""


@rule("reading-time", tutorials_only=True)
def reading_time(source: LintedPage) -> Findings:
    """A page has at most 3,000 words with its folds closed, and its answer is read in at most 10 minutes."""
    found = source.reading
    if found.words > VISIBLE_WORDS:
        remedy = f"Cut or fold until it has {VISIBLE_WORDS:,}, or make it two pages."
        yield 1, f"The page has {found.words:,} words, code and tables aside.", remedy
    if found.minutes_for_answer > ANSWER_MINUTES:
        remedy = f"Shorten the box, the checklists or 'In your own code': {ANSWER_MINUTES}."
        yield 1, f"The answer takes {found.minutes_for_answer} minutes.", remedy


@rule("something-to-look-at", tutorials_only=True)
def something_to_look_at(source: LintedPage) -> Findings:
    """A drawing, a figure or a table stands at least every 600 words."""
    words, begin = 0, 1
    for part in source.reading.parts:
        words += part.words
        if part.shown in ("figure", "drawing", "table"):
            words, begin = 0, part.line
        elif words > APART:
            problem = f"In {part.section!r}, {words} words have passed with nothing to look at since line {begin}."
            yield part.line, problem, "Draw what they say, or put its numbers into a table."
            words, begin = 0, part.line


@rule("drawing", tutorials_only=True)
def drawing(source: LintedPage) -> Findings:
    """The main drawing stands in `In short`, above its table and its code, with at most 120 words above it."""
    words, line = 0, 1
    for part in source.reading.parts:
        if part.section not in ("", IN_SHORT):
            break
        words, line = words + part.words, part.line
        if part.shown in ("drawing", "figure"):
            if words > ABOVE_THE_DRAWING:
                remedy = f"Move it up: {ABOVE_THE_DRAWING} are enough, and the rest of the text may follow it."
                yield line, f"{words} words stand above the drawing.", remedy
            return
        if part.shown or part.code_lines:
            what = part.shown or "piece of code"
            yield line, f"A {what} stands above the drawing.", "Move the drawing up, below the first paragraph."
            return
    remedy = "Draw what moves or happens: plotting.pictures holds one call a drawing."
    yield line, "The page does not begin with a drawing.", remedy


@rule("takeaway", tutorials_only=True)
def takeaway(source: LintedPage) -> Findings:
    """Each section that teaches ends in a takeaway: one sentence set apart."""
    takeaways = [found.line for found in source.directives if found.name == "takeaway"]
    for title in source.reading.count_by_section():
        lines = source.section(title) if title else None
        if lines is None or title.startswith(WITHOUT_TAKEAWAY):
            continue
        last = max((line for line in takeaways if lines[0] < line < lines[1]), default=0)
        after = sum(part.words for part in source.reading.parts if last + 2 < part.line < lines[1])
        if not last or after:
            remedy = "End it with :::{takeaway}, one sentence, and :::."
            yield lines[0], f"The section {title!r} does not end in a takeaway.", remedy


@rule("numbers-in-a-paragraph", tutorials_only=True, warning=True)
def numbers_in_a_paragraph(source: LintedPage) -> Findings:
    """A paragraph has at most three numbers that are measured or have a unit; more belong into a table."""
    lines = source.section(IN_SHORT) or (0, 0)
    lists = 0
    for line, token in source.tokens:
        lists += (token.type in ("bullet_list_open", "ordered_list_open", "table_open")) - (
            token.type in ("bullet_list_close", "ordered_list_close", "table_close")
        )
        if token.type != "inline" or lists or lines[0] < line < lines[1]:
            continue
        roles = [child for child in token.children or () if child.type == "myst_role"]
        count = sum(role.meta["name"] in NUMBER_ROLES for role in roles)
        count += sum(role.meta["name"] == "given" and bool(re.search(r"\d", role.content)) for role in roles)
        typed = "".join(child.content for child in token.children or () if child.type == "text")
        count += len(_WITH_UNIT.findall(typed))
        if count > NUMBERS:
            yield line, f"The paragraph has {count} numbers.", f"Keep {NUMBERS}, and put the others into a table."


@rule("three-claims", tutorials_only=True)
def three_claims(source: LintedPage) -> Findings:
    """Claims checked shows the three most surprising claims, which the page names; the others are one link away."""
    lines = source.section("Claims checked")
    if lines is None:
        return  # another rule says so
    found = [each for each in source.directives if each.name == "claims" and lines[0] < each.line < lines[1]]
    named = [name for each in found for name in _list_shown_claims(each.options)]
    if len(named) != CLAIMS:
        remedy = "Name three in the option of one directive: :show: ONE-ID ANOTHER-ID A-THIRD-ID."
        yield lines[0], f"The page chooses {len(named)} claims.", remedy


def _list_shown_claims(options: str) -> list[str]:
    found = re.search(r"^[ \t]*:?show:[ \t]*(.*)$", options, re.MULTILINE)
    return found[1].split() if found else []

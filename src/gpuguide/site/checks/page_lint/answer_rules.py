"""Rules for what a reader came with: a search, a symptom, a model of their own, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuguide.site.checks import imperatives
from gpuguide.site.checks.page_lint.form_rules import NUMBER_ROLES
from gpuguide.site.checks.page_lint.rules import Findings, rule
from gpuguide.site.checks.page_lint.source import LintedPage
from gpuguide.site.pages import asides, markdown_source, reading

FEWEST_QUERIES, MOST_QUERIES = 3, 6
WORKED_EXAMPLE = "Worked example:"
_NO_CONTENT = """
a an and are as at be best by can do does for from how i if in into is it its many much my of on one or our per should
so than that the their them this to up use using vs what when where which why will with without work works you your
"""
NO_CONTENT = frozenset(_NO_CONTENT.split())
"""Words that many a title shares with many a search"""
_WORDS = re.compile(r"[^\W_][\w.+-]*[^\W_]|[^\W_]")
_NUMBER = re.compile(r"(?<![\w-])[0-9]")
"""A digit that begins a number, and not that of a name, such as int8"""


@rule("queries", tutorials_only=True)
def queries(source: LintedPage) -> Findings:
    """The front matter lists three to six searches that the page answers; its title has a content word of one."""
    found, line = source.page.queries, source.front_line("queries")
    if "gpuguide" not in source.page.front_matter:
        return  # another rule says so
    if not found:
        remedy = "Add what readers type: gpuguide: {queries: [kv cache size llama 3.1 8b, …]}, three to six."
        yield source.front_line("gpuguide"), "The page names no search that it answers.", remedy
        return
    if not FEWEST_QUERIES <= len(found) <= MOST_QUERIES:
        yield line, f"The page names {len(found)} queries.", f"Name {FEWEST_QUERIES} to {MOST_QUERIES}."
    for query in found:
        if not query.strip() or query != query.lower():
            yield (
                line,
                f"The query {query!r} is not typed so.",
                "Write it as in a search box: in lower case, not empty.",
            )
    if len(set(found)) < len(found):
        yield line, "A query stands there twice.", "Name another one."
    title = source.headings[0] if source.headings else None
    if title and not content_words([title.text]) & content_words(found):
        wanted = ", ".join(repr(query) for query in found)
        remedy = f"Use a word of what the page wants to answer: {wanted}."
        yield title.line, f"The title {title.text!r} has no word that readers search for.", remedy


def content_words(texts: Iterable[str]) -> set[str]:
    """Return the words of texts that say what they are about, without the s of a plural.

    >>> sorted(content_words(["How to size the KV caches of Llama 3.1"]))
    ['3.1', 'cache', 'kv', 'llama', 'size']
    """
    words = {word for text in texts for word in _WORDS.findall(text.lower())}
    return {_singular(word) for word in words - NO_CONTENT}


def _singular(word: str) -> str:
    if len(word) <= 3 or not word.endswith("s") or word.endswith("ss"):
        return word
    return f"{word[:-3]}y" if word.endswith("ies") else word[:-1]


@rule("worked-example", tutorials_only=True)
def worked_example(source: LintedPage) -> Findings:
    """A heading begins with `Worked example:`, below which one real model's numbers are worked out by hand."""
    if not any(heading.level > 1 and heading.text.startswith(WORKED_EXAMPLE) for heading in source.headings):
        remedy = (
            f"Work out one model, card or dataframe by hand below '### {WORKED_EXAMPLE} …', and assert it in a cell."
        )
        yield 1, "The page works out no example.", remedy


@rule("symptom", tutorials_only=True)
def symptom(source: LintedPage) -> Findings:
    """A checklist says what to look at when something goes wrong, by the symptom that one sees."""
    if not any(found.name == "symptom" for found in source.directives):
        line = (source.section("In your own code") or (1, 1))[0]
        remedy = "Add one to 'In your own code': :::{symptom} WHAT ONE SEES, numbered items, and :::."
        yield line, "The page has no checklist for a symptom.", remedy


@rule("symptom-form")
def symptom_form(source: LintedPage) -> Findings:
    """A `symptom` has a title and a numbered list, each item of which ends in an arrow and a remedy."""
    for found in source.directives:
        if found.name != "symptom":
            continue
        if not found.argument:
            yield found.line, "The symptom has no title.", "Say what one sees: :::{symptom} The loss becomes NaN."
        if not asides.count_items(found.content):
            remedy = f"Number what to look at, in order: 1. What it is, with the call {asides.ARROW} what to do."
            yield found.line, "The symptom has no numbered item.", remedy
        first = found.line + 1 + found.options.count("\n")
        for offset, item in asides.list_items_without_remedy(found.content):
            remedy = f"End it with ' {asides.ARROW} ' and what to do if it is that."
            yield first + offset, f"The item {item[:40]!r} has no remedy.", remedy


@rule("takeaway-form", tutorials_only=True)
def takeaway_form(source: LintedPage) -> Findings:
    """A takeaway is an instruction, and has a number."""
    for found in source.directives:
        if found.name != "takeaway":
            continue
        tokens = [token for _, token in markdown_source.walk(found.content) if token.type == "inline"]
        text = " ".join(reading.text_of(token) for token in tokens)
        if not imperatives.is_instruction(text):
            remedy = (
                "Begin it, or what follows its condition, with a verb: 'For one user, quantise …'. A verb that the "
                "lint does not know is added to site/checks/imperatives.py."
            )
            yield found.line, f"The takeaway {text[:40]!r} tells nobody to do anything.", remedy
        children = [child for token in tokens for child in token.children or ()]
        roles = {child.meta["name"] for child in children if child.type == "myst_role"}
        typed = "".join(
            child.content if child.type in ("text", "math_inline", "myst_role") else " " for child in children
        )
        if not roles & NUMBER_ROLES and not _NUMBER.search(typed):
            yield found.line, f"The takeaway {text[:40]!r} has no number.", "Say by how much, or from which size on."

"""Rules for text, on every page. Images, links and headings are looked at on the built site."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpuguide.site.checks import hand_typed, private_words
from gpuguide.site.checks.page_lint.rules import Findings, rule
from gpuguide.site.checks.page_lint.source import LintedPage
from gpuguide.site.pages import markdown_source

if TYPE_CHECKING:
    from markdown_it.token import Token

WORDS = re.compile(
    r"\b(simply|obviously|trivially|needless to say|of course|blazing(?:ly)?|lightning[- ]fast|game[- ]?chang\w+"
    r"|revolution\w+|cutting[- ]edge|state[- ]of[- ]the[- ]art|seamless(?:ly)?|unleash\w*|supercharg\w+"
    r"|effortless(?:ly)?|insane(?:ly)?|awesome|amazing(?:ly)?|incredibl[ey]|delve|deep dive|under the hood)\b",
    re.IGNORECASE,
)
EMOJI = re.compile("[\U0001f000-\U0001faff\u2600-\u26ff\u2705\u2728\u274c\ufe0f]")
_APART = re.compile(r"[0-9][ \u00a0]%(?![\w(])")
"""A number, or a role that writes one, and a percent sign apart from it"""


@rule("hand-typed")
def typed_measurements(source: LintedPage) -> Findings:
    """A measured number is looked up with a role and never typed."""
    for line, text, remedy in hand_typed.hand_typed(source.path):
        yield line, f"{text!r} is typed by hand.", f"Instead, {remedy}."


@rule("one-line-paragraph")
def one_line_paragraph(source: LintedPage) -> Findings:
    """A paragraph is one line of the source, so that a change shows what changed."""
    terms = [
        range(found.line, found.line + found.content.count("\n") + 2)
        for found in source.directives
        if found.name == "glossary"  # where the indented lines below a term are its definition
    ]
    for line, children in source.inlines:
        broken = any(child.type == "softbreak" for child in children)
        if broken and not any(line in span for span in terms):
            yield line, "The paragraph goes over several lines.", "Join them into one."


@rule("plain-words")
def plain_words(source: LintedPage) -> Findings:
    """No hype, no emoji, and no word that tells readers how easy they must find it."""
    for line, children in source.inlines:
        for offset, text in _texts(children):
            for found in [*WORDS.finditer(text), *EMOJI.finditer(text)]:
                yield line + offset, f"{found[0]!r} adds nothing.", "Leave it out, or say what is meant."


@rule("private-words", tutorials_only=True)
def words_of_our_own(source: LintedPage) -> Findings:
    """The field's word stands where it has one: matmul, prefill, memory-bound, inter-token latency."""
    for line, children in source.inlines:
        for offset, text in _texts(children):
            for found, instead in private_words.find_private_words(text):
                yield line + offset, f"{found!r} is a word of our own.", f"Write it as the field does: {instead}."


@rule("percent")
def percent(source: LintedPage) -> Findings:
    """A percent sign stands at its number, as in 88%, on all pages alike."""
    for line, children in source.inlines:
        before = ""
        for offset, child in _with_lines(children):
            text = child.content if child.type in ("text", "myst_role") else ""
            if found := _APART.search(f"{before}{text}"):
                yield line + offset, f"A space stands before the sign in {found[0]!r}.", "Write it as in 88%."
            before = text[-1:] if child.type == "text" else "0" * (child.type in ("myst_role", "code_inline"))


@rule("raw-html")
def raw_html(source: LintedPage) -> Findings:
    """No page holds HTML, which no notebook could show as the site does."""
    for line, token in source.tokens:
        parts = [token] if token.type == "html_block" else (token.children or [])
        for part in parts:
            html = part.type in ("html_block", "html_inline") and not part.content.startswith("<!--")
            if html:
                yield line, f"{part.content.split()[0]!r} is HTML.", "Write it in Markdown."
                break
    for directive in source.directives:
        if directive.name in ("raw", "only"):
            yield directive.line, f"{{{directive.name}}} is for one kind of output.", "Write it in Markdown."


@rule("code-block")
def code_block(source: LintedPage) -> Findings:
    """Code that is not run names its language, and a code cell stands at the top level, where it is executed."""
    for line, token in source.tokens:
        if token.type == "fence" and not token.info.strip():
            yield line, "The code block names no language.", "Write ```text, ```sh or ```python."
        elif token.type == "colon_fence" and token.info.strip().startswith("{code-cell}"):
            yield line, "A code cell between colons is not executed.", "Write ``` around it."
        elif token.type == "code_block":
            yield line, "The indented block has no language.", "Put it between ```text and ```."
    top = {line for line, token in source.tokens if token.level == 0 and not token.meta.get(markdown_source.INSIDE)}
    for line, token in source.tokens:
        if token.type == "fence" and token.info.strip().startswith("{code-cell}") and line not in top:
            yield line, "A code cell inside a directive is not executed.", "Move it out; hide it with a tag."


def _texts(children: Iterable[Token]) -> Iterator[tuple[int, str]]:
    """Yield the text of inline tokens, less code and roles, with the line after the first that it stands on."""
    for offset, child in _with_lines(children):
        if child.type == "text":
            yield offset, child.content


def _with_lines(children: Iterable[Token]) -> Iterator[tuple[int, Token]]:
    """Yield inline tokens, each with the line after the first that it stands on."""
    offset = 0
    for child in children:
        offset += child.type in ("softbreak", "hardbreak")
        yield offset, child

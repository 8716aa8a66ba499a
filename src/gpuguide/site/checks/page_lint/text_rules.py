"""Rules for text, images and headings, on every page."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpuguide.site.checks import hand_typed
from gpuguide.site.checks.page_lint.rules import Found, rule
from gpuguide.site.checks.page_lint.source import Source
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
EMPTY_LINKS = {"here", "click here", "this", "link", "this link", "this page", "read more", "more"}
_APART = re.compile(r"[0-9][ \u00a0]%(?![\w(])")
"""A number, or a role that writes one, and a percent sign apart from it"""
_FILE = re.compile(r"\.(png|svg|jpe?g|gif|webp)$", re.IGNORECASE)
_ALT = re.compile(r"^[ \t]*:?alt:[ \t]*(.*)$", re.MULTILINE)


@rule("hand-typed")
def typed_measurements(source: Source) -> Found:
    """A measured number is looked up with a role and never typed."""
    for line, text, remedy in hand_typed.hand_typed(source.path):
        yield line, f"{text!r} is typed by hand.", f"Instead, {remedy}."


@rule("one-line-paragraph")
def one_line_paragraph(source: Source) -> Found:
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
def plain_words(source: Source) -> Found:
    """No hype, no emoji, and no word that tells readers how easy they must find it."""
    for line, children in source.inlines:
        for offset, text in _texts(children):
            for found in [*WORDS.finditer(text), *EMOJI.finditer(text)]:
                yield line + offset, f"{found[0]!r} adds nothing.", "Leave it out, or say what is meant."


@rule("percent")
def percent(source: Source) -> Found:
    """A percent sign stands at its number, as in 88%, on all pages alike."""
    for line, children in source.inlines:
        before = ""
        for offset, child in _with_lines(children):
            text = child.content if child.type in ("text", "myst_role") else ""
            if found := _APART.search(f"{before}{text}"):
                yield line + offset, f"A space stands before the sign in {found[0]!r}.", "Write it as in 88%."
            before = text[-1:] if child.type == "text" else "0" * (child.type in ("myst_role", "code_inline"))


@rule("image-text")
def image_text(source: Source) -> Found:
    """Every image has an alternative text that says what one sees, and is not a path."""
    for line, alt, _ in _images(source):
        if not alt.strip():
            yield line, "The image has no alternative text.", "Say what one sees: ![a curve that rises](FILE)."
        elif _FILE.search(alt.strip()):
            yield line, f"{alt!r} is a file name.", "Say what one sees in the image."


@rule("image-source")
def image_source(source: Source) -> Found:
    """Images come from the repository, because no page makes a request to another site."""
    for line, _, address in _images(source):
        if re.match(r"(https?:)?//", address):
            yield line, f"The image is loaded from {address}.", "Put the file beside the page, if its licence allows."


def _images(source: Source) -> Iterator[tuple[int, str, str]]:
    """Yield line, alternative text and address of each image."""
    for line, children in source.inlines:
        offset = 0
        for child in children:
            offset += child.type in ("softbreak", "hardbreak")
            if child.type == "image":
                yield line + offset, child.content, str(child.attrs.get("src", ""))
    for directive in source.directives:
        if directive.name in ("image", "figure"):
            found = _ALT.search(directive.options)
            yield directive.line, found[1] if found else "", directive.argument


@rule("raw-html")
def raw_html(source: Source) -> Found:
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


@rule("headings")
def headings(source: Source) -> Found:
    """A page has one title, at its top, and no heading skips a level."""
    found = source.headings
    if not found or found[0].level != 1:
        yield found[0].line if found else 1, "The page does not begin with its title.", "Begin it with '# Title'."
    for before, heading in itertools.pairwise(found):
        if heading.level == 1:
            yield heading.line, "The page has a second title.", "Write '##' in front of it."
        elif heading.level > before.level + 1:
            remedy = f"Write '{'#' * (before.level + 1)}' in front of it."
            yield heading.line, f"The heading skips a level after {before.text!r}.", remedy


@rule("link-text")
def link_text(source: Source) -> Found:
    """The text of a link says where it leads, to those too who hear only the links of a page."""
    for line, children in source.inlines:
        for position, child in enumerate(children):
            if child.type != "link_open":
                continue
            inner = "".join(other.content for other in children[position + 1 :][:1] if other.type == "text")
            if inner.strip().lower() in EMPTY_LINKS:
                yield line, f"The link says only {inner!r}.", "Let it name the page or the thing that it leads to."


@rule("code-block")
def code_block(source: Source) -> Found:
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

"""A page's source as its parser sees it, with the lines on which things stand."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

NOT_PROSE = ("code", "eval-rst", "literalinclude", "math", "mermaid", "raw", "toctree", "image", "glue")
"""How the names of directives begin whose content is no prose; the content of all others is read"""
EXTENSIONS = {"attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"}
INSIDE = "gpuguide-inside-a-directive"
"""In the ``meta`` of tokens that stand inside a directive"""
_OPTIONS = re.compile(r"\A(?:---\n.*?^---\n|(?:[ \t]*:[^\n]*\n)+)", re.DOTALL | re.MULTILINE)
_DIRECTIVE = re.compile(r"\s*\{([^}]+)\}")


def walk(source: str, first_line: int = 1) -> Iterator[tuple[int, Token]]:
    """Yield the tokens of a page, and of the prose inside its directives, with the line on which each begins.

    Parameters
    ----------
    source : str
        MyST Markdown.
    first_line : int
        The number of its first line.
    """
    line = first_line
    for token in parser().parse(source):
        line = first_line + token.map[0] if token.map else line
        yield line, token
        if token.type in ("fence", "colon_fence") and _holds_prose(token.info):
            skipped = options(token.content)
            for below, inner in walk(token.content[len(skipped) :], line + 1 + skipped.count("\n")):
                inner.meta[INSIDE] = True
                yield below, inner


def directive(info: str) -> str:
    """Return the name of the directive that a fence opens, empty if it is none."""
    found = _DIRECTIVE.match(info)
    return found[1] if found else ""


def options(content: str) -> str:
    """Return the options with which the content of a directive or of a cell begins."""
    found = _OPTIONS.match(content)
    return found[0] if found else ""


def _holds_prose(info: str) -> bool:
    name = directive(info)
    return bool(name) and not name.startswith(NOT_PROSE)


@functools.cache
def parser() -> MarkdownIt:
    """Return the parser that reads the pages, with the extensions of the site."""
    from markdown_it.renderer import RendererHTML
    from myst_parser.config.main import MdParserConfig
    from myst_parser.parsers.mdit import create_md_parser

    return create_md_parser(MdParserConfig(enable_extensions=EXTENSIONS), RendererHTML)

"""The lint for measurements that were typed by hand.

A rate, a time, a share or a factor in the prose of a page has to come from somewhere that the page can name: a
record, the hardware table, or a cell that computed it. What is chosen or assumed, and not measured, says so with
the role ``given``. It is one rule of :mod:`gpuguide.site.checks.page_lint`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuguide.site.pages import markdown_source

if TYPE_CHECKING:
    from markdown_it.token import Token

REMEDY = (
    "write {measured}`benchmark/contender:metric …` for a measured value, {ratio}`…` for a factor, "
    "{ceiling}`…` for the best of our records, "
    "{datasheet}`gpu figure` for a datasheet's, {glue:text}`name` for one that a cell of the page computes, "
    "or {given}`…` for one that is chosen or assumed and that nobody measured"
)

_NUMBER = r"(?<![\w.,/^–-])\d[\d,.]*(?:e[+-]?\d+)?"
_UNITS = (
    r"[kMGTP]?(?:i?B|bit|b|FLOPs?|OPs?)(?:/s|ps)\b",
    r"[kMGTP]?FLOPS\b",
    r"(?:\w+bytes|tokens?|rows?|steps?|samples?|sequences?|requests?)(?:/s\b| (?:a|per) second\b)",
    r"[nµμum]?s\b",
    r"(?:nano|micro|milli)?seconds?\b",
    r"k?W\b",
    r"watts?\b",
    r"°C",
    r"[kMG]Hz\b",
    r"%",
    r"per ?cent\b",
    r"-?fold\b",
    r"times (?:as|the (?:speed|rate|time)|faster|slower|more|less|smaller|larger)\b",
    r"[×x](?!\w)(?!\s*(?:\d|[A-Za-z]\b|\())",  # a factor, and no shape such as 4096 × 4096 or 8 x N
)
_QUANTITY = re.compile(rf"{_NUMBER}[ \u00a0\u202f-]?(?:{'|'.join(_UNITS)})")


def hand_typed(path: Path) -> list[tuple[int, str, str]]:
    """Return the quantities in a page's prose, captions and alternative texts that were typed and not looked up.

    Parameters
    ----------
    path : Path
        A page in MyST Markdown.

    Returns
    -------
    list of tuple
        For each its line, counted from one, the quantity as it is written, and the remedy.
    """
    found = []
    for line, prose in _prose(path.read_text(encoding="utf-8")):
        for match in _QUANTITY.finditer(prose):
            found.append((line + prose.count("\n", 0, match.start()), match[0], REMEDY))
    return found


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph, heading and cell of a table, as text without roles and code, and its first line."""
    for line, token in markdown_source.walk(source):
        if token.type == "inline":
            yield line, "".join(_words(token.children or ()))
        elif token.type == "fence" and token.info.lstrip().startswith("{code-cell}"):
            yield from _list_figure_texts(token.content, line + 1)


def _list_figure_texts(cell: str, first_line: int) -> Iterator[tuple[int, str]]:
    """Yield the captions and alternative texts that a cell writes out in full; what it computes stays its own."""
    options = markdown_source.options(cell)
    code = "\n" * options.count("\n") + cell[len(options) :]
    try:
        tree = ast.parse(re.sub(r"^[ \t]*[%!].*$", "", code, flags=re.MULTILINE))
    except SyntaxError:
        return  # the cell itself will say so
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("alt", "caption") and isinstance(node.value, ast.Constant):
            yield first_line + node.value.lineno - 1, str(node.value.value).replace("\n", " ")


def _words(children: Sequence[Token]) -> Iterator[str]:
    for child in children:
        if child.type in ("softbreak", "hardbreak"):
            yield "\n"
        elif child.type == "text":
            yield child.content
        elif not child.type.endswith(("_open", "_close")):
            yield " \0 "  # a role, code or a formula: what stands on both sides of it is not one quantity

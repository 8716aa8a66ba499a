"""A page as the rules look at it: its lines, its cells, and its Markdown."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpuguide.site.pages import markdown_source, page_source, reading

if TYPE_CHECKING:
    from markdown_it.token import Token

TEMPLATE = "template"
"""The tutorial that one copies, which has no number"""


@dataclass(frozen=True)
class Heading:
    """One heading of a page."""

    line: int
    level: int
    text: str


@dataclass(frozen=True)
class Directive:
    """One directive of a page, code cells aside."""

    line: int
    name: str
    argument: str
    options: str
    content: str


@dataclass(frozen=True)
class LintedPage:
    """The source of one page."""

    path: Path
    text: str

    @property
    def is_tutorial(self) -> bool:
        """True for a page of the folder ``tutorials`` other than its list."""
        return self.path.parent.name == "tutorials" and self.path.stem != "index"

    @cached_property
    def reading(self) -> reading.ReadingLength:
        """What there is to read."""
        return reading.measure_reading(self.text)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the file."""
        return self.text.splitlines()

    @cached_property
    def page(self) -> page_source.PageSource:
        """The front matter, and the code."""
        return page_source.read(self.text)

    @cached_property
    def cells(self) -> list[page_source.CodeCell]:
        """The code cells in order."""
        return list(page_source.cells(self.text))

    @cached_property
    def tokens(self) -> list[tuple[int, Token]]:
        """What the parser finds, each with its line; also inside directives."""
        return list(markdown_source.walk(self.text))

    @cached_property
    def code(self) -> list[tuple[page_source.CodeCell, ast.Module]]:
        """The cells that are Python, parsed; line numbers are those of the page."""
        found = []
        for cell in self.cells:
            try:
                found.append((cell, ast.parse(cell.code)))
            except SyntaxError:
                continue  # the build says so
        return found

    def nodes(self) -> Iterator[tuple[page_source.CodeCell, ast.AST]]:
        """Yield everything that the cells' code is made of."""
        for cell, tree in self.code:
            for node in ast.walk(tree):
                yield cell, node

    def calls(self) -> Iterator[tuple[page_source.CodeCell, ast.Call, str]]:
        """Yield each call in the cells with the function's name as it is written, such as ``torch.rand``."""
        for cell, node in self.nodes():
            if isinstance(node, ast.Call):
                yield cell, node, dotted_name(node.func)

    @cached_property
    def headings(self) -> list[Heading]:
        """The headings in order."""
        pairs = zip(self.tokens, self.tokens[1:], strict=False)
        return [
            Heading(line, int(token.tag[1]), inner.content)
            for (line, token), (_, inner) in pairs
            if token.type == "heading_open"
        ]

    @cached_property
    def directives(self) -> list[Directive]:
        """The directives in order, also those inside others."""
        found = []
        for line, token in self.tokens:
            name = markdown_source.directive(token.info) if token.type in ("fence", "colon_fence") else ""
            if name and name != "code-cell":
                argument = token.info.partition("}")[2].strip()
                options = markdown_source.options(token.content)
                found.append(Directive(line, name, argument, options, token.content[len(options) :]))
        return found

    @cached_property
    def inlines(self) -> list[tuple[int, Sequence[Token]]]:
        """The parts of each paragraph, heading and cell of a table, with the line on which it begins."""
        return [(line, token.children or ()) for line, token in self.tokens if token.type == "inline"]

    def section(self, title: str) -> tuple[int, int] | None:
        """Return the lines of the section whose heading begins so: its own, and that of the next one."""
        for position, heading in enumerate(self.headings):
            if heading.level == 2 and heading.text.startswith(title):
                rest = (other.line for other in self.headings[position + 1 :] if other.level <= 2)
                return heading.line, next(rest, len(self.lines) + 1)
        return None

    def front_line(self, key: str) -> int:
        """Return the line of the front matter that has this key, or the first."""
        return page_source.front_line(self.text, key)


def dotted_name(node: ast.expr) -> str:
    """Return a name with its dots, empty if it is no such thing.

    >>> dotted_name(ast.parse("a.b.c()", mode="eval").body.func)
    'a.b.c'
    """
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted_name(node.value)):
        return f"{before}.{node.attr}"
    return ""

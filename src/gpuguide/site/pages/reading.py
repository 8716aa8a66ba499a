"""How long a page takes to read, from its source: the words and the code that are seen with all folds closed.

Tables, exercises, further reading and what directives generate are not counted: one looks at them and does not read
them through.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuguide.measure import digest
from gpuguide.site.pages import library_code, markdown_source, page_source

if TYPE_CHECKING:
    from markdown_it.token import Token

WORDS_A_MINUTE = 200
SECONDS_A_LINE = 5
SNIPPET = "snippet"
"""The tag of the cell in ``In short`` that one copies"""
HIDDEN_CODE = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
HIDDEN_OUTPUT = {"hide-output", "hide-cell", "remove-output", "remove-cell"}
NOT_COUNTED = ("Exercises", "Further reading")
"""How the headings of sections begin that are not counted"""
GENERATED = ("claims", "cost-card", "your-records", "toctree", "glossary")
"""Directives whose content, if they have any, is no text of the page"""
WORDS_THEMSELVES = ("holds", "given", "gpu")
"""Roles whose content is what they show; others show a number with its unit"""
_CALLED = re.compile(r"^(?:plotting\.|pictures\.\w+\.)?(\w+)\(", re.MULTILINE)
_SHOWN_FILES = ("image", "figure")


@dataclass(frozen=True)
class ReadingPart:
    """One paragraph, heading, piece of code or thing to look at, as a reader meets it."""

    line: int
    section: str
    """The heading of the second level that it stands under, empty above the first"""
    words: int = 0
    code_lines: int = 0
    shown: str = ""
    """``drawing``, ``figure``, ``table`` or ``formula`` if it is to be looked at"""
    text: str = ""


@dataclass(frozen=True)
class ReadingLength:
    """What there is to read on a page."""

    parts: tuple[ReadingPart, ...]

    @property
    def words(self) -> int:
        """Words of the text."""
        return sum(part.words for part in self.parts)

    @property
    def code_lines(self) -> int:
        """Lines of code that are seen, empty ones aside."""
        return sum(part.code_lines for part in self.parts)

    @property
    def minutes(self) -> int:
        """Whole minutes that reading takes."""
        return max(1, math.ceil(self.words / WORDS_A_MINUTE + self.code_lines * SECONDS_A_LINE / 60))

    def count_by_section(self) -> dict[str, int]:
        """Return the words of each section, in their order."""
        found: dict[str, int] = {}
        for part in self.parts:
            found[part.section] = found.get(part.section, 0) + part.words
        return found


@functools.cache
def measure_reading(source: str) -> ReadingLength:
    """Return what there is to read in a page's source, MyST Markdown."""
    return ReadingLength(tuple(_parts(source, 1, _Place())))


@dataclass
class _Place:
    """Where one is while a page is walked through."""

    section: str = ""

    @property
    def is_counted(self) -> bool:
        return not self.section.startswith(NOT_COUNTED)


def _parts(source: str, line: int, place: _Place) -> Iterator[ReadingPart]:
    first, heading, table = line, 0, False
    for token in markdown_source.parser().parse(source):
        line = first + token.map[0] if token.map else line
        heading = int(token.tag[1]) if token.type == "heading_open" else heading
        if token.type == "table_open":
            yield ReadingPart(line, place.section, shown="table")
        table = token.type == "table_open" or (table and token.type != "table_close")
        if token.type == "inline":
            text = text_of(token)
            place.section = text if heading == 2 else place.section
            heading = 0
            if place.is_counted and not table:
                yield ReadingPart(line, place.section, words=len(text.split()), text=text)
        elif token.type.startswith("math_block"):
            yield ReadingPart(line, place.section, shown="formula")
        elif token.type in ("fence", "colon_fence") and place.is_counted:
            yield from _directive(token, line, place)


def _directive(token: Token, line: int, place: _Place) -> Iterator[ReadingPart]:
    """Yield what is seen of a directive, or of a block of code."""
    name = markdown_source.directive(token.info)
    options = markdown_source.options(token.content)
    content, below = token.content[len(options) :], line + 1 + options.count("\n")
    if name == "code-cell":
        cell = page_source.cells(f"```{{code-cell}}\n{token.content}```\n")[0]
        seen = not HIDDEN_CODE & set(cell.tags)
        shown = "" if HIDDEN_OUTPUT & set(cell.tags) else thing_to_look_at(content)
        yield ReadingPart(line, place.section, code_lines=_lines(content) if seen else 0, shown=shown)
    elif name in ("question", "folded"):
        title = token.info.partition("}")[2] if name == "folded" else content.strip().partition("\n\n")[0]
        yield from _parts(title.strip(), below, place)
    elif name == "symptom":
        yield from _parts(token.info.partition("}")[2].strip(), line, place)
        yield from _parts(content, below, place)
    elif name == "library-code":
        _, code = library_code.source_of(token.info.partition("}")[2].strip())
        yield ReadingPart(line, place.section, code_lines=_lines(code))
    elif name.startswith(_SHOWN_FILES):
        yield ReadingPart(line, place.section, shown="figure")
    elif not name:
        yield ReadingPart(line, place.section, code_lines=_lines(content))
    elif name not in GENERATED and not name.startswith(markdown_source.NOT_PROSE):
        yield from _parts(content, below, place)


def thing_to_look_at(code: str) -> str:
    """Return what kind of thing a cell shows: ``drawing``, ``figure``, ``table`` or nothing."""
    called = set(_CALLED.findall(code))
    if called & set(list_drawing_calls()) or ({"show"} <= called and "drawings." in code):
        return "drawing"
    if called & {"show", *list_drawing_calls("interactive")}:
        return "figure"
    return "table" if "show_table" in called else ""


def code_of_drawings(code: str) -> str:
    """Return the source of the drawings that cells call, which names the records that they read."""
    known = {**list_drawing_calls("interactive"), **list_drawing_calls()}
    return "\n".join(known[name] for name in dict.fromkeys(_CALLED.findall(code)) if name in known)


@functools.cache
def list_drawing_calls(module: str = "pictures") -> dict[str, str]:
    """Return the functions of a part of :mod:`gpuguide.plotting` that show something each: name to source."""
    part = digest.PACKAGE_FOLDER / "plotting" / module
    found: dict[str, str] = {}
    for path in sorted(part.glob("*.py")) or [part.with_suffix(".py")]:
        text = path.read_text(encoding="utf-8")
        shown = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and _gives_a_figure(node)]
        found |= {each.name: ast.get_source_segment(text, each) or "" for each in shown}
    return found


def _gives_a_figure(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Name) and function.returns.id == "Figure"


def text_of(token: Token) -> str:
    """Return what a paragraph says; a role, a formula and a piece of code are a word each, or their own words."""
    return "".join(_text_of_child(child) for child in token.children or ())


def _text_of_child(child: Token) -> str:
    if child.type in ("text", "code_inline"):
        return child.content
    if child.type == "myst_role":
        return child.content.partition(" |")[0] if child.meta["name"] in WORDS_THEMSELVES else "0 s"
    return " " if child.type in ("softbreak", "hardbreak") else "x" * (child.type == "math_inline")


def _lines(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())

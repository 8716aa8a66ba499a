"""How long a page takes to read, from its source: for its answer, and for all of it.

One rule for whatever says so: text at 130 words a minute, what stands in code and typed tables at 100 words a minute,
and a minute for each figure, each table that a cell prints and the claims. Exercises and further reading are not
counted, nor is the code of folded cells; the text in folds belongs to all of a page and not to what is seen. Six
tutorials, which a reader judged to take 45 to 60 minutes, agree with it within an eighth.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpuguide.measure import digest
from gpuguide.site.pages import library_code, markdown_source, page_source

if TYPE_CHECKING:
    from markdown_it.token import Token

WORDS_A_MINUTE = 130
TOKENS_A_MINUTE = 100
EXACT_BELOW, ROUNDED_TO = 20, 5
"""Minutes from which on a time is rounded, and to what, for it is known no better"""
SNIPPET = "snippet"
"""The tag of the cell in ``In short`` that one copies"""
HIDDEN_CODE = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
HIDDEN_OUTPUT = {"hide-output", "hide-cell", "remove-output", "remove-cell"}
NOT_COUNTED = ("Exercises", "Further reading")
"""How the headings of sections begin that are not counted"""
ANSWERS = ("In short", "In your own code")
"""How the headings of sections begin that hold the answer, besides the title and the checklists"""
CLAIMS = "claims"
GENERATED = (CLAIMS, "cost-card", "your-records", "toctree", "glossary")
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
    minutes_in_folds: float = 0.0
    """What reading a fold takes that stands there"""
    tokens: int = 0
    """Words of code and of typed tables, which are read more slowly"""
    looked_at: int = 0
    """How many things are to be looked at, of those that take a minute each"""
    is_checklist: bool = False

    @property
    def minutes(self) -> float:
        """Minutes that it takes, folds closed."""
        if self.section.startswith(NOT_COUNTED):
            return 0.0
        return self.words / WORDS_A_MINUTE + self.tokens / TOKENS_A_MINUTE + self.looked_at

    @property
    def is_answer(self) -> bool:
        """Whether it belongs to what a reader came for: title, box, checklists, and what to do."""
        return not self.section or self.section.startswith(ANSWERS) or self.is_checklist


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
    def minutes_for_answer(self) -> int:
        """Whole minutes for what a reader came for, folds closed."""
        return _round_up(sum(part.minutes for part in self.parts if part.is_answer))

    @property
    def minutes(self) -> int:
        """Whole minutes for all of the page."""
        return _round_up(sum(part.minutes + part.minutes_in_folds for part in self.parts))

    @property
    def has_answer(self) -> bool:
        """Whether the page begins with a box that holds its answer."""
        return any(part.section.startswith(ANSWERS[0]) for part in self.parts)

    def describe(self) -> str:
        """Return both times in words, as the page and its notebook say them; one where there is no box."""
        if not self.has_answer:
            return f"{self.minutes} min to read"
        return f"{self.minutes_for_answer} min for the answer, {self.minutes} min for all"

    def describe_briefly(self) -> str:
        """Return both times as lists of pages say them."""
        return (
            f"{self.minutes_for_answer} min, {self.minutes} min for all" if self.has_answer else f"{self.minutes} min"
        )

    def count_by_section(self) -> dict[str, int]:
        """Return the words of each section, in their order."""
        found: dict[str, int] = {}
        for part in self.parts:
            found[part.section] = found.get(part.section, 0) + part.words
        return found


def _round_up(minutes: float) -> int:
    whole = max(1, math.ceil(round(minutes, 6)))
    return whole if whole < EXACT_BELOW else ROUNDED_TO * math.ceil(whole / ROUNDED_TO)


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
            elif place.is_counted:
                yield ReadingPart(line, place.section, tokens=len(text.split()))
        elif token.type.startswith("math_block"):
            yield ReadingPart(line, place.section, shown="formula", tokens=len(token.content.split()))
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
        yield _code(line, place, content if seen else "", shown=shown, looked_at=bool(shown))
    elif name == "folded":
        yield from _parts(token.info.partition("}")[2].strip(), line, place)
        yield ReadingPart(line, place.section, minutes_in_folds=_time_folded(content, place))
    elif name == "question":
        asked, _, answer = content.strip().partition("\n\n")
        yield from _parts(asked, below, place)
        yield ReadingPart(line, place.section, minutes_in_folds=_time_folded(answer, place))
    elif name == "symptom":
        parts = [*_parts(token.info.partition("}")[2].strip(), line, place), *_parts(content, below, place)]
        yield from (replace(part, is_checklist=True) for part in parts)
    elif name == "library-code":
        _, code = library_code.source_of(token.info.partition("}")[2].strip())
        yield _code(line, place, code)
    elif name.startswith(_SHOWN_FILES):
        yield ReadingPart(line, place.section, shown="figure", looked_at=1)
    elif name == CLAIMS:
        yield ReadingPart(line, place.section, looked_at=1)
    elif not name:
        yield _code(line, place, content)
    elif name not in GENERATED and not name.startswith(markdown_source.NOT_PROSE):
        yield from _parts(content, below, place)


def _code(line: int, place: _Place, code: str, *, shown: str = "", looked_at: int = 0) -> ReadingPart:
    return ReadingPart(
        line, place.section, code_lines=_lines(code), shown=shown, tokens=len(code.split()), looked_at=looked_at
    )


def _time_folded(content: str, place: _Place) -> float:
    """Return the minutes that the content of a fold takes, with the folds in it."""
    return sum(part.minutes + part.minutes_in_folds for part in _parts(content, 1, replace(place)))


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

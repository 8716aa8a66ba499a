"""What stands where on a built page: its sections, figures, checklists and claims, each with its address and its words.

Read from the HTML, so that whatever made the words is found as readers see it: notebooks, roles, directives, tables,
and what is folded. The parser is Python's own: Beautiful Soup on top of it takes five times as long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

SECTION, CALCULATOR, FIGURE, CHECKLIST, CLAIM = "section", "calculator", "figure", "checklist", "claim"

_VOID = {"area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_INLINE = {"a", "abbr", "b", "code", "em", "i", "kbd", "mark", "q", "s", "small", "span", "strong", "sub", "sup", "u"}
_SILENT = {"button", "h1", "h2", "h3", "h4", "h5", "h6", "math", "noscript", "script", "select", "style", "svg"}
"""Headings are known from the table of contents, and formulas have no words"""
_SILENT_CLASSES = {
    "collapsed",
    "expanded",
    "glossary",
    "gg-checklists",
    "gg-code-fold",
    "gg-figure-links",
    "gg-how",
    "gg-source",
    "gg-stamp",
    "gg-tab-label",
    "gg-tabs-legend",
    "gg-worked",
    "headerlink",
    "output",
    "py",
}
"""Terms, checklists and the library's names are listed elsewhere; how a cell is opened, the labels of tabs, the code
that draws a figure, the links below it, how a claim was checked, numbers of sources, stamps, printed output and what
stands in a calculator's place without scripts say nothing"""
_NAMED_BY = {"caption-text", "gg-heard", "gg-symptom-title"}
_NOT_ITS_NAME = {"gg-verdict"}
_CODE_WORD = re.compile(r"\b(?=[a-z0-9]*[A-Z_.])[A-Za-z_][A-Za-z0-9_]{2,}(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
"""A name that is not merely a word: torch.compile, cuda_graph, GradScaler"""
_WORD = re.compile(r"(?=[\w.+-]*[^\W\d_])\w[\w.+-]*\w")
"""A word of two letters or more, or a number with letters, as H100 and 7B"""
_PART = re.compile(r"[^\W_]+(?:\.\d[^\W_]*)*")
"""A word as ``search.js`` divides texts: ``torch.compile`` has two"""
_ENDING = re.compile(r"(?<=\w\w\w)(?:ations?|ings?|ed|es|e|(?<![siu])s)$")
_FUNCTION_WORDS = """
a about after again all also an and any are as at be because been before below between both but by can cannot did do
does each even every few for from further get gets had has have here how however if in into is it its itself just less
like many may me might more most much must my no nor not now of off often on once one only or other others our out
over own per same settled should since so some still such takeaway than that the their them then there these they this
those though through to too under until up us very was we were what when where whether which while who whose why will
with within without would yet you your
"""


@dataclass
class SearchPlace:
    """A part of a page that has an address of its own."""

    kind: str
    """One of the five above; a page that holds a calculator is one"""
    anchor: str
    """Empty for the page itself"""
    words: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    """Words in tables"""
    named: list[str] = field(default_factory=list)
    code: dict[str, None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A figure's caption, the symptom that a checklist is for, or a claim as one hears it."""
        return _join_lines(self.named)

    @property
    def text(self) -> str:
        """Its sentences, which an excerpt can show."""
        return _join_lines(self.words)

    @property
    def listed_words(self) -> str:
        """The words of its tables and the names in its code, each once, unless its sentences have them."""
        return list_words(" ".join([*self.cells, *self.code]), self.text)


def read(html: str) -> list[SearchPlace]:
    """Return the places of a page in order. Text belongs to the innermost place around it."""
    reader = _PlaceReader()
    reader.feed(html)
    reader.close()
    return reader.places


def list_words(text: str, besides: str) -> str:
    """Return each word of a text once, in order of the alphabet, without those that another text has.

    Words are one if search takes them for one (:func:`stem`). Numbers and words that nobody seeks, such as "the", are
    left out. Sorted words compress better.

    >>> list_words("The torch.compile of Gemma 2.67 H100 gemma compiled", "An H100")
    'Gemma torch.compile'
    """
    seen = {*_stems(besides), *_FUNCTION_WORDS.split()}
    kept = []
    for word in _WORD.findall(text):
        if word.lower() not in seen and not seen.issuperset(stems := _stems(word)):
            seen.update(stems)
            kept.append(word)
    return " ".join(sorted(kept, key=str.casefold))


def stem(word: str) -> str:
    """Return a word in small letters without its ending, as ``search.js`` does.

    >>> stem("sampling"), stem("samples"), stem("h2d")
    ('sampl', 'sampl', 'h2d')
    """
    if not re.fullmatch("[a-z]{4,}", word):
        return word
    return _ENDING.sub("", re.sub("is(?=(?:e|es|ed|ing|ation|ations)$)", "iz", word))


def _stems(text: str) -> list[str]:
    return [stem(part) for part in _PART.findall(text.lower())]


def _join_lines(parts: list[str]) -> str:
    return " ".join("".join(parts).split())


@dataclass
class _Element:
    """An open element, and what it says of its content."""

    tag: str
    begins: SearchPlace | None
    silent: bool
    names: bool | None
    """Whether it is part of the place's name; ``None`` as the element around it"""
    code: bool


class _PlaceReader(HTMLParser):
    """Follows the elements of the article."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.places: list[SearchPlace] = []
        self.open: list[_Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Go into an element."""
        attributes = {name: value or "" for name, value in attrs}
        classes = set(attributes.get("class", "").split())
        if not self.open and not (tag == "article" and "bd-article" in classes):
            return
        if tag not in _INLINE:
            self.handle_data(" ")
        if tag == "img" and not classes & {"only-dark", "gg-others"}:  # once, of whatever a figure has several
            self.handle_data(f" {attributes.get('alt', '')} ")
        if tag in _VOID:
            return
        anchor = attributes.get("id", "")
        begins = self._begin_place(tag, classes, anchor)
        around = self._innermost()
        if around and around.kind == CLAIM and not around.anchor and anchor.startswith("claim-"):
            around.anchor = anchor  # of a claim whose content, and not its fold, has the address
        if "gg-calculator" in classes and self.places:
            self.places[0].kind = CALCULATOR
        heading = tag in _SILENT and "gg-symptom-title" not in classes
        silent = heading or bool(classes & _SILENT_CLASSES)
        of_a_claim = self.open and self.open[-1].begins and self.open[-1].begins.kind == CLAIM
        named = classes & _NAMED_BY or (tag == "summary" and of_a_claim)
        names = True if named else False if classes & _NOT_ITS_NAME else None
        self.open.append(_Element(tag, begins, silent, names, tag == "pre"))
        if begins is not None:
            self.places.append(begins)

    def handle_endtag(self, tag: str) -> None:
        """Leave an element, and those in it that were not closed."""
        if all(element.tag != tag for element in self.open):
            return
        while self.open.pop().tag != tag:
            pass
        if tag not in _INLINE:
            self.handle_data(" ")

    def handle_data(self, data: str) -> None:
        """Give text to the innermost place around it."""
        place = self._innermost()
        if place is None or self._is_silent():
            return
        if any(element.code for element in self.open):
            place.code.update(dict.fromkeys(_CODE_WORD.findall(data)))
            return
        in_a_table = any(element.tag == "table" for element in self.open)
        (place.cells if in_a_table else place.words).append(data)
        if next((element.names for element in reversed(self.open) if element.names is not None), False):
            place.named.append(data)

    def _is_silent(self) -> bool:
        """Return whether the text says nothing; a figure speaks even where what is around it is silent."""
        for element in reversed(self.open):
            if element.silent:
                return True
            if element.begins is not None and element.begins.kind == FIGURE:
                return False
        return False

    def _innermost(self) -> SearchPlace | None:
        return next((element.begins for element in reversed(self.open) if element.begins), None)

    def _begin_place(self, tag: str, classes: set[str], anchor: str) -> SearchPlace | None:
        if tag == "section":
            return SearchPlace(SECTION, anchor if self.places else "")
        if tag == "figure" and anchor:
            return SearchPlace(FIGURE, anchor)
        if "gg-symptom" in classes:
            return SearchPlace(CHECKLIST, anchor)
        if "gg-claim" in classes:
            return SearchPlace(CLAIM, anchor)
        return None

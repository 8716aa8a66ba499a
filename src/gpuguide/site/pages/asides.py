"""The directives ``takeaway``, ``question`` and ``symptom``: what stands apart from the text of a page.

A takeaway is the sentence that a section leaves behind, a question is a stop to think, and a symptom is a checklist
for something that goes wrong. By hand, because an admonition is a box with a colour and an icon, which is too loud for
one sentence a section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.site.pages.cell_folds import ANSWER
from gpuguide.site.pages.folds import fold

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx

BOX = "in-short"
"""The address of the section that holds a page's answer"""
ARROW = "→"
"""What stands between what to look at and the remedy"""
_ITEM = re.compile(r"\d+[.)]\s+(.*)")


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("takeaway", Takeaway)
    app.add_directive("question", Question)
    app.add_directive("symptom", Symptom)
    app.add_node(symptom, html=(open_symptom, close_symptom))
    app.add_node(symptom_title, html=(open_title, close_title))
    app.connect("doctree-read", link_symptoms)


class _Aside(SphinxDirective):
    """What both share: a paragraph that says what it is."""

    has_content = True
    name_shown: str

    def parts(self) -> tuple[nodes.paragraph, list[Node]]:
        """Return the first paragraph with its name before it, and what follows."""
        self.assert_has_content()
        first, *rest = self.parse_content_to_nodes()
        if not isinstance(first, nodes.paragraph):
            raise self.error(f"The directive {self.name} begins with a sentence.")
        first.insert(0, [nodes.strong("", self.name_shown), nodes.Text(" ")])
        return first, rest


class Takeaway(_Aside):
    """``:::{takeaway}``: one sentence, at the end of a section."""

    name_shown = "Takeaway."

    def run(self) -> list[Node]:
        """Return the sentence, set apart."""
        first, rest = self.parts()
        if rest:
            raise self.error("A takeaway is one sentence; the rest belongs into the section.")
        return [nodes.container("", first, classes=["gg-takeaway"])]


class Question(_Aside):
    """``:::{question}``: a question in its first paragraph, and its answer, folded."""

    name_shown = "Question."

    def run(self) -> list[Node]:
        """Return the question, and the answer in a fold."""
        first, rest = self.parts()
        if not rest:
            raise self.error("A question needs its answer, below an empty line.")
        answer = fold("", *rest, summary=ANSWER, classes=["gg-fold", "gg-answer"])
        return [nodes.container("", first, answer, classes=["gg-question"])]


class symptom(nodes.General, nodes.Element):
    """A checklist that has an address: its title, and a numbered list."""


class symptom_title(nodes.General, nodes.TextElement):
    """The symptom, as people say it: a heading one level below that of the section around it."""


class Symptom(SphinxDirective):
    """``:::{symptom} TITLE``: what to look at, in order, each item with its remedy behind an arrow."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[Node]:
        """Return the checklist."""
        self.assert_has_content()
        parsed = self.parse_content_to_nodes()
        if len(parsed) != 1 or not isinstance(parsed[0], nodes.enumerated_list):
            raise self.error("A symptom holds one numbered list: what to look at first, and what to do about it.")
        for item in parsed[0].findall(nodes.list_item):
            if item.parent is parsed[0] and not set_remedy_apart(item):
                raise self.error(f"An item of a symptom ends in ' {ARROW} ' and a remedy: {item.astext()[:60]!r}.")
        title, messages = self.parse_inline(self.arguments[0])
        found = symptom("", symptom_title("", "", *title), *parsed, classes=["gg-symptom"])
        found["names"] = [nodes.fully_normalize_name(self.arguments[0])]
        self.set_source_info(found)
        self.state.document.set_id(found)
        found["names"] = []  # it is linked to by its address, and may be called as a section is
        return [found, *messages]


def link_symptoms(app: Sphinx, doctree: nodes.document) -> None:
    """End a page's box with links to its checklists, so that who has a problem need not read on to find them."""
    box = next((section for section in doctree.findall(nodes.section) if BOX in section["ids"]), None)
    symptoms = list(doctree.findall(symptom))
    if box is None or not symptoms:
        return
    line = nodes.paragraph("", "", nodes.strong("", "Checklists:"), classes=["gg-checklists"])
    for found in symptoms:
        link = nodes.reference("", "", internal=True, refid=found["ids"][0])
        link += [child.deepcopy() for child in found[0].children]
        line += [nodes.Text(" "), nodes.inline("", "", link)]
    box += line


def set_remedy_apart(item: nodes.list_item) -> bool:
    """Put what stands behind the last arrow of an item's first paragraph into an element of its own, if there is one.

    Returns
    -------
    bool
        Whether there is an arrow, and something on both sides of it.
    """
    first = item.children[0] if item.children else None
    if not isinstance(first, nodes.paragraph):
        return False
    place = max((at for at, child in enumerate(first.children) if f"{ARROW} " in _text_of(child)), default=-1)
    if place < 0:
        return False
    before, _, after = _text_of(first.children[place]).rpartition(f"{ARROW} ")
    looked_at = [*first.children[:place], nodes.Text(before)]
    remedy = [nodes.Text(after), *first.children[place + 1 :]]
    if not _holds_text(looked_at) or not _holds_text(remedy):
        return False
    first.children = []
    first += [*looked_at, nodes.inline("", "", nodes.Text(f"{ARROW} "), *remedy, classes=["gg-remedy"])]
    return True


def _text_of(node: nodes.Node) -> str:
    return str(node) if isinstance(node, nodes.Text) else ""


def _holds_text(found: list[Node]) -> bool:
    return any(node.astext().strip() for node in found)


def list_items_without_remedy(content: str) -> Iterator[tuple[int, str]]:
    """Yield the items of a symptom's source that have no remedy, each with its line, counted from zero."""
    for number, line in enumerate(content.splitlines()):
        item = _ITEM.match(line)
        if item:
            looked_at, arrow, remedy = item[1].rpartition(f" {ARROW} ")
            if not (looked_at.strip() and arrow and remedy.strip()):
                yield number, item[1]


def count_items(content: str) -> int:
    """Return how many numbered items the source of a symptom has."""
    return sum(bool(_ITEM.match(line)) for line in content.splitlines())


def open_symptom(translator: Any, node: symptom) -> None:
    """Write the beginning of a checklist."""
    translator.body.append(f'<div class="gg-symptom" id="{node["ids"][0]}">')


def close_symptom(translator: Any, node: symptom) -> None:
    """Write the end of a checklist."""
    translator.body.append("</div>")


def open_title(translator: Any, node: symptom_title) -> None:
    """Write the beginning of a symptom's heading, below that of its section."""
    translator.body.append(f'<h{translator.section_level + 1} class="gg-symptom-title">')


def close_title(translator: Any, node: symptom_title) -> None:
    """Write the address of a symptom, and the end of its heading."""
    level = translator.section_level + 1
    link = f'<a class="headerlink" href="#{node.parent["ids"][0]}" title="Link to this symptom">#</a>'
    translator.body.append(f"{link}</h{level}>")

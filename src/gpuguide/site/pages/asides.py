"""The directives ``takeaway`` and ``question``: the sentence that a section leaves behind, and a stop to think.

By hand, because an admonition is a box with a colour and an icon, which is too loud for one sentence a section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.site.pages.cell_folds import ANSWER
from gpuguide.site.pages.folds import fold

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("takeaway", Takeaway)
    app.add_directive("question", Question)


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

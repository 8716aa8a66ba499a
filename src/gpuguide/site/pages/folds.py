"""The directive ``folded``: text under a title, folded until a reader opens it. It needs no script.

By hand, because Sphinx's collapsible admonition is an admonition: a box with a colour and an icon, for the theme and
in notebooks, where a fold is text of the page.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("folded", Folded)
    app.add_node(fold, html=(open_fold, close_fold))
    app.add_node(fold_title, html=(open_title, close_title))


class fold(nodes.General, nodes.Element):
    """Content under a ``summary``, which is always seen: a text, or a :class:`fold_title` as the first child."""


class fold_title(nodes.General, nodes.TextElement):
    """What is always seen of a fold, where that is more than plain text."""


class Folded(SphinxDirective):
    """``:::{folded} TITLE``: show the title, and the content when it is asked for."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[Node]:
        """Return the fold with its parsed content."""
        return [fold("", *self.parse_content_to_nodes(), summary=self.arguments[0], classes=["gg-fold"])]


def open_fold(translator: Any, node: fold) -> None:
    """Write the beginning of a fold."""
    summary = f"<summary>{escape(node['summary'])}</summary>" if "summary" in node else ""
    translator.body.append(f'<details class="{" ".join(node["classes"])}">{summary}')


def close_fold(translator: Any, node: fold) -> None:
    """Write the end of a fold."""
    translator.body.append("</details>")


def open_title(translator: Any, node: fold_title) -> None:
    """Write the beginning of what is always seen."""
    translator.body.append("<summary>")


def close_title(translator: Any, node: fold_title) -> None:
    """Write the end of what is always seen."""
    translator.body.append("</summary>")

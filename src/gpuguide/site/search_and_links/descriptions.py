"""What a page is about in a sentence or two, for search engines and for those who share its address.

By hand, because sphinxext-opengraph imports matplotlib for its images in every build, also in one that changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LONGEST = 200
"""Characters"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("html-page-context", add)


def add(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Give the template the first paragraph of a page that has a source."""
    if doctree is not None:
        context["description"] = describe_page(doctree)


def describe_page(doctree: nodes.document) -> str:
    """Return the beginning of a page's first paragraph, as far as whole words go."""
    first = next(iter(doctree.findall(nodes.paragraph)), None)
    words = (first.astext() if first is not None else "").split()
    kept: list[str] = []
    for word in words:
        if len(" ".join([*kept, word])) > LONGEST:
            return f"{' '.join(kept)} …"
        kept.append(word)
    return " ".join(kept)

"""The parts of a section of the site: the tables of contents of its first page, each with its caption.

Sphinx shows captions in the sidebar alone, and no numbers; the lists of pages on the site follow the same tables, so
that a page is put into its part in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sphinx import addnodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("env-updated", show_numbers)


@dataclass(frozen=True)
class OutlinePart:
    """Pages that belong together, in the order in which they are meant to be read."""

    title: str
    """Empty where the table of contents has no caption"""
    pages: tuple[str, ...]


def parts(env: BuildEnvironment, docname: str) -> list[OutlinePart]:
    """Return the parts of a section that have any pages; none if there is no such section."""
    if docname not in env.all_docs:
        return []
    tables = env.get_doctree(docname).findall(addnodes.toctree)
    found = [OutlinePart(table["caption"] or "", tuple(map(str, table["includefiles"]))) for table in tables]
    return [part for part in found if part.pages]


def number(page: str) -> str:
    """Return the number of a tutorial.

    >>> number("tutorials/22-flash-attention")
    '22'
    """
    return page.rpartition("/")[2].partition("-")[0]


def show_numbers(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Put its number before the title of a tutorial wherever a table of contents names it, as in the sidebar."""
    for contents in env.tocs.values():
        for table in contents.findall(addnodes.toctree):
            table["entries"] = [
                (f"{number(page)} {env.titles[page].astext()}" if number(page).isdigit() else title, page)
                for title, page in table["entries"]
            ]
    return []

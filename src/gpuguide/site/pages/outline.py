"""The parts of a section of the site: the tables of contents of its first page, each with its caption.

Sphinx shows captions in the sidebar alone; the lists of pages on the site follow the same tables, so that a page is put
into its part in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sphinx import addnodes

if TYPE_CHECKING:
    from sphinx.environment import BuildEnvironment


@dataclass(frozen=True)
class OutlinePart:
    """Pages that belong together, in the order in which they are meant to be read."""

    title: str
    """Empty where the table of contents has no caption"""
    pages: tuple[str, ...]
    short_titles: Mapping[str, str]
    """What the table of contents calls a page, where that is not its title"""


def parts(env: BuildEnvironment, docname: str) -> list[OutlinePart]:
    """Return the parts of a section that have any pages; none if there is no such section."""
    if docname not in env.all_docs:
        return []
    tables = env.get_doctree(docname).findall(addnodes.toctree)
    found = [
        OutlinePart(
            table["caption"] or "",
            tuple(map(str, table["includefiles"])),
            {page: title for title, page in table["entries"] if title},
        )
        for table in tables
    ]
    return [part for part in found if part.pages]

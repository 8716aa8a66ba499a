"""The directive ``lighthouse``: what Lighthouse gave the pages when somebody last asked it (see :mod:`.lighthouse`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.site.pages.tables import Cell, table

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx

FILE = Path("docs/lighthouse.json")
"""Where the result is kept, from the root of the repository"""
CATEGORIES = {
    "performance": "speed",
    "accessibility": "accessibility",
    "best-practices": "good practice",
    "seo": "for search engines",
}
"""Lighthouse's names, and ours"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("lighthouse", LighthouseTable)


class LighthouseTable(SphinxDirective):
    """``{lighthouse}``: the scores of each page that was measured, with the day and the versions."""

    def run(self) -> list[Node]:
        """Return the table and its stamp."""
        path = Path(self.env.srcdir) / FILE
        self.env.note_dependency(str(path))
        kept = json.loads(path.read_text(encoding="utf-8"))
        header = ["page", *CATEGORIES.values(), f"{CATEGORIES['performance']} on a phone"]
        rows: list[list[Cell]] = [
            [
                nodes.literal("", page),
                *(str(scores["desktop"][category]) for category in CATEGORIES),
                str(scores["mobile"]["performance"]),
            ]
            for page, scores in kept["pages"].items()
        ]
        stamp = f"Lighthouse {kept['lighthouse']} · {kept['browser']} · {kept['date']} · median of {kept['runs']} runs"
        return [table(header, rows), nodes.paragraph("", stamp, classes=["gg-stamp"])]

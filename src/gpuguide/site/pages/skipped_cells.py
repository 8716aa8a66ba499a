"""Cells that are shown and not run, each with a line under it that says so."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.transforms import SphinxTransform

from gpuguide.site.pages import page_source

if TYPE_CHECKING:
    from sphinx.application import Sphinx

TAG = "skip-execution"
REASON = "it times the machine it runs on"
_DATED = re.compile(r".+\((\d{4}-\d{2}-\d{2})\)")


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_transform(SkippedCells)


@dataclass(frozen=True)
class SkippedCell:
    """A cell that is not run when the site is built."""

    line: int
    """The line of its fence, counted from one"""
    reason: str


def find_skipped_cells(source: str) -> Iterator[SkippedCell]:
    """Yield the cells of a page's source that are tagged not to run."""
    for cell in page_source.cells(source):
        if TAG in cell.tags:
            yield SkippedCell(cell.line, str(cell.options.get("not-run", REASON)))


def is_dated(reason: str) -> bool:
    """Return whether a reason ends with a day, in parentheses: ``it needs two GPUs (2026-01-31)``."""
    found = _DATED.fullmatch(reason.strip())
    if not found:
        return False
    try:
        datetime.date.fromisoformat(found[1])
    except ValueError:
        return False
    return True


class SkippedCells(SphinxTransform):
    """Say under each cell tagged ``skip-execution`` that it was not run, and why.

    The reason can be given in the cell's metadata as ``not-run``; for all cells of a page that is not executed,
    in its front matter as ``gpuguide: {not-run: …}``.
    """

    default_priority = 110

    def apply(self, **kwargs: Any) -> None:
        """Append the line to every such cell."""
        whole_page = self.reason_of_page()
        for cell in self.document.findall(nodes.container):
            if cell.get("nb_element") != "cell_code":
                continue
            metadata = cell.get("cell_metadata") or {}
            if whole_page or TAG in metadata.get("tags", []):
                reason = metadata.get("not-run", whole_page or REASON)
                cell += nodes.paragraph("", f"Not run here: {reason}. Run it on yours.", classes=["gg-not-run"])

    def reason_of_page(self) -> str:
        """Return why no cell of the page is run, empty if they are."""
        path = Path(self.env.doc2path(self.env.docname))
        return page_source.read(path.read_text(encoding="utf-8")).not_run if path.suffix == ".md" else ""

"""Cells that are shown and not run, each with a line under it that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

REASON = "it times the machine that it runs on, and the times of the machine that builds this site would teach nobody"


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_transform(SkippedCells)


class SkippedCells(SphinxTransform):
    """Say under each cell tagged ``skip-execution`` that it was not run, and why.

    The reason can be given in the cell's metadata as ``not-run``.
    """

    default_priority = 110

    def apply(self, **kwargs: Any) -> None:
        """Append the line to every such cell."""
        for cell in self.document.findall(nodes.container):
            metadata = cell.get("cell_metadata") or {}
            if cell.get("nb_element") == "cell_code" and "skip-execution" in metadata.get("tags", []):
                reason = metadata.get("not-run", REASON)
                cell += nodes.paragraph("", f"Not run here: {reason}. Run it on yours.", classes=["gg-not-run"])

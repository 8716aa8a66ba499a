"""The directive ``your-records``: what a reader's own records say otherwise than the published ones, and by how much.

Where there are no own records of the page's benchmarks it is nothing at all. The page is read again when some appear,
because its digest counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.measure import comparison, page_gpu, reference_gpu, store
from gpuguide.measure.records import Record
from gpuguide.site.execution import faults
from gpuguide.site.pages import page_source
from gpuguide.site.pages.tables import Cell, table

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx

HEADER = ["measured", "published", "yours", "times as fast", "range (cases)"]
LEGEND = (
    "A factor above 1 means that yours is faster. Where both have several cases, the one with the median factor is "
    "shown, and the last column has the lowest and the highest factor. "
)


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("your-records", YourRecords)


class YourRecords(SphinxDirective):
    """One table for each device of the reader's, over the benchmarks that the page declares."""

    def run(self) -> list[Node]:
        """Return the tables, or nothing."""
        page = page_source.read(Path(self.env.doc2path(self.env.docname)).read_text(encoding="utf-8"))
        shown: list[Node] = []
        with faults.report_errors(self.get_location()):
            pairs = [pair for name in page.benchmarks for pair in pair_with_published(name)]
            for device in sorted({own.device for _, own in pairs}):
                shown += compare([pair for pair in pairs if pair[1].device == device])
        return shown


def pair_with_published(benchmark: str) -> Iterator[tuple[Record, Record]]:
    """Yield each of the reader's records of a benchmark behind the published one that it is compared with.

    That is the reference GPU's, from which the page takes its numbers, and for a processor that of ours.
    """
    published = {record.device: record for record in store.load_all_published() if record.benchmark == benchmark}
    ours = next((published[device] for device in reference_gpu.slugs() if device in published), None)
    for own in store.load_mine(benchmark):
        other = published.get(own.device) if own.device == page_gpu.CPU else ours
        if other is not None and own.path != other.path:
            yield other, own


def compare(pairs: list[tuple[Record, Record]]) -> list[Node]:
    """Return what one device of the reader's differs in: a sentence, a table, and how to see every case."""
    published, own = pairs[0]
    simulated = " Yours is simulated, not measured." if any(record.simulated for _, record in pairs) else ""
    intro = f"Your {own.device_name} beside the published {published.device_name}.{simulated} {LEGEND}"
    more = [nodes.Text(intro), nodes.literal("", "gpuguide bench compare"), nodes.Text(" prints every case.")]
    rows = [row(mine, found) for published, mine in pairs for found in comparison.differences(published, mine)]
    return [nodes.paragraph("", "", *more, classes=["gg-yours"]), table(HEADER, rows, classes=["gg-yours"])]


def row(own: Record, difference: comparison.Difference) -> list[Cell]:
    """Return one row."""
    name: list[nodes.Node] = [nodes.literal("", f"{own.benchmark}/{difference.contender}")]
    if difference.case:
        name += [nodes.Text(" "), nodes.literal("", difference.case)]
    if own.stale:
        name.append(nodes.inline("", "stale", classes=["gg-stale"]))
    return [name, difference.published, difference.yours, difference.speed, difference.all_cases]

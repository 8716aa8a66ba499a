"""The directive ``cost-card``: the line under a tutorial's title, which says what the page costs its reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.measure import reference_gpu, store
from gpuguide.measure.records import Record
from gpuguide.site.execution import faults, watching
from gpuguide.site.pages import page_source, reading
from gpuguide.units import format_bytes

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("cost-card", CostCard)
    app.add_node(page_time, override=True)
    app.add_node(downloads_here, html=(open_downloads, close_downloads))
    app.connect("doctree-resolved", fill_in)


class page_time(nodes.inline):
    """Stands for the time that the page took to run, which is known only when it has been read."""


class downloads_here(nodes.General, nodes.Element):
    """Stands for the files that the page offers: their ``links`` are known when all pages have been read."""


class CostCard(SphinxDirective):
    """Minutes for the answer and for all, seconds to run, the GPU behind the numbers; folded, downloads and needs."""

    def run(self) -> list[Node]:
        """Return the line, at whose end the downloads and what measuring again takes are folded."""
        records: list[Record] = []
        source = Path(self.env.doc2path(self.env.docname)).read_text(encoding="utf-8")
        page = page_source.read(source)
        with faults.report_errors(self.get_location()):
            records = [store.load_published(name) for name in page.benchmarks]
        for record in records:
            watching.note_record(self.env, record)
        minutes = nodes.strong("", reading.measure_reading(source).describe())
        facts: list[Node] = [minutes, nodes.Text(" · "), page_time(), nodes.Text(" to run on a CPU")]
        if records:
            facts.append(nodes.Text(f" · numbers from {reference_gpu.word('name')}"))
        line = nodes.paragraph("", "", *facts, classes=["gg-facts"])
        needs = [f"{name}: {text}" for name, text in costs(page, records).items() if text != "nothing"]
        more = ". ".join(needs) + "." if needs else ""
        return [nodes.container("", line, downloads_here(needs=more), classes=["gg-cost"])]


def open_downloads(translator: Any, node: downloads_here) -> None:
    """Write the links, for which a browser saves a file and opens none."""
    links: Mapping[str, str] = node.get("links", {})
    items = [f'<li><a href="{escape(address)}" download>{escape(text)}</a></li>' for text, address in links.items()]
    if colab := node.get("colab"):
        items.append(f'<li><a href="{escape(colab)}">Open in Colab</a></li>')
    listed = f'<nav aria-label="Downloads of this tutorial"><ul>{"".join(items)}</ul></nav>' if items else ""
    needs = f'<p class="gg-needs">{escape(node["needs"])}</p>' if node["needs"] else ""
    if listed or needs:
        summary = "Download" if listed else "To measure again"
        translator.body.append(f'<details class="gg-downloads"><summary>{summary}</summary>{listed}{needs}</details>')
    raise nodes.SkipNode


def close_downloads(translator: Any, node: downloads_here) -> None:
    """Write nothing: all has been written."""


def fill_in(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the page's time, as the execution cache knows it, where it belongs."""
    for place in list(doctree.findall(page_time)):
        place.replace_self(nodes.Text(format_run_time(app.env, docname)))


def costs(page: page_source.PageSource, records: Sequence[Record]) -> dict[str, str]:
    """Return what a tutorial costs beyond the time on a CPU, by name; ``records`` are those that it declares."""
    found: dict[str, str] = {}
    if records:
        elapsed = duration(sum(run.elapsed for record in records for run in record.runs))
        found[f"On {reference_gpu.word('a short')}"] = f"{elapsed} to measure its benchmarks again"
    memory = peak_memory(records)
    if memory is not None:
        found["Peak GPU memory"] = format_bytes(memory)
    if page.extras:
        found["Extras to install"] = f"gpuguide[{','.join(page.extras)}]"
    if page.gpu_extras:
        found["Extras to measure a GPU"] = " or ".join(f"gpuguide[{extra}]" for extra in page.gpu_extras)
    found["Downloads"] = page.downloads
    return found


def format_run_time(env: BuildEnvironment, docname: str) -> str:
    """Return how long a page took when it was last executed, in words."""
    from myst_nb.sphinx_ import NbMetadataCollector

    data = NbMetadataCollector.get_exec_data(env, docname)
    seconds = data.get("runtime") if data else None
    return duration(seconds) if seconds else "no time"


def peak_memory(records: Sequence[Record]) -> float | None:
    """Return the most GPU memory that any case took, in bytes, if the records say."""
    found = [
        case.metrics["peak_memory"].summary.median
        for record in records
        for case in record.cases
        if case.status == "ok" and "peak_memory" in case.metrics
    ]
    return max(found) if found else None


def duration(seconds: float) -> str:
    """Write a time for planning: ``4 s``, ``2 min 10 s``, ``1 h 5 min``.

    >>> duration(3.6), duration(130.2), duration(3900)
    ('4 s', '2 min 10 s', '1 h 5 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"

"""What the landing page says about the site by itself: the directives ``learning-path`` and ``newest-records``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from gpuguide.measure import store
from gpuguide.site.execution import watching
from gpuguide.site.pages.tables import Cell, table
from gpuguide.site.records import status
from gpuguide.site.records.benchmark_list import declared
from gpuguide.site.records.cost_card import executed_in

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

INDEX = "tutorials/index"
"""The page whose table of contents is the path"""

logger = logging.getLogger(__name__)


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("learning-path", LearningPath)
    app.add_directive("newest-records", NewestRecords)
    app.add_node(stretch, override=True)
    app.connect("doctree-resolved", fill_in)


class stretch(nodes.General, nodes.Element):
    """Stands for a list of tutorials, which are known when all pages have been read."""


class LearningPath(SphinxDirective):
    """``{learning-path} 00 01``: the tutorials with these numbers, or all of them, in the order of the path.

    Each with its number, title, sentence and time.
    """

    optional_arguments = 99

    def run(self) -> list[Node]:
        """Return what will be replaced by the list."""
        watching.note_other_pages(self.env)
        made = stretch(numbers=self.arguments)
        self.set_source_info(made)
        return [made]


def fill_in(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the lists of tutorials where they belong."""
    for place in list(doctree.findall(stretch)):
        found = [page for page in path(app.env) if not place["numbers"] or _number(page) in place["numbers"]]
        for missing in sorted({*place["numbers"]} - {_number(page) for page in found}):
            logger.warning("No tutorial in %s begins with %s-.", INDEX, missing, location=place)
        made = nodes.bullet_list(classes=["gg-path"])
        for page in found:
            made += nodes.list_item("", *described(app, docname, page))
        place.replace_self(made if found else [])


def path(env: BuildEnvironment) -> list[str]:
    """Return the tutorials in the order in which they are meant to be read."""
    return list(env.toctree_includes.get(INDEX, []))


def described(app: Sphinx, docname: str, page: str) -> list[nodes.Node]:
    """Return a tutorial's link, its sentence, and how long it runs."""
    uri = app.builder.get_relative_uri(docname, page)
    title = nodes.reference("", app.env.titles[page].astext(), refuri=uri, internal=True)
    sentence = next(iter(app.env.get_doctree(page).findall(nodes.paragraph))).astext()
    number = nodes.inline("", f"{_number(page)} ", classes=["gg-path-number"])
    time = nodes.inline("", f" Runs in {executed_in(app.env, page)} on a CPU.", classes=["gg-path-time"])
    return [nodes.paragraph("", "", number, title), nodes.paragraph("", "", nodes.Text(sentence), time)]


def _number(page: str) -> str:
    return page.rpartition("/")[2].partition("-")[0]


class NewestRecords(SphinxDirective):
    """``{newest-records} 5``: the published records that were measured last."""

    required_arguments = 1

    def run(self) -> list[Node]:
        """Return a table."""
        watching.note_folder(self.env, store.published_folder())
        texts = declared()
        records = sorted(store.published_records(), key=lambda record: (record.benchmark, record.device))
        records.sort(key=lambda record: max(run.finished_at for run in record.runs), reverse=True)
        rows: list[list[Cell]] = []
        for record in records[: int(self.arguments[0])]:
            watching.note_record(self.env, record)
            day = nodes.inline("", status.measured_on(record).isoformat(), classes=["gg-day"])
            address = f"docs/measurements.html#record-{record.device}-{record.benchmark}"
            up = "../" * self.env.docname.count("/")
            link = nodes.reference("", texts[record.benchmark]["title"], refuri=up + address, internal=True)
            rows.append([link, record.device_name, day])
        return [table(["what", "on", "measured"], rows)]

"""What pages say about the site by itself: the lists of its pages, how long they take, and what was measured last."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from gpuguide.errors import GpuguideError
from gpuguide.measure import folders, store
from gpuguide.plotting import drawings, palette, renditions, ways_in
from gpuguide.plotting.text_boxes import view_box
from gpuguide.site.directives import status
from gpuguide.site.directives.benchmark_list import list_declarations
from gpuguide.site.directives.cost_card import format_run_time
from gpuguide.site.directives.figures import SCHEMES, WITH_OTHERS, picture
from gpuguide.site.execution import watching
from gpuguide.site.pages import outline, reading
from gpuguide.site.pages.tables import Cell, table

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx

TUTORIALS = "tutorials/index"
"""The page whose tables of contents are the path"""
GUIDE = "docs/index"
"""The page whose tables of contents name the calculators"""
TIMED = "gg-timed"
"""The class of a list whose links to pages say how long they take to read: ``{.gg-timed}`` above it"""
WAYS = {"learn": ways_in.learn, "decide": ways_in.decide, "measure": ways_in.measure}
"""The drawings of the ways in"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("learning-path", LearningPath)
    app.add_directive("pages-by-part", PagesByPart)
    app.add_directive("way-in", WayIn)
    app.add_directive("newest-records", NewestRecords)
    app.add_node(listing, override=True)
    app.connect("html-page-context", add_drawer)
    app.connect("doctree-read", note_summary, priority=900)  # when the page is as it will be kept
    app.connect("doctree-read", watch_times)
    app.connect("doctree-resolved", fill_in)
    app.connect("doctree-resolved", add_times)


# --- lists of pages ------------------------------------------------------------------------------------------


class listing(nodes.General, nodes.Element):
    """Stands for a list of pages, which are known when all have been read."""


class LearningPath(SphinxDirective):
    """``{learning-path}``: the tutorials by part, each with its first picture, title and minutes.

    With ``:whole:``, its first sentence too, and how long it runs.
    """

    option_spec: ClassVar = {"whole": directives.flag}

    def run(self) -> list[Node]:
        """Return what will be replaced by the list."""
        return [list_pages(self, TUTORIALS, whole="whole" in self.options)]


class PagesByPart(SphinxDirective):
    """``{pages-by-part}``: what the tables of contents of this page name, each page with its first sentence."""

    def run(self) -> list[Node]:
        """Return what will be replaced by the list."""
        return [list_pages(self, self.env.docname, whole=True)]


def list_pages(directive: SphinxDirective, section: str, *, whole: bool) -> listing:
    """Return what stands for the pages of a section, on a page that is written again when any of them was read."""
    watching.note_other_pages(directive.env)
    return listing(section=section, whole=whole)


def fill_in(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the lists of pages where they belong."""
    for place in list(doctree.findall(listing)):
        place.replace_self(list(list_by_part(app, docname, place["section"], whole=place["whole"])))


def list_by_part(app: Sphinx, docname: str, section: str, *, whole: bool) -> Iterator[nodes.Node]:
    """Yield a heading and a list for each part of a section that has a title, and a list for one that has none."""
    for part in outline.parts(app.env, section):
        made = nodes.bullet_list(classes=["gg-path"])
        for page in part.pages:
            short = part.short_titles.get(page, "")
            made += nodes.list_item("", *describe_page(app, docname, page, short, whole=whole))
        name = nodes.make_id(part.title)
        heading = nodes.title("", part.title)
        yield nodes.section("", heading, made, ids=[f"part-{name}"], classes=["gg-part"]) if part.title else made


def add_drawer(app: Sphinx, docname: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Give the landing page, which has no sidebar, links for the drawer of narrow windows: parts and calculators."""
    if docname != app.config.root_doc:
        return
    titles = [part.title for part in outline.parts(app.env, TUTORIALS) if part.title]
    uri = app.builder.get_relative_uri(docname, TUTORIALS)
    guide = [page for part in outline.parts(app.env, GUIDE) for page in part.pages]
    pages = [page for page in guide if app.env.metadata[page].get("gpuguide_calculators")]
    found = {
        "Parts": [(f"{uri}#part-{nodes.make_id(title)}", title) for title in titles],
        "Calculators": [(app.builder.get_relative_uri(docname, page), app.env.titles[page].astext()) for page in pages],
    }
    context["drawer"] = [(heading, links) for heading, links in found.items() if links]


def describe_page(app: Sphinx, docname: str, page: str, short_title: str, *, whole: bool) -> list[nodes.Node]:
    """Return a page's line, which leads to it; the name that people search for; and its first sentence."""
    uri = app.builder.get_relative_uri(docname, page)
    line: list[nodes.Node] = [nodes.reference("", app.env.titles[page].astext(), refuri=uri, internal=True)]
    sentence: list[nodes.Node] = [nodes.Text(app.env.metadata[page]["gpuguide_first_sentence"])]
    if page.startswith("tutorials/"):
        line += [nodes.Text(" "), time(minutes_to_read(app, page))]
        sentence += [nodes.Text(" "), time(f"Runs in {format_run_time(app.env, page)} on a CPU.")]
    name: list[nodes.Node] = [nodes.inline("", short_title, classes=["gg-path-name"])] if short_title else []
    shown = [each for each in ([line, name, sentence] if whole else [line, name]) if each]
    return [*thumbnail(app, page), *(nodes.paragraph("", "", *parts) for parts in shown)]


def thumbnail(app: Sphinx, page: str) -> list[nodes.Node]:
    """Return the first picture of a page in both schemes, in the form for phones; it says nothing that is not said."""
    images = [nodes.image("", **attributes) for attributes in app.env.metadata[page]["gpuguide_thumbnail"]]
    return [nodes.container("", *images, classes=["gg-thumbnails"])] if images else []


def find_thumbnail(doctree: nodes.document) -> list[dict[str, Any]]:
    """Return the attributes of the images of a page's first figure, one for each scheme, without another GPU."""
    for figure in doctree.findall(nodes.figure):
        drawn = [next(iter(found.findall(nodes.image))).attributes for found in figure.findall(picture)]
        chosen = [image for image in drawn if WITH_OTHERS not in image["classes"]]
        if chosen:
            return [{**image, "alt": "", "classes": [*image["classes"], "gg-thumbnail"]} for image in chosen]
    return []


def note_summary(app: Sphinx, doctree: nodes.document) -> None:
    """Note what lists show of a page, so that they need not load it: first sentence, first picture and minutes."""
    path = Path(app.env.doc2path(app.env.docname))
    noted = app.env.metadata[app.env.docname]
    noted["gpuguide_first_sentence"] = first_sentence(doctree)
    noted["gpuguide_thumbnail"] = find_thumbnail(doctree)
    with contextlib.suppress(GpuguideError):  # which is reported where it stands
        noted["gpuguide_minutes"] = reading.measure_reading(path.read_text(encoding="utf-8")).describe_briefly()


def first_sentence(doctree: nodes.document) -> str:
    """Return the first sentence of a page's first paragraph."""
    first = next(iter(doctree.findall(nodes.paragraph)), nodes.paragraph("", ""))
    sentence, stop, _ = " ".join(first.astext().split()).partition(". ")
    return sentence + stop.strip()


def time(text: str) -> nodes.inline:
    """Return how long something takes, which is not broken; what it follows may be followed by a new line."""
    return nodes.inline("", text, classes=["gg-path-time"])


# --- how long pages take ---------------------------------------------------------------------------------------


def minutes_to_read(app: Sphinx, page: str) -> str:
    """Return how many minutes a page takes to read: its answer, and all of it."""
    return str(app.env.metadata[page]["gpuguide_minutes"])


def watch_times(app: Sphinx, doctree: nodes.document) -> None:
    """Write a page again when another was read whose minutes it says."""
    if any(TIMED in made["classes"] for made in doctree.findall(nodes.bullet_list)):
        watching.note_other_pages(app.env)


def add_times(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Say behind each link to a page, in a list that asks for it, how long that page takes to read."""
    lists = [made for made in doctree.findall(nodes.bullet_list) if TIMED in made["classes"]]
    if not lists:
        return
    pages = {app.builder.get_relative_uri(docname, page): page for page in app.env.all_docs}
    for link in [link for made in lists for link in made.findall(nodes.reference)]:
        page = pages.get(link.get("refuri", ""))
        if page is not None and not outline.parts(app.env, page):  # a list of pages takes no time to read
            behind = [nodes.Text(" "), time(minutes_to_read(app, page))]
            link.parent.insert(link.parent.index(link) + 1, behind)


# --- the ways in -------------------------------------------------------------------------------------------------


class WayIn(SphinxDirective):
    """``{way-in} learn``: a drawing of :mod:`gpuguide.plotting.ways_in`, above the links that go this way."""

    required_arguments = 1

    def run(self) -> list[Node]:
        """Return the drawing in both schemes."""
        made = WAYS.get(self.arguments[0])
        if made is None:
            raise self.error(f"There is no way in {self.arguments[0]!r}; there are {', '.join(WAYS)}.")
        for module in (ways_in, drawings, palette, renditions):
            self.env.note_dependency(str(module.__file__))
        drawing = made()
        images = [self.write_image(drawing.svg[scheme], scheme, drawing.alt) for scheme in SCHEMES]
        return [nodes.container("", *images, classes=["gg-small-drawing"])]

    def write_image(self, svg: str, scheme: str, alt: str) -> nodes.image:
        """Write an SVG into the folder of the doctrees, from which the build copies it, and return the image."""
        path = Path(self.env.doctreedir) / "drawings" / f"{self.arguments[0]}-{scheme}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(svg, encoding="utf-8")
        uri = Path(os.path.relpath(path, Path(self.env.doc2path(self.env.docname)).parent)).as_posix()
        width, height = map(str, view_box(svg))
        classes = [f"only-{scheme}", "no-scaled-link"]
        return nodes.image(uri=uri, alt=alt, classes=classes, loading="lazy", width=width, height=height)


# --- what was measured last ------------------------------------------------------------------------------------


class NewestRecords(SphinxDirective):
    """``{newest-records} 5``: the published records that were measured last."""

    required_arguments = 1

    def run(self) -> list[Node]:
        """Return a table."""
        watching.note_folder(self.env, folders.published_folder())
        texts = list_declarations()
        records = sorted(store.load_all_published(), key=lambda record: (record.benchmark, record.device))
        records.sort(key=lambda record: max(run.finished_at for run in record.runs), reverse=True)
        rows: list[list[Cell]] = []
        for record in records[: int(self.arguments[0])]:
            watching.note_record(self.env, record)
            day = nodes.inline("", status.find_measurement_date(record).isoformat(), classes=["gg-day"])
            address = f"docs/measurements.html#record-{record.device}-{record.benchmark}"
            up = "../" * self.env.docname.count("/")
            link = nodes.reference("", texts[record.benchmark]["title"], refuri=up + address, internal=True)
            rows.append([link, record.device_name, day])
        return [table(["what", "on", "measured"], rows)]

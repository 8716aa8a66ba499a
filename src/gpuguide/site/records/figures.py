"""Figures and tables of results on the site: two SVGs with alt text, caption and stamp, and real tables."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.transforms import SphinxTransform

from gpuguide.plotting.figure import MIME
from gpuguide.plotting.tables import TABLE_MIME
from gpuguide.site.pages.tables import table

if TYPE_CHECKING:
    from myst_nb.core.render import MimeData, NbElementRenderer
    from sphinx.application import Sphinx


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_transform(OnlyTheFigure)


class FigureRenderer:
    """Renders the bundles of :mod:`gpuguide.plotting`; MyST-NB finds it by its entry point."""

    mime_priority_overrides = (("*", MIME, 1), ("*", TABLE_MIME, 1))

    @staticmethod
    def handle_mime(renderer: NbElementRenderer, data: MimeData, inline: bool) -> list[nodes.Element] | None:
        """Return the figure or the table, or ``None`` for any other kind of output."""
        if data.mime_type == TABLE_MIME:
            return [results(data.content)]
        if data.mime_type != MIME:
            return None

        def write(svg: str) -> str:
            content = svg.encode()
            return renderer.write_file([f"{hashlib.sha256(content).hexdigest()[:32]}.svg"], content, exists_ok=True)

        svg = data.content["svg"]
        return [figure_node({scheme: write(svg[scheme]) for scheme in SCHEMES}, data.content)]


SCHEMES = ("light", "dark")
"""In this order on every page, whatever order the execution cache keeps them in"""
VIEW_BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


def figure_node(uris: dict[str, str], content: dict[str, Any]) -> nodes.figure:
    """Return a figure of which each scheme shows its own image.

    Images are fetched when they come near the view. Their size is stated, so that the text keeps its place.
    """
    figure = nodes.figure(classes=["gg-figure"])
    for scheme, uri in uris.items():
        box = VIEW_BOX.search(content["svg"][scheme])
        size = {"width": box[1], "height": box[2]} if box else {}
        figure += nodes.image(
            uri=uri, alt=content["alt"], classes=[f"only-{scheme}", "no-scaled-link"], loading="lazy", **size
        )
    figure += nodes.caption("", content["caption"])
    legend = nodes.legend()
    for stamp in content["stamps"]:
        legend += nodes.paragraph("", stamp, classes=["gg-stamp"])
    if legend.children:
        figure += legend
    return figure


def results(content: dict[str, Any]) -> nodes.table:
    """Return the table of :func:`gpuguide.plotting.show_table`: its first column names the rows."""
    made = table(content["header"], content["rows"], classes=["gg-results"])
    for row in made.findall(nodes.row):
        for entry, right in zip(row.children, content["numeric"], strict=True):
            assert isinstance(entry, nodes.entry)
            entry["classes"] += ["gg-right"] * right
    next(iter(made.findall(nodes.colspec)))["stub"] = 1
    if content["caption"]:
        made.insert(0, nodes.title("", content["caption"]))
    return made


class OnlyTheFigure(SphinxTransform):
    """Drop what a figure or a table carries for Jupyter, which would else be copied to the site unseen."""

    default_priority = 100

    def apply(self, **kwargs: Any) -> None:
        """Keep one rendition in each output that has ours."""
        for bundle in list(self.document.findall(nodes.container)):
            if bundle.get("nb_element") != "mime_bundle":
                continue
            ours = [child for child in bundle.children if child.get("mime_type") in (MIME, TABLE_MIME)]
            if ours:
                bundle.children = ours

"""Figures on the site, each in two schemes and two widths with an address and its data, and tables of results."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from docutils import nodes
from sphinx.transforms import SphinxTransform

from gpuguide.plotting.figure import MIME
from gpuguide.plotting.tables import TABLE_MIME
from gpuguide.plotting.text_boxes import view_box
from gpuguide.site.pages.folds import fold
from gpuguide.site.pages.tables import results

if TYPE_CHECKING:
    from myst_nb.core.render import MimeData, NbElementRenderer
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment
    from sphinx.writers.html5 import HTML5Translator

SCHEMES = ("light", "dark")
"""In this order on every page, whatever order the execution cache keeps them in"""
ON_A_PHONE = "(max-width: 34rem)"
"""Up to this width of the window the narrow drawing is shown, which is made for 334 pixels and stays readable at 520"""
TABLES = "figures"
"""Folder of the site with the data of its figures"""
WIDTHS = ("-narrow", "")
ALONE, WITH_OTHERS = "gg-alone", "gg-others"
"""Classes of what is seen until a reader switches other GPUs on, and of what is seen then"""
SWITCH = '<button type="button" class="gg-others-switch pst-js-only" aria-pressed="false">Show other GPUs</button>'
"""Of all figures of the site at once, remembered by ``other-gpus.js``"""
SCRIPTS = {
    "sampling-knobs": ("calculator.js", "sampling-knobs.js"),
    "roofline": ("calculator.js", "roofline.js"),
    "batching": ("calculator.js", "batching.js"),
    "online-softmax": ("calculator.js", "online-softmax.js"),
    "rank-slider": ("calculator.js", "rank-slider.js"),
    "training-map": ("calculator.js", "training-map.js"),
    "step-limits": ("calculator.js", "step-limits.js"),
    "attention-chooser": ("calculator.js", "attention-chooser.js"),
}
"""Kinds of figures that one can try, and their scripts in the order in which they build on each other"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_node(picture, html=(visit_picture, depart_picture))
    app.add_transform(OnlyTheFigure)
    app.add_transform(AddressesOfFigures)
    app.connect("env-purge-doc", forget_tables)
    app.connect("html-page-context", add_scripts)
    app.connect("build-finished", write_tables)


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

        def write_content(content: dict[str, Any]) -> dict[str, str]:
            return {name: write(svg) for name, svg in content.get("svg", {}).items()}

        return [figure_node(write_content(data.content), data.content, write_content(data.content.get("others", {})))]


def figure_node(uris: dict[str, str], content: dict[str, Any], others: dict[str, str] | None = None) -> nodes.figure:
    """Return a figure of which each scheme and each width shows its own image.

    Images are fetched when they come near the view. Their size is stated, so that the text keeps its place. Where
    there is another GPU, ``others`` are the images with it, which stand there for readers who switch them on.
    """
    figure = nodes.figure(classes=["gg-figure"], gg_name=content["name"], gg_csv=content["csv"])
    figure["gg_others"] = bool(others)
    for scheme in SCHEMES:
        alone = [ALONE] if others else []
        figure += picture("", *(image_node(uris, content, scheme, width, alone) for width in WIDTHS))
        if others:
            figure += picture(
                "", *(image_node(others, content["others"], scheme, width, [WITH_OTHERS]) for width in WIDTHS)
            )
    figure += interactive_nodes(content["interactive"])
    figure += caption_node(content["caption"])
    legend = nodes.legend()
    legend += [stamp_node(stamp) for stamp in content["stamps"]]
    legend += [stamp_node(stamp, WITH_OTHERS) for stamp in content.get("others", {}).get("stamps", [])]
    figure += legend
    return figure


def stamp_node(stamp: str, *classes: str) -> fold:
    """Return a stamp of which the device and the day are seen, and the versions and counts when they are asked for."""
    device, *versions = stamp.split(" · ")
    day = next((each for each in versions if DAY.fullmatch(each)), "")
    summary = " · ".join(filter(None, (device, day)))
    return fold("", nodes.paragraph("", stamp), summary=summary, classes=["gg-stamp", *classes])


def image_node(
    uris: dict[str, str], content: dict[str, Any], scheme: str, width: str, more: Sequence[str] = ()
) -> nodes.image:
    """Return one image of a figure."""
    across, down = view_box(content["svg"][scheme + width])
    classes = [f"only-{scheme}", "no-scaled-link", *more]
    size = {"width": str(across), "height": str(down)}
    return nodes.image(uri=uris[scheme + width], alt=content["alt"], classes=classes, loading="lazy", **size)


DAY = re.compile(r"\d{4}-\d\d-\d\d")
FIRST_SENTENCE = re.compile(r"(.+?(?<!\b[A-Z])(?<![. ])[.?!])(?= [A-Z\d])(.*)", re.DOTALL)
"""Ends before a capital or a number, but not behind an initial"""


def caption_node(text: str) -> nodes.caption:
    """Return a caption whose first sentence is marked as the figure's title."""
    found = FIRST_SENTENCE.match(text)
    title, rest = (found[1], found[2]) if found else (text, "")
    return nodes.caption("", "", nodes.inline("", title, classes=["gg-figure-title"]), nodes.Text(rest))


def interactive_nodes(interactive: dict[str, Any]) -> list[nodes.Node]:
    """Return the place that a script fills where a figure can be tried, and the data for it."""
    if not interactive:
        return []
    data = json.dumps(interactive, ensure_ascii=False, separators=(",", ":"), sort_keys=True).replace("</", "<\\/")
    kind = interactive["kind"]
    place = f'<div class="gg-try pst-js-only" data-kind="{kind}"><script type="application/json">{data}</script></div>'
    return [nodes.raw("", place, format="html", gg_interactive=kind)]


# --- two widths ------------------------------------------------------------------------------------------


class picture(nodes.General, nodes.Element):
    """An image for a phone, and after it one for wider windows."""


def visit_picture(translator: HTML5Translator, node: picture) -> None:
    """Write the two as one ``<picture>``, from which a browser fetches the one that fits."""
    narrow, wide = node.children
    assert isinstance(narrow, nodes.image)
    name = quote(translator.builder.images[narrow["uri"]])
    address = posixpath.join(translator.builder.imgpath, name)
    size = " ".join(f'{side}="{round(float(narrow[side]))}"' for side in ("width", "height"))
    translator.body.append(f'<picture><source media="{ON_A_PHONE}" srcset="{address}" {size}>')
    wide.walkabout(translator)
    translator.body.append("</picture>\n")
    raise nodes.SkipNode


def depart_picture(translator: HTML5Translator, node: picture) -> None:
    """Do nothing: the visit wrote everything."""


# --- addresses and data ----------------------------------------------------------------------------------


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


class AddressesOfFigures(SphinxTransform):
    """Give each figure an address that stays: its name or its section's. Under the caption it links to itself."""

    default_priority = 205  # before Sphinx numbers those that have none

    def apply(self, **kwargs: Any) -> None:
        """Name the figures of a page in their order, and add the links."""
        taken = set(self.document.ids)
        for figure in self.document.findall(nodes.figure):
            if "gg_csv" not in figure:
                continue
            wanted = f"fig-{figure['gg_name'] or section_of(figure)}"
            address = next(each for each in number_names(wanted) if each not in taken)
            taken.add(address)
            figure["ids"] = [address]
            self.document.ids[address] = figure
            self.add_links(figure, address)

    def add_links(self, figure: nodes.figure, address: str) -> None:
        """Let a figure end with a link to itself and, if it has any, to its data."""
        links: list[nodes.Node] = link("Link", f"#{address}", figure)
        if figure["gg_csv"]:
            docname = self.env.docname
            table = f"{TABLES}/{docname.rpartition('/')[2]}/{address}.csv"
            tables_of(self.env).setdefault(docname, {})[table] = figure["gg_csv"]
            links += [nodes.Text(" · "), *link("CSV", "../" * docname.count("/") + table, figure)]
        if figure["gg_others"]:
            links += [nodes.raw("", " " + SWITCH, format="html")]
        legend = next(figure.findall(nodes.legend))
        legend += nodes.paragraph("", "", *links, classes=["gg-figure-links"])
        del figure["gg_csv"], figure["gg_name"], figure["gg_others"]


def link(words: str, uri: str, figure: nodes.figure) -> list[nodes.Node]:
    """Return a link whose text tells those who hear only the links of a page which figure it is of."""
    title = next(node.astext() for node in figure.findall(nodes.inline) if "gg-figure-title" in node["classes"])
    heard = nodes.inline("", f": {title}", classes=["visually-hidden"])
    return [nodes.reference("", "", nodes.Text(words), heard, refuri=uri, internal=True)]


def section_of(figure: nodes.figure) -> str:
    """Return the address of the section that a figure is in."""
    node: nodes.Node | None = figure
    while node is not None and not isinstance(node, nodes.section):
        node = node.parent
    return nodes.make_id(node["names"][0]) if node is not None and node["names"] else "page"


def number_names(name: str) -> Any:
    """Return the name, then the name with a number from 2 on."""
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def tables_of(env: BuildEnvironment) -> dict[str, dict[str, str]]:
    """Return the data of all figures: of each page, the files' addresses on the site and what they hold."""
    found: dict[str, dict[str, str]] = env.__dict__.setdefault("gpuguide_figure_tables", {})
    return found


def forget_tables(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Forget the data of a page that is read again."""
    tables_of(env).pop(docname, None)


def write_tables(app: Sphinx, exception: Exception | None) -> None:
    """Write the data of the figures, and remove what no figure has any more."""
    if exception is not None or app.builder.format != "html":
        return
    wanted = {Path(app.outdir) / name: text for page in tables_of(app.env).values() for name, text in page.items()}
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for folder in (Path(app.outdir) / TABLES).glob("*"):
        if not any(path.parent == folder for path in wanted):
            shutil.rmtree(folder)
            continue
        for path in set(folder.iterdir()) - wanted.keys():
            path.unlink()


def add_scripts(app: Sphinx, docname: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Load the scripts of figures on the pages that have one, and on no other."""
    if doctree is None:
        return
    if any(WITH_OTHERS in image["classes"] for image in doctree.findall(nodes.image)):
        app.add_js_file("other-gpus.js", loading_method="defer")
    kinds = [node["gg_interactive"] for node in doctree.findall(nodes.raw) if "gg_interactive" in node]
    for script in dict.fromkeys(name for kind in kinds for name in SCRIPTS[kind]):
        app.add_js_file(script, loading_method="defer")

"""The GPU of each page: the one that its front matter names, or the default.

It is known before any page is read. While Sphinx reads a page, and again while it writes one, whatever asks for the
reference GPU is answered with that page's (:mod:`gpuguide.measure.page_gpu`); in between, with the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.errors import SphinxError

from gpuguide.claims import pages
from gpuguide.errors import GpuguideError
from gpuguide.measure import folders, page_gpu, reference_gpu
from gpuguide.site.execution import faults, watching
from gpuguide.site.execution.faults import error_location
from gpuguide.site.pages import page_source

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

PLACE = "The page"
ASK_FOR_A_GPU = {"will-it-fit", "what-is-the-limit", "memory-levers"}
"""The calculators whose address may name a GPU"""
FIRST = 1
"""The priority of what runs before all other parts"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("builder-inited", begin, priority=FIRST)
    app.connect("env-get-outdated", check_topics)  # when the GPU of each page is known
    app.connect("source-read", begin_reading, priority=FIRST)
    app.connect("doctree-read", check_glue)
    app.connect("env-updated", end_reading, priority=FIRST)
    app.connect("doctree-resolved", begin_resolving, priority=FIRST)
    app.connect("doctree-resolved", link_calculators)
    app.connect("html-page-context", begin_writing, priority=FIRST)
    app.connect("build-finished", end_writing, priority=FIRST)


def begin(app: Sphinx) -> None:
    """Let the front matter alone name GPUs, and check that the reader's own records are where they are said to be."""
    os.environ.pop(page_gpu.VARIABLE, None)
    page_gpu.set_current_gpu("", PLACE)
    try:
        folders.overlay_folder()
    except GpuguideError as error:
        raise SphinxError(str(error)) from error


def note(env: BuildEnvironment, gpus: dict[str, str]) -> None:
    """Remember the GPUs that pages name, by page."""
    vars(env)["gpuguide_gpus"] = gpus


def get_gpu(env: BuildEnvironment, docname: str) -> str:
    """Return the GPU that a page names; empty for the default."""
    gpus: Mapping[str, str] = vars(env).get("gpuguide_gpus", {})
    return gpus.get(docname, "")


def use_gpu_of(page: page_source.PageSource) -> AbstractContextManager[None]:
    """Return a context in which the reference GPU is that of the page."""
    return page_gpu.use_current_gpu(page.gpu, PLACE)


def check_named(path: Path, source: str, page: page_source.PageSource) -> None:
    """Raise, with file and line, if a page names a GPU without published records."""
    if page.gpu:
        with error_location(f"{path}:{page_source.front_line(source, 'gpu')}"), use_gpu_of(page):
            reference_gpu.check_records()


def check_topics(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Stop the build if pages of one topic speak of different GPUs."""
    try:
        pages.gpus_of_topics()
    except GpuguideError as error:
        raise SphinxError(str(error)) from error
    return []


# --- while Sphinx is at work -------------------------------------------------------------------------------


def begin_reading(app: Sphinx, docname: str, source: list[str]) -> None:
    """Speak of the page's GPU while it is read."""
    page_gpu.set_current_gpu(get_gpu(app.env, docname), PLACE)


def end_reading(app: Sphinx, env: BuildEnvironment) -> None:
    """Speak of the default when all pages have been read."""
    page_gpu.set_current_gpu("", PLACE)


def begin_resolving(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Speak of the page's GPU while its references are resolved and its downloads are written."""
    page_gpu.set_current_gpu(get_gpu(app.env, docname), PLACE)


def begin_writing(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Speak of the page's GPU while it is written."""
    page_gpu.set_current_gpu(get_gpu(app.env, pagename), PLACE)


def end_writing(app: Sphinx, error: Exception | None) -> None:
    """Speak of the default when all pages are written."""
    page_gpu.set_current_gpu("", PLACE)


# --- what leads from page to page ---------------------------------------------------------------------------


def check_glue(app: Sphinx, doctree: nodes.document) -> None:
    """Report each number glued on another page that speaks of another GPU than this one."""
    from myst_nb.ext.glue.utils import PendingGlueReference

    for node in doctree.findall(PendingGlueReference):
        watching.note_gpus(app.env)
        other = get_gpu(app.env, node.refdoc) or reference_gpu.default_slug()
        with faults.report_errors(node):
            if other != reference_gpu.slug():
                raise GpuguideError(
                    f"{node.key!r} is glued on the page {node.refdoc}, which speaks of {other}, and this page speaks "
                    f"of {reference_gpu.slug()}: a page never mixes two GPUs. Leave the number out, or name one "
                    "GPU on both pages."
                )


def link_calculators(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Let the links of a page that names a GPU open the calculators with that GPU chosen."""
    if not get_gpu(app.env, docname):
        return
    asking = {
        app.builder.get_relative_uri(docname, page)
        for page, known in app.env.metadata.items()
        if ASK_FOR_A_GPU & set(known.get("gpuguide_calculators", "").split())
    }
    for link in doctree.findall(nodes.reference):
        address, mark, place = link.get("refuri", "").partition("#")
        if address in asking:
            link["refuri"] = f"{address}?gpu={reference_gpu.sheet().id}{mark}{place}"

"""Where a page belongs: the header's sections, the line above a page's title, and the part that gives its colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes

from gpuguide.site.directives.landing import GUIDE, TUTORIALS
from gpuguide.site.pages import outline

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

CALCULATORS = "Calculators"
"""The part of the guide that is a section of the header by itself"""
SECTIONS = {
    "Tutorials": TUTORIALS,
    CALCULATORS: f"{GUIDE}#part-calculators",
    "Hardware": "docs/hardware",
    "Claims": "docs/claims",
    "Reference": GUIDE,
}
"""What the header leads to"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("env-updated", note_parts)
    app.connect("html-page-context", add_places)


def note_parts(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Note once for all pages, before they are written, in which part of a section each is listed."""
    listed = {
        page: part.title for index in (TUTORIALS, GUIDE) for part in outline.parts(env, index) for page in part.pages
    }
    vars(app)["gpuguide_parts"] = listed
    return []


def add_places(app: Sphinx, docname: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Give a page's template its ``part``, its ``places`` and the ``header_sections``, each with its address."""
    part = vars(app)["gpuguide_parts"].get(docname, "")
    here = section_of(app.env, docname, part)
    context["header_sections"] = [
        (app.builder.get_relative_uri(docname, page) + mark + anchor, title, title == here)
        for title, (page, mark, anchor) in sections_there_are(app.env).items()
    ]
    context["part"] = part.split()[-1].lower() if part and docname.startswith("tutorials/") else ""
    context["places"] = [
        (address_of(app, docname, target), title) for title, target in places_of(app.env, docname, here, part)
    ]


def sections_there_are(env: BuildEnvironment) -> dict[str, tuple[str, str, str]]:
    """Return the page, ``#`` and anchor of each section whose page the site has, by title."""
    parted = {title: target.partition("#") for title, target in SECTIONS.items()}
    return {title: parts for title, parts in parted.items() if parts[0] in env.all_docs}


def section_of(env: BuildEnvironment, docname: str, part: str) -> str:
    """Return the section of the header to which a page belongs, or nothing for the landing page and the search."""
    if part == CALCULATORS:
        return CALCULATORS
    exact = next((title for title, target in SECTIONS.items() if target == docname), "")
    if exact or docname not in env.all_docs:
        return exact
    return {"tutorials": "Tutorials", "docs": "Reference"}.get(docname.partition("/")[0], "")


def places_of(env: BuildEnvironment, docname: str, section: str, part: str) -> list[tuple[str, str]]:
    """Return what stands above a page's title, from the outermost, each with its target: its section and its part."""
    found = [(section, SECTIONS[section])] if section and SECTIONS[section] != docname else []
    if part and part != section:
        index = TUTORIALS if section == "Tutorials" else GUIDE
        found.append((part, f"{index}#part-{nodes.make_id(part)}"))
    if docname.startswith("docs/api/") and docname != "docs/api/index":
        found.append(("API", "docs/api/index"))
    return [(title, target) for title, target in found if target.partition("#")[0] in env.all_docs]


def address_of(app: Sphinx, docname: str, target: str) -> str:
    """Return the address of a page, and of a place on it, as seen from another."""
    page, mark, anchor = target.partition("#")
    return app.builder.get_relative_uri(docname, page) + mark + anchor

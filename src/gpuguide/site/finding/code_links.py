"""Which names of the library the cells of each page use, and lines in the API reference that say so.

sphinx-codeautolink resolves the names in code and links them to the reference. It forgets the pages that a build does
not read: its cache looks for sources that end in ``.rst``. And it links only in pages whose own text has changed. So
what it found is kept here, and it is told which pages were written. To resolve names it imports what they belong to,
PyTorch among others; a build that reads no page does without, unless it writes one with code.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx import addnodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

TUTORIALS = "tutorials/"


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("env-purge-doc", forget)
    app.connect("env-updated", keep, priority=400)  # before sphinx-codeautolink drops what it cannot resolve
    app.connect("env-updated", note_uses, priority=600)  # when it has resolved the rest
    app.connect("doctree-resolved", say_where_used)
    app.connect("html-page-context", note_written)
    app.connect("build-finished", link_in_what_was_written, priority=400)


# --- what sphinx-codeautolink found ------------------------------------------------------------------------


def keep(app: Sphinx, env: BuildEnvironment) -> None:
    """Keep what was found on the pages that were read, and give back what was found on the others before."""
    found: dict[str, list[Any]] | None = vars(env).get("sphinx_codeautolink_transforms")
    if found is None:  # the extension is not used, or this builder writes no HTML
        return
    kept: dict[str, list[Any]] = vars(env).setdefault("gpuguide_code", {})
    if kept and not found and not vars(app).get("gpuguide_forgotten"):
        extension(app).do_nothing = True
    kept.update(copy.deepcopy(found))
    for docname, blocks in kept.items():
        found.setdefault(docname, copy.deepcopy(blocks))


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what was found on a page, before it is read again or because it is gone."""
    if vars(env).get("gpuguide_code", {}).pop(docname, None) is not None:
        vars(app)["gpuguide_forgotten"] = True


def note_written(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Remember that a page was written."""
    vars(app).setdefault("gpuguide_written", set()).add(pagename)


def link_in_what_was_written(app: Sphinx, exception: Exception | None) -> None:
    """Have the names linked in the code of every page that this build wrote, and of no other."""
    written: set[str] = vars(app).get("gpuguide_written", set())
    links = extension(app)
    if links is None:
        return
    links.outdated_docs = written
    if links.do_nothing and exception is None and written & vars(app.env).get("gpuguide_code", {}).keys():
        links.do_nothing = False
        links.create_references(app, app.env)


def extension(app: Sphinx) -> Any:
    """Return sphinx-codeautolink's object, or None if it is not used."""
    for listener in app.events.listeners.get("build-finished", ()):
        found = getattr(listener.handler, "__self__", None)
        if type(found).__name__ == "SphinxCodeAutoLink":
            return found
    return None


# --- where a name is used ----------------------------------------------------------------------------------


def note_uses(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Note which tutorials use each name, and return the pages whose lines about it have changed."""
    links = extension(app)
    if links is None or links.do_nothing:
        return []
    uses: dict[str, dict[str, str]] = {}
    for docname, blocks in sorted(vars(env).get("sphinx_codeautolink_transforms", {}).items()):
        if docname.startswith(TUTORIALS):
            for block in blocks:
                for name in block.names:
                    # The first use, with the section it stands in.
                    uses.setdefault(name.resolved_location, {}).setdefault(docname, block.example.ref_id or "")
    before: dict[str, dict[str, str]] = vars(env).get("gpuguide_uses", {})
    vars(env)["gpuguide_uses"] = uses
    changed = {name for name in {*uses, *before} if uses.get(name) != before.get(name)}
    objects = env.domains.python_domain.objects
    return sorted({objects[name].docname for name in changed if name in objects})


def say_where_used(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Add a line to the description of every name that a tutorial uses, and one for all of them below the title."""
    uses: dict[str, dict[str, str]] = vars(app.env).get("gpuguide_uses", {})
    described = list(doctree.findall(addnodes.desc))
    everywhere: dict[str, str] = {}
    for description in described:
        signature = description[0]
        for name in signature["ids"] if isinstance(signature, nodes.Element) else []:
            if places := uses.get(name):
                description[-1].append(line(app, docname, "Used in ", places))
                everywhere.update(dict.fromkeys(places, ""))
    first = next(iter(doctree.findall(nodes.paragraph)), None)
    if described and first is not None:
        below = first.parent.index(first) + 1
        shown = line(app, docname, "Tutorials that use what is here: ", everywhere)
        first.parent.insert(below, shown if everywhere else nothing())


def line(app: Sphinx, docname: str, text: str, places: dict[str, str]) -> nodes.paragraph:
    """Return a line with a link to each tutorial, at the section of the first use where it is given."""
    made = nodes.paragraph("", text, classes=["gg-used-in"])
    for position, (page, anchor) in enumerate(sorted(places.items())):
        uri = app.builder.get_relative_uri(docname, page) + (f"#{anchor}" if anchor else "")
        made += nodes.Text(", " if position else "")
        made += nodes.reference("", app.env.titles[page].astext(), refuri=uri, internal=True)
    return made


def nothing() -> nodes.paragraph:
    """Return the line of a page of which no tutorial uses anything."""
    return nodes.paragraph("", "No tutorial uses a name of this page in its cells.", classes=["gg-used-in"])

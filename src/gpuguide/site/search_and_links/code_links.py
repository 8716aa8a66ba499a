"""Names of the library in code lead to the API reference, which says in turn which tutorials use each name.

By hand, because sphinx-codeautolink imports what it links, parses every page that it has written once more, and loses
all links when pages are written in parallel. Here a block of code is given the names that it uses when its page is
read, and its links when it is written, by whichever process does that.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx import addnodes
from sphinx.writers.html5 import HTML5Translator

from gpuguide.measure.digest import remembered
from gpuguide.site.search_and_links.code_names import Reader, Use, definition

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

TUTORIALS = "tutorials/"
PYTHON = ("python", "ipython3", None)
"""Languages of blocks that are looked at; an example in a docstring states none"""
UNSAID = frozenset({"here"})
"""Names that as the text of a link do not say where it leads"""

_PROMPT = re.compile(r"(>>> |\.\.\. )")
_MAGIC = re.compile(r"^%.*", re.MULTILINE)
_PIECE = re.compile(r"<span[^>]*>([^<]+)</span>|([^<]+)|<[^>]*>")


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_node(nodes.literal_block, override=True, html=(write_block, HTML5Translator.depart_literal_block))
    app.connect("doctree-read", note_names)
    app.connect("env-purge-doc", forget)
    app.connect("env-updated", note_uses)
    app.connect("doctree-resolved", say_where_used)


# --- names in code -----------------------------------------------------------------------------------------


def note_names(app: Sphinx, doctree: nodes.document) -> None:
    """Give every block of a page the names that it uses, and note in which section the page uses each first."""
    reader, places = Reader(), _first_places(app.env).setdefault(app.env.docname, {})
    for block in code_blocks(doctree):
        block["code_names"] = list(names_in(block.astext(), reader))
        for use in block["code_names"]:
            places.setdefault(use.name, _section(block))


def code_blocks(doctree: nodes.document) -> Iterator[nodes.Element]:
    """Yield the blocks of a page that may hold Python, examples in docstrings included."""
    for block in doctree.findall(nodes.FixedTextElement):
        if isinstance(block, (nodes.literal_block, nodes.doctest_block)) and block.get("language") in PYTHON:
            yield block


def names_in(source: str, reader: Reader) -> Iterable[Use]:
    """Return what a block uses, given all that stands above it: code, or an example with prompts."""
    if not source.startswith(">>> "):
        return reader.read(_MAGIC.sub("", source))
    code = (line[4:] if _PROMPT.match(line) else "" for line in source.split("\n"))
    return [Use(use.line, use.start + 4, use.end + 4, use.name) for use in reader.read("\n".join(code))]


def _section(node: nodes.Node) -> str:
    while node.parent is not None and not isinstance(node, nodes.section):
        node = node.parent
    return str(node["ids"][0]) if isinstance(node, nodes.section) else ""


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what a page uses, before it is read again or because it is gone."""
    _first_places(env).pop(docname, None)


def _first_places(env: BuildEnvironment) -> dict[str, dict[str, str]]:
    """Return page to name to the section where the page uses that name first."""
    found: dict[str, dict[str, str]] = vars(env).setdefault("gpuguide_code_names", {})
    return found


def write_block(translator: Any, node: nodes.Element) -> None:
    """Write a block as Sphinx does, with links to what the API reference describes."""
    try:
        HTML5Translator.visit_literal_block(translator, node)
    except nodes.SkipNode:
        builder = translator.builder
        places: dict[str, tuple[str, str]] = vars(builder.env)["gpuguide_uses"][1]
        addresses = {}
        for use in node.get("code_names", ()):
            if use.name in places and use.name.rpartition(".")[2] not in UNSAID:
                page, anchor = places[use.name]
                addresses[use] = f"{builder.get_relative_uri(builder.current_docname, page)}#{anchor}"
        if addresses:
            translator.body[-1] = add_links(translator.body[-1], addresses)
        raise


def add_links(block: str, addresses: Mapping[Use, str]) -> str:
    """Return a highlighted block with links; of names that begin at one place, as ``a`` and ``a.b``, the longest."""
    longest = {(use.line, use.start): use for use in sorted(addresses, key=lambda use: use.end)}
    head, pre, code = block.partition("<pre>")
    written, line, column, end = [head, pre], 1, 0, 0
    for piece in _PIECE.finditer(code):
        text = html.unescape(piece[1] or piece[2] or "")
        use = longest.get((line, column))
        if text and use and not end:
            written.append(f'<a class="gg-code-link" href="{addresses[use]}" title="{use.name}">')
            end = use.end
        written.append(piece[0])
        line += text.count("\n")
        column = len(text.rpartition("\n")[2]) + (0 if "\n" in text else column)
        if end and (column >= end or "\n" in text):
            written.append("</a>")
            end = 0
    return "".join(written)


# --- where a name is used ----------------------------------------------------------------------------------


def note_uses(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Note where each name is used, and where described; return the pages that say or link something else now."""
    uses: dict[str, dict[str, str]] = {}
    for docname, sections in sorted(_first_places(env).items()):
        for name, section in sections.items():
            uses.setdefault(name, {})[docname] = section
    described = where_described(env)
    places = {name: described[name] for name in uses if name in described}
    uses_before, places_before = vars(env).get("gpuguide_uses", ({}, {}))
    vars(env)["gpuguide_uses"] = uses, places
    says_else = [places[name][0] for name in _find_differences(uses_before, uses) if name in places]
    links_else = [page for name in _find_differences(places_before, places) for page in uses.get(name, ())]
    return sorted({*says_else, *links_else})


def where_described(env: BuildEnvironment) -> dict[str, tuple[str, str]]:
    """Return the page and anchor of each description, by the name under which the thing is defined.

    The API reference may describe it as a package passes it on: ``gpuguide.logits.softmax``.
    """
    described = env.domains.python_domain.objects
    found = {_describe_definition(name): (entry.docname, entry.node_id) for name, entry in described.items()}
    return {**found, **{name: (entry.docname, entry.node_id) for name, entry in described.items()}}


def _describe_definition(name: str) -> str:
    def find() -> str:
        found = definition(name)
        return found.name if found else name

    return str(remembered.answer(f"definition of {name}", find))


def _find_differences(before: Mapping[str, object], now: Mapping[str, object]) -> set[str]:
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def say_where_used(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Add a line to the description of every name that a tutorial uses, and one for all of them below the title."""
    uses: dict[str, dict[str, str]] = vars(app.env)["gpuguide_uses"][0]
    described = list(doctree.findall(addnodes.desc))
    everywhere: dict[str, str] = {}
    for description in described:
        signature = description[0]
        for name in signature["ids"] if isinstance(signature, nodes.Element) else []:
            places = {
                page: section
                for page, section in uses.get(_describe_definition(name), {}).items()
                if page.startswith(TUTORIALS)
            }
            if places:
                description[-1].append(line(app, docname, "Used in ", places))
                everywhere.update(dict.fromkeys(places, ""))
    first = next(iter(doctree.findall(nodes.paragraph)), None)
    if described and first is not None:
        below = first.parent.index(first) + 1
        shown = line(app, docname, "Tutorials that use what is here: ", everywhere)
        first.parent.insert(below, shown if everywhere else line_of_unused_page())


def line(app: Sphinx, docname: str, text: str, places: Mapping[str, str]) -> nodes.paragraph:
    """Return a line with a link to each tutorial, at the section of the first use where it is given."""
    made = nodes.paragraph("", text, classes=["gg-used-in"])
    for position, (page, anchor) in enumerate(sorted(places.items())):
        uri = app.builder.get_relative_uri(docname, page) + (f"#{anchor}" if anchor else "")
        made += nodes.Text(", " if position else "")
        made += nodes.reference("", app.env.titles[page].astext(), refuri=uri, internal=True)
    return made


def line_of_unused_page() -> nodes.paragraph:
    """Return the line of a page of which no tutorial uses anything."""
    return nodes.paragraph("", "No tutorial uses a name of this page in its cells.", classes=["gg-used-in"])

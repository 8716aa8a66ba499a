"""The first use of a glossary term on a page leads to the glossary.

A term is found in running text as it stands there, in the plural too; a capital inside it must be a capital in the
text. A term with its field in parentheses, as ``event (CUDA)``, is a word of everyday language as well: it is looked
for only on pages that also name the field. Headings, code, links, formulas, figures and folds stay as they are.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes

from gpuguide.site.directives import numbers
from gpuguide.site.pages import folds

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

PAGE = "docs/glossary"
NOT_ON = (PAGE, "docs/api/", "docs/status", "docs/measurements", "docs/claims")
"""Pages, or folders of pages, that are looked up and not read"""
_LEFT_ALONE = (
    nodes.title,
    nodes.literal,
    nodes.literal_block,
    nodes.reference,
    nodes.math,
    nodes.math_block,
    nodes.figure,
    nodes.abbreviation,
    nodes.table,
    nodes.Invisible,
    addnodes.desc,
    addnodes.toctree,
    folds.fold,
    numbers.number,
)
_NO_TEXT = {"gg-cost", "gg-claim", "gg-path", "output", "cell_output", "cell_input", "gg-not-run", "gg-no-terms"}
"""Classes of what is not running text"""


@dataclass(frozen=True)
class Term:
    """One entry of the glossary."""

    id: str
    names: tuple[str, ...]
    """What it is called, the first name being the usual one"""
    field: str
    """The word that must stand on a page too, or nothing"""
    definition: str
    """Its first sentence"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("env-get-outdated", again_if_changed)
    app.connect("env-updated", note_terms)
    app.connect("doctree-resolved", link, priority=700)  # before a notebook is made of the page
    app.connect("doctree-resolved", add_letters)


# --- the terms -------------------------------------------------------------------------------------------


def terms(env: BuildEnvironment) -> list[Term]:
    """Return the terms of the site's glossary, none if it has no such page."""
    if PAGE not in env.all_docs:
        return []
    return list(terms_of(env.get_doctree(PAGE)))


def terms_of(doctree: nodes.document) -> Iterator[Term]:
    """Yield what the glossaries of a page define."""
    for glossary in doctree.findall(addnodes.glossary):
        for item in glossary.findall(nodes.definition_list_item):
            heads = [child for child in item.children if isinstance(child, nodes.term)]
            definition = next(iter(item.findall(nodes.definition)))
            named = [re.fullmatch(r"(.*?)(?: \((.*)\))?", head.astext().strip()) for head in heads]
            found = [(match[1], match[2] or "") for match in named if match]
            text = " ".join(definition[0].astext().split())
            yield Term(heads[0]["ids"][0], tuple(name for name, _ in found), found[0][1], first_sentence(text))


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop that ends a sentence.

    >>> first_sentence("e.g. 1.5 is one. And more.")
    'e.g. 1.5 is one.'
    """
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", text, maxsplit=1)[0]


def again_if_changed(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Read every page again whose text may hold a term, if the glossary has another text than at the last build."""
    if PAGE not in env.found_docs:
        return []
    now = hashlib.sha256(env.doc2path(PAGE).read_bytes()).hexdigest()
    before = vars(env).get("gpuguide_glossary")
    vars(env)["gpuguide_glossary"] = now
    return [] if before in (None, now) else [docname for docname in env.found_docs if _is_read(docname)]


def note_terms(app: Sphinx, env: BuildEnvironment) -> None:
    """Read the glossary once, when all pages have been read."""
    vars(app)["gpuguide_terms"] = terms(env)


def add_letters(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put links to the first term of each letter before the glossary, which is long."""
    if docname != PAGE:
        return
    for glossary in list(doctree.findall(addnodes.glossary)):
        terms = [term for term in glossary.findall(nodes.term) if term["ids"]]
        firsts: dict[str, str] = {}
        for term in terms:
            firsts.setdefault(term.astext()[:1].upper(), term["ids"][0])
        letters = nodes.paragraph(classes=["gg-letters"])
        for letter in sorted(firsts):
            letters += [nodes.reference("", letter, refid=firsts[letter], internal=True), nodes.Text(" ")]
        glossary.parent.insert(glossary.parent.index(glossary), letters)


# --- the links -------------------------------------------------------------------------------------------


def link(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make the first use of each term on a page a link."""
    if app.builder.format != "html" or not _is_read(docname):
        return
    if found := vars(app)["gpuguide_terms"]:
        add_links(doctree, found, app.builder.get_relative_uri(docname, PAGE))


def add_links(doctree: nodes.document, found: Sequence[Term], uri: str) -> None:
    """Put links to the glossary at ``uri`` into a page, one a term.

    Parameters
    ----------
    doctree : nodes.document
        The page. It is changed.
    found : sequence of Term
        What to look for.
    uri : str
        The address of the glossary from this page.
    """
    texts = list(running_text(doctree))
    whole = " ".join(text.astext() for text in texts).casefold()
    by_name = {name: term for term in found if term.field.casefold() in whole for name in term.names}
    if not by_name:
        return
    words, linked = pattern(tuple(by_name)), set[str]()
    for text in texts:
        pieces, end = [], 0
        for match in words.finditer(text):
            term = next(by_name[name] for name in by_name if _is_form_of(match[0], name))
            if term.id not in linked:
                linked.add(term.id)
                pieces += [nodes.Text(text[end : match.start()]), link_to(term, match[0], uri)]
                end = match.end()
        if pieces:
            pieces.append(nodes.Text(text[end:]))
            text.parent.replace(text, [piece for piece in pieces if piece.astext()])


def running_text(node: nodes.Element) -> Iterator[nodes.Text]:
    """Yield the text in which terms are looked for, in the order of the page."""
    for child in node.children:
        if isinstance(child, nodes.Text):
            yield child
        elif isinstance(child, nodes.Element) and not isinstance(child, _LEFT_ALONE):
            if not _NO_TEXT & set(child["classes"]) and not child.get("nb_element", "").startswith("cell_code"):
                yield from running_text(child)


def link_to(term: Term, word: str, uri: str) -> nodes.reference:
    """Return a link to a term, which shows its definition when one points at it."""
    return nodes.reference(
        "", word, refuri=f"{uri}#{term.id}", reftitle=term.definition, classes=["gg-term"], internal=True
    )


@functools.cache
def pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return what matches any of these names as words, the longest first."""
    forms = "|".join(_form(name) for name in sorted(names, key=lambda name: (-len(name), name)))
    return re.compile(rf"(?<![\w-])(?:{forms})(?![\w-])")


def _form(name: str) -> str:
    """Return a pattern of a name: its first letter in either case if it is small, and all letters with digits."""
    if re.search(r"\d", name):
        written = f"(?i:{re.escape(name)})"
    elif name[0].islower():
        written = f"[{name[0]}{name[0].upper()}]{re.escape(name[1:])}"
    else:
        written = re.escape(name)
    return f"{written}(?:s|es)?"


def _is_form_of(word: str, name: str) -> bool:
    return re.fullmatch(_form(name), word) is not None


def _is_read(docname: str) -> bool:
    return not docname.startswith(NOT_ON)

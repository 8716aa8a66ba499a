"""What search finds: pages, sections, checklists, answers, figures, claims, terms, GPUs, records, the library's names.

Each has an address of its own, which a result leads to: the section and not only its page, the figure, the claim in
its fold. The list is a script, because a page that is opened from a file may load scripts and no data. It is loaded
when somebody searches. MiniSearch, a library, makes an index of it there (``search.js``).
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes

from gpuguide.costs import presets
from gpuguide.hardware import datasheet
from gpuguide.measure import store
from gpuguide.site.directives import hardware_table
from gpuguide.site.directives.benchmark_list import list_declarations
from gpuguide.site.execution import watching
from gpuguide.site.search_and_links import glossary_links, search_places
from gpuguide.site.search_and_links.search_places import SearchPlace

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.domains.python import PythonDomain

FILE = "search-entries.js"
KINDS = (
    "Tutorial",
    "Calculator",
    "Page",
    "Section",
    "Checklist",
    "Answer",
    "Figure",
    "Glossary",
    "GPU",
    "Measurement",
    "Claim",
    "Library",
)
"""What stands beside a result. ``search.js`` knows them by name."""
SHOWN, SHOWN_OF_MANY = 205, 76
"""Letters of a text that are kept as sentences, the second number for the kinds of which there are hundreds"""
MANY = ("Answer", "Claim")
WORDS = Path(__file__).with_name("search_words.toml")
HARDWARE = "docs/hardware"
MEASUREMENTS = "docs/measurements"
CLAIMS = "docs/claims"
ANSWERS = "docs/questions"
REFERENCE = "docs/api/"
_METRICS = {"B/s": "bandwidth", "FLOP/s": "throughput", "s": "time"}
_NUMBER = re.compile(r"^\d+-")


@dataclass(frozen=True)
class Entry:
    """One thing that can be found."""

    kind: str
    """One of :data:`KINDS`"""
    name: str
    address: str
    """From the root of the site"""
    detail: str = ""
    """What is shown under the name"""
    also: tuple[str, ...] = ()
    """Other names, and questions that this answers, not shown"""
    text: str = ""
    """What stands there, in sentences"""
    listed_words: str = ""
    """Words of tables and names in code, which are found and not shown"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_js_file("find-on-page.js", loading_method="defer", priority=100)  # before a calculator reads the address
    app.add_js_file("search.js", loading_method="defer")
    app.add_js_file("search-box.js", loading_method="defer")
    app.connect("config-inited", own_search_page)
    app.connect("builder-inited", disable_sphinx_index)
    app.connect("html-page-context", drop_highlight_script)
    app.connect("build-finished", write, priority=600)  # when all pages are written


def own_search_page(app: Sphinx, config: Any) -> None:
    """Let Sphinx write the search page from our template."""
    config.html_additional_pages = {**config.html_additional_pages, "search": "search.html"}


def disable_sphinx_index(app: Sphinx) -> None:
    """Make no index of Sphinx's: it knows no numbers, no figures and no places within a page."""
    if app.builder.format == "html":
        app.builder.search = False  # type: ignore[attr-defined]


def drop_highlight_script(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load no script that marks words for Sphinx's search; ``find-on-page.js`` does, and opens folds."""
    scripts = context.get("script_files", [])
    context["script_files"] = [script for script in scripts if "sphinx_highlight.js" not in str(script)]


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the list beside the script that reads it."""
    if exception is not None or app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / FILE
    made_from = [WORDS, Path(__file__), Path(search_places.__file__)]
    newer = target.exists() and target.stat().st_mtime > max(path.stat().st_mtime for path in made_from)
    if newer and watching.is_nothing_new(app):
        return
    text = script(entries(app), words())
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8", newline="\n")


def script(found: Iterable[Entry], said: dict[str, Any]) -> str:
    """Return the list as a script: one line an entry, with the number of its kind and its texts.

    Before it stands what search knows about words (:func:`words`), without the questions, which the entries have.
    """
    found = list(found)
    lines = [json.dumps(row, ensure_ascii=False) for row in [*page_rows(found), *library_rows(found)]]
    rows = ",\n".join(lines)
    known = {"kinds": KINDS, **{name: value for name, value in said.items() if name != "asked"}}
    return f"siteSearch.receive({json.dumps(known, ensure_ascii=False)}, [\n{rows}\n]);\n"


def page_rows(found: Iterable[Entry]) -> Iterator[list[Any]]:
    """Yield a row for each entry that is not a name of the library, without the empty texts at its end.

    An address whose anchor is that of :func:`anchor_of` ends with ``#``, and ``search.js`` makes the rest.
    """
    for entry in found:
        if entry.kind != "Library":
            page, _, anchor = entry.address.partition("#")
            address = f"{page}#" if anchor and anchor == anchor_of(entry.name) else entry.address
            row: list[Any] = [KINDS.index(entry.kind), entry.name, address, entry.detail]
            row += [" | ".join(entry.also), entry.text, entry.listed_words]
            while not row[-1]:
                row.pop()
            yield row


def anchor_of(name: str) -> str:
    """Return the anchor that most places called so have.

    >>> anchor_of("KV cache: what’s in it?")
    'kv-cache-what-s-in-it'
    """
    plain = unicodedata.normalize("NFKD", name.replace("’", "'")).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")


def library_rows(found: Iterable[Entry]) -> Iterator[list[Any]]:
    """Yield a row for each module or class, with what is in it: there are thousands of names, and few beginnings."""
    inside: dict[tuple[str, str], list[str]] = {}
    for entry in found:
        if entry.kind == "Library":
            around, _, name = entry.name.rpartition(".")
            inside.setdefault((around, entry.address), []).append(f"{entry.detail} {name}")
    for (around, address), names in inside.items():
        yield [KINDS.index("Library"), around, address, ", ".join(names)]


def words() -> dict[str, Any]:
    """Return what readers call things, and what stands last; ``search_words.toml`` says what each table is."""
    with WORDS.open("rb") as file:
        return tomllib.load(file)


def plain_name(docname: str) -> str:
    """Return the name of a page without its folder and number, which may change.

    >>> plain_name("tutorials/22-flash-attention"), plain_name("index")
    ('flash-attention', 'index')
    """
    return _NUMBER.sub("", docname.rpartition("/")[2])


def entries(app: Sphinx) -> list[Entry]:
    """Return everything that can be found on the site, always in the same order."""
    found = [*list_pages(app), *glossary_terms(app), *library_names(app)]
    if HARDWARE in app.env.all_docs:
        found += [*gpus(app), *measured_ceilings(app)]
    if MEASUREMENTS in app.env.all_docs:
        found += records(app)
    unique = {keep_what_is_shown(entry) for entry in found}
    return sorted(unique, key=lambda entry: (entry.address, KINDS.index(entry.kind), astuple(entry)))


def keep_what_is_shown(entry: Entry) -> Entry:
    """Return an entry whose text ends where excerpts rarely reach, with the words of the rest among those listed.

    So a long section is found by every word, and what all readers load stays small.

    >>> keep_what_is_shown(Entry("Page", "A", "a.html", text=200 * "The same. " + "Another.")).listed_words
    'Another'
    """
    shown = SHOWN_OF_MANY if entry.kind in MANY else SHOWN
    if len(entry.text) <= shown:
        return entry
    end = max(entry.text.rfind(". ", 0, shown) + 1, entry.text.rfind(" ", 0, shown // 2))
    text, rest = entry.text[:end].strip(), entry.text[end:]
    listed = search_places.list_words(f"{rest} {entry.listed_words}", besides=f"{entry.name} {text}")
    return replace(entry, text=text, listed_words=listed)


# --- what stands on pages ---------------------------------------------------------------------------------


def list_pages(app: Sphinx) -> Iterator[Entry]:
    """Yield every page, and its sections, figures and claims."""
    places, asked = places_of_all(app), words()["asked"]
    for docname, title in app.env.titles.items():
        uri, page, found = app.builder.get_target_uri(docname), title.astext(), places[docname]
        questions = (plain_name(docname).replace("-", " "), *asked.get(plain_name(docname), ()))
        if docname.startswith(REFERENCE):
            questions = ()
        first = found[0] if found else SearchPlace("", "")
        kind, text = kind_of(docname, first), first.text
        listed = f"{first.listed_words} {choices()}" if kind == "Calculator" else first.listed_words
        yield Entry(kind, page, uri, shorten(text), questions, text, listed)
        # The sections of the one are the benchmarks; those of the landing page lead to pages that are found themselves.
        if docname not in (MEASUREMENTS, app.config.root_doc):
            yield from sections(app, docname, page, {place.anchor: place for place in found})
        for place in found:
            if place.kind == search_places.FIGURE:
                yield Entry("Figure", shorten(place.name), f"{uri}#{place.anchor}", page, (), place.text)
            elif place.kind == search_places.CHECKLIST:
                said = place.text.removeprefix(place.name).strip()
                yield Entry("Checklist", place.name, f"{uri}#{place.anchor}", page, (), said, place.listed_words)
            elif place.kind == search_places.CLAIM and place.anchor and docname == CLAIMS:
                said = place.text.removeprefix(place.name).strip()
                yield Entry("Claim", place.name, f"{uri}#{place.anchor}", "", (), said)


def kind_of(docname: str, page: SearchPlace) -> str:
    """Return what kind of page one is."""
    if page.kind == search_places.CALCULATOR:
        return "Calculator"
    return "Tutorial" if docname.startswith("tutorials/") and not docname.endswith("/index") else "Page"


def choices() -> str:
    """Return the words of the GPUs and models that a calculator lets one choose from, which its script lists.

    The 3 of Llama 3 is not among them: a calculator would answer whatever has a 3.
    """
    names = [gpu.name for gpu in datasheet.load().values()] + [model.name for model in presets.load().values()]
    return " ".join(dict.fromkeys(word for name in names for word in name.split() if len(word) > 1))


def sections(app: Sphinx, docname: str, page: str, places: dict[str, SearchPlace]) -> Iterator[Entry]:
    """Yield every section of a page that has an address of its own."""
    uri = app.builder.get_target_uri(docname)
    for link in app.env.tocs[docname].findall(nodes.reference):
        if link["anchorname"] and link["refuri"] == docname and not _is_listed_elsewhere(docname, link):
            place = places.get(link["anchorname"].removeprefix("#"), SearchPlace("", ""))
            address = uri + link["anchorname"]
            kind = "Answer" if docname == ANSWERS and link.astext().endswith("?") else "Section"
            yield Entry(kind, link.astext(), address, page, (), place.text, place.listed_words)


def _is_listed_elsewhere(docname: str, link: nodes.reference) -> bool:
    """Return whether an entry of a table of contents is one of what has entries: GPUs, claims, names of the API.

    Nobody looks for a date of changes.
    """
    if link.astext() == "Claims checked" or re.fullmatch(r"\d{4}-\d\d-\d\d", link.astext()):
        return True
    if docname == HARDWARE:
        return str(link["anchorname"]).startswith("#gpu-")
    return str(link["anchorname"]).startswith(("#gpuguide.", "#module-gpuguide"))


def shorten(text: str) -> str:
    """Return a first sentence or two, as much as a line or two hold.

    >>> shorten("One. Two. " + 99 * "And so on, ")
    'One. Two.'
    """
    kept = ""
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z“])", text):
        if kept and len(kept) + len(sentence) > 160:
            break
        kept = f"{kept} {sentence}".strip()
    return kept if len(kept) <= 240 else f"{kept[:200].rpartition(' ')[0]} …"


def places_of_all(app: Sphinx) -> dict[str, list[SearchPlace]]:
    """Return the places of every page; those of a page that is as it was are remembered between builds."""
    memory = Path(app.doctreedir) / "search-places.json"
    known = json.loads(memory.read_text(encoding="utf-8")) if memory.exists() else {}
    found: dict[str, Any] = {}
    reader = Path(search_places.__file__).read_text(encoding="utf-8")  # reads otherwise once it is another
    for docname in sorted(app.env.all_docs):
        path = Path(app.outdir) / app.builder.get_target_uri(docname)
        html = "" if docname.startswith(REFERENCE) or not path.exists() else path.read_text(encoding="utf-8")
        digest = hashlib.sha256(f"{reader}\n{html}".encode()).hexdigest()
        if known.get(docname, {}).get("of") == digest:
            found[docname] = known[docname]
        else:
            found[docname] = {"of": digest, "places": [asdict(place) for place in search_places.read(html)]}
    if found != known:
        memory.write_text(json.dumps(found), encoding="utf-8")
    return {docname: [SearchPlace(**place) for place in each["places"]] for docname, each in found.items()}


# --- what is listed ---------------------------------------------------------------------------------------


def glossary_terms(app: Sphinx) -> Iterator[Entry]:
    """Yield every term, with its first sentence."""
    for term in glossary_links.terms(app.env):
        address = f"{app.builder.get_target_uri(glossary_links.PAGE)}#{term.id}"
        shown = f"{term.names[0]} ({term.field})" if term.field else term.names[0]
        yield Entry("Glossary", shown, address, term.definition, term.names[0 if term.field else 1 :])


def library_names(app: Sphinx) -> Iterator[Entry]:
    """Yield every name that the API reference describes, with what it is; ``search.js`` knows how the rest follows.

    A module's ``forward`` is left out: one looks for the module.
    """
    domain: PythonDomain = app.env.domains.python_domain
    for full, item in domain.objects.items():
        if not item.aliased and not full.endswith(".forward"):
            address = app.builder.get_target_uri(item.docname)
            yield Entry("Library", full.removeprefix("gpuguide").removeprefix("."), address, item.objtype)


def gpus(app: Sphinx) -> Iterator[Entry]:
    """Yield every GPU of the datasheet table."""
    uri = app.builder.get_target_uri(HARDWARE)
    for gpu in datasheet.load().values():
        shown = [
            f"{hardware_table.NAMES[key]} {hardware_table.format_figure(key, gpu.figures[key])}"
            for key in hardware_table.GROUPS["memory"]
            if key in gpu.figures
        ]
        detail = f"{gpu.architecture}, {', '.join(shown)}"
        yield Entry("GPU", gpu.name, f"{uri}#{hardware_table.anchor(gpu)}", detail, (gpu.id, *gpu.aliases))


def measured_ceilings(app: Sphinx) -> Iterator[Entry]:
    """Yield every ceiling that stands beside a datasheet's figure, with its value."""
    uri = app.builder.get_target_uri(HARDWARE)
    for record in store.load_all_published():
        gpu = datasheet.find(record.device_name)
        if record.benchmark == "ceilings" and gpu is not None:
            for label, measured, printed in hardware_table.comparisons(record, gpu):
                metric = _METRICS[measured[1]]
                name = f"{gpu.name}: {label}" + ("" if metric in label else f", {metric}")
                detail = f"measured {hardware_table.quantity(measured)}, datasheet {hardware_table.quantity(printed)}"
                yield Entry("Measurement", name, f"{uri}#{hardware_table.measured_anchor(record)}", detail)


def records(app: Sphinx) -> Iterator[Entry]:
    """Yield every benchmark with its question, and every published record with what it holds."""
    uri, texts = app.builder.get_target_uri(MEASUREMENTS), list_declarations()
    listed: dict[str, set[str]] = {}
    for record in store.load_all_published():
        text = texts[record.benchmark]
        metrics = sorted({name for case in record.cases if case.status == "ok" for name in case.metrics})
        also = (record.benchmark, f"benchmark {text['title']} {' '.join(metrics)}", " ".join(record.contenders))
        listed.setdefault(record.benchmark, set()).update(metrics)
        name = f"{text['title']}, {record.device_name.removeprefix('NVIDIA ')}"
        yield Entry("Measurement", name, f"{uri}#record-{record.device}-{record.benchmark}", ", ".join(metrics), also)
    for benchmark, names in listed.items():  # once, on however many devices it ran
        text = texts[benchmark]
        called = (benchmark, f"benchmark {text['title']} {' '.join(sorted(names))}")
        yield Entry("Measurement", text["title"], f"{uri}#{benchmark}", text["question"], called)

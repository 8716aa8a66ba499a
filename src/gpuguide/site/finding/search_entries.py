"""What the search box finds as one types: pages, sections, glossary terms, GPUs, measurements and the library's names.

Sphinx's own index leaves out numbers, so that "4090" finds nothing in it, and knows no kinds. The box has a list of
its own, of names and where they lead; words within a text stay the business of the search page. The list is a script,
because a page that is opened from a file may load scripts and no data. It is loaded when somebody opens the box.
By hand for that reason too: Pagefind and its like fetch their index, which a page from a file may not.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.index_entries import split_index_msg

from gpuguide.hardware import datasheet
from gpuguide.measure import store
from gpuguide.site.finding import glossary_links
from gpuguide.site.records import hardware_table
from gpuguide.site.records.benchmark_list import declared

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.domains.python import PythonDomain

FILE = "search-entries.js"
KINDS = ("Pages", "Glossary", "GPUs", "Measurements", "Sections", "Library")
HARDWARE = "docs/hardware"
MEASUREMENTS = "docs/measurements"
_METRICS = {"B/s": "bandwidth", "FLOP/s": "throughput", "s": "time"}


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
    """Other names, not shown"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_js_file("search-box.js", loading_method="defer")
    app.connect("html-collect-pages", keep_index_entries)
    app.connect("build-finished", write)


def keep_index_entries(app: Sphinx) -> list[Any]:
    """Give the index of the search page the index entries of pages that this build does not write.

    Sphinx keeps their words and titles from one build to the next, and drops these.
    """
    indexer = getattr(app.builder, "indexer", None)  # a builder without a search page has none
    known: dict[str, list[tuple[str, str, str]]] = indexer._index_entries if indexer else {}
    for docname, entries in app.env.domains.index_domain.entries.items():
        if indexer and docname not in known:
            known[docname] = sorted(set(_named(entries)))
    return []


def _named(entries: Iterable[tuple[str, str, str, str, str | None]]) -> Iterator[tuple[str, str, str]]:
    """Yield what the search page shows of index entries: name, anchor, and whether it is the main one."""
    for kind, value, anchor, main, _ in entries:
        with contextlib.suppress(ValueError):  # Sphinx has warned of an entry that is not as it must be
            names = split_index_msg(kind, value)
            yield from ((name, anchor or "", main) for name in names)


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the list beside the script that reads it."""
    if exception is not None or app.builder.format != "html":
        return
    text = script(entries(app))
    target = Path(app.outdir) / "_static" / FILE
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8", newline="\n")


def script(found: Iterable[Entry]) -> str:
    """Return the list as a script: one line an entry, each the number of its kind and its texts."""
    lines = [
        json.dumps([KINDS.index(entry.kind), entry.name, entry.address, entry.detail, *entry.also], ensure_ascii=False)
        for entry in found
    ]
    rows = ",\n".join(lines)
    return f"searchBox.receive({json.dumps(KINDS)}, [\n{rows}\n]);\n"


def entries(app: Sphinx) -> list[Entry]:
    """Return everything that can be found on the site, always in the same order."""
    found = [*pages_and_sections(app), *glossary_terms(app), *library_names(app)]
    if HARDWARE in app.env.all_docs:
        found += [*gpus(app), *measured_ceilings(app)]
    if MEASUREMENTS in app.env.all_docs:
        found += records(app)
    return sorted(set(found), key=lambda entry: (KINDS.index(entry.kind), entry.name, entry.address))


def pages_and_sections(app: Sphinx) -> Iterator[Entry]:
    """Yield every page, and every section with an address of its own."""
    for docname, title in app.env.titles.items():
        uri, page = app.builder.get_target_uri(docname), title.astext()
        yield Entry("Pages", page, uri, also=(docname.rpartition("/")[2].replace("-", " "),))
        if docname == MEASUREMENTS:
            continue  # its sections are the benchmarks
        for link in app.env.tocs[docname].findall(nodes.reference):
            if link["anchorname"] and link["refuri"] == docname and not _is_a_symbol(link):
                yield Entry("Sections", link.astext(), uri + link["anchorname"], page)


def _is_a_symbol(link: nodes.reference) -> bool:
    """Return whether an entry of a table of contents is a name that autodoc describes, and not a heading."""
    return link["anchorname"].startswith("#gpuguide.")


def glossary_terms(app: Sphinx) -> Iterator[Entry]:
    """Yield every term, with its first sentence."""
    for term in glossary_links.terms(app.env):
        address = f"{app.builder.get_target_uri(glossary_links.PAGE)}#{term.id}"
        shown = f"{term.names[0]} ({term.field})" if term.field else term.names[0]
        yield Entry("Glossary", shown, address, term.definition, term.names[0 if term.field else 1 :])


def library_names(app: Sphinx) -> Iterator[Entry]:
    """Yield every name that the API reference describes."""
    domain: PythonDomain = app.env.domains.python_domain
    for full, item in domain.objects.items():
        if not item.aliased:
            address = f"{app.builder.get_target_uri(item.docname)}#{item.node_id}"
            inside = full.removeprefix("gpuguide.")
            yield Entry("Library", inside, address, f"{item.objtype} {full}", (full.rpartition(".")[2],))


def gpus(app: Sphinx) -> Iterator[Entry]:
    """Yield every GPU of the datasheet table."""
    uri = app.builder.get_target_uri(HARDWARE)
    for gpu in datasheet.load().values():
        shown = [
            f"{hardware_table.NAMES[key]} {hardware_table.written(key, gpu.figures[key])}"
            for key in hardware_table.GROUPS["memory"]
            if key in gpu.figures
        ]
        detail = f"{gpu.architecture}, {', '.join(shown)}"
        yield Entry("GPUs", gpu.name, f"{uri}#{hardware_table.anchor(gpu)}", detail, (gpu.id, *gpu.aliases))


def measured_ceilings(app: Sphinx) -> Iterator[Entry]:
    """Yield every ceiling that stands beside a datasheet's figure, with its value."""
    uri = app.builder.get_target_uri(HARDWARE)
    for record in store.published_records():
        gpu = datasheet.find(record.device_name)
        if record.benchmark == "ceilings" and gpu is not None:
            for label, measured, printed in hardware_table.comparisons(record, gpu):
                metric = _METRICS[measured[1]]
                name = f"{gpu.name}: {label}" + ("" if metric in label else f", {metric}")
                detail = f"measured {hardware_table.quantity(measured)}, datasheet {hardware_table.quantity(printed)}"
                yield Entry("Measurements", name, f"{uri}#{hardware_table.measured_anchor(record)}", detail)


def records(app: Sphinx) -> Iterator[Entry]:
    """Yield every benchmark with its question, and every published record with what it holds."""
    uri, texts = app.builder.get_target_uri(MEASUREMENTS), declared()
    for record in store.published_records():
        text = texts[record.benchmark]
        metrics = sorted({name for case in record.cases if case.status == "ok" for name in case.metrics})
        also = (record.benchmark, f"benchmark {text['title']} {' '.join(metrics)}", " ".join(record.contenders))
        yield Entry("Measurements", text["title"], f"{uri}#{record.benchmark}", text["question"], also[:2])
        name = f"{text['title']}, {record.device_name.removeprefix('NVIDIA ')}"
        yield Entry("Measurements", name, f"{uri}#record-{record.device}-{record.benchmark}", ", ".join(metrics), also)

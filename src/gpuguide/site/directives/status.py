"""The status page: its directives ``status``, ``page-status``, ``record-status``, ``equivalences``; ``status.json``.

Run times and dates of pages come from the execution cache, so they are known when all pages have been read.
"""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide import claims as ledger
from gpuguide.claims import quoted
from gpuguide.errors import GpuguideError
from gpuguide.measure import folders, page_gpu, reference_gpu, store
from gpuguide.measure.digest import equivalent
from gpuguide.measure.records import Record
from gpuguide.site.directives.claims_table import format_count
from gpuguide.site.directives.cost_card import duration
from gpuguide.site.directives.record_downloads import address
from gpuguide.site.execution import faults, page_gpus, watching
from gpuguide.site.pages import ages, page_source, skipped_cells
from gpuguide.site.pages.tables import Cell, table

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

FILE = "status.json"
_DEVICE = re.compile(r"""device=["']?([a-z0-9][a-z0-9-]*)""")


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("status", Status)
    app.add_directive("page-status", PageStatusTable)
    app.add_directive("record-status", RecordStatusTable)
    app.add_directive("equivalences", EquivalenceTable)
    app.add_node(page_status, override=True)
    app.connect("doctree-resolved", fill_in)
    app.connect("build-finished", write)


@dataclass(frozen=True)
class PageStatus:
    """What is known of a page that holds code."""

    page: str
    executed: bool
    """True if all of its cells ran without an error, those aside that are marked not to run"""
    seconds: float | None
    executed_on: str | None
    """The day in UTC on which it last ran"""
    not_run: str
    """Why it is not executed, from its front matter"""
    skipped: tuple[str, ...]
    """The reason of each cell that is shown and not run"""
    records: tuple[tuple[str, str], ...]
    """The records it reads: device and benchmark"""


# --- what is known -----------------------------------------------------------------------------------------


def page_statuses(env: BuildEnvironment) -> list[PageStatus]:
    """Return the status of every page with code, in the order of their names."""
    records = {(record.device, record.benchmark): record for record in store.load_all_published()}
    return [_page_status(env, name, records) for name in sorted(env.found_docs) if _has_code(env, name)]


def _source(env: BuildEnvironment, docname: str) -> str:
    path = Path(env.doc2path(docname))
    return path.read_text(encoding="utf-8") if path.suffix == ".md" else ""


def _has_code(env: BuildEnvironment, docname: str) -> bool:
    return bool(page_source.read(_source(env, docname)).code.strip())


def _page_status(env: BuildEnvironment, docname: str, records: Mapping[tuple[str, str], Record]) -> PageStatus:
    from myst_nb.sphinx_ import NbMetadataCollector

    source = _source(env, docname)
    page = page_source.read(source)
    ran = NbMetadataCollector.get_exec_data(env, docname)
    return PageStatus(
        page=docname,
        executed=bool(ran and ran["succeeded"]),
        seconds=ran["runtime"] if ran else None,
        executed_on=ages.day_of(ran["mtime"]).isoformat() if ran else None,
        not_run=page.not_run,
        skipped=tuple(cell.reason for cell in skipped_cells.find_skipped_cells(source)),
        records=tuple(place for place in find_records_read(page, source) if place in records),
    )


def find_records_read(page: page_source.PageSource, source: str) -> list[tuple[str, str]]:
    """Return device and benchmark of each record that a page may read: of its GPU, and of devices its source names."""
    with page_gpus.use_gpu_of(page):
        devices = dict.fromkeys([*reference_gpu.slugs(), *_DEVICE.findall(source)])
    return [(device, name) for name in page.benchmarks for device in devices]


def find_measurement_date(record: Record) -> datetime.date:
    """Return the day on which the newest part of a record was measured."""
    return max(datetime.datetime.fromisoformat(run.finished_at).astimezone(datetime.UTC) for run in record.runs).date()


def commits(record: Record) -> str:
    """Return the commits that a record was measured with, shortened."""
    return ", ".join(dict.fromkeys(run.commit[:8] for run in record.runs if run.commit)) or "unknown"


# --- on the page -------------------------------------------------------------------------------------------


class page_status(nodes.General, nodes.Element):
    """Stands for the table of pages, which is known when all pages have been read."""


class Status(SphinxDirective):
    """``{status}``: one line for records, one for claims, and the way to the same as a file."""

    def run(self) -> list[Node]:
        """Return the lines."""
        watching.note_folder(self.env, folders.published_folder())
        watching.note_folder(self.env, ledger.LEDGER.parent)
        items = nodes.bullet_list()
        with faults.report_errors(self.get_location()):
            records = store.load_all_published()
            for record in records:
                watching.note_record(self.env, record)
            watching.note_gpus(self.env)
            devices = len({record.device for record in records})
            spoken_of = quoted.select_quoted(records)
            old = sum(record.stale for record in spoken_of)
            lines = [f"{format_count(len(records), 'record')} on {format_count(devices, 'device')}."]
            if records:
                state = f"{old} stale" if old else "none of them stale"
                gpus = dict.fromkeys(record.device_name for record in spoken_of if record.device != page_gpu.CPU)
                lines[0] += f" Text speaks of those of {', '.join(gpus)} and of a processor, {state}."
            if others := sum(record.stale for record in records) - old:
                lines.append(f"{format_count(others, 'record')} of other devices, measured with earlier code.")
            outcomes = ledger.check()
            wrong = [outcome.claim.id for outcome in outcomes if not outcome.ok]
            holding = f"{len(wrong)} do not hold: {', '.join(wrong)}" if wrong else "all of them hold"
            lines.append(f"{format_count(len(outcomes), 'claim')} checked, {holding}.")
            for line in lines:
                items += nodes.list_item("", nodes.paragraph("", line))
        file = nodes.reference("", FILE, refuri="../" * self.env.docname.count("/") + FILE)
        items += nodes.list_item("", nodes.paragraph("", "", nodes.Text("The same for programs: "), file))
        return [items]


class PageStatusTable(SphinxDirective):
    """``{page-status}``: every page with code, its time, and the records it reads."""

    def run(self) -> list[Node]:
        """Return what will be replaced by the table."""
        watching.note_other_pages(self.env)
        watching.note_day(self.env)
        return [page_status()]


class RecordStatusTable(SphinxDirective):
    """``{record-status}``: every published record with its age, commit, state and files."""

    def run(self) -> list[Node]:
        """Return the table."""
        watching.note_day(self.env)
        watching.note_folder(self.env, folders.published_folder())
        rows: list[list[Cell]] = []
        with faults.report_errors(self.get_location()):
            watching.note_gpus(self.env)
            records = sorted(store.load_all_published(), key=lambda record: (record.benchmark, record.device))
            spoken_of = quoted.select_quoted(records)
            for record in records:
                watching.note_record(self.env, record)
                rows.append(self.row(record, record in spoken_of))
        return [table(["benchmark", "device", "measured", "age", "commit", "state", "files"], rows)]

    def row(self, record: Record, spoken_of: bool) -> list[Cell]:
        """Return what is said of one record."""
        day = find_measurement_date(record)
        up = "../" * self.env.docname.count("/")
        files: list[nodes.Node] = []
        for kind in ("json", "csv"):
            files += [nodes.reference("", kind.upper(), refuri=up + address(record, kind)), nodes.Text(" ")]
        name = nodes.literal("", record.benchmark)
        when = nodes.inline("", day.isoformat(), classes=["gg-day"])
        return [name, record.device_name, when, ages.age(day), commits(record), state(record, spoken_of), files[:-1]]


class EquivalenceTable(SphinxDirective):
    """``{equivalences}``: the changes of measured code that change no measurement, with the reason of each."""

    def run(self) -> list[Node]:
        """Return the table, or a sentence where there is none."""
        self.env.note_dependency(str(folders.published_folder() / equivalent.FILE))
        rows: list[list[Cell]] = []
        with faults.report_errors(self.get_location()):
            for row in equivalent.rows(folders.published_folder()):
                shortened = [nodes.literal("", text) for text in (row.old[7:15], row.new[7:15], row.commit[:8])]
                rows.append([nodes.literal("", row.benchmark), *shortened, row.reason])
        if not rows:
            return [nodes.paragraph("", "There is none: every fresh record was measured with the code as it stands.")]
        return [
            table(
                ["benchmark", "digest before", "digest after", "last commit before", "why it measures the same"], rows
            )
        ]


def state(record: Record, spoken_of: bool) -> Cell:
    """Return whether a record is stale, as a mark if text speaks of it."""
    if record.stale and not spoken_of:
        return "earlier code"
    return nodes.inline("", "stale", classes=["gg-stale"]) if record.stale else "fresh"


def fill_in(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the table of pages where it belongs."""
    for place in list(doctree.findall(page_status)):
        rows = [_row(app, docname, status) for status in page_statuses(app.env)]
        place.replace_self(table(["page", "ran", "cells not run", "records it reads"], rows, classes=["gg-status"]))


def _row(app: Sphinx, docname: str, status: PageStatus) -> list[Cell]:
    uri = app.builder.get_relative_uri(docname, status.page)
    link = nodes.reference("", app.env.titles[status.page].astext(), refuri=uri, internal=True)
    ran: Cell = f"never. {status.not_run}".strip()
    if status.executed_on and status.seconds:
        day = nodes.inline("", status.executed_on, classes=["gg-day"])
        ran = [day, nodes.Text(f", in {duration(status.seconds)}")]
    return [link, ran, _format_skipped(status.skipped), _format_records(status.records)]


def _format_skipped(reasons: Iterable[str]) -> str:
    """Return how many cells are not run, and why."""
    counts = Counter(reasons)
    usual = counts.pop(skipped_cells.REASON, 0)
    parts = [f"{usual} that time{'s' * (usual == 1)} the machine"] if usual else []
    parts += [f"{number}: {reason}" for reason, number in counts.items()]
    return "; ".join(parts) or "none"


def _format_records(places: Iterable[tuple[str, str]]) -> Cell:
    """Return the records that a page uses, by device, with the age of the oldest."""
    records = {(record.device, record.benchmark): record for record in store.load_all_published()}
    by_device: dict[str, list[Record]] = {}
    for place in places:
        by_device.setdefault(records[place].device_name, []).append(records[place])
    shown: list[nodes.Node] = []
    for device, used in by_device.items():
        shown.append(
            nodes.Text(f"{'; ' if shown else ''}{device}, {ages.age(min(map(find_measurement_date, used)))}: ")
        )
        for position, record in enumerate(used):
            shown += [nodes.Text(", " if position else ""), nodes.literal("", record.benchmark)]
            shown += [nodes.inline("", "stale", classes=["gg-stale"])] if record.stale else []
    return shown or "none"


# --- as a file ---------------------------------------------------------------------------------------------


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the status of all pages and records to ``status.json``, for the check before a release."""
    if exception is not None or app.builder.format != "html":
        return
    target = Path(app.outdir, FILE)
    if watching.is_nothing_new(app) and target.exists():
        return
    content = contents(page_statuses(app.env), store.load_all_published())
    target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def contents(statuses: Iterable[PageStatus], records: Iterable[Record]) -> dict[str, Any]:
    """Return what ``status.json`` holds."""
    return {
        "date": ages.today().isoformat(),
        "pages": [asdict(status) for status in statuses],
        "records": [
            {
                "device": record.device,
                "benchmark": record.benchmark,
                "measured_on": find_measurement_date(record).isoformat(),
                "commits": commits(record),
                "stale": record.stale,
            }
            for record in records
        ],
    }


def read(site: Path) -> list[PageStatus]:
    """Read the status of the pages of a built site.

    Raises
    ------
    GpuguideError
        If the folder holds no site, or one that was built by another version.
    """
    path = site / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [
            PageStatus(
                **{
                    **page,
                    "skipped": tuple(page["skipped"]),
                    "records": tuple((device, name) for device, name in page["records"]),
                }
            )
            for page in content["pages"]
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise GpuguideError(f"Cannot read {path} ({error}). Build the site first: make site.") from error

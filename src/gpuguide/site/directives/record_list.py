"""The directive ``records``: every published record, where it was measured, and its files."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.claims import quoted
from gpuguide.measure import folders, reference_gpu, store
from gpuguide.measure.records import Record, Run
from gpuguide.site.directives.benchmark_list import list_declarations
from gpuguide.site.directives.record_downloads import FORMATS, address
from gpuguide.site.execution import faults, watching

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx
    from sphinx.domains.std import StandardDomain


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("records", RecordList)


class RecordList(SphinxDirective):
    """One block a record. The roles for numbers link to it."""

    def run(self) -> list[Node]:
        """Return a section a benchmark."""
        sections: dict[str, nodes.section] = {}
        watching.note_folder(self.env, folders.published_folder())
        with faults.report_errors(self.get_location()):
            records = sorted(store.load_all_published(), key=lambda record: (record.benchmark, record.device))
            watching.note_gpus(self.env)
            texts, self.spoken_of = list_declarations(), quoted.select_quoted(records)
            for record in records:
                watching.note_record(self.env, record)
                name, text = record.benchmark, texts[record.benchmark]
                if name not in sections:
                    intro = nodes.paragraph("", f"{text['question']} ", nodes.literal("", name))
                    sections[name] = nodes.section("", nodes.title("", text["title"]), intro, ids=[name], names=[name])
                sections[name] += self.block(record, text["title"])
        return list(sections.values()) or [nodes.paragraph("", "No measurements have been published yet.")]

    def block(self, record: Record, title: str) -> list[Node]:
        """Return the name of one record's device, what it holds, and its downloads."""
        name = f"record-{record.device}-{record.benchmark}"
        heading = nodes.paragraph("", record.device_name, ids=[name], classes=["gg-record"])
        domain = cast("StandardDomain", self.env.get_domain("std"))
        domain.note_hyperlink_target(name, self.env.docname, name, title)
        items = nodes.bullet_list()
        for line in dict.fromkeys(describe_run(run, record) for run in record.runs):
            items += nodes.list_item("", nodes.paragraph("", line))
        items += nodes.list_item("", nodes.paragraph("", contents(record)))
        for reason, count in reasons(record).items():
            items += nodes.list_item("", nodes.paragraph("", f"{count} not measured: {reason}"))
        if record.stale and record in self.spoken_of:
            stale = nodes.inline("", "stale", classes=["gg-stale"])
            text = nodes.Text(" The code that measured this has changed since.")
            items += nodes.list_item("", nodes.paragraph("", "", stale, text))
        elif record.stale:
            items += nodes.list_item(
                "", nodes.paragraph("", f"{reference_gpu.age(record, spoken_of=False).capitalize()}.")
            )
        up = "../" * self.env.docname.count("/")
        files = nodes.paragraph("", "Download: ")
        for position, (kind, shown) in enumerate(FORMATS.items()):
            files += nodes.Text(", " if position else "")
            files += nodes.reference("", shown, refuri=up + address(record, kind))
        items += nodes.list_item("", files)
        return [heading, items]


def describe_run(run: Run, record: Record) -> str:
    """Return the stamp of a run with all libraries that contenders call, and the machine's processor."""
    stamp = run.stamp(record.libraries())
    return stamp if run.host in stamp else f"{stamp} · {run.host_cpu}, {run.host_cores} cores"


def contents(record: Record) -> str:
    """Return what a record holds, in one sentence."""
    good = [case for case in record.cases if case.status == "ok"]
    metrics = sorted({name for case in good for name in case.metrics})
    keys = ", ".join(record.cases[0].keys) if record.cases and record.cases[0].keys else "none"
    return f"{len(good)} cases of {', '.join(record.contenders)}. Keys: {keys}. Metrics: {', '.join(metrics)}."


def reasons(record: Record) -> Counter[str]:
    """Return how many cases have no measurement, by reason."""
    return Counter(f"{case.status}, {case.reason}" for case in record.cases if case.status != "ok")

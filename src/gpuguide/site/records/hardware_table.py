"""The directives ``datasheet`` and ``measured-hardware``: what vendors print, and what we measured beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.hardware import datasheet
from gpuguide.hardware.sources import NOT_VERIFIED, Source
from gpuguide.measure import digest, reference_gpu, store
from gpuguide.measure.records import Record
from gpuguide.measure.units import format_quantity, significant
from gpuguide.site.execution import faults, watching
from gpuguide.site.pages.tables import Cell, table

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx

Amount: TypeAlias = tuple[float, str]
"""A value and its unit"""
GROUPS = {
    "memory": ("memory", "memory_bandwidth", "l2"),
    "arithmetic": ("fp32", "tf32_dense", "fp16_dense", "bf16_dense", "fp8_dense"),
    "sparse": ("tf32_sparse", "fp16_sparse", "bf16_sparse", "fp8_sparse"),
    "links": ("pcie_per_direction", "pcie_total", "nvlink_per_direction", "nvlink_total"),
    "chip": ("sms", "boost_clock", "tdp"),
}
NAMES = {
    "memory": "memory",
    "memory_bandwidth": "bandwidth",
    "l2": "L2 cache",
    "fp32": "FP32",
    "tf32_dense": "TF32",
    "fp16_dense": "FP16",
    "bf16_dense": "BF16",
    "fp8_dense": "FP8",
    "tf32_sparse": "TF32",
    "fp16_sparse": "FP16",
    "bf16_sparse": "BF16",
    "fp8_sparse": "FP8",
    "pcie_per_direction": "PCIe each way",
    "pcie_total": "PCIe both ways",
    "nvlink_per_direction": "NVLink each way",
    "nvlink_total": "NVLink both ways",
    "sms": "multiprocessors",
    "boost_clock": "boost clock",
    "tdp": "power limit",
}
COMPARED = {
    "memory_bandwidth": ("copy", "bandwidth", "memory bandwidth"),
    "bf16_dense": ("matmul-bf16", "throughput", "product in BF16"),
    "fp16_dense": ("matmul-fp16", "throughput", "product in FP16"),
    "tf32_dense": ("matmul-tf32", "throughput", "product in TF32"),
    "fp32": ("matmul-fp32", "throughput", "product in FP32"),
    "fp8_dense": ("matmul-fp8", "throughput", "product in FP8"),
    "pcie_per_direction": ("h2d-pinned", "bandwidth", "host to GPU, pinned"),
}
"""Datasheet figure to the contender of ``ceilings`` that approaches it"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("datasheet", DatasheetTable)
    app.add_directive("datasheet-sources", Sources)
    app.add_directive("measured-hardware", MeasuredHardware)


def note_datasheet(directive: SphinxDirective) -> None:
    """Read the page again when the datasheet table changes."""
    directive.env.note_dependency(str(digest.module_path("gpuguide.hardware.datasheet").with_suffix(".toml")))


class DatasheetTable(SphinxDirective):
    """``{datasheet} GROUP``: one group of figures for all GPUs."""

    required_arguments = 1

    def run(self) -> list[Node]:
        """Return the table, with each figure's source as a footnote-like number."""
        note_datasheet(self)
        keys = GROUPS[self.arguments[0]]
        numbers = source_numbers()
        rows: list[list[Cell]] = []
        for gpu in datasheet.load().values():
            if not any(key in gpu.figures for key in keys):
                continue
            # The first table is where a search for a GPU leads.
            row: list[Cell] = [nodes.inline("", gpu.name, ids=[anchor(gpu)] if keys == GROUPS["memory"] else [])]
            for key in keys:
                figure = gpu.figures.get(key)
                row.append(_value(key, figure, numbers) if figure else "–")
            rows.append(row)
        return [table(["GPU", *(NAMES[key] for key in keys)], rows, classes=["gg-datasheet"])]


class Sources(SphinxDirective):
    """``{datasheet-sources}``: the documents that the numbers in brackets stand for."""

    def run(self) -> list[Node]:
        """Return a numbered list with a target for each number."""
        note_datasheet(self)
        listed = nodes.enumerated_list(enumtype="arabic")
        for key in source_numbers():
            listed += nodes.list_item("", cited(datasheet.sources()[key]), ids=[f"source-{key}"])
        return [listed]


def cited(source: Source) -> nodes.paragraph:
    """Return the link to a document, its publisher, whether we looked at it, and what it is a copy of."""
    link = nodes.reference("", source.title, refuri=source.url)
    looked = "; ".join(text for text in (source.seen, source.note) if text)
    return nodes.paragraph("", "", link, nodes.Text(f", {source.publisher} ({looked})"))


class MeasuredHardware(SphinxDirective):
    """``{measured-hardware}``: for each GPU that we measured, its ceilings beside its datasheet."""

    def run(self) -> list[Node]:
        """Return one table a device."""
        note_datasheet(self)
        watching.note_folder(self.env, store.published_folder())
        found: list[Node] = []
        with faults.reporting(self.get_location()):
            for record in store.published_records():
                gpu = datasheet.find(record.device_name)
                if record.benchmark == "ceilings" and gpu is not None:
                    watching.note_record(self.env, record)
                    found += compared(record, gpu)
        return found


def compared(record: Record, gpu: datasheet.Gpu) -> list[nodes.Node]:
    """Return one device's name, its table and its stamp."""
    rows: list[list[Cell]] = [
        [label, quantity(measured), quantity(printed), f"{significant(100 * measured[0] / printed[0])} %"]
        for label, measured, printed in comparisons(record, gpu)
    ]
    stamp = " · ".join(filter(None, (record.runs[-1].stamp(), reference_gpu.age(record))))
    name = nodes.paragraph("", record.device_name, classes=["gg-record"], ids=[measured_anchor(record)])
    header = ["ceiling", "measured", "datasheet", "measured share"]
    return [name, table(header, rows), nodes.paragraph("", stamp, classes=["gg-stamp"])]


def comparisons(record: Record, gpu: datasheet.Gpu) -> Iterator[tuple[str, Amount, Amount]]:
    """Yield the name of each ceiling, what was measured, and the datasheet's figure."""
    for key, (contender, metric, label) in COMPARED.items():
        if contender in record.contenders and key in gpu.figures:
            reading, printed = record.case(contender).metrics[metric], gpu.figures[key]
            yield label, (reading.summary.median, reading.unit), (printed.value, printed.unit)


def quantity(amount: Amount) -> str:
    """Write an amount with its unit."""
    return format_quantity(*amount)


def anchor(gpu: datasheet.Gpu) -> str:
    """Return where on the page a GPU's figures stand first."""
    return f"gpu-{gpu.id}"


def measured_anchor(record: Record) -> str:
    """Return where on the page a device's measured ceilings stand."""
    return f"measured-{record.device}"


def source_numbers() -> dict[str, int]:
    """Return each source's number, in the order in which the table lists them."""
    return {key: number for number, key in enumerate(datasheet.sources(), start=1)}


def source_of(figure: datasheet.Figure) -> Source:
    """Return the document that a figure comes from."""
    return datasheet.sources()[figure.source]


def written(key: str, figure: datasheet.Figure) -> str:
    """Write a figure with its unit. Vendors print memory in decimal GB, and counts are whole."""
    if key == "memory":
        return f"{figure.value / 1e9:g} GB"
    return f"{figure.value:,.0f}" if figure.unit == "1" else format_quantity(figure.value, figure.unit)


def _value(key: str, figure: datasheet.Figure, numbers: dict[str, int]) -> list[nodes.Node]:
    """Return a value with its source's number, which says where nobody opened the source, and its note to point at."""
    shown: nodes.Node = nodes.Text(written(key, figure))
    if figure.note:
        shown = nodes.abbreviation("", shown.astext(), explanation=figure.note)
    mark = (
        f"[{numbers[figure.source]}]" if source_of(figure).verified else f"[{numbers[figure.source]}, {NOT_VERIFIED}]"
    )
    number = nodes.reference("", mark, refid=f"source-{figure.source}", classes=["gg-source"])
    return [shown, nodes.Text(" "), number]

"""The directives ``gpu-overview`` and ``gpu-cards``: what vendors print of each GPU, and what we measured beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias, cast

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.claims import quoted
from gpuguide.hardware import datasheet
from gpuguide.hardware.sources import NOT_VERIFIED, PrintedValue, Source
from gpuguide.measure import digest, folders, reference_gpu, store
from gpuguide.measure.records import Record
from gpuguide.site.execution import faults, watching
from gpuguide.site.pages.tables import Cell, table
from gpuguide.units import format_quantity, significant

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx
    from sphinx.domains.std import StandardDomain

Amount: TypeAlias = tuple[float, str]
"""A value and its unit"""
GROUPS = {
    "memory": ("memory", "memory_bandwidth", "l2"),
    "arithmetic": ("fp32", "tf32_dense", "fp16_dense", "bf16_dense", "fp8_dense"),
    "links": ("pcie_per_direction", "nvlink_per_direction"),
    "chip": ("sms", "boost_clock", "tdp"),
}
"""The lines of a card, in their order"""
BESIDE = {
    "tf32_dense": "tf32_sparse",
    "fp16_dense": "fp16_sparse",
    "bf16_dense": "bf16_sparse",
    "fp8_dense": "fp8_sparse",
    "pcie_per_direction": "pcie_total",
    "nvlink_per_direction": "nvlink_total",
}
"""What stands on the same line"""
NAMES = {
    "memory": "memory",
    "memory_bandwidth": "bandwidth",
    "l2": "L2 cache",
    "fp32": "FP32",
    "tf32_dense": "TF32",
    "fp16_dense": "FP16",
    "bf16_dense": "BF16",
    "fp8_dense": "FP8",
    "pcie_per_direction": "PCIe",
    "nvlink_per_direction": "NVLink",
    "sms": "multiprocessors",
    "boost_clock": "boost clock",
    "tdp": "power limit",
}
QUALIFIED = {
    **dict.fromkeys(("tf32_sparse", "fp16_sparse", "bf16_sparse", "fp8_sparse"), "sparse"),
    **dict.fromkeys(("pcie_per_direction", "nvlink_per_direction"), "each way"),
    **dict.fromkeys(("pcie_total", "nvlink_total"), "both ways"),
}
"""What is said of a figure where its line holds two"""
OVERVIEW = ("memory", "memory_bandwidth", "fp16_dense", "bf16_dense", "fp8_dense")
"""The figures by which one chooses a card"""
COLUMNS = {"B": (1e9, "GB"), "B/s": (1e12, "TB/s"), "FLOP/s": (1e12, "TFLOP/s")}
"""The unit in which the overview writes all figures of a kind, so that the larger number is the larger figure"""
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
    app.add_directive("gpu-overview", Overview)
    app.add_directive("gpu-cards", Cards)
    app.add_directive("datasheet-sources", Sources)


def note_datasheet(directive: SphinxDirective) -> None:
    """Read the page again when the datasheet table changes."""
    directive.env.note_dependency(str(digest.module_path("gpuguide.hardware.datasheet").with_suffix(".toml")))


class _Hardware(SphinxDirective):
    """What the directives share: the table, the records beside it, and a page that is read again when they change."""

    def measured_ceilings(self) -> dict[str, list[Record]]:
        """Return the published ceilings of each GPU of the table, by its id."""
        note_datasheet(self)
        watching.note_folder(self.env, folders.published_folder())
        found: dict[str, list[Record]] = {}
        with faults.report_errors(self.get_location()):
            for record in store.load_all_published():
                gpu = datasheet.find(record.device_name)
                if record.benchmark == "ceilings" and gpu is not None:
                    watching.note_record(self.env, record)
                    found.setdefault(gpu.id, []).append(record)
        return found


class Overview(_Hardware):
    """``{gpu-overview}``: a line a GPU, which leads to its card."""

    def run(self) -> list[Node]:
        """Return the table."""
        measured = self.measured_ceilings()
        rows: list[list[Cell]] = []
        for gpu in newest_first():
            found = [{key: amount for key, amount, _ in shares(record, gpu)} for record in measured.get(gpu.id, [])]
            name = nodes.reference("", gpu.name, refid=anchor(gpu))
            rows.append(
                [name, *(overview_cell(gpu, key, [each[key] for each in found if key in each]) for key in OVERVIEW)]
            )
        units = {key: next(gpu.figures[key].unit for gpu in newest_first() if key in gpu.figures) for key in OVERVIEW}
        header = ["GPU", *(f"{NAMES[key]}, {COLUMNS[units[key]][1]}" for key in OVERVIEW)]
        made = table(header, rows, classes=["gg-datasheet"])
        for row in made.findall(nodes.row):
            for entry in row.children[1:]:
                assert isinstance(entry, nodes.entry)
                entry["classes"].append("gg-right")
        return [made]


class Cards(_Hardware):
    """``{gpu-cards}``: a section a GPU, with every figure, its source, its note, and what we measured of it."""

    def run(self) -> list[Node]:
        """Return the sections, to which figures in sentences lead."""
        measured = self.measured_ceilings()
        domain = cast("StandardDomain", self.env.get_domain("std"))
        for gpu in datasheet.load().values():
            domain.note_hyperlink_target(anchor(gpu), self.env.docname, anchor(gpu), gpu.name)
        return [card(gpu, measured.get(gpu.id, [])) for gpu in newest_first()]


class Sources(SphinxDirective):
    """``{datasheet-sources}``: the documents that the numbers in brackets stand for."""

    def run(self) -> list[Node]:
        """Return a numbered list with a target for each number."""
        note_datasheet(self)
        listed = nodes.enumerated_list(enumtype="arabic")
        for key in source_numbers():
            listed += nodes.list_item("", cite(datasheet.sources()[key]), ids=[f"source-{key}"])
        return [listed]


def newest_first() -> list[datasheet.Gpu]:
    """Return all GPUs, newest first: by compute capability, and within one against the order of the datasheet table."""
    return sorted(datasheet.load().values(), key=lambda gpu: gpu.capability)[::-1]


def overview_cell(gpu: datasheet.Gpu, key: str, measured: list[Amount]) -> list[nodes.Node]:
    """Return a printed figure in its column's unit, and below it what we measured."""
    if key not in gpu.figures:
        return [nodes.Text("–")]
    shown: list[nodes.Node] = [nodes.Text(format_in_column(gpu.figures[key].value, gpu.figures[key].unit))]
    for amount in measured:
        shown.append(nodes.inline("", f"measured {format_in_column(*amount)}", classes=["gg-note"]))
    return shown


def format_in_column(value: float, unit: str) -> str:
    """Write an amount in the unit of its column, without it.

    >>> format_in_column(4.8e12, "B/s"), format_in_column(1979e12, "FLOP/s"), format_in_column(141e9, "B")
    ('4.80', '1,979', '141')
    """
    scale, _ = COLUMNS[unit]
    return f"{value / scale:.2f}" if unit == "B/s" else f"{value / scale:,.4g}"


def cite(source: Source) -> nodes.paragraph:
    """Return the link to a document, its publisher, whether we looked at it, and what it is a copy of."""
    link = nodes.reference("", source.title, refuri=source.url)
    looked = "; ".join(text for text in (source.verification, source.note) if text)
    return nodes.paragraph("", "", link, nodes.Text(f", {source.publisher} ({looked})"))


def card(gpu: datasheet.Gpu, records: list[Record]) -> nodes.section:
    """Return one GPU's section: what it is, a table of its figures, and the stamp of each record beside them."""
    section = nodes.section("", nodes.title("", gpu.name), ids=[anchor(gpu)], names=[anchor(gpu)], classes=["gg-card"])
    section += nodes.paragraph("", describe_gpu(gpu), classes=["gg-kind"])
    measured = [{key: (amount, share) for key, amount, share in shares(record, gpu)} for record in records]
    numbers = source_numbers()
    rows: list[list[Cell]] = []
    for key in (key for group in GROUPS.values() for key in group if key in gpu.figures):
        both = [each for each in (key, BESIDE.get(key, "")) if each in gpu.figures]
        printed = [node for each in both for node in _value(each, gpu.figures[each], numbers)]
        rows.append([NAMES[key], printed, *(format_share(found[key]) if key in found else "" for found in measured)])
    header: list[Cell] = ["figure", "printed"]
    header += [nodes.inline("", "measured", ids=[measured_anchor(record)]) for record in records]
    section += table(header, rows, classes=["gg-figures"])
    spoken_of = quoted.select_quoted([record for record in records if record.stale])
    for record in records:
        stamp = " · ".join(filter(None, (record.runs[-1].stamp(), reference_gpu.age(record, record in spoken_of))))
        section += nodes.paragraph("", f"Measured on {stamp}", classes=["gg-stamp"])
    return section


def format_share(found: tuple[Amount, str]) -> list[nodes.Node]:
    """Return a measured ceiling and below it its share of the printed figure."""
    amount, share = found
    return [nodes.Text(quantity(amount)), nodes.inline("", f"{share} of it", classes=["gg-note"])]


def describe_gpu(gpu: datasheet.Gpu) -> str:
    """Say in a line what a GPU is."""
    major, minor = gpu.capability
    return f"{gpu.architecture}, {gpu.form}, compute capability {major}.{minor}"


def shares(record: Record, gpu: datasheet.Gpu) -> Iterator[tuple[str, Amount, str]]:
    """Yield each figure that a ceiling approaches, with the ceiling, and its share of the figure in words."""
    keys = {label: key for key, (_, _, label) in COMPARED.items()}
    for label, measured, printed in comparisons(record, gpu):
        yield keys[label], measured, f"{significant(100 * measured[0] / printed[0])}%"


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


def source_of(figure: PrintedValue) -> Source:
    """Return the document that a figure comes from."""
    return datasheet.sources()[figure.source]


def format_figure(key: str, figure: PrintedValue) -> str:
    """Write a figure with its unit. Vendors print memory in decimal GB, and counts are whole."""
    if key == "memory":
        return f"{figure.value / 1e9:g} GB"
    return f"{figure.value:,.0f}" if figure.unit == "1" else format_quantity(figure.value, figure.unit)


def _value(key: str, figure: PrintedValue, numbers: dict[str, int]) -> list[nodes.Node]:
    """Return a value, its source's number, which says where nobody opened the source, and its note below them."""
    number = numbers[figure.source]
    mark = f"[{number}]" if source_of(figure).is_verified else f"[{number}, {NOT_VERIFIED}]"
    link = nodes.reference("", mark, refid=f"source-{figure.source}", classes=["gg-source"])
    note = [nodes.inline("", figure.note, classes=["gg-note"])] if figure.note else []
    value = " ".join(filter(None, (format_figure(key, figure), QUALIFIED.get(key))))
    return [nodes.inline("", "", nodes.Text(f"{value} "), link, *note, classes=["gg-figure-line"])]

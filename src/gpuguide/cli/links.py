"""``gpuguide links``: the links of this machine's GPUs, and the measured bandwidth of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuguide.cli.screen import err, listing, say, show
from gpuguide.errors import GpuguideError
from gpuguide.units import format_quantity

if TYPE_CHECKING:
    from gpuguide.interconnect.discovery import GpuLinks, GpuTopology, PairLink
    from gpuguide.interconnect.measuring import LinkBandwidth, Report

DIRECTIONS = {"h2d": "host to GPU", "d2h": "GPU to host"}


def links(
    out_file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write everything to this file, as JSON.")
    ] = None,
) -> None:
    """List the links of this machine's GPUs, and measure the bandwidth of each.

    PCI Express as negotiated and as possible, NVLink, and the part of the host that each GPU is near. The nominal
    bandwidth is what the link's standard leaves after its line code, and efficiency is the measured share of it. It
    takes a few seconds a GPU, and 2 GiB of its memory.

    Example: gpuguide links --out links.json
    """
    if out_file is not None and not out_file.parent.is_dir():
        raise GpuguideError(f"Cannot write {out_file}: there is no folder {out_file.parent}. Make it first.")
    from gpuguide import interconnect

    machine = interconnect.discover()
    report = interconnect.measure(machine, lambda text: err.print(f"measuring: {text}", markup=False))
    for line in describe(report.machine):
        say(line)
    table = listing(
        "link", "direction", "nominal", "measured", "efficiency", whole=("nominal", "measured", "efficiency")
    )
    for link in report.bandwidths:
        table.add_row(*describe_bandwidth(link))
    print()
    show(table)
    for fault in report.machine.faults(at_work=True):
        err.print(fault, markup=False)
    if out_file is not None:
        save(report, out_file)
    if report.machine.faults(at_work=True):
        raise typer.Exit(1)


def save(report: Report, path: Path) -> None:
    """Write a report as JSON."""
    try:
        path.write_text(json.dumps(report.as_data(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise GpuguideError(f"Cannot write {path}: {error.strerror or error}. Name another file with --out.") from error
    err.print(f"Written to {path}", markup=False)


def describe(machine: GpuTopology) -> Iterator[str]:
    """Yield a line that describes each GPU and each pair of them."""
    for gpu in machine.gpus:
        yield f"GPU {gpu.index}, {gpu.name}: {'; '.join(describe_gpu(gpu))}"
    for pair in machine.pairs:
        yield f"GPU {pair.first} and GPU {pair.second}: {'; '.join(describe_pair(pair))}"


def describe_gpu(gpu: GpuLinks) -> Iterator[str]:
    """Yield descriptions of a GPU's links."""
    board, nvlink = gpu.connections.board, gpu.connections.nvlink
    if board.link_generation is None or board.link_width is None:
        yield "the driver does not say how it is plugged in; is nvidia-ml-py installed?"
    else:
        yield f"PCIe generation {board.link_generation}, {board.link_width} lanes{describe_maximum(gpu)}"
    if nvlink.count:
        rate = f" of {format_quantity(nvlink.rate, 'B/s')} on the wire each way" if nvlink.rate else ""
        yield f"{nvlink.count} NVLinks{rate}"
    else:
        yield "no NVLink"
    if gpu.connections.numa_node is not None:
        yield f"near NUMA node {gpu.connections.numa_node}"


def describe_maximum(gpu: GpuLinks) -> str:
    """Describe the fastest PCIe link that board and slot allow, compared with the one negotiated."""
    board = gpu.connections.board
    now, most = (board.link_generation, board.link_width), (board.most_link_generation, board.most_link_width)
    if None in most:
        return ""
    return ", which is all that board and slot allow" if now == most else f", of at most {most[0]} and {most[1]}"


def describe_pair(pair: PairLink) -> Iterator[str]:
    """Yield descriptions of the connection between two GPUs."""
    if not pair.are_peers:
        yield "neither reaches the other's memory, so copies go through the host"
    if pair.nvlinks:
        yield f"{pair.nvlinks} NVLinks"
    if pair.over_pcie:
        yield f"over PCIe they have {pair.over_pcie} in common"


def describe_bandwidth(link: LinkBandwidth) -> tuple[str, str, str, str, str]:
    """Return the cells of a link in the table."""
    ends = f"GPU {link.gpu}" if link.other is None else f"GPU {link.gpu} and GPU {link.other}"
    one_way = DIRECTIONS.get(link.direction) or f"GPU {link.gpu} to GPU {link.other}"
    return (
        "PCIe, " + ends if link.other is None else ends,
        "both at once" if link.direction == "both" else one_way,
        "not known" if link.nominal is None else format_quantity(link.nominal, "B/s"),
        format_quantity(link.bandwidth, "B/s"),
        "" if link.efficiency is None else f"{link.efficiency:.0%}",
    )

"""``gpuguide links``: what links this machine's GPUs, and what each link carries."""

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
    from gpuguide.interconnect.discovery import GpuLinks, Machine, PairLink
    from gpuguide.interconnect.measuring import Carried, Report

DIRECTIONS = {"h2d": "host to GPU", "d2h": "GPU to host"}


def links(
    out_file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write everything to this file, as JSON.")
    ] = None,
) -> None:
    """Show what links this machine's GPUs, and measure each link.

    PCI Express as negotiated and as possible, NVLink, and the part of the host that each GPU is near. A promise is what
    the link's standard leaves after its line code. It takes a few seconds a GPU, and 2 GiB of its memory.

    Example: gpuguide links --out links.json
    """
    if out_file is not None and not out_file.parent.is_dir():
        raise GpuguideError(f"Cannot write {out_file}: there is no folder {out_file.parent}. Make it first.")
    from gpuguide import interconnect

    machine = interconnect.discover()
    report = interconnect.measure(machine, lambda text: err.print(f"measuring: {text}", markup=False))
    for line in told(report.machine):
        say(line)
    table = listing("link", "direction", "promise", "measured", "share", whole=("promise", "measured", "share"))
    for each in report.carried:
        table.add_row(*row(each))
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


def told(machine: Machine) -> Iterator[str]:
    """Yield a line for each GPU and each pair of them."""
    for gpu in machine.gpus:
        yield f"GPU {gpu.index}, {gpu.name}: {'; '.join(of_gpu(gpu))}"
    for pair in machine.pairs:
        yield f"GPU {pair.first} and GPU {pair.second}: {'; '.join(between(pair))}"


def of_gpu(gpu: GpuLinks) -> Iterator[str]:
    """Yield what links a GPU, in words."""
    board, nvlink = gpu.connections.board, gpu.connections.nvlink
    if board.link_generation is None or board.link_width is None:
        yield "the driver does not say how it is plugged in; is nvidia-ml-py installed?"
    else:
        yield f"PCIe generation {board.link_generation}, {board.link_width} lanes{possible(gpu)}"
    if nvlink.count:
        rate = f" of {format_quantity(nvlink.rate, 'B/s')} on the wire each way" if nvlink.rate else ""
        yield f"{nvlink.count} NVLinks{rate}"
    else:
        yield "no NVLink"
    if gpu.connections.numa_node is not None:
        yield f"near NUMA node {gpu.connections.numa_node}"


def possible(gpu: GpuLinks) -> str:
    """Return what the PCIe link could be at most, if that is more than it is or was."""
    board = gpu.connections.board
    now, most = (board.link_generation, board.link_width), (board.most_link_generation, board.most_link_width)
    if None in most:
        return ""
    return ", which is all that board and slot allow" if now == most else f", of at most {most[0]} and {most[1]}"


def between(pair: PairLink) -> Iterator[str]:
    """Yield what is between two GPUs, in words."""
    if not pair.are_peers:
        yield "neither reaches the other's memory, so copies go through the host"
    if pair.nvlinks:
        yield f"{pair.nvlinks} NVLinks"
    if pair.over_pcie:
        yield f"over PCIe they have {pair.over_pcie} in common"


def row(carried: Carried) -> tuple[str, str, str, str, str]:
    """Return a line of the table."""
    ends = f"GPU {carried.gpu}" if carried.other is None else f"GPU {carried.gpu} and GPU {carried.other}"
    one_way = DIRECTIONS.get(carried.direction) or f"GPU {carried.gpu} to GPU {carried.other}"
    return (
        "PCIe, " + ends if carried.other is None else ends,
        "both at once" if carried.direction == "both" else one_way,
        "not known" if carried.promise is None else format_quantity(carried.promise, "B/s"),
        format_quantity(carried.bandwidth, "B/s"),
        "" if carried.share is None else f"{carried.share:.0%}",
    )

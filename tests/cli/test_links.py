"""``gpuguide links``, with links that are made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpuguide import interconnect
from gpuguide.hardware.monitor.connections import Connections, NvLinks
from gpuguide.hardware.monitor.driver import BoardState
from gpuguide.interconnect import measuring
from gpuguide.interconnect.discovery import GpuLinks, GpuTopology, PairLink
from gpuguide.interconnect.measuring import LinkBandwidth, Report

Run = Callable[..., tuple[int, str, str]]
FULL = BoardState(link_generation=5, most_link_generation=5, link_width=16, most_link_width=16)
NVLINK = NvLinks(18, rate=26.562e9)
COMMON = "one NUMA node"


def machine(*boards: BoardState, nvlink: NvLinks = NVLINK, are_peers: bool = True) -> GpuTopology:
    gpus = tuple(
        GpuLinks(index, "NVIDIA H200", Connections("0000:1b:00.0", board, numa_node=index, nvlink=nvlink))
        for index, board in enumerate(boards)
    )
    count = nvlink.count if are_peers else 0
    pair = PairLink(0, 1, are_peers, count, 25e9 * count or None, COMMON)
    return GpuTopology(gpus, (pair,) if len(gpus) > 1 else ())


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch, gpuguide: Run) -> Callable[..., tuple[int, str, str]]:
    """Run the command on a made-up machine."""

    def run(made_up: GpuTopology, *words: object) -> tuple[int, str, str]:
        carried = [LinkBandwidth(gpu.index, None, "h2d", 2**28, 55.3e9, gpu.nominal) for gpu in made_up.gpus]
        carried += [LinkBandwidth(gpu.index, None, "both", 2**28, 90e9, None) for gpu in made_up.gpus]
        carried += [LinkBandwidth(0, 1, "one", 2**30, 395e9, pair.nominal) for pair in made_up.pairs if pair.are_peers]
        monkeypatch.setattr(interconnect, "discover", lambda: made_up)
        monkeypatch.setattr(measuring, "measure", lambda found, say: say("GPU 0") or Report(found, tuple(carried)))
        return gpuguide("links", *words)

    return run


def lines_of(out: str) -> list[list[str]]:
    """Return the cells of the table's lines."""
    return [[cell for cell in line.split("  ") if cell] for line in out.split("\n\n", 1)[1].splitlines()]


def test_nominal_and_measured_bandwidth_are_shown(links: Run) -> None:
    status, out, err = links(machine(FULL, FULL))
    assert status == 0
    assert err == "measuring: GPU 0\n"
    words = " ".join(out.split())
    assert (
        "GPU 0, NVIDIA H200: PCIe generation 5, 16 lanes, which is all that board and slot allow; 18 NVLinks" in words
    )
    assert "of 26.6 GB/s on the wire each way; near NUMA node 0" in words
    assert f"GPU 0 and GPU 1: 18 NVLinks; over PCIe they have {COMMON} in common" in words
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines_of(out)]
    assert ["PCIe, GPU 0", "host to GPU", "63.0 GB/s", "55.3 GB/s", "88%"] in cells
    assert ["PCIe, GPU 1", "both at once", "not known", "90.0 GB/s"] in cells
    assert ["GPU 0 and GPU 1", "GPU 0 to GPU 1", "450 GB/s", "395 GB/s", "88%"] in cells
    assert max(map(len, out.splitlines())) <= 100


def test_everything_is_saved_and_names_no_slot(links: Run, tmp_path: Path) -> None:
    file = tmp_path / "links.json"
    status, _, err = links(machine(FULL, FULL), "--out", file)
    assert status == 0
    assert str(file) in err.replace("\n", "")
    data = json.loads(file.read_text(encoding="utf-8"))
    assert [gpu["name"] for gpu in data["gpus"]] == ["NVIDIA H200"] * 2
    assert data["pairs"][0]["nvlinks"] == 18
    assert {(each["gpu"], each["other"], each["direction"]): each["bandwidth"] for each in data["measured"]} == {
        (0, None, "h2d"): 55.3e9,
        (1, None, "h2d"): 55.3e9,
        (0, None, "both"): 90e9,
        (1, None, "both"): 90e9,
        (0, 1, "one"): 395e9,
    }
    assert "0000:1b" not in file.read_text(encoding="utf-8")


def test_a_narrow_link_is_told_and_saved_and_fails(links: Run, tmp_path: Path) -> None:
    file = tmp_path / "links.json"
    status, out, err = links(machine(replace(FULL, link_width=8)), "--out", file)
    assert status == 1
    assert "PCIe generation 5, 8 lanes, of at most 5 and 16" in " ".join(out.split())
    assert "GPU 0: The PCIe link has 8 of the 16 lanes" in err
    assert "8 of the 16 lanes" in json.loads(file.read_text(encoding="utf-8"))["faults"][0]


def test_a_link_that_stays_slow_under_load_is_told(links: Run) -> None:
    status, _, err = links(machine(replace(FULL, link_generation=3)))
    assert status == 1
    assert "runs at generation 3 under load, and board and slot allow 5" in err


def test_what_the_driver_does_not_say_is_not_made_up(links: Run) -> None:
    status, out, _ = links(machine(BoardState(), BoardState(), nvlink=NvLinks(0), are_peers=False))
    assert status == 0
    words = " ".join(out.split())
    assert "the driver does not say how it is plugged in; is nvidia-ml-py installed?; no NVLink" in words
    assert "neither reaches the other's memory, so copies go through the host" in words
    assert "not known" in words


def test_without_a_gpu(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, out, err = gpuguide("links")
    assert (status, out) == (1, "")
    assert " ".join(err.split()) == (
        "gpuguide: PyTorch sees no CUDA GPU, so there is no link to measure; 'gpuguide doctor' says what is missing."
    )


def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(links: Run, tmp_path: Path) -> None:
    status, out, err = links(machine(FULL), "--out", tmp_path / "missing" / "links.json")
    assert (status, out) == (1, "")
    assert "there is no folder" in err
    assert "measuring" not in err
    status, _, err = links(machine(FULL), "--out", tmp_path)
    assert status == 1
    assert "Is a directory" in err

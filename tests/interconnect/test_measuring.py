from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from gpuguide import interconnect
from gpuguide.errors import GpuguideError
from gpuguide.hardware.monitor.connections import Connections, NvLinks
from gpuguide.hardware.monitor.driver import BoardState
from gpuguide.interconnect import measuring
from gpuguide.interconnect.discovery import GpuLinks, GpuTopology, PairLink

MIB = 2**20
IDLE = BoardState(link_generation=1, most_link_generation=5, link_width=16, most_link_width=16)
AT_WORK = replace(IDLE, link_generation=5)
PCIE_5 = 32e9 * 16 / 8 * 128 / 130
PAIR = PairLink(0, 1, are_peers=True, nvlinks=18, nominal=450e9, over_pcie=None)


def gpu(index: int = 0, board: BoardState = AT_WORK) -> GpuLinks:
    return GpuLinks(index, "NVIDIA Made-up", Connections(board=board, nvlink=NvLinks(18, rate=26.562e9)))


def test_every_direction_to_the_host_is_measured_and_both_promise_twice_as_much() -> None:
    found = measuring.host_links(gpu(), "cpu", MIB)
    assert [(each.direction, each.other, each.size) for each in found] == [
        ("h2d", None, MIB),
        ("d2h", None, MIB),
        ("both", None, MIB),
    ]
    assert [each.nominal for each in found] == pytest.approx([PCIE_5, PCIE_5, 2 * PCIE_5], rel=1e-4)
    assert all(0 < each.bandwidth < 1e13 for each in found)
    assert found[0].efficiency == pytest.approx(found[0].bandwidth / PCIE_5, rel=1e-4)
    assert measuring.host_links(gpu(board=IDLE), "cpu", MIB)[0].efficiency is None  # the table has no generation 1


def test_a_pair_is_measured_each_way_and_both_ways_at_once() -> None:
    found = measuring.peer_links(PAIR, "cpu", "cpu", MIB)
    assert [(each.gpu, each.other, each.direction, each.nominal) for each in found] == [
        (0, 1, "one", 450e9),
        (1, 0, "one", 450e9),
        (0, 1, "both", 900e9),
    ]
    assert measuring.peer_links(replace(PAIR, are_peers=False), "cpu", "cpu", MIB) == []


def test_bandwidth_is_the_bytes_of_all_directions_over_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.0, 9.0, 2.0] * 2 + [4.0] * 100)
    monkeypatch.setattr(measuring, "_times", lambda copy, devices: [next(seconds) for _ in range(3)])
    one, _, both = measuring.peer_links(PAIR, "cpu", "cpu", MIB)
    assert (one.bandwidth, both.bandwidth) == (MIB / 2, 2 * MIB / 4)


def on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let GPUs be host memory, and let a link be found at its full generation once it has worked."""
    for name in ("host_links", "peer_links"):
        whole = getattr(measuring, name)
        monkeypatch.setattr(
            measuring, name, lambda link, *devices, whole=whole: whole(link, *["cpu"] * len(devices), size=MIB)
        )
    monkeypatch.setattr(measuring, "_read_again", lambda found, machine: gpu(found.index))


def test_a_machine_is_measured_and_promises_what_it_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_processor(monkeypatch)
    said: list[str] = []
    report = measuring.measure(GpuTopology((gpu(0, IDLE), gpu(1, IDLE)), (PAIR,)), said.append)
    assert said == ["GPU 0 and the host", "GPU 1 and the host", "GPU 0 and GPU 1"]
    assert [each.connections.board for each in report.machine.gpus] == [AT_WORK, AT_WORK]
    assert [each.nominal for each in report.bandwidths[:3]] == pytest.approx([PCIE_5, PCIE_5, 2 * PCIE_5], rel=1e-4)
    data = json.loads(json.dumps(report.as_data()))
    assert len(data["measured"]) == 9
    assert data["measured"][0]["efficiency"] == pytest.approx(report.bandwidths[0].bandwidth / PCIE_5, rel=1e-4)
    assert data["gpus"][0]["pcie_nominal"] == pytest.approx(PCIE_5, rel=1e-4)
    assert data["faults"] == []


def test_what_arrives_damaged_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.Route, "arrives_whole", lambda route: False)
    with pytest.raises(GpuguideError, match="from or to cuda:0 arrived damaged"):
        measuring._bandwidth(measuring.route("pinned", "h2d", 8, "cpu"), ["cuda:0"])


def test_a_failing_copy_names_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.\nand more")

    monkeypatch.setattr(measuring, "host_links", fail)
    with pytest.raises(
        GpuguideError, match=r"between GPU 0 and the host failed: CUDA out of memory\. Tried .* 1 GiB\."
    ):
        measuring.measure(GpuTopology((gpu(),), ()))


# --- the package's face ----------------------------------------------------------------------------------


def test_planning_imports_no_pytorch_and_moving_does() -> None:
    code = (
        "import sys; from gpuguide.interconnect import time_to_move, discover; light = 'torch' not in sys.modules; "
        "from gpuguide.interconnect import Ring; print(light, 'torch' in sys.modules, Ring.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "gpuguide.interconnect.copies"]


def test_every_name_of_the_face_is_there_and_no_other() -> None:
    assert all(getattr(interconnect, name) is not None for name in interconnect.__all__)
    assert set(interconnect.OF_TENSORS) <= set(interconnect.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Rings'"):
        _ = interconnect.Rings


@pytest.mark.gpu
def test_this_machine_keeps_a_good_part_of_its_promises() -> None:
    report = interconnect.measure(interconnect.discover())
    assert all(0.1 < each.efficiency < 1.05 for each in report.bandwidths if each.efficiency is not None)

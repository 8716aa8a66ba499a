from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import fake_nvml
import pytest
import torch

from gpuguide.errors import GpuguideError
from gpuguide.hardware.monitor.connections import Connections, NvLinks, narrower, numa_node, read_connections
from gpuguide.hardware.monitor.driver import BoardState
from gpuguide.interconnect.discovery import (
    GpuLinks,
    GpuTopology,
    compute_nvlink_bandwidth,
    compute_pcie_bandwidth,
    discover,
    nvlinks_between,
    pair_link,
)

FULL = BoardState(link_generation=5, most_link_generation=5, link_width=16, most_link_width=16)


class LinkedNvml(fake_nvml.FakeNvml):
    """A GPU with four NVLinks of which three are up, on eight lanes of sixteen."""

    NVML_NVLINK_MAX_LINKS = 4

    def nvmlDeviceGetPciInfo(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(busId=b"00000000:1B:00.0")

    def nvmlDeviceGetCurrPcieLinkGeneration(self, gpu: int) -> int:
        return 5

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: int) -> int:
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, gpu: int) -> int:
        return 8

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: int) -> int:
        return 16

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:
        return int(link != 2)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: int, link: int) -> SimpleNamespace:
        return SimpleNamespace(busId="00000000:07:00.0")

    def nvmlDeviceGetFieldValues(self, gpu: int, fields: list[object]) -> list[SimpleNamespace]:
        assert fields == [(164, 0)]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=26562))]


def with_nvml(monkeypatch: pytest.MonkeyPatch, nvml: fake_nvml.FakeNvml) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)


def test_what_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with_nvml(monkeypatch, LinkedNvml())
    found = read_connections()
    assert found.address == "0000:1b:00.0"
    assert (found.nvlink.count, found.nvlink.rate) == (3, 26562e6)
    assert found.nvlink.remote == ("0000:07:00.0",) * 3
    assert "has 8 of the 16 lanes that the board allows, so it carries 50%" in (narrower(found.board) or "")
    assert found.board_generation is None


def test_a_driver_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with_nvml(monkeypatch, fake_nvml.FakeNvml())
    found = read_connections()
    assert (found.nvlink, found.numa_node, found.address) == (NvLinks(0), None, None)
    assert narrower(found.board) is None
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert read_connections() == Connections()


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("?", None), (None, None)])
def test_the_numa_node_is_the_kernels(tmp_path: Path, text: str | None, node: int | None) -> None:
    (tmp_path / "0000:1b:00.0").mkdir()
    if text is not None:
        (tmp_path / "0000:1b:00.0" / "numa_node").write_text(text)
    assert numa_node("0000:1b:00.0", tmp_path) == node
    assert numa_node(None, tmp_path) is None


def test_an_idle_gpu_may_lower_its_generation_but_not_its_width() -> None:
    slow = BoardState(link_generation=1, most_link_generation=5, link_width=16, most_link_width=16)
    assert narrower(FULL) is narrower(FULL, at_work=True) is narrower(slow) is None
    assert "runs at generation 1 under load, and board and slot allow 5" in (narrower(slow, at_work=True) or "")


@pytest.mark.parametrize(("generation", "gigabytes"), [(3, 15.75), (4, 31.51), (5, 63.015), (6, 128.0)])
def test_the_nominal_bandwidth_of_sixteen_lanes(generation: int, gigabytes: float) -> None:
    assert (compute_pcie_bandwidth(generation, 16) or 0) / 1e9 == pytest.approx(gigabytes, abs=0.005)
    for unknown in ((generation, None), (99, 16), (1, 16)):
        assert compute_pcie_bandwidth(*unknown) is None


def test_the_nominal_bandwidth_of_an_nvlink_is_printed_and_what_the_driver_says_is_on_the_wire() -> None:
    """53.125 Gbaud, two bits each, on two lanes, of which 16 of 17 bits carry data: 25 GB/s of 26.5625."""
    on_the_wire = 53.125e9 * 2 * 2 / 8
    assert compute_nvlink_bandwidth(on_the_wire) == pytest.approx(on_the_wire * 16 / 17)
    assert compute_nvlink_bandwidth(26562e6) == compute_nvlink_bandwidth(25e9) == 25e9
    assert compute_nvlink_bandwidth(40e9) == 40e9  # of no generation in the table
    assert compute_nvlink_bandwidth(None) is compute_nvlink_bandwidth(0.0) is None


def a_gpu(index: int, address: str, remote: tuple[str, ...], count: int | None = None) -> GpuLinks:
    links = NvLinks(len(remote) if count is None else count, rate=25e9, remote=remote)
    return GpuLinks(index, "NVIDIA Made-up", Connections(address, FULL, nvlink=links))


def test_nvlinks_of_a_pair_end_at_each_other_or_at_switches_they_share() -> None:
    bridged = [a_gpu(0, "a", ("b",) * 4 + ("c",) * 2), a_gpu(1, "b", ("a",) * 4)]
    assert nvlinks_between(*(gpu.connections for gpu in bridged)) == 4
    switched = [a_gpu(0, "a", ("s", "s", "t")), a_gpu(1, "b", ("s", "t", "t"))]
    assert nvlinks_between(*(gpu.connections for gpu in switched)) == 3
    apart = [a_gpu(0, "a", ("c",)), a_gpu(1, "b", ("d",))]
    assert nvlinks_between(*(gpu.connections for gpu in apart)) == 0
    untold = [a_gpu(0, "a", (), 18), a_gpu(1, "b", (), 18)]
    assert pair_link(*untold, are_peers=True).nominal == 18 * 25e9
    assert pair_link(*untold, are_peers=False).nominal is None


def test_a_machine_can_be_written_as_json_and_names_no_slot() -> None:
    first, second = a_gpu(0, "0000:1b:00.0", ("0000:07:00.0",)), a_gpu(1, "0000:1c:00.0", ("0000:07:00.0",))
    text = json.dumps(GpuTopology((first, second), (pair_link(first, second, True),)).as_data())
    assert "0000:" not in text
    assert json.loads(text)["pairs"][0]["nvlinks"] == 1


def test_without_a_gpu_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(GpuguideError, match="sees no CUDA GPU, so there is no link to measure"):
        discover()


@pytest.mark.gpu
def test_this_machine() -> None:
    machine = discover()
    assert len(machine.gpus) == torch.cuda.device_count()
    assert len(machine.pairs) == len(machine.gpus) * (len(machine.gpus) - 1) // 2

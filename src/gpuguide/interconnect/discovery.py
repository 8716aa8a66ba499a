"""Discovery of the links between this machine's GPUs, and the nominal bandwidth of each, one way.

The nominal bandwidth is what a link carries one way after its line code, before headers and checksums, by the table
:mod:`gpuguide.hardware.links`: for PCI Express the rate of a lane times the lanes as negotiated, for NVLink the rate of
a link times the links.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gpuguide.errors import GpuguideError
from gpuguide.hardware import links
from gpuguide.hardware.monitor.connections import Connections, NvLinks, narrower, read_connections

__all__ = ["GpuLinks", "GpuTopology", "PairLink", "compute_nvlink_bandwidth", "compute_pcie_bandwidth", "discover"]

ON_THE_WIRE = 1.1
"""By how much the rate that a driver gives for an NVLink may exceed what its vendor prints: the driver counts the bits
on the wire, and line code and error correction take one of seventeen"""


def compute_pcie_bandwidth(generation: int | None, width: int | None) -> float | None:
    """Return the nominal bandwidth of a PCIe link one way, after its line code, B/s.

    It is ``None`` where generation or width is not known, or the table lacks the generation: the first two, to which an
    idle GPU falls back.

    >>> round(compute_pcie_bandwidth(5, 16) / 1e9, 1), compute_pcie_bandwidth(None, 16)
    (63.0, None)
    """
    link = links.load().get(f"pcie-{generation}-x16")
    if link is None or link.per_lane is None or not width:
        return None
    return link.per_lane * width


def compute_nvlink_bandwidth(rate: float | None) -> float | None:
    """Return the nominal bandwidth of one NVLink one way, B/s, from the rate that the driver gives for it.

    That is the figure of the table which is at most a little below, else the driver's own.

    >>> compute_nvlink_bandwidth(26.562e9), compute_nvlink_bandwidth(53.125e9), compute_nvlink_bandwidth(20e9)
    (25000000000.0, 50000000000.0, 20000000000.0)
    """
    if not rate:
        return None
    printed = {link.per_link.value for link in links.load().values() if link.family == "NVLink" and link.per_link}
    return max((each for each in printed if each <= rate <= ON_THE_WIRE * each), default=rate)


@dataclass(frozen=True)
class GpuLinks:
    """The links of one GPU."""

    index: int
    """As PyTorch counts"""
    name: str
    connections: Connections

    @property
    def nominal(self) -> float | None:
        """Nominal bandwidth of the PCIe link as negotiated, one way, B/s."""
        board = self.connections.board
        return compute_pcie_bandwidth(board.link_generation, board.link_width)

    @property
    def allowed_bandwidth(self) -> float | None:
        """Nominal bandwidth of the fastest PCIe link that board and slot allow, one way, B/s."""
        board = self.connections.board
        return compute_pcie_bandwidth(board.most_link_generation, board.most_link_width)

    def fault(self, *, at_work: bool = False) -> str | None:
        """Return a sentence on a link that is less than the board allows; see :func:`narrower`."""
        found = narrower(self.connections.board, at_work=at_work)
        return None if found is None else f"GPU {self.index}: {found}"


@dataclass(frozen=True)
class PairLink:
    """The connection of two GPUs."""

    first: int
    second: int
    are_peers: bool
    """Whether each can reach the other's memory by itself"""
    nvlinks: int
    """Number of NVLinks between the two, directly or through a switch"""
    nominal: float | None
    """Bandwidth one way in B/s over all NVLinks of the pair; ``None`` without NVLink"""
    over_pcie: str | None
    """Bridges and switches that the pair shares over PCIe"""


@dataclass(frozen=True)
class GpuTopology:
    """The GPUs that PyTorch sees, and their links."""

    gpus: tuple[GpuLinks, ...]
    pairs: tuple[PairLink, ...]
    """Every pair once"""

    def faults(self, *, at_work: bool = False) -> list[str]:
        """Return a sentence for each link that is less than the board allows."""
        return [fault for gpu in self.gpus if (fault := gpu.fault(at_work=at_work))]

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain dictionaries, for JSON. PCI addresses stay out: they name one machine's slots."""
        gpus = []
        for gpu in self.gpus:
            found = asdict(gpu)
            found["connections"].pop("address")
            found["connections"]["nvlink"].pop("remote")
            for key in ("memory_free", "is_partitioned"):
                found["connections"]["board"].pop(key)
            gpus.append({**found, "pcie_nominal": gpu.nominal, "pcie_allowed": gpu.allowed_bandwidth})
        return {"gpus": gpus, "pairs": [asdict(pair) for pair in self.pairs]}


def discover() -> GpuTopology:
    """Look at every GPU that PyTorch sees and at every pair of them.

    Raises
    ------
    GpuguideError
        If PyTorch sees no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise GpuguideError(
            "PyTorch sees no CUDA GPU, so there is no link to measure; 'gpuguide doctor' says what is missing."
        )
    chips = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    uuids = [str(chip.uuid) for chip in chips]
    gpus = tuple(GpuLinks(index, chip.name, read_connections(uuids[index], uuids)) for index, chip in enumerate(chips))
    pairs = tuple(
        pair_link(
            gpus[first],
            gpus[second],
            all(torch.cuda.can_device_access_peer(*ends) for ends in ((first, second), (second, first))),
        )
        for first in range(len(gpus))
        for second in range(first + 1, len(gpus))
    )
    return GpuTopology(gpus, pairs)


def pair_link(first: GpuLinks, second: GpuLinks, are_peers: bool) -> PairLink:
    """Return what is between two GPUs, from what the driver says of each."""
    count = nvlinks_between(first.connections, second.connections) if are_peers else 0
    each = compute_nvlink_bandwidth(first.connections.nvlink.rate)
    ways = first.connections.ancestors
    return PairLink(
        first.index,
        second.index,
        are_peers,
        count,
        count * each if count and each else None,
        ways[second.index] if second.index < len(ways) else None,
    )


def nvlinks_between(first: Connections, second: Connections) -> int:
    """Count the NVLinks over which one GPU reaches another: those that end there, else those of a switch they share.

    Where the driver does not say what is at the other ends, as in some virtual machines, both GPUs' links are taken to
    lead to a switch.
    """
    here, there = first.nvlink, second.nvlink
    direct = here.remote.count(second.address) if second.address else 0
    if direct:
        return direct
    if here.remote and there.remote:
        return min(_to_switches(here, there), _to_switches(there, here))
    return min(here.count, there.count)


def _to_switches(here: NvLinks, there: NvLinks) -> int:
    """Count the links that end where one of the other GPU's ends too, which is a switch."""
    return sum(end in there.remote for end in here.remote)

"""Bandwidth of each link of this machine, measured and nominal.

This is a quick check, not a benchmark: the median of a few copies of one large size by the host's clock. Every copy is
checked before it is timed.

Source: NVIDIA nvbandwidth, for large buffers, medians, and checked copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch

from gpuguide.errors import GpuguideError
from gpuguide.hardware.monitor.connections import read_connections
from gpuguide.interconnect.copies import DIRECTIONS, Route, route
from gpuguide.interconnect.discovery import GpuLinks, GpuTopology, PairLink
from gpuguide.interconnect.peers import PEER_DIRECTIONS, PeerRoute, peer_route

__all__ = ["HOST_SIZE", "PEER_SIZE", "LinkBandwidth", "Report", "host_links", "measure", "peer_links"]

MIB = 2**20
HOST_SIZE, PEER_SIZE = 256 * MIB, 1024 * MIB
"""Bytes of a copy to or from the host, and between GPUs"""
TURNS = 9
"""Timed turns, after two that are not timed"""
COPIES = 8
"""Copies of a turn, one after the other: so many that waiting for them takes less than 1 % of the time"""


@dataclass(frozen=True)
class LinkBandwidth:
    """Measured bandwidth of one link, one way or both ways at once."""

    gpu: int
    """Index of the GPU in PyTorch; of two GPUs, the one that sends"""
    other: int | None
    """Index of the GPU that receives; ``None`` for the host"""
    direction: str
    """``h2d``, ``d2h`` or ``both`` over PCIe, ``one`` or ``both`` between GPUs"""
    size: int
    """Bytes each way"""
    bandwidth: float
    """Measured B/s, of both ways together where there are two"""
    nominal: float | None
    """Nominal B/s, counted alike; ``None`` if unknown"""

    @property
    def efficiency(self) -> float | None:
        """Measured bandwidth as a share of the nominal one."""
        return self.bandwidth / self.nominal if self.nominal else None


@dataclass(frozen=True)
class Report:
    """The links of a machine, and the measured bandwidth of each."""

    machine: GpuTopology
    """Links as negotiated while they were busy"""
    bandwidths: tuple[LinkBandwidth, ...]

    def as_data(self) -> dict[str, Any]:
        """Return everything as plain dictionaries and lists, for JSON, in bytes and B/s."""
        measured = [{**asdict(link), "efficiency": link.efficiency} for link in self.bandwidths]
        return {**self.machine.as_data(), "measured": measured, "faults": self.machine.faults(at_work=True)}


def measure(machine: GpuTopology, say: Callable[[str], None] = lambda text: None) -> Report:
    """Measure every link of a machine.

    Parameters
    ----------
    machine : GpuTopology
        From :func:`~gpuguide.interconnect.discovery.discover`.
    say : callable
        Called with a line before each GPU and each pair.

    Raises
    ------
    GpuguideError
        If a copy arrives damaged, or cannot be made, for example because the memory does not suffice.
    """
    carried: list[LinkBandwidth] = []
    at_work = []
    place = ""
    try:
        for gpu in machine.gpus:
            say(place := f"GPU {gpu.index} and the host")
            carried += host_links(gpu, f"cuda:{gpu.index}")
            at_work.append(_read_again(gpu, machine))
        for pair in machine.pairs:
            say(place := f"GPU {pair.first} and GPU {pair.second}")
            carried += peer_links(pair, f"cuda:{pair.first}", f"cuda:{pair.second}")
    except RuntimeError as error:  # all of CUDA's errors, and memory that does not suffice
        said = str(error).splitlines()[0].rstrip(".")
        raise GpuguideError(
            f"A copy between {place} failed: {said}. Ask 'nvidia-smi' who else uses the GPU."
        ) from error
    # An idle link may have been slower than it now is, so the second reading gives the nominal bandwidth.
    now = {gpu.index: gpu for gpu in at_work}
    renewed = [
        replace(each, nominal=_nominal_for(now[each.gpu].nominal, each.direction)) if each.other is None else each
        for each in carried
    ]
    return Report(replace(machine, gpus=tuple(at_work)), tuple(renewed))


def host_links(gpu: GpuLinks, device: str, size: int = HOST_SIZE) -> list[LinkBandwidth]:
    """Measure copies from pinned memory between the host and a GPU, in each direction and in both at once.

    Parameters
    ----------
    gpu : GpuLinks
        The GPU and its links.
    device : str
        The GPU's name in PyTorch; ``cpu`` for tests.
    size : int
        Bytes each way.
    """
    found = []
    for direction in DIRECTIONS:
        bandwidth = _bandwidth(route("pinned", direction, size, device), [device])
        found.append(LinkBandwidth(gpu.index, None, direction, size, bandwidth, _nominal_for(gpu.nominal, direction)))
    return found


def peer_links(pair: PairLink, first: str, second: str, size: int = PEER_SIZE) -> list[LinkBandwidth]:
    """Measure copies between two GPUs, each way alone and both at once; none if they are no peers.

    Parameters
    ----------
    pair : PairLink
        Connection of the two.
    first, second : str
        Names of the two in PyTorch; twice ``cpu`` for tests.
    size : int
        Bytes each way.
    """
    if not pair.are_peers:
        return []
    one, both = PEER_DIRECTIONS
    turns = [(one, pair.first, pair.second), (one, pair.second, pair.first), (both, pair.first, pair.second)]
    names = {pair.first: first, pair.second: second}
    found = []
    for direction, source, to in turns:
        copy = peer_route("copy-engine", direction, size, names[source], names[to])
        bandwidth = _bandwidth(copy, [first, second])
        found.append(LinkBandwidth(source, to, direction, size, bandwidth, _nominal_for(pair.nominal, direction)))
    return found


def _nominal_for(one_way: float | None, direction: str) -> float | None:
    """Return a nominal bandwidth for the directions that are measured: twice the one-way value for both."""
    return None if one_way is None else one_way * (2 if direction == "both" else 1)


def _bandwidth(copy: Route | PeerRoute, devices: Sequence[str]) -> float:
    """Check a copy, and return the B/s of the median of several."""
    if not copy.arrives_whole():
        raise GpuguideError(
            f"A copy from or to {' and '.join(dict.fromkeys(devices))} arrived damaged, so nothing that is measured "
            "here can be trusted: look for errors of the link in 'nvidia-smi -q' and in the kernel's log."
        )
    times = sorted(_times(copy, devices))
    return copy.bytes / median(times)


def _times(copy: Route | PeerRoute, devices: Sequence[str]) -> Iterator[float]:
    """Yield the seconds of a copy by the host's clock, from several that follow one another."""

    def wait() -> None:
        for device in devices:
            if torch.device(device).type == "cuda":
                torch.cuda.synchronize(device)

    for turn in range(TURNS + 2):
        wait()
        begun = time.perf_counter()
        if isinstance(copy, PeerRoute):
            copy(COPIES)
        else:
            for _ in range(COPIES):
                copy.start()
        wait()
        if turn >= 2:
            yield (time.perf_counter() - begun) / COPIES


def _read_again(gpu: GpuLinks, machine: GpuTopology) -> GpuLinks:
    """Read a GPU's connections again just after its link was busy, before its clock is lowered."""
    uuids = [str(torch.cuda.get_device_properties(each.index).uuid) for each in machine.gpus]
    return replace(gpu, connections=read_connections(uuids[gpu.index], uuids))

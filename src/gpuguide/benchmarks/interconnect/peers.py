"""The link between two GPUs: copies by the copy engine and by a kernel, one way and both ways at once."""

from __future__ import annotations

import functools

import torch

from gpuguide.benchmarks.interconnect.routes import check, count_directions
from gpuguide.hardware.device import Device
from gpuguide.interconnect import peers
from gpuguide.interconnect.peers import CARRIERS, PEER_DIRECTIONS, PeerRoute
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, powers_of_two
from gpuguide.measure.records import Rate
from gpuguide.measure.timing import Sampler

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = powers_of_two(4 * KIB, 4 * GIB, 2)
"""Bytes each way"""


def ends(device: Device) -> tuple[str, str]:
    """Return the two places that bytes go between; on a CPU, in tests, both are its memory."""
    return ("cuda:0", "cuda:1") if device.backend == "cuda" else (device.torch_device, device.torch_device)


GRAPH_SECONDS = 8e-3
"""Seconds of a graph of copies, roughly: that GPUs wait for each other at its ends is then under 2 %"""
MOST_COPIES = 1000


def work(carrier: str, device: Device, keys: Keys) -> Work:
    """Copy ``size`` bytes each way between the first two GPUs, over and over in a graph: launches do not count."""
    size, direction = int(keys["size"]), str(keys["direction"])
    rates = {"bandwidth": Rate("B/s", size * count_directions(direction))}
    route = peers.peer_route(carrier, direction, size, *ends(device))
    sample = time_graph_of_copies(route, copies_in_graph(size)) if device.backend == "cuda" else None
    return Work([route], functools.partial(check, route), rates, sample=sample)


def copies_in_graph(size: int) -> int:
    """Return how many copies of ``size`` bytes a graph holds.

    >>> [copies_in_graph(size) for size in (4 * KIB, MIB, 64 * MIB, 4 * GIB)]
    [1000, 1000, 46, 1]
    """
    estimate = size / 400e9 + 5e-6
    return min(MOST_COPIES, max(1, round(GRAPH_SECONDS / estimate)))


def time_graph_of_copies(route: PeerRoute, copies: int) -> Sampler:
    """Return what times a copy of a graph that holds many, one after the other; a second direction runs beside them.

    The first GPU is kept busy while the host launches the graph: a small copy takes about as long as its launch.
    """
    timing.on_side_stream(route)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        route(copies)
    graph.replay()
    replay = timing.cuda_events(graph.replay, timing.flush_while_launching(graph.replay, "cuda:0"))
    return lambda: replay() / copies


def cases(device: Device) -> list[Keys]:
    """Return every size one way and both ways; on a CPU none."""
    if not device.is_gpu:
        return []
    return [{"size": size, "direction": direction} for size in SIZES for direction in PEER_DIRECTIONS]


def bytes_needed(keys: Keys) -> float:
    """Return the memory of a case on the GPU that holds more: one end of each way of each contender."""
    return len(CARRIERS) * int(keys["size"]) * count_directions(str(keys["direction"])) + 256 * MIB


PEER_COPY = Benchmark(
    name="peer-copy",
    title="Copies between two GPUs, by copy engine and by kernel",
    question="What does the link between two GPUs carry one way and both ways, and who should move the bytes?",
    contenders={carrier: Contender(functools.partial(work, carrier), frozenset({"gpu"})) for carrier in CARRIERS},
    cases=cases,
    memory=bytes_needed,
    budget=0.3,
    gpus=2,
)

"""The link between the host's memory and a GPU: pageable, pinned and staged copies, each way and both ways at once.

``transfer-size`` stays: it measures the two plain copies alone, in one call and at every power of two. Its record of an
H100 and the calculators rest on it, and the page on memories reads it. On one type of machine the two agree within a
few percent for pinned copies of 4 MiB and more; small ones take longer here, because a route does more in Python.
``frame-transfer`` stays because its question is another one: how fast a *frame* arrives, with columns, text and missing
values, by the libraries that make one.
"""

from __future__ import annotations

import functools

from gpuguide.benchmarks.interconnect.routes import check, count_directions
from gpuguide.hardware.device import Device
from gpuguide.interconnect import copies
from gpuguide.interconnect.copies import DIRECTIONS, WAYS
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, powers_of_two
from gpuguide.measure.records import Rate

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = (*powers_of_two(4 * KIB, 256 * MIB, 2), 2 * GIB)
"""Bytes each way. A copy of pageable memory takes long, so that the last step is a large one."""


def work(way: str, device: Device, keys: Keys) -> Work:
    """Copy ``size`` bytes each way, timed as the host sees it: until everything is there."""
    size, direction = int(keys["size"]), str(keys["direction"])
    rates = {"bandwidth": Rate("B/s", size * count_directions(direction))}
    route = copies.route(way, direction, size, device.torch_device)
    return Work([route], functools.partial(check, route), rates, timing="wall")


def cases(device: Device) -> list[Keys]:
    """Return every size in every direction; on a CPU none, where nothing crosses a link."""
    if not device.is_gpu:
        return []
    return [{"size": size, "direction": direction} for size in SIZES for direction in DIRECTIONS]


def bytes_needed(keys: Keys) -> float:
    """Return the device memory of a case: one end of each way of each contender, and what a checksum takes."""
    return len(WAYS) * int(keys["size"]) * count_directions(str(keys["direction"])) + 256 * MIB


HOST_DEVICE_COPY = Benchmark(
    name="host-device-copy",
    title="Copies between host and GPU: pageable, pinned and staged",
    question="What does the link to the host carry each way and both ways, and what must the memory be like?",
    contenders={way: Contender(functools.partial(work, way), frozenset({"gpu"})) for way in WAYS},
    cases=cases,
    memory=bytes_needed,
    budget=0.1,
)

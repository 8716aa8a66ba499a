"""Bandwidth and latency of each memory of a GPU, and what the large one gives when little is asked for at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpuguide.hardware.device import Device
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, powers_of_two
from gpuguide.measure.records import Rate
from gpuguide.systems import bytes_in_flight, memory_hierarchy

KIB, MIB, GIB = 2**10, 2**20, 2**30
READ = 8 * GIB
"""Bytes that one call reads, from a small working set again and again"""
FEW_HOPS, MANY_HOPS = 2**14, 2**16
FAR = 512 * KIB
"""Working sets from here on fit into no L1 cache. A hop takes long, and fewer are needed."""


def working_set(keys: Keys) -> int:
    """Return the bytes that are read."""
    return int(keys["working_set"])


def beyond_shared_memory(part: int, device: Device) -> str | None:
    """Return the reason to skip what one block cannot hold in shared memory, or None."""
    available = memory_hierarchy.shared_memory(device.capability or (0, 0))
    if part <= available:
        return None
    return f"a block would hold {part / KIB:.0f} KiB, and its shared memory has {available / KIB:.0f} KiB"


# --- bandwidth -------------------------------------------------------------------------------------------


def read_work(memory: str, device: Device, keys: Keys) -> Work:
    """Let all multiprocessors read, each its own part of the working set, again and again."""
    reading = memory_hierarchy.Reading.set_up(
        working_set(keys), READ, device.multiprocessors, memory, device.torch_device
    )

    def check() -> None:
        reading()
        assert reading.is_complete(), "the words that were read do not add up to what they should"

    rates = {"bandwidth": Rate("B/s", reading.bytes_read)}
    return Work([reading], check, rates, timing="graph", footprint=reading.words.nbytes)


def read_cases(device: Device) -> Sequence[Keys]:
    """Return working sets of all sizes, with half-steps around the L2 cache; on a CPU none."""
    if not device.is_gpu:
        return []
    steps = powers_of_two(MIB, 4 * GIB)
    between = [size * 3 // 2 for size in steps if device.l2 / 8 <= size <= 2 * device.l2]
    return [{"working_set": size} for size in sorted([*steps, *between])]


def reader(memory: str) -> Contender:
    """Return the contender that reads from one memory."""

    def skip_reason(device: Device, keys: Keys) -> str | None:
        return beyond_shared_memory(working_set(keys) // device.multiprocessors, device)

    def build(device: Device, keys: Keys) -> Work:
        return read_work(memory, device, keys)

    return Contender(build, ON_GPU, skip_reason) if memory == "shared" else Contender(build, ON_GPU)


ON_GPU = frozenset({"gpu"})

MEMORY_HIERARCHY = Benchmark(
    name="memory-hierarchy",
    title="Read bandwidth by working set and memory",
    question="How fast can all multiprocessors together read from shared memory, from each cache and from memory?",
    contenders={name: reader(name) for name in memory_hierarchy.LOADS},
    cases=read_cases,
    memory=lambda keys: 2 * working_set(keys) + 64 * MIB,
    budget=0.1,
)


# --- latency ---------------------------------------------------------------------------------------------


def follow_work(memory: str, device: Device, keys: Keys) -> Work:
    """Let one thread follow a chain that visits every line of the working set in random order; time one hop."""
    is_near = working_set(keys) < FAR
    hops = MANY_HOPS if is_near else FEW_HOPS
    chain = memory_hierarchy.Chain.draw(working_set(keys), hops, memory, device.torch_device, is_near=is_near)

    def check() -> None:
        assert chain.leads_where_it_should(), f"after {hops} hops the chain is not where it should be"

    timing.warm_up(chain, torch.cuda.synchronize)
    replay = timing.cuda_graph([chain], timing.GRAPH_SECONDS)

    def sample() -> float:
        chain.links.sum()  # what fits into the L2 cache is there, whatever ran before
        return replay() / hops

    return Work([chain], check, footprint=working_set(keys), sample=sample)


def follower(memory: str) -> Contender:
    """Return the contender that follows the chain from one memory."""

    def skip_reason(device: Device, keys: Keys) -> str | None:
        return beyond_shared_memory(working_set(keys), device)

    def build(device: Device, keys: Keys) -> Work:
        return follow_work(memory, device, keys)

    return Contender(build, ON_GPU, skip_reason) if memory == "shared" else Contender(build, ON_GPU)


MEMORY_LATENCY = Benchmark(
    name="memory-latency",
    title="Latency of a load by working set and memory",
    question="How long does one thread wait for a word from shared memory, from each cache and from memory?",
    contenders={name: follower(name) for name in memory_hierarchy.LOADS},
    cases=lambda device: [{"working_set": size} for size in powers_of_two(16 * KIB, GIB)] if device.is_gpu else [],
    memory=lambda keys: 2 * working_set(keys) + 32 * (working_set(keys) // memory_hierarchy.LINE),
    budget=0.1,
)


# --- bytes in flight -------------------------------------------------------------------------------------


def count_bytes_in_flight(keys: Keys) -> int:
    """Return the bytes that are under way at once."""
    return int(keys["in_flight"])


def flight_work(loads: int, device: Device, keys: Keys) -> Work:
    """Let as many threads read as have so many bytes under way, each ``loads`` times 16."""
    words = torch.randint(2**31 - 1, (GIB // bytes_in_flight.WORD,), dtype=torch.int32, device=device.torch_device)
    flight = bytes_in_flight.Flight.set_up(words, count_bytes_in_flight(keys), loads)

    def check() -> None:
        flight()
        assert flight.is_complete(), "the pieces that were read do not add up to what they should"

    rates = {"bandwidth": Rate("B/s", flight.bytes_read)}
    return Work([flight], check, rates, footprint=flight.bytes_read)


def flyer(loads: int) -> Contender:
    """Return the contender whose threads have so many loads under way."""

    def skip_reason(device: Device, keys: Keys) -> str | None:
        least = bytes_in_flight.PIECE * loads
        if count_bytes_in_flight(keys) < least:
            return f"one warp has {least} bytes under way"
        threads = count_bytes_in_flight(keys) // (bytes_in_flight.CHUNK * loads)
        if threads > device.resident_threads:
            return f"takes {threads} threads, and the GPU holds {device.resident_threads} at once"
        return None

    def build(device: Device, keys: Keys) -> Work:
        return flight_work(loads, device, keys)

    return Contender(build, ON_GPU, skip_reason)


BYTES_IN_FLIGHT = Benchmark(
    name="bytes-in-flight",
    title="Read bandwidth against bytes under way",
    question="How many bytes must be under way at once before a GPU's memory is busy?",
    contenders={"one-load": flyer(1), "four-loads": flyer(4)},
    cases=lambda device: [{"in_flight": size} for size in powers_of_two(512, 8 * MIB)] if device.is_gpu else [],
    memory=lambda keys: 4 * GIB,
    budget=0.1,
)

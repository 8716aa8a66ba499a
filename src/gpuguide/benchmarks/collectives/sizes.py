"""The six collectives between GPUs, by the size of the message: NCCL's, and an all-reduce by send and receive.

The size is that of the longer one of what a rank has before and after: of an all-gather all parts together. The bus
bandwidth counts what a rank of a ring sends of it, so that it can be compared with one direction of a link. Where the
ranks cannot share the numbers of a message equally, it has a few fewer.

Numbers are whole ones that bf16 holds with all of their sums, and each rank checks every number that the timed calls
leave. After a reduction that is the root only, since nothing says what the others have. NCCL's calls are captured in a
graph. The ring is not: its sends are launched one after another by the host, as in a program, while the GPU still
overwrites its cache and waits for the other ranks.

Source: NVIDIA nccl-tests, ``doc/PERFORMANCE.md`` (bus bandwidth).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from gpuguide.benchmarks.interconnect import all_reduce, ranks
from gpuguide.benchmarks.interconnect.all_reduce import EXACT, calls_in_graph, parts, whole_numbers
from gpuguide.benchmarks.interconnect.ranks import Task
from gpuguide.collectives import bus_bandwidth
from gpuguide.collectives.cost import RING
from gpuguide.collectives.ring import ring_all_reduce
from gpuguide.collectives.torch_names import all_gather_single, reduce_scatter_single
from gpuguide.hardware.device import Device
from gpuguide.interconnect.processes import Member, Team
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate
from gpuguide.measure.timing import Sampler

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB)
ELEMENT_SIZE = 2
"""Bytes of a bf16 number"""


# --- work of a rank --------------------------------------------------------------------------------------


def nccl(member: Member, collective: str, size: int) -> Task:
    """Call the group's own collective: NCCL's on GPUs, Gloo's on a processor."""
    if collective == "all-reduce":
        return all_reduce.reduce_in_place(member, size, dist.all_reduce)
    elements = count_numbers(size, member.world_size)
    calls = calls_in_graph(size) if member.device.type == "cuda" else 1  # Gloo changes what a rank sends
    share = elements // member.world_size
    begin = share * member.rank
    own = message(elements, member)
    if collective == "broadcast":
        return task(own, lambda values: dist.broadcast(values, 0), lambda i, j: numbers(i, j, 0, member), calls)
    if collective == "reduce":
        calls = min(calls, (EXACT - 1) // (member.world_size - 1))  # each adds up to one for every other rank

        def right(i: int, j: int) -> torch.Tensor:
            """Return what the root has after so many sums in place; what the others have means nothing."""
            if member.rank > 0:
                return own[i:j]
            others = [numbers(i, j, rank, member) for rank in range(1, member.world_size)]
            return numbers(i, j, 0, member) + calls * torch.stack(others).sum(dim=0)

        return task(own, lambda values: dist.reduce(values, 0), right, calls)
    if collective == "all-gather":
        part = own[begin : begin + share]
        return task(
            torch.zeros_like(own),
            lambda values: all_gather_single(values, part),
            lambda i, j: gathered(i, j, share, member),
            calls,
        )
    if collective == "reduce-scatter":

        def summed(i: int, j: int) -> torch.Tensor:
            return torch.stack([numbers(begin + i, begin + j, rank, member) for rank in range(member.world_size)]).sum(
                dim=0
            )

        return task(torch.zeros_like(own[:share]), lambda values: reduce_scatter_single(values, own), summed, calls)
    assert collective == "all-to-all"
    return task(
        torch.zeros_like(own),
        lambda values: dist.all_to_all_single(values, own),
        lambda i, j: exchanged(i, j, share, member),
        calls,
    )


def by_hand(member: Member, collective: str, size: int) -> Task:
    """Send parts around a ring, one call at a time."""
    source = all_reduce.message(size // ELEMENT_SIZE, member.rank, member.world_size, member.device)
    values = source.clone()
    return Task(
        lambda: ring_all_reduce(values),
        lambda: values.copy_(source),
        lambda: all_reduce.check_sums(values, member.world_size, 1),
        1,
    )


def count_numbers(size: int, world_size: int) -> int:
    """Return the numbers of a message of at most ``size`` bytes that ranks share equally.

    >>> [count_numbers(4096, world_size) for world_size in (2, 3, 8)]
    [2048, 2046, 2048]
    """
    return size // ELEMENT_SIZE // world_size * world_size


def numbers(begin: int, end: int, rank: int, member: Member) -> torch.Tensor:
    """Return numbers of a rank's message, -1, 0 or 1: bf16 holds them after a hundred sums in place, ``int64``."""
    return whole_numbers(begin, end, rank, member.device).sign()


def message(elements: int, member: Member) -> torch.Tensor:
    """Return this rank's message, (elements,) in bf16."""
    values = torch.empty(elements, dtype=torch.bfloat16, device=member.device)
    for begin, end in parts(elements):
        values[begin:end] = numbers(begin, end, member.rank, member)
    return values


def gathered(begin: int, end: int, share: int, member: Member) -> torch.Tensor:
    """Return what an all-gather leaves: each rank's own part of its message, in their order."""
    places = torch.arange(begin, end, device=member.device)
    found = torch.zeros_like(places)
    for rank in range(member.world_size):
        found = torch.where(places // share == rank, numbers(begin, end, rank, member), found)
    return found


def exchanged(begin: int, end: int, share: int, member: Member) -> torch.Tensor:
    """Return what an all-to-all leaves: of each rank's message the part that is meant for this one."""
    found = []
    for rank in range(member.world_size):
        first, last = max(begin, rank * share), min(end, (rank + 1) * share)
        moved = (member.rank - rank) * share
        if first < last:
            found.append(numbers(first + moved, last + moved, rank, member))
    return torch.cat(found)


def task(
    values: torch.Tensor,
    call: Callable[[torch.Tensor], object],
    right: Callable[[int, int], torch.Tensor],
    calls: int,
) -> Task:
    """Return a task that changes ``values``, of which numbers ``i`` to ``j`` must be ``right(i, j)`` afterwards."""
    source = values.clone()

    def check() -> None:
        wrong = sum(int((values[i:j].double() != right(i, j).double()).sum()) for i, j in parts(len(values)))
        assert wrong == 0, f"{wrong} of {len(values)} numbers are wrong"

    return Task(lambda: call(values), lambda: values.copy_(source), check, calls)


def set_up_uncaptured(member: Member, name: str, prepare: ranks.Prepare, case: tuple[Any, ...]) -> str | None:
    """Prepare a task of one call, check it without a graph, and return what is wrong with it."""
    ranks.forget_other_cases(member, case)
    made = prepare(member, *case)
    member.kept["tasks"][name] = made, made.call
    made.restore()
    made.call()
    member.synchronize()
    try:
        made.check()
    except AssertionError as error:
        return f"rank {member.rank}: {error}"
    return None


# --- declaration -----------------------------------------------------------------------------------------


def uncaptured_sampler(of: Team, name: str, prepare: ranks.Prepare, case: tuple[Any, ...]) -> Sampler:
    """Set a contender up that is not captured in a graph; otherwise as :func:`ranks.sampler`."""
    faults = [fault for fault in of.run(set_up_uncaptured, name, prepare, case) if fault]
    assert not faults, faults[0]
    replays = ranks.settling(of.slowest(ranks.sample, name, ranks.WARM_UP_REPLAYS))
    return lambda: of.slowest(ranks.sample, name, replays)


def work(
    sampler: Callable[[Team, str, ranks.Prepare, tuple[Any, ...]], Sampler],
    name: str,
    prepare: ranks.Prepare,
    settings: Mapping[str, str],
    device: Device,
    keys: Keys,
) -> Work:
    """Do a collective on all ranks; every rank checks all of what it is left with."""
    collective, size = str(keys["collective"]), int(keys["size"])
    moved = size if collective == "all-reduce" else count_numbers(size, device.count) * ELEMENT_SIZE
    rates = {"bandwidth": Rate("B/s", bus_bandwidth(collective, moved, device.count, 1.0))}
    sample = sampler(ranks.team_with(settings, device), name, prepare, (collective, size))
    return Work([], lambda: None, rates, sample=sample)  # the sampler has checked what it times


def contender(
    sampler: Callable[..., Sampler], name: str, prepare: ranks.Prepare, skip_reason: Callable[..., str | None]
) -> Contender:
    """Return a contender whose calls are timed by a sampler."""
    return ranks.contender(functools.partial(work, sampler), name, prepare, skip_reason)


def not_added_up(device: Device, keys: Keys) -> str | None:
    """Return why the ring does not do a collective, if it does not."""
    return None if keys["collective"] == "all-reduce" else "an all-reduce is the one that is written by hand"


COLLECTIVES = Benchmark(
    name="collectives",
    title="Six collectives between GPUs, by the size of the message",
    question="What does each collective take, and how near does a ring by send and receive come to NCCL's all-reduce?",
    contenders={
        "nccl": contender(ranks.sampler, "nccl", nccl, lambda device, keys: None),
        "ring-by-hand": contender(uncaptured_sampler, "ring-by-hand", by_hand, not_added_up),
    },
    cases=lambda device: (
        [{"collective": name, "size": size} for size in reversed(SIZES) for name in RING] if device.is_gpu else []
    ),
    memory=lambda keys: 8 * int(keys["size"]) + 2 * GIB,
    budget=0.2,
    gpus="all",
    end=ranks.end,
)

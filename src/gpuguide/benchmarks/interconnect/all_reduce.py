"""All-reduce between the GPUs of a machine, by NCCL, by our kernel and by PyTorch's: time and bus bandwidth.

Numbers are whole ones times a power of two, so few and so small that bf16 holds every sum of all calls in place, and
every partial sum on the way to it, exactly. So the very calls that are timed are checked. With ``n`` ranks each call
in place multiplies the numbers by ``n``: a hundred calls fit into the exponent with two or four ranks, 75 with eight,
and a few with a number of ranks that is no power of two.

NCCL lets a communicator be used by a graph and outside of one at once, and for that it lets every call in a graph wait
for the call before in a way that takes longer than a small sum. Whoever does not mix the two can tell it so; that is a
contender of its own, ``nccl-unmixed``. Both run NCCL's default kernels: its symmetric kernels, which need registered
windows, were not measured, nor were the one-shot sums of inference engines. The record does not name NCCL's version,
nor the algorithm and protocol that it chose.

Sources: NVIDIA nccl-tests, ``doc/PERFORMANCE.md`` (bus bandwidth); NCCL, "Environment variables"
(``NCCL_GRAPH_MIXING_SUPPORT``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist

from gpuguide.benchmarks.interconnect import ranks
from gpuguide.benchmarks.interconnect.ranks import Task
from gpuguide.hardware.device import Device
from gpuguide.interconnect.allreduce import OneShotAllReduce, largest_message
from gpuguide.interconnect.processes import Member
from gpuguide.measure.benchmark import Benchmark, Keys, Work, powers_of_two
from gpuguide.measure.records import Rate

KIB, MIB, GIB = 2**10, 2**20, 2**30
ELEMENT_SIZE = 2
"""Bytes of a bf16 number"""
SIZES = (*powers_of_two(8, 4 * KIB, 3), *powers_of_two(16 * KIB, 4 * GIB, 2))
"""Bytes of each rank's message"""
SMALLEST_POWER = -100
"""Power of two by which all numbers are scaled: bf16 goes from 2⁻¹²⁶ to 2¹²⁸"""
UNMIXED = {"NCCL_GRAPH_MIXING_SUPPORT": "0"}
"""A communicator is used in graphs or outside of them, never both at once"""
AT_ONCE = 2**24
"""Numbers that are drawn or compared together"""
EXACT = 256
"""Whole numbers up to this one are exact in bf16"""


def calls_in_graph(size: int) -> int:
    """Return how many calls are timed together: a hundred of small messages, and of large ones few or one.

    >>> [calls_in_graph(size) for size in (8, MIB, 64 * MIB, GIB)]
    [100, 100, 10, 1]
    """
    return 100 if size <= MIB else 10 if size <= 64 * MIB else 1


def bus_bytes(size: int, world_size: int) -> float:
    """Return the bytes by which bus bandwidth is counted: what a ring sends out of each rank.

    >>> bus_bytes(1024, 2), bus_bytes(1024, 8)
    (1024.0, 1792.0)
    """
    return 2 * (world_size - 1) / world_size * size


# --- numbers that sum up exactly -------------------------------------------------------------------------


def largest_number(world_size: int) -> int:
    """Return the largest whole number of a message: ``n`` times the sum over ``n`` ranks is exact in bf16.

    >>> [largest_number(world_size) for world_size in (2, 3, 4, 8, 16)]
    [15, 1, 15, 4, 1]
    """
    if not is_power_of_two(world_size):
        return 1
    return max(1, min(15, EXACT // world_size**2))


def exact_calls(world_size: int) -> int:
    """Return how many calls in place stay exact: after the first, each multiplies the numbers by that of the ranks.

    >>> [exact_calls(world_size) for world_size in (2, 3, 4, 6, 8)]
    [223, 5, 111, 3, 75]
    """
    if not is_power_of_two(world_size):
        return int(math.log(EXACT, world_size))
    first = math.log2(world_size * largest_number(world_size)) + SMALLEST_POWER  # what the first call leaves
    return int((127 - first) / math.log2(world_size)) + 1


def is_power_of_two(number: int) -> bool:
    """Return whether bf16 multiplies by a number without rounding."""
    return number & (number - 1) == 0


def whole_numbers(begin: int, end: int, rank: int, device: torch.device, largest: int = 15) -> torch.Tensor:
    """Return numbers ``begin`` to ``end`` of a rank's message, up to ``largest``, without a period, ``int64``."""
    places = torch.arange(begin, end, device=device) + rank * 7_919
    return ((places * 2_654_435_761) >> 15) % (2 * largest + 1) - largest


def parts(elements: int) -> Iterator[tuple[int, int]]:
    """Yield where each part begins and ends of what is drawn or compared."""
    return ((begin, min(elements, begin + AT_ONCE)) for begin in range(0, elements, AT_ONCE))


def message(elements: int, rank: int, world_size: int, device: torch.device) -> torch.Tensor:
    """Return a rank's message, (elements,) in bf16."""
    values, largest = torch.empty(elements, dtype=torch.bfloat16, device=device), largest_number(world_size)
    for begin, end in parts(elements):
        values[begin:end] = whole_numbers(begin, end, rank, device, largest).double() * 2.0**SMALLEST_POWER
    return values


def check_sums(found: torch.Tensor, world_size: int, sums: int) -> None:
    """Check every number of what ``sums`` sums in place, one after the other, left of all ranks' messages.

    Raises
    ------
    AssertionError
        If one is wrong.
    """
    wrong, largest = 0, largest_number(world_size)
    for begin, end in parts(len(found)):
        total = sum(whole_numbers(begin, end, rank, found.device, largest) for rank in range(world_size))
        right = torch.as_tensor(total).double() * float(world_size) ** (sums - 1) * 2.0**SMALLEST_POWER
        wrong += int((found[begin:end].double() != right).sum())
    assert wrong == 0, f"{wrong} of {len(found)} sums are wrong"


# --- work of a rank --------------------------------------------------------------------------------------


def reduce_in_place(member: Member, size: int, reduce: Callable[[torch.Tensor], object]) -> Task:
    """Add up over and over in one place."""
    source = message(size // ELEMENT_SIZE, member.rank, member.world_size, member.device)
    values, calls = source.clone(), min(calls_in_graph(size), exact_calls(member.world_size))
    return Task(
        lambda: reduce(values),
        lambda: values.copy_(source),
        lambda: check_sums(values, member.world_size, calls),
        calls,
    )


def nccl(member: Member, size: int) -> Task:
    """Call the group's own all-reduce: NCCL's on GPUs, Gloo's on a processor."""
    return reduce_in_place(member, size, dist.all_reduce)


def gpuguide(member: Member, size: int) -> Task:
    """Call our kernel; its buffers are there once for all cases."""
    if "one-shot" not in member.kept:
        member.kept["one-shot"] = OneShotAllReduce(member.device)
    reduce: OneShotAllReduce = member.kept["one-shot"]
    return reduce_in_place(member, size, lambda values: reduce(values, out=values))


def symm_mem(member: Member, size: int) -> Task:
    """Call PyTorch's one-shot all-reduce on memory that ranks share. It cannot add up in place."""
    if "symmetric" not in member.kept:
        import torch.distributed._symmetric_memory as symmetric

        most = largest_message(member.world_size) // ELEMENT_SIZE
        shared = symmetric.empty(most, dtype=torch.bfloat16, device=member.device)
        symmetric.rendezvous(shared, dist.group.WORLD)  # type: ignore[arg-type]
        member.kept["symmetric"] = shared
    elements = size // ELEMENT_SIZE
    values = member.kept["symmetric"][:elements]
    values.copy_(message(elements, member.rank, member.world_size, member.device))
    out = torch.full_like(values, torch.nan)
    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    return Task(
        lambda: torch.ops.symm_mem.one_shot_all_reduce_out(values, "sum", group, out),
        lambda: out.fill_(torch.nan),
        lambda: check_sums(out, member.world_size, 1),
        calls_in_graph(size),
    )


# --- declaration -----------------------------------------------------------------------------------------


def work(name: str, prepare: ranks.Prepare, settings: Mapping[str, str], device: Device, keys: Keys) -> Work:
    """Add up a message over all ranks, whose processes have these settings; every rank checks all of it."""
    size = int(keys["size"])
    rates = {"bandwidth": Rate("B/s", bus_bytes(size, device.count))}
    sample = ranks.sampler(ranks.team_with(settings, device), name, prepare, (size,))
    return Work([], lambda: None, rates, sample=sample)  # the sampler has checked what it times


def beyond_one_shot(device: Device, keys: Keys) -> str | None:
    """Return why messages are not sent in one shot, if they are not."""
    most = largest_message(device.count)
    if int(keys["size"]) <= most:
        return None
    return f"a message beyond {most // KIB} KiB goes around a ring: our function calls NCCL then"


contender = functools.partial(ranks.contender, work)


ALL_REDUCE = Benchmark(
    name="all-reduce",
    title="All-reduce between GPUs, by the size of the message",
    question="What does an all-reduce take, from a few bytes to gigabytes, and what is gained by a kernel of one step?",
    contenders={
        "nccl": contender("nccl", nccl),
        "nccl-unmixed": contender("nccl-unmixed", nccl, settings=UNMIXED),
        "gpuguide": contender("gpuguide", gpuguide, beyond_one_shot),
        "symm-mem": contender("symm-mem", symm_mem, beyond_one_shot),
    },
    cases=lambda device: [{"size": size} for size in SIZES] if device.is_gpu else [],
    memory=lambda keys: 3 * 2 * min(int(keys["size"]), largest_message(2)) + 4 * int(keys["size"]) + 2 * GIB,
    budget=0.3,
    gpus="all",
    end=ranks.end,
)

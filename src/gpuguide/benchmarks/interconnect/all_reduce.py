"""Sums over two GPUs, by NCCL, by our kernel and by PyTorch's: the time of a call, and the bus bandwidth.

Numbers are whole ones times a power of two, so that bf16 holds every sum exactly, and small enough that a hundred
calls in place, each of which doubles them, stay far from overflow. So the very calls that are timed are checked.

NCCL lets a communicator be used by a graph and outside of one at once, and for that it lets every call in a graph wait
for the call before in a way that takes longer than a small sum. Whoever does not mix the two can tell it so; that is a
contender of its own, ``nccl-unmixed``. ``nccl-launched`` is in no graph: the host launches each call, so the time of a
small message is that of the launch, or of the sum if it is longer. ``nccl-without-peers`` lets no GPU access the
other's memory, so all bytes go over PCIe and through the host's memory, as between GPUs that no NVLink joins; on a
machine with NVLink that stands in for such a machine, and does not measure one.

All run NCCL's default kernels: its symmetric kernels, which need registered windows, were not measured, nor were the
one-shot sums of inference engines. The record does not name NCCL's version, nor the algorithm and protocol that it
chose.

Sources: NVIDIA nccl-tests, ``doc/PERFORMANCE.md`` (bus bandwidth); NCCL, "Environment variables"
(``NCCL_GRAPH_MIXING_SUPPORT``, ``NCCL_P2P_DISABLE``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

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
WORLD = 2
ELEMENT_SIZE = 2
"""Bytes of a bf16 number"""
DOUBLED = (2 * MIB, 8 * MIB, 32 * MIB)
"""Sizes between the steps of four, where NCCL changes its protocol: a size that a fit leaves out then has neighbours"""
SIZES = tuple(sorted({*powers_of_two(8, 4 * KIB, 3), KIB, *powers_of_two(16 * KIB, 4 * GIB, 2), *DOUBLED}))
"""Bytes of each rank's message"""
ONE_SHOT = largest_message(WORLD)
SMALLEST_POWER = -100
"""Power of two by which all numbers are scaled: bf16 goes from 2⁻¹²⁶ to 2¹²⁸"""
UNMIXED = {"NCCL_GRAPH_MIXING_SUPPORT": "0"}
"""A communicator is used in graphs or outside of them, never both at once"""
WITHOUT_PEERS = {"NCCL_P2P_DISABLE": "1"}
"""Bytes go through the host's memory"""
LARGEST_LAUNCHED, LARGEST_WITHOUT_PEERS = MIB, 256 * MIB
"""Bytes of the largest message that the host launches call by call, and that goes through the host's memory"""
AT_ONCE = 2**24
"""Numbers that are drawn or compared together"""


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


def whole_numbers(begin: int, end: int, rank: int, device: torch.device) -> torch.Tensor:
    """Return numbers ``begin`` to ``end`` of a rank's message, from -15 to 15 without a period, ``int64``."""
    places = torch.arange(begin, end, device=device) + rank * 7_919
    return ((places * 2_654_435_761) >> 15) % 31 - 15


def parts(elements: int) -> Iterator[tuple[int, int]]:
    """Yield where each part begins and ends of what is drawn or compared."""
    return ((begin, min(elements, begin + AT_ONCE)) for begin in range(0, elements, AT_ONCE))


def message(elements: int, rank: int, device: torch.device) -> torch.Tensor:
    """Return a rank's message, (elements,) in bf16."""
    values = torch.empty(elements, dtype=torch.bfloat16, device=device)
    for begin, end in parts(elements):
        values[begin:end] = whole_numbers(begin, end, rank, device).double() * 2.0**SMALLEST_POWER
    return values


def check_sums(found: torch.Tensor, world_size: int, sums: int) -> None:
    """Check every number of what ``sums`` sums in place, one after the other, left of all ranks' messages.

    Raises
    ------
    AssertionError
        If one is wrong.
    """
    wrong = 0
    for begin, end in parts(len(found)):
        total = sum(whole_numbers(begin, end, rank, found.device) for rank in range(world_size))
        right = torch.as_tensor(total).double() * float(world_size) ** (sums - 1) * 2.0**SMALLEST_POWER
        wrong += int((found[begin:end].double() != right).sum())
    assert wrong == 0, f"{wrong} of {len(found)} sums are wrong"


# --- work of a rank --------------------------------------------------------------------------------------


def reduce_in_place(member: Member, size: int, reduce: Callable[[torch.Tensor], object]) -> Task:
    """Add up over and over in one place."""
    source = message(size // ELEMENT_SIZE, member.rank, member.device)
    values, calls = source.clone(), calls_in_graph(size)
    return Task(
        lambda: reduce(values),
        lambda: values.copy_(source),
        lambda: check_sums(values, member.world_size, calls),
        calls,
    )


def nccl(member: Member, size: int) -> Task:
    """Call the group's own all-reduce: NCCL's on GPUs, Gloo's on a processor."""
    return reduce_in_place(member, size, dist.all_reduce)


def launched(member: Member, size: int) -> Task:
    """Call the all-reduce of a group of its own, which no graph uses, and capture nothing."""
    if "launched" not in member.kept:
        member.kept["launched"] = dist.new_group()
    reduce = functools.partial(dist.all_reduce, group=member.kept["launched"])
    return replace(reduce_in_place(member, size, reduce), captured=False)


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

        shared = symmetric.empty(ONE_SHOT // ELEMENT_SIZE, dtype=torch.bfloat16, device=member.device)
        symmetric.rendezvous(shared, dist.group.WORLD)  # type: ignore[arg-type]
        member.kept["symmetric"] = shared
    elements = size // ELEMENT_SIZE
    values = member.kept["symmetric"][:elements]
    values.copy_(message(elements, member.rank, member.device))
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
    rates = {"bandwidth": Rate("B/s", bus_bytes(size, WORLD))}
    sample = ranks.sampler(ranks.team_with(settings, device, WORLD), name, prepare, (size,))
    return Work([], lambda: None, rates, sample=sample)  # the sampler has checked what it times


def beyond_one_shot(device: Device, keys: Keys) -> str | None:
    """Return why messages are not sent in one shot, if they are not."""
    if int(keys["size"]) <= ONE_SHOT:
        return None
    return f"a message beyond {ONE_SHOT // MIB} MiB goes around a ring: our function calls NCCL then"


def beyond_launched(device: Device, keys: Keys) -> str | None:
    """Return why the host does not launch call by call, if it does not."""
    if int(keys["size"]) <= LARGEST_LAUNCHED:
        return None
    return f"beyond {LARGEST_LAUNCHED // MIB} MiB the bytes take longer than a launch"


def beyond_without_peers(device: Device, keys: Keys) -> str | None:
    """Return why a message does not go through the host's memory, if it does not."""
    if int(keys["size"]) <= LARGEST_WITHOUT_PEERS:
        return None
    return f"through the host's memory it is measured up to {LARGEST_WITHOUT_PEERS // MIB} MiB"


def bytes_needed(keys: Keys) -> float:
    """Return the memory of a case on a GPU: two copies of each contender's message, and the contexts of processes."""
    size = int(keys["size"])
    limited = sum(min(size, largest) for largest in (LARGEST_LAUNCHED, LARGEST_WITHOUT_PEERS))
    return 3 * 2 * min(size, ONE_SHOT) + 4 * size + 2 * limited + 3 * GIB


contender = functools.partial(ranks.contender, work)


ALL_REDUCE = Benchmark(
    name="all-reduce",
    title="Sums over two GPUs, by the size of the message",
    question="What does an all-reduce take, from a few bytes to gigabytes, and what is gained by a kernel of one step?",
    contenders={
        "nccl": contender("nccl", nccl),
        "nccl-unmixed": contender("nccl-unmixed", nccl, settings=UNMIXED),
        "nccl-launched": contender("nccl-launched", launched, beyond_launched),
        "nccl-without-peers": contender("nccl-without-peers", nccl, beyond_without_peers, WITHOUT_PEERS),
        "gpuguide": contender("gpuguide", gpuguide, beyond_one_shot),
        "symm-mem": contender("symm-mem", symm_mem, beyond_one_shot),
    },
    cases=lambda device: [{"size": size} for size in SIZES] if device.is_gpu else [],
    memory=bytes_needed,
    budget=0.3,
    gpus=WORLD,
    end=ranks.end,
)

"""What ranks run in tests; a process of their own imports them from here."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

from gpuguide.interconnect.processes import Member


def whoami(member: Member) -> tuple[int, int, str, str]:
    return member.rank, member.world_size, str(member.device), os.environ["LOCAL_RANK"]


def total(member: Member, value: float) -> float:
    values = torch.tensor([value + member.rank])
    dist.all_reduce(values)
    return float(values)


def remember(member: Member, value: Any) -> None:
    member.kept["value"] = value


def recall(member: Member) -> Any:
    return member.kept["value"], member.rank


def die(member: Member, rank: int) -> None:
    """Let one rank vanish while the others wait for ever, as in NCCL."""
    if member.rank == rank:
        os._exit(7)
    time.sleep(1000)


def die_after_others_noticed(member: Member, rank: int) -> None:
    """Let the others raise before one rank is heard to have vanished, as happens in Gloo."""
    dist.barrier()
    if member.rank == rank:
        time.sleep(0.1)
        os._exit(7)
    raise RuntimeError("connection closed by peer")


def fail_one_after_the_other(member: Member, rank: int) -> None:
    """Let one rank raise, and then the others."""
    dist.barrier()
    if member.rank == rank:
        raise ValueError("the width 10 cannot be divided by 4")
    time.sleep(0.1)
    raise RuntimeError("connection closed by peer")


def fail(member: Member, rank: int) -> None:
    if member.rank == rank:
        raise ValueError("the width 10 cannot be divided by 4")
    dist.barrier()


def read_past_the_end(member: Member, rank: int) -> None:
    """Let one rank raise what reading from a closed pipe raises too."""
    if member.rank == rank:
        raise EOFError("the file is cut off")
    time.sleep(1000)


def hang(member: Member, rank: int) -> None:
    if member.rank == rank:
        time.sleep(600)


def own_time(member: Member) -> float:
    return 1.0 + member.rank


def exact(rank: int, elements: int, dtype: torch.dtype, call: int = 0) -> torch.Tensor:
    """Whole numbers that bf16 holds, and whose sums over eight ranks it holds too."""
    return ((torch.arange(elements) * (rank + 1) + call) % 31 - 15).to(dtype)


def one_shot_sum(member: Member, elements: int, dtype_name: str, largest: int | None) -> bool:
    """Compare the sum with the one that a single process computes, in place and into another tensor."""
    from gpuguide.interconnect.allreduce import OneShotAllReduce

    dtype = getattr(torch, dtype_name)
    all_reduce = OneShotAllReduce(member.device, largest=largest)
    own = exact(member.rank, elements, dtype).to(member.device)
    right = sum(exact(rank, elements, torch.float64) for rank in range(member.world_size)).to(dtype)  # type: ignore[union-attr]
    found = all_reduce(own)
    assert found.data_ptr() != own.data_ptr() or elements == 0
    assert torch.equal(own.cpu(), exact(member.rank, elements, dtype))
    in_place = all_reduce(own, out=own)
    return torch.equal(found.cpu(), right) and torch.equal(in_place.cpu(), right)


def rounded_alike(member: Member) -> list[int]:
    """Return the bits of a sum whose result depends on the order of addition."""
    from gpuguide.interconnect.allreduce import OneShotAllReduce

    values = torch.randn(999, generator=torch.Generator().manual_seed(member.rank)) * 10.0 ** (member.rank * 3)
    summed: list[int] = OneShotAllReduce(member.device)(values.to(member.device)).cpu().view(torch.int32).tolist()
    return summed


def interpreted_kernel(member: Member, folder: str, sizes: list[int], dtype_name: str) -> bool:
    """Run the kernel in the interpreter, with files that all ranks map in place of the memory of GPUs."""
    from gpuguide.interconnect import allreduce_kernels
    from gpuguide.triton_support.interpreter import accept_new_numpy

    accept_new_numpy()
    dtype, world = getattr(torch, dtype_name), member.world_size
    capacity = 2 * allreduce_kernels.WORDS
    shared = [
        torch.from_file(f"{folder}/{rank}", shared=True, size=2 * world * capacity, dtype=torch.int64)
        for rank in range(world)
    ]
    buffers = torch.tensor([each.data_ptr() for each in shared])
    epochs = torch.zeros(2, dtype=torch.int32)
    for call, elements in enumerate(sizes):
        own = exact(member.rank, elements, dtype, call)
        out = torch.full_like(own, torch.nan)
        allreduce_kernels.launch(own, out, shared[member.rank], buffers, epochs, member.rank, world, capacity)
        right = sum(exact(rank, elements, torch.float64, call) for rank in range(world))
        if not torch.equal(out, right.to(dtype)):  # type: ignore[union-attr]
            return False
    return True


def captured(member: Member, elements: int, calls: int) -> bool:
    """Replay a graph of calls on a GPU, whose inputs change between replays."""
    from gpuguide.interconnect.allreduce import OneShotAllReduce

    all_reduce = OneShotAllReduce(member.device)
    values = torch.empty(elements, dtype=torch.bfloat16, device=member.device)
    outs = [torch.empty_like(values) for _ in range(calls)]
    all_reduce(values.zero_())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in outs:
            all_reduce(values, out)
    for replay in range(5):
        values.copy_(exact(member.rank, elements, torch.bfloat16, replay))
        graph.replay()
        right = sum(exact(rank, elements, torch.float64, replay) for rank in range(member.world_size))
        if not all(torch.equal(out.cpu(), right.to(torch.bfloat16)) for out in outs):  # type: ignore[union-attr]
            return False
    return True


def whole_matrices(hidden: int, inner: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs and both matrices of small whole numbers, so that every order of addition gives the same."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(-3, 4, shape, generator=generator).float()

    return draw(10, hidden), draw(hidden, inner), draw(inner, hidden)


def tensor_parallel(member: Member, inner: int, chunks: list[int]) -> bool:
    """Compare a layer that is divided among all ranks with the whole one."""
    from gpuguide.interconnect.allreduce import OneShotAllReduce
    from gpuguide.interconnect.tensor_parallel import TensorParallelMLP, whole_layer

    values, up, down = (each.to(member.device) for each in whole_matrices(12, inner))
    right = whole_layer(values.double(), up.double(), down.double(), torch.relu).float()
    part = TensorParallelMLP.from_whole(up, down, member.rank, member.world_size, torch.relu)
    assert member.world_size == 1 or not torch.equal(part.compute(values), right)
    found = [part.one_after_the_other(values), part.one_after_the_other(values, OneShotAllReduce(member.device))]
    found += [part.forward_overlapped(values, count) for count in chunks]
    return all(torch.equal(each, right) for each in found)

"""What ranks run in tests of benchmarks of links; a process of their own imports it from here."""

from __future__ import annotations

import os

from gpuguide.benchmarks.interconnect import all_reduce, tensor_parallel
from gpuguide.benchmarks.interconnect.ranks import Task
from gpuguide.interconnect.processes import Member

SHAPE = (6, 32, 48)
"""Tokens, hidden and inner width"""


def not_added_up(member: Member, size: int) -> Task:
    return all_reduce.reduce_in_place(member, size, lambda values: values)


def dies(member: Member, size: int) -> Task:
    if member.rank == 1:
        os._exit(7)
    return all_reduce.nccl(member, size)


def part_alone(member: Member, *shape: int) -> Task:
    """Leave out the sum over the ranks."""
    layer = tensor_parallel.get_shared_layer(member, *shape)
    return tensor_parallel.make_layer_task(layer, lambda: layer.part.compute(layer.values), layer.check)


def counted(member: Member, size: int) -> Task:
    """Note in which order things are done."""
    done: list[str] = []
    member.kept["shared"]["done"] = done
    return Task(lambda: done.append("call"), lambda: done.append("restore"), lambda: done.append("check"), 3)


def what_was_done(member: Member) -> tuple[list[str], list[str]]:
    return list(member.kept["shared"].get("done", [])), sorted(member.kept["tasks"])


def graph_mixing(member: Member) -> str | None:
    """Return what a rank's process was told of NCCL's graphs."""
    return os.environ.get("NCCL_GRAPH_MIXING_SUPPORT")

"""A training step of GPT-2 small on all GPUs of a machine, each with its own sequences, against one of them alone.

All train as in :mod:`data-parallel <gpuguide.benchmarks.training.data_parallel>`: fp32 weights, bf16 autocast, compiled
layers, the loss in chunks, clipping, and AdamW in one kernel. A step's time is the slowest rank's. Contenders:

* ``one-gpu``: the first rank trains by itself, and the others do nothing.
* ``ddp-static``: DDP in its fastest setting; ``flat``: one message after the backward pass.
* ``gpuguide``: :class:`gpuguide.collectives.Buckets`; ``gpuguide-bf16`` adds up in bf16, and ``gpuguide-rows`` gathers
  the gradient of the embedding's rows. ``gpuguide-copied`` averages by copies between GPUs instead of NCCL's kernels,
  and ``gpuguide-copied-rows`` gathers the rows, too.
* ``gpuguide-few``: buckets whose sums NCCL makes with at most :data:`FEW` blocks, so that fewer processors of the GPU
  are taken from the backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from gpuguide.benchmarks.collectives.gradient_sum import BUCKETS, WITH_ROWS, parameter_count
from gpuguide.benchmarks.interconnect import ranks
from gpuguide.benchmarks.training import contenders, data_parallel
from gpuguide.benchmarks.training.contenders import SHAPE, many_compilations, model, settings
from gpuguide.collectives import Buckets, GatheredEmbedding, average_flat
from gpuguide.hardware.device import Device
from gpuguide.interconnect.processes import Member
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.training import LossModule, TrainingStep, WithoutHead, replicate
from gpuguide.training.feeding import split_windows
from gpuguide.training.tokens import Windows

CASES = ((8, 1024), (32, 1024))
"""Sequences on each GPU, and tokens of each"""
CALLS = 3
"""Steps of a sample"""
WARM_UP = 16
"""Steps before the loss must have fallen: the first ones of AdamW may raise it"""
FEW = 4
"""Blocks of NCCL, where they are limited"""


# --- in the process of each rank -------------------------------------------------------------------------


def set_up(member: Member, name: str, batch: int, seq_len: int, config: GPT2Config, compiled: bool) -> str | None:
    """Make a step on a rank and take it; return what is wrong with it.

    What cannot run is wrong too: an exception would end the ranks, and with them the other contenders of the case.
    """
    data_parallel.forget_other_cases(member, (batch, seq_len))
    try:
        return set_up_or_raise(member, name, batch, seq_len, config, compiled)
    except (RuntimeError, AttributeError) as refusal:
        return f"rank {member.rank}: {type(refusal).__name__}: {(str(refusal).splitlines() or [''])[0]}"


def set_up_or_raise(
    member: Member, name: str, batch: int, seq_len: int, config: GPT2Config, compiled: bool
) -> str | None:
    """Do what :func:`set_up` does, or raise what PyTorch does."""
    step = make(member, name, batch, seq_len, config, compiled)
    windows = Windows(contenders.text(), seq_len, member.world_size * batch)
    given = split_windows(windows.draw(0, member.rank, member.world_size).to(member.device))
    with many_compilations():
        losses = [float(step(*given)) for _ in range(WARM_UP)]
    member.kept["steps"][name] = step, given
    member.synchronize()
    if not losses[-1] < losses[0]:
        return f"rank {member.rank}: the loss of a batch went from {losses[0]:.3f} to {losses[-1]:.3f}"
    return None if name == "one-gpu" else data_parallel.differing(member, step)


def make(member: Member, name: str, batch: int, seq_len: int, config: GPT2Config, compiled: bool) -> TrainingStep:
    """Return a contender's step."""
    made = model(config, str(member.device))
    if name in WITH_ROWS:
        made.token_embedding = GatheredEmbedding(made.token_embedding)  # type: ignore[assignment]
    if compiled:
        for block in made.blocks:
            block.compile(dynamic=False)
    module: Any = LossModule(made, WithoutHead(made).loss)
    around: Callable[[bool], AbstractContextManager[None]] | None = None
    if name == "ddp-static":
        module = replicate(module, static_graph=True)
    elif name == "flat":
        around = flat_afterwards(made)
    elif name != "one-gpu":
        around = in_buckets(name, made)
    chosen = settings(autocast="bf16", backend=None, graphed=False)
    return TrainingStep(module, made.parameters(), batch, seq_len, chosen, synchronised=around)


def in_buckets(name: str, made: GPT2) -> Callable[[bool], AbstractContextManager[None]]:
    """Return the context of a backward pass whose gradients are averaged in buckets."""
    if name == "gpuguide-few":
        return Buckets(made, group=with_few_blocks(made.head.weight.device)).synchronised
    return Buckets(made, **BUCKETS[name]).synchronised


def flat_afterwards(made: GPT2) -> Callable[[bool], AbstractContextManager[None]]:
    """Return the context of a backward pass at whose end gradients are averaged as one message."""

    @contextmanager
    def context(is_last: bool) -> Iterator[None]:
        yield
        average_flat(made.parameters())

    return context


def with_few_blocks(device: torch.device) -> dist.ProcessGroup:
    """Return a group of all ranks whose collectives take few blocks of a GPU."""
    if device.type != "cuda":
        return dist.new_group()
    options = dist.ProcessGroupNCCL.Options()
    options.config.max_ctas = FEW
    return dist.new_group(backend="nccl", pg_options=options)


def sample(member: Member, name: str, calls: int) -> float:
    """Return the seconds of a step on this rank; while one trains by itself, the others wait."""
    step, given = member.kept["steps"][name]
    idle = name == "one-gpu" and member.rank > 0
    return data_parallel.seconds_per_call(member, lambda: None if idle else step(*given), calls)


# --- in the process that asks ----------------------------------------------------------------------------


def work(name: str, device: Device, keys: Keys, config: GPT2Config = SHAPE, compiled: bool = True) -> Work:
    """Train on all ranks, or on the first."""
    batch, seq_len = int(keys["batch"]), int(keys["seq_len"])
    trained = batch * seq_len * (1 if name == "one-gpu" else device.count)
    processes = data_parallel.team(device)
    faults = [each for each in processes.run(set_up, name, batch, seq_len, config, compiled) if each]
    assert not faults, faults[0]
    return Work(
        [],
        lambda: None,  # what is timed was checked when it was set up
        {"throughput": Rate("token/s", trained)},
        sample=lambda: processes.slowest(sample, name, CALLS),
    )


def cases(device: Device) -> Sequence[Keys]:
    """Return the cases: a batch whose sums take a tenth of its step, and a large one."""
    return [{"batch": batch, "seq_len": seq_len} for batch, seq_len in CASES] if device.is_gpu else []


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes on a GPU: weights, gradients and states of each contender, and a step."""
    tokens = int(keys["batch"]) * int(keys["seq_len"])
    return float(20 * parameter_count(SHAPE) * len(NAMES) + tokens * SHAPE.layers * SHAPE.hidden * 80 + 2**32)


NAMES = (
    *("one-gpu", "ddp-static", "flat", "gpuguide", "gpuguide-bf16", "gpuguide-rows"),
    *("gpuguide-copied", "gpuguide-copied-rows", "gpuguide-few"),
)

GPU_SCALING = Benchmark(
    name="gpu-scaling",
    title="As many times the sequences on several GPUs",
    question="How much of each further GPU reaches a training step?",
    contenders={name: Contender(functools.partial(work, name), frozenset({"gpu", "bf16"})) for name in NAMES},
    cases=cases,
    memory=bytes_needed,
    budget=1.0,
    gpus="all",
    end=ranks.end,
)

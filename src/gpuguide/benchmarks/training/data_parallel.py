"""A training step on several GPUs: replicas and shards, against one of the GPUs alone.

Each rank is a process with a GPU. All train GPT-2 small in bf16 autocast (shards: layers in bf16), with the model
compiled but the loss in chunks, and AdamW in one kernel; a step has as many tokens on each GPU as the one alone has.
A step's time is the slowest rank's. Contenders:

* ``one-gpu``: no replica, each rank trains by itself.
* ``ddp``, ``ddp-static``: DDP, and DDP with ``static_graph=True``: each step uses the same parameters.
* ``after-backward``: gradients averaged as one tensor after the backward pass.
* ``ddp-micro``, ``ddp-micro-no-sync``: four micro-batches of as many tokens each, added up over ranks after each, or
  after the last.
* ``fsdp2``: shards of parameters, gradients and states.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

from gpuguide.benchmarks.interconnect import ranks
from gpuguide.benchmarks.training import contenders
from gpuguide.benchmarks.training.contenders import SHAPE, many_compilations, model, settings
from gpuguide.hardware.device import Device
from gpuguide.interconnect.processes import WITHOUT_MULTICAST, Member, Team
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.training import LossModule, StepSettings, TrainingStep, WithoutHead, replicate, shard, synchronise_last
from gpuguide.training.data_parallel import sum_after_backward, synchronise_last_shard
from gpuguide.training.feeding import split_windows
from gpuguide.training.tokens import Windows

CASES = ((64, 512), (8, 1024))
"""Sequences on each GPU, and tokens of each"""
MICRO_BATCHES = 4
CALLS = 5
"""Steps of a sample"""
WARM_UP = 3


# --- in the process of each rank -------------------------------------------------------------------------


def set_up(member: Member, name: str, batch: int, seq_len: int, config: GPT2Config, compiled: bool) -> str | None:
    """Make a step on a rank and take it; return what is wrong with it."""
    forget_other_cases(member, (batch, seq_len))
    step, count = make(member, name, batch, seq_len, config, compiled)
    windows = Windows(contenders.text(), seq_len, member.world_size * batch * count)
    given = split_windows(windows.draw(0, member.rank, member.world_size).to(member.device))
    with many_compilations():
        losses = [float(step(*given)) for _ in range(WARM_UP)]
    member.kept["steps"][name] = step, given
    member.synchronize()
    if not losses[-1] < losses[0]:
        return f"rank {member.rank}: the loss of a batch went from {losses[0]:.3f} to {losses[-1]:.3f}"
    return None if name == "one-gpu" else differing(member, step)


def forget_other_cases(member: Member, case: tuple[int, int]) -> None:
    """Drop the steps of another case, so that their memory is free."""
    if member.kept.get("case") != case:
        member.kept.update(case=case, steps={})
        gc.collect()
        torch.compiler.reset()
        if member.device.type == "cuda":
            torch.cuda.empty_cache()


def make(
    member: Member, name: str, batch: int, seq_len: int, config: GPT2Config, compiled: bool
) -> tuple[Callable[..., torch.Tensor], int]:
    """Return a contender's step, and how many micro-batches of ``batch`` sequences it has."""
    made = model(config, str(member.device))
    if compiled and name != "fsdp2":
        for block in made.blocks:
            block.compile(dynamic=False)  # one block is compiled for all, and DDP can all-reduce between blocks
    count = MICRO_BATCHES if "micro" in name else 1
    size = (batch * count, seq_len)
    chosen = settings(micro_batch=batch if count > 1 else None, autocast="bf16", backend=None, graphed=False)
    module = LossModule(made, WithoutHead(made).loss)
    if name == "one-gpu":
        return TrainingStep(module, made.parameters(), *size, chosen), count
    if name == "after-backward":
        return AveragedStep(TrainingStep(module, made.parameters(), *size, chosen)), count
    if name == "fsdp2":
        return shard_step(made, size, chosen), count
    replica = replicate(module, static_graph=name == "ddp-static")
    synchronised = synchronise_last(replica) if name.endswith("no-sync") else lambda last: nullcontext()
    return TrainingStep(replica, made.parameters(), *size, chosen, synchronised=synchronised), count


def shard_step(made: GPT2, size: tuple[int, int], chosen: StepSettings) -> TrainingStep:
    """Return the step of a model in shards, whose layers compute in bf16 without autocast."""
    module = shard(LossModule(made, WithoutHead(made).loss), made.blocks, reshard=False)
    alone = replace(chosen, autocast="fp32")
    return TrainingStep(module, module.parameters(), *size, alone, synchronised=synchronise_last_shard(module))


class AveragedStep:
    """A step whose gradients are averaged over ranks after the backward pass."""

    def __init__(self, step: TrainingStep) -> None:
        self.step = step
        step.optimizer.register_step_pre_hook(lambda *given: sum_after_backward(step.parameters))
        self.parameters = step.parameters

    def __call__(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Take one step."""
        return self.step(tokens, targets)


def differing(member: Member, step: Any) -> str | None:
    """Return whether ranks have different parameters after their steps, in words."""
    parts = [each.detach() for each in step.parameters]
    parts = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in parts]
    own = torch.stack([each.double().sum() for each in parts])
    mean = own.clone()
    dist.all_reduce(mean)
    error = float((mean / member.world_size - own).abs().max() / own.abs().max())
    return None if error < 1e-6 else f"rank {member.rank}: parameters differ from the other ranks' by {error:.1e}"


def sample(member: Member, name: str, calls: int) -> float:
    """Return the seconds of a step on this rank."""
    step, given = member.kept["steps"][name]
    return seconds_per_call(member, lambda: step(*given), calls)


def seconds_per_call(member: Member, call: Callable[[], object], calls: int) -> float:
    """Return the seconds of a call on this rank, all ranks having begun together."""
    with many_compilations():
        call()
        member.synchronize()
        dist.barrier()
        member.synchronize()
        begun = time.perf_counter_ns()
        for _ in range(calls):
            call()
        member.synchronize()
    return (time.perf_counter_ns() - begun) * 1e-9 / calls


# --- in the process that asks ----------------------------------------------------------------------------


def team(device: Device) -> Team:
    """Return the processes."""
    return ranks.team_with(MappingProxyType(WITHOUT_MULTICAST), device)


def work(name: str, device: Device, keys: Keys, config: GPT2Config = SHAPE, compiled: bool = True) -> Work:
    """Train on all ranks."""
    batch, seq_len = int(keys["batch"]), int(keys["seq_len"])
    count = MICRO_BATCHES if "micro" in name else 1
    rates = {"throughput": Rate("token/s", count * batch * seq_len)}
    processes = team(device)
    faults = [each for each in processes.run(set_up, name, batch, seq_len, config, compiled) if each]
    assert not faults, faults[0]
    return Work(
        [], lambda: None, rates, sample=lambda: processes.slowest(sample, name, CALLS)
    )  # what is timed was checked when it was set up


def cases(device: Device) -> Sequence[Keys]:
    """Return the cases: a large batch, and a small one whose sums take longer than its arithmetic."""
    return [{"batch": batch, "seq_len": seq_len} for batch, seq_len in CASES] if device.is_gpu else []


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes on a GPU: weights, gradients and states of each contender, and a step."""
    tokens = int(keys["batch"]) * int(keys["seq_len"])
    return float(20 * 124_475_904 * len(DATA_PARALLEL.contenders) + tokens * SHAPE.layers * SHAPE.hidden * 80 + 2**32)


NAMES = ("one-gpu", "ddp", "ddp-static", "after-backward", "ddp-micro", "ddp-micro-no-sync", "fsdp2")

DATA_PARALLEL = Benchmark(
    name="data-parallel",
    title="A training step on several GPUs",
    question="How many more tokens does a training step process with more GPUs, and what does the all-reduce take?",
    contenders={name: Contender(functools.partial(work, name), frozenset({"gpu", "bf16"})) for name in NAMES},
    cases=cases,
    memory=bytes_needed,
    budget=2.0,
    gpus="all",
    end=ranks.end,
)

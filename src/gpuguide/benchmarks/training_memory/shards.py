"""Memory of a training step on several GPUs with replicas and with shards, compared with the prediction.

Layers compute in bf16 on fp32 weights, with checkpointing and the loss in chunks. ``ddp`` has all weights, gradients
and states on each GPU. ``fsdp2-reshard`` shards them and frees each gathered layer after its forward pass, and
``fsdp2`` keeps the gathered layers until the backward pass. The larger shape fits only when it is sharded.

Each contender has processes of its own. NCCL probably keeps what the last collectives sent until it begins another:
in one process, gigabytes that a contender had left counted as memory that was in use before, and were freed later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gpuguide.benchmarks.interconnect import ranks
from gpuguide.benchmarks.training import data_parallel
from gpuguide.benchmarks.training.ladder import memory_in_use, memory_metrics
from gpuguide.benchmarks.training_memory import models
from gpuguide.benchmarks.training_memory.models import CONFIGS, make_model, shape_of
from gpuguide.costs import memory
from gpuguide.cross_entropy import linear_cross_entropy
from gpuguide.hardware.device import Device
from gpuguide.interconnect.processes import Member
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.measure.timing import wall_clock
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.training import LossModule, replicate, shard
from gpuguide.training_memory.recompute import checkpointed

CASES: tuple[Keys, ...] = (
    {"model": "llama-1b-shape", "batch": 4, "seq_len": 2048},
    {"model": "llama-7b-shape", "batch": 1, "seq_len": 2048},
)
NAMES = ("ddp", "fsdp2", "fsdp2-reshard")
SAMPLES = 10
WARM_UP = 3
LEFT = 2**26
"""Bytes of a rank that may be in use before a contender is made"""


def setup_of(name: str, keys: Keys, gpus: int) -> memory.Setup:
    """Return the setup that the cost model knows a contender by."""
    return memory.Setup(
        batch=int(keys["batch"]),
        seq_len=int(keys["seq_len"]),
        optimizer="adamw-fused",
        checkpointing=True,
        loss="chunked",
        data_parallel=gpus,
        sharding=0 if name == "ddp" else 3,
    )


# --- in the process of each rank ---------------------------------------------------------------------------------


def loss_of(model: GPT2 | Llama, autocast: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the loss of a model whose layers are recomputed in the backward pass."""

    def loss(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
            hidden = models.hidden_states(model, tokens, checkpointed)
            return linear_cross_entropy(hidden, model.head.weight.to(hidden.dtype), targets)

    return loss


def make(member: Member, name: str, keys: Keys, config: Any) -> Any:
    """Return a module on a rank that computes the loss."""
    device = str(member.device)
    model = make_model(config, device)
    module = LossModule(model, loss_of(model, autocast=name == "ddp"))
    if name == "ddp":
        return replicate(module.to(device))  # DDP sends buffers too, and NCCL only those of a GPU
    return shard(module, model.blocks, reshard=name == "fsdp2-reshard")


def measure(
    member: Member, name: str, keys: Keys, config: Any, device: Device, samples: int = SAMPLES
) -> tuple[list[float], list[float], Mapping[str, Metric]]:
    """Return the seconds of some steps, the first losses and the memory of a rank, beyond what it had before."""
    member.synchronize()
    before = memory_in_use(device)
    assert before[0] < LEFT, f"{before[0]} bytes are in use before {name} is made"
    module = make(member, name, keys, config)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4, fused=device.is_gpu)
    generator = torch.Generator(member.device).manual_seed(member.rank)
    size = int(keys["batch"]), int(keys["seq_len"])
    tokens = torch.randint(config.vocab_size, size, device=member.device, generator=generator)

    def step() -> torch.Tensor:
        loss = module(tokens, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        detached: torch.Tensor = loss.detach()
        return detached

    losses = [float(step()) for _ in range(WARM_UP - 1)]
    if device.is_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses.append(float(step()))
    sample = wall_clock(step, member.synchronize)
    seconds = []
    for _ in range(samples):
        member.synchronize()
        dist.barrier()
        seconds.append(sample())
    return seconds, losses, memory_metrics(device, before)


# --- in the process that asks ------------------------------------------------------------------------------------


def work(name: str, device: Device, keys: Keys, config: Any = None) -> Work:
    """Train on all ranks of a new team now, and return the times of the slowest rank one by one."""
    chosen = config or CONFIGS[str(keys["model"])]
    ranks.end()
    answers = data_parallel.team(device).run(measure, name, dict(keys), chosen, device)
    slowest = iter([max(times) for times in zip(*(seconds for seconds, _, _ in answers), strict=True)])
    peak = max(found["peak_memory"].samples[0] for _, _, found in answers)
    predicted = memory.predict(shape_of(chosen), setup_of(name, keys, device.count)).total

    def check() -> None:
        for _, losses, _ in answers:
            assert losses[-1] < losses[0], f"the loss of a batch went from {losses[0]:.3f} to {losses[-1]:.3f}"

    def further() -> Mapping[str, Metric]:
        return {
            "peak_memory": records.metric("B", [peak]),
            "predicted_memory": records.metric("B", [predicted]),
        }

    rates = {"throughput": Rate("token/s", device.count * int(keys["batch"]) * int(keys["seq_len"]))}
    return Work([], check, rates, sample=lambda: next(slowest), further=further)


def skip_reason(name: str, device: Device, keys: Keys) -> str | None:
    """Return the reason to leave out a contender, or ``None``."""
    needed = memory.predict(shape_of(CONFIGS[str(keys["model"])]), setup_of(name, keys, device.count)).total
    return None if memory.judge(needed, device.memory) == "fits" else f"needs {needed / 2**30:.0f} GiB on each GPU"


def cases(device: Device) -> Sequence[Keys]:
    """Return the cases."""
    return CASES if device.is_gpu else []


SHARDED_MEMORY = Benchmark(
    name="sharded-memory",
    title="Memory of a training step on several GPUs",
    question="How much memory does each GPU need with replicas and with shards?",
    contenders={
        name: Contender(functools.partial(work, name), frozenset({"gpu", "bf16"}), functools.partial(skip_reason, name))
        for name in NAMES
    },
    cases=cases,
    samples=SAMPLES,
    gpus="all",
    end=ranks.end,
)

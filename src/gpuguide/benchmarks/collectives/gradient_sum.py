"""Forward and backward pass of GPT-2 small on several GPUs, and its gradients averaged over them in different ways.

Each rank has its own sequences. Parameters are in fp32 and layers compute in bf16 under autocast, compiled, with the
loss in chunks; nothing is updated. Gradients are forgotten before each pass, as ``zero_grad()`` does by default.

* ``none``: gradients stay on their rank.
* ``loop``, ``loop-async``: a message for each gradient after the backward pass, one after another or all at once.
* ``flat``, ``coalesced``: all gradients as one message, copied together or as one group of NCCL calls.
* ``ddp``: DDP as it is by default, in buckets of 25 MB. ``ddp-view`` has ``gradient_as_bucket_view=True``, and all of
  the following do: ``ddp-static`` also ``static_graph=True``, ``ddp-1mb``, ``ddp-100mb`` and ``ddp-1gb`` other buckets,
  and ``ddp-bf16`` adds up in bf16.
* ``gpuguide``: :class:`gpuguide.collectives.Buckets`; ``gpuguide-100mb`` in larger ones, ``gpuguide-bf16`` in bf16, and
  ``gpuguide-rows`` with the gradient of the embedding's rows gathered. ``gpuguide-copied`` averages by copies between
  GPUs instead of NCCL's kernels, and ``gpuguide-copied-rows`` gathers the rows, too.
* ``fsdp2``: parameters in shards, in bf16 for the layers, whose gradients are added up in fp32.
* ``sum-alone``: one message of as many bytes as all gradients have in fp32, and nothing else.

Where ``captured``, the passes and the sums are one CUDA graph. The averages are compared with those of ``none``, added
up over ranks one by one. ``exposed`` is how much longer the passes take than those of ``none``, taken just before.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpuguide.benchmarks.interconnect import ranks
from gpuguide.benchmarks.training import data_parallel
from gpuguide.benchmarks.training.contenders import SHAPE, many_compilations, model
from gpuguide.collectives import Buckets, GatheredEmbedding, average_coalesced, average_each, average_flat
from gpuguide.hardware.device import Device
from gpuguide.interconnect.processes import Member
from gpuguide.measure import records, timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.models import shapes
from gpuguide.models.gpt2 import GPT2Config
from gpuguide.training import LossModule, WithoutHead, shard
from gpuguide.training.feeding import split_windows

MIB = 2**20
CASES = (
    {"batch": 8, "seq_len": 1024, "captured": False},
    {"batch": 32, "seq_len": 1024, "captured": False},
    {"batch": 8, "seq_len": 1024, "captured": True},
    {"batch": 32, "seq_len": 1024, "captured": True},
)
"""Sequences on each GPU, and tokens of each"""
CALLS = 2
"""Passes of a sample"""
PAIRS = 10
"""Samples of what is exposed"""
WARM_UP = 3
DDP_SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "ddp": {},
        "ddp-view": {"gradient_as_bucket_view": True},
        "ddp-static": {"gradient_as_bucket_view": True, "static_graph": True},
        "ddp-1mb": {"gradient_as_bucket_view": True, "bucket_cap_mb": 1},
        "ddp-100mb": {"gradient_as_bucket_view": True, "bucket_cap_mb": 100},
        "ddp-1gb": {"gradient_as_bucket_view": True, "bucket_cap_mb": 1024},
        "ddp-bf16": {"gradient_as_bucket_view": True},
    }
)
BUCKETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gpuguide": {},
        "gpuguide-100mb": {"bucket_bytes": 100 * MIB},
        "gpuguide-bf16": {"dtype": torch.bfloat16},
        "gpuguide-rows": {},
        "gpuguide-copied": {"by_copies": True},
        "gpuguide-copied-rows": {"by_copies": True},
    }
)
WITH_ROWS = ("gpuguide-rows", "gpuguide-copied-rows")
"""Contenders that gather the embedding's rows"""
ACCEPTED = {"ddp-bf16": 1e-2, "gpuguide-bf16": 1e-2, "fsdp2": 5e-2}
"""Largest error of all gradients together, as a ratio of norms"""
ACCEPTED_OTHERWISE = 2e-3
NOISE = 2
"""Times as much is accepted as the same passes differ from run to run, where attention adds up in any order"""
ONLY_SMALL = ("loop-async", "coalesced", "ddp-static", "ddp-1mb", "ddp-1gb")
"""Contenders that are compared with the small batch only"""
CAPTURED = (
    *("none", "flat", "ddp-view", "ddp-100mb"),
    *("gpuguide", "gpuguide-100mb", "gpuguide-bf16", "gpuguide-rows"),
    *("gpuguide-copied", "gpuguide-copied-rows", "sum-alone"),
)
"""Contenders that are captured, too"""
CAPTURED_LARGE = ("none", "ddp-view", "gpuguide", "gpuguide-copied-rows", "sum-alone")
"""Contenders that are captured with the large batch: each graph keeps the memory of its passes"""
CAPTURE_WARM_UP = 11
"""Passes before DDP may be captured, as PyTorch's notes on CUDA graphs ask for"""


@functools.cache
def parameter_count(config: GPT2Config) -> int:
    """Return the number of parameters of a model, a tied head counted once.

    >>> parameter_count(SHAPE)
    124475904
    """
    return shapes.build_meta_model(config, torch.bfloat16).parameter_count()


# --- in the process of each rank -------------------------------------------------------------------------


@dataclass(frozen=True)
class Passes:
    """The forward and the backward pass of a contender, after which gradients are averaged."""

    loss: Callable[[], torch.Tensor]
    parameters: Sequence[nn.Parameter]
    after: Callable[[], object] = lambda: None

    def __call__(self) -> None:
        """Do both passes and average."""
        for each in self.parameters:
            each.grad = None
        self.loss().backward()
        self.after()


def set_up(
    member: Member, name: str, case: tuple[int, int, bool], config: GPT2Config, compiled: bool
) -> tuple[str | None, float, int]:
    """Make a contender's passes on a rank; return what is wrong with them, their error and their memory.

    What cannot run is wrong too: an exception would end the ranks, and with them the other contenders of the case.
    """
    forget_other_cases(member, case)
    try:
        return set_up_or_raise(member, name, case, config, compiled)
    except RuntimeError as refusal:
        return f"{type(refusal).__name__}: {(str(refusal).splitlines() or [''])[0]}", 0.0, 0


def set_up_or_raise(
    member: Member, name: str, case: tuple[int, int, bool], config: GPT2Config, compiled: bool
) -> tuple[str | None, float, int]:
    """Do what :func:`set_up` does, or raise what PyTorch does."""
    if name == "sum-alone":
        member.kept["run"][name] = run_alone(member, config)
        return None, 0.0, 0
    if name != "none" and "none" not in member.kept["run"]:  # what it is compared with, where it is measured alone
        set_up_or_raise(member, "none", case, config, compiled)
    before = in_use(member)
    passes = make(member, name, case, config, compiled)
    with many_compilations():
        for _ in range(WARM_UP):
            passes()
    error = compare(member, name, passes)
    memory = peak(member, passes) - before
    run: Callable[[], object] = passes
    if case[2] and member.device.type == "cuda":
        run = capture(passes)
    member.kept["run"][name] = run
    accepted = max(ACCEPTED.get(name, ACCEPTED_OTHERWISE), NOISE * member.kept["noise"])
    fault = None if error <= accepted else f"gradients differ by {error:.1e}, and {accepted:.0e} is accepted"
    return fault, error, memory


def forget_other_cases(member: Member, case: tuple[int, int, bool]) -> None:
    """Drop what another case has left, so that its memory is free."""
    if member.kept.get("case") != case:
        member.kept.update(case=case, run={}, right=None)
        gc.collect()
        torch.compiler.reset()
        if member.device.type == "cuda":
            torch.cuda.empty_cache()


def make(member: Member, name: str, case: tuple[int, int, bool], config: GPT2Config, compiled: bool) -> Passes:
    """Return the passes of a contender."""
    batch, seq_len, captured = case
    made = model(config, str(member.device))
    tokens, targets = sequences(member, batch, seq_len, config)
    if name in WITH_ROWS:
        made.token_embedding = GatheredEmbedding(made.token_embedding)  # type: ignore[assignment]
    if compiled and name == "fsdp2":
        made.blocks = nn.ModuleList(torch.compile(block, dynamic=False) for block in made.blocks)  # type: ignore[misc]
    elif compiled:
        for block in made.blocks:
            block.compile(dynamic=False)
    module: nn.Module = LossModule(made, WithoutHead(made).loss)
    after: Callable[[], object] = lambda: None  # noqa: E731
    if name == "fsdp2":
        module = shard(module, made.blocks, reshard=False)  # type: ignore[arg-type]
    elif name in DDP_SETTINGS:
        module = ddp(module, name, captured)
    elif name in BUCKETS:
        after = Buckets(module, **BUCKETS[name]).wait
    elif name != "none":
        averages: Mapping[str, Callable[..., None]] = {
            "loop": average_each,
            "loop-async": functools.partial(average_each, at_once=True),
            "flat": average_flat,
            "coalesced": average_coalesced,
        }
        after = functools.partial(averages[name], list(module.parameters()))

    def loss() -> torch.Tensor:
        with torch.autocast(member.device.type, torch.bfloat16, enabled=name != "fsdp2", cache_enabled=not captured):
            found: torch.Tensor = module(tokens, targets)
        return found

    return Passes(loss, list(module.parameters()), after)


def sequences(member: Member, batch: int, seq_len: int, config: GPT2Config) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a rank's own tokens and targets, drawn at random."""
    generator = torch.Generator().manual_seed(member.rank)
    windows = torch.randint(config.vocab_size, (batch, seq_len + 1), generator=generator)
    return split_windows(windows.to(member.device))


def ddp(module: nn.Module, name: str, captured: bool) -> DistributedDataParallel:
    """Return a replica with the settings of a contender."""
    device = next(module.parameters()).device
    on_gpu = device.type == "cuda"
    stream = torch.cuda.Stream() if on_gpu and captured else None
    with torch.cuda.stream(stream):  # a replica that is captured is made on another stream (PyTorch, "CUDA graphs")
        made = DistributedDataParallel(module, device_ids=[device.index] if on_gpu else None, **DDP_SETTINGS[name])
    if stream is not None:
        torch.cuda.current_stream().wait_stream(stream)
    if name == "ddp-bf16":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        made.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return made


def run_alone(member: Member, config: GPT2Config) -> Callable[[], object]:
    """Return the sum of as many bytes as gradients in fp32 have."""
    values = torch.zeros(parameter_count(config), device=member.device)
    return lambda: dist.all_reduce(values)


def capture(passes: Passes) -> Callable[[], object]:
    """Return the replay of a graph of both passes and the sums."""
    for _ in range(ceil(CAPTURE_WARM_UP / timing.WARM_UP_CALLS)):
        timing.on_side_stream(passes)
    for each in passes.parameters:
        each.grad = None
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog asks for events from a thread of its own, which must not end the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        passes()

    def replay() -> Passes:
        """Replay the graph, and keep the tokens and weights whose addresses it has."""
        graph.replay()
        return passes

    return replay


def compare(member: Member, name: str, passes: Passes) -> float:
    """Return how far the gradients are from the mean of all ranks' own, as a ratio of norms."""
    found = gradients(passes)
    if name == "none":
        member.kept["right"] = mean_over_ranks(member, found)
        passes()
        member.kept["noise"] = distance(mean_over_ranks(member, gradients(passes)), member.kept["right"])
        return 0.0
    return distance(found, member.kept["right"])


def gradients(passes: Passes) -> list[torch.Tensor]:
    """Return the gradients of the last passes."""
    return [whole(each.grad) for each in passes.parameters if each.grad is not None]


def mean_over_ranks(member: Member, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the mean of all ranks' gradients, added up one by one."""
    means = [each.clone() for each in found]
    for each in means:
        dist.all_reduce(each)
        each /= member.world_size
    return means


def distance(found: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """Return how far gradients are from others, as a ratio of norms."""
    difference = torch.stack([torch.linalg.vector_norm(a - b) for a, b in zip(found, right, strict=True)])
    norms = torch.stack([torch.linalg.vector_norm(each) for each in right])
    return float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(norms))


def whole(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient whose parts may lie on other ranks."""
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def in_use(member: Member) -> int:
    """Return the bytes that tensors take on a rank's GPU."""
    return torch.cuda.memory_allocated() if member.device.type == "cuda" else 0


def peak(member: Member, passes: Passes) -> int:
    """Return the bytes that tensors take at most during both passes and sums."""
    if member.device.type != "cuda":
        passes()
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with many_compilations():
        passes()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def sample(member: Member, name: str, calls: int) -> float:
    """Return the seconds of a pass on this rank."""
    return data_parallel.seconds_per_call(member, member.kept["run"][name], calls)


# --- in the process that asks ----------------------------------------------------------------------------


def work(name: str, device: Device, keys: Keys, config: GPT2Config = SHAPE, compiled: bool = True) -> Work:
    """Do both passes on all ranks, and average."""
    case = (int(keys["batch"]), int(keys["seq_len"]), bool(keys["captured"]))
    processes = data_parallel.team(device)
    found = processes.run(set_up, name, case, config, compiled)
    faults = [f"rank {rank}: {fault}" for rank, (fault, _, _) in enumerate(found) if fault]
    assert not faults, faults[0]
    rates = {} if name == "sum-alone" else {"throughput": Rate("token/s", case[0] * case[1])}

    def further() -> Mapping[str, Metric]:
        if name in ("none", "sum-alone"):
            return {}
        metrics = {"error": records.metric("1", [max(error for _, error, _ in found)])}
        memory = max(held for _, _, held in found)
        if memory:
            metrics["peak_memory"] = records.metric("B", [memory])
        pairs = [[processes.slowest(sample, each, CALLS) for each in ("none", name)] for _ in range(PAIRS)]
        return {**metrics, "exposed": records.metric("s", [with_sums - without for without, with_sums in pairs])}

    return Work([], lambda: None, rates, sample=lambda: processes.slowest(sample, name, CALLS), further=further)


def names_of(captured: bool, is_large: bool) -> tuple[str, ...]:
    """Return the contenders that are measured with a batch, captured or not."""
    if captured:
        return CAPTURED_LARGE if is_large else CAPTURED
    return tuple(name for name in NAMES if not (is_large and name in ONLY_SMALL))


def is_large(keys: Keys) -> bool:
    """Return whether a case has the large batch."""
    return int(keys["batch"]) > CASES[0]["batch"]


def left_out(name: str, device: Device, keys: Keys) -> str | None:
    """Return why a contender is not measured with a case, or ``None`` if it is."""
    captured = bool(keys["captured"])
    if name in names_of(captured, is_large(keys)):
        return None
    return f"it is compared with{' the small batch' if name in names_of(captured, False) else 'out a graph'}"


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes on a GPU: weights and gradients of each contender, copies, and both passes."""
    tokens = int(keys["batch"]) * int(keys["seq_len"])
    passes = tokens * SHAPE.layers * SHAPE.hidden * 80
    weights = parameter_count(SHAPE)
    names = names_of(bool(keys["captured"]), is_large(keys))
    return float(12 * weights * len(names) + (len(names) if keys["captured"] else 1) * passes + 2**32)


NAMES = ("none", "loop", "loop-async", "flat", "coalesced", *DDP_SETTINGS, *BUCKETS, "fsdp2", "sum-alone")

GRADIENT_SUM = Benchmark(
    name="gradient-sum",
    title="Gradients averaged over GPUs",
    question="How much of the all-reduce of gradients is left after the backward pass?",
    contenders={
        name: Contender(functools.partial(work, name), frozenset({"gpu", "bf16"}), functools.partial(left_out, name))
        for name in NAMES
    },
    cases=lambda device: [dict(each) for each in CASES] if device.is_gpu else [],
    memory=bytes_needed,
    budget=1.0,
    gpus="all",
    end=ranks.end,
)

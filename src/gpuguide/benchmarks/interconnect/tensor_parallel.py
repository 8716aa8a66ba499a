"""A feed-forward layer divided among GPUs: computing and adding up apart, one after the other, and overlapped.

In ``one-after-the-other-unmixed`` NCCL is told that no communicator is used by a graph and outside of one at once, as
:mod:`all_reduce <gpuguide.benchmarks.interconnect.all_reduce>` explains; that takes processes of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch

from gpuguide.benchmarks.interconnect import all_reduce, ranks
from gpuguide.benchmarks.interconnect.all_reduce import UNMIXED, bus_bytes
from gpuguide.benchmarks.interconnect.ranks import Task
from gpuguide.hardware.device import Device
from gpuguide.interconnect.allreduce import OneShotAllReduce, largest_message
from gpuguide.interconnect.processes import Member
from gpuguide.interconnect.tensor_parallel import TensorParallelMLP, whole_layer
from gpuguide.measure.benchmark import Benchmark, Keys, Work
from gpuguide.measure.records import Rate

GIB = 2**30
HIDDEN, INNER = 8192, 28672
"""The widths of Llama 3 70B, without its gate"""
TOKENS = (1, 16, 256, 1024, 4096, 16384)
FEWEST_OVERLAPPED = 256
"""Tokens below which chunks do not pay: computing then reads mostly weights, and every chunk would read them again"""
CHUNKS = 4
ELEMENT_SIZE = 2
"""Bytes of a bf16 number"""
ACCEPTED_ERROR = 1.5e-2
"""Largest relative error against float64: inner activations, partial sums and their sum are rounded to bf16"""
CHECKED_ROWS = 32
SEED = 0


def calls_in_graph(tokens: int) -> int:
    """Return how many calls are timed together: enough to run for some milliseconds.

    >>> [calls_in_graph(tokens) for tokens in TOKENS]
    [20, 20, 5, 5, 1, 1]
    """
    return 20 if tokens <= 64 else 5 if tokens <= 1024 else 1


class TensorParallelLayer:
    """The layer as a rank has it: its inputs, the whole matrices, which all ranks draw alike, and its own part."""

    def __init__(self, member: Member, tokens: int, hidden: int, inner: int) -> None:
        generator = torch.Generator(member.device).manual_seed(SEED)

        def draw(rows: int, columns: int, spread: float) -> torch.Tensor:
            values = torch.empty(rows, columns, dtype=torch.bfloat16, device=member.device)
            return values.normal_(0.0, spread, generator=generator)

        self.values = draw(tokens, hidden, 1.0)
        self.up, self.down = draw(hidden, inner, hidden**-0.5), draw(inner, hidden, inner**-0.5)
        self.part = TensorParallelMLP.from_whole(self.up, self.down, member.rank, member.world_size)

    def check(self, found: torch.Tensor) -> None:
        """Check some rows of what the layer gave against the whole one in float64.

        Raises
        ------
        AssertionError
            If a number is not finite, or the relative error larger than accepted.
        """
        assert bool(torch.isfinite(found).all()), "the layer gives numbers that are not finite"
        rows = torch.linspace(0, len(found) - 1, min(CHECKED_ROWS, len(found)), device=found.device).long()
        right = whole_layer(self.values[rows].double(), self.up.double(), self.down.double())
        error = float(torch.linalg.vector_norm(found[rows].double() - right) / torch.linalg.vector_norm(right))
        assert error <= ACCEPTED_ERROR, f"the relative error is {error:.1e}, at most {ACCEPTED_ERROR:.1e} is accepted"


def get_shared_layer(member: Member, *shape: int) -> TensorParallelLayer:
    """Return the layer of a case, the same for all its contenders: the matrices are large."""
    shared = member.kept["shared"]
    if "layer" not in shared:
        shared["layer"] = TensorParallelLayer(member, *shape)
    found: TensorParallelLayer = shared["layer"]
    return found


def make_layer_task(
    layer: TensorParallelLayer, run: Callable[[], torch.Tensor], check: Callable[[torch.Tensor], None]
) -> Task:
    """Return a task that checks what its last call gave; before the first one that is NaN."""
    left = [torch.full_like(layer.values, torch.nan)]

    def call() -> None:
        left[0] = run()

    return Task(call, lambda: None, lambda: check(left[0]), calls_in_graph(len(layer.values)))


# --- work of a rank --------------------------------------------------------------------------------------


def one_after_the_other(member: Member, *shape: int) -> Task:
    """Compute everything, then add everything up by NCCL."""
    layer = get_shared_layer(member, *shape)
    return make_layer_task(layer, lambda: layer.part.one_after_the_other(layer.values), layer.check)


def one_shot(member: Member, *shape: int) -> Task:
    """Compute everything, then add everything up by our kernel."""
    layer = get_shared_layer(member, *shape)
    if "one-shot" not in member.kept:
        member.kept["one-shot"] = OneShotAllReduce(member.device)
    reduce: OneShotAllReduce = member.kept["one-shot"]
    return make_layer_task(layer, lambda: layer.part.one_after_the_other(layer.values, reduce), layer.check)


def overlap_chunks(member: Member, *shape: int) -> Task:
    """Compute one chunk of the tokens while the sums of the chunk before travel."""
    layer = get_shared_layer(member, *shape)
    return make_layer_task(layer, lambda: layer.part.forward_overlapped(layer.values, CHUNKS), layer.check)


def compute_only(member: Member, *shape: int) -> Task:
    """Compute this rank's part of the sums, which are right once they are added up."""
    layer = get_shared_layer(member, *shape)
    return make_layer_task(
        layer,
        lambda: layer.part.compute(layer.values),
        lambda partial: layer.check(layer.part.communicate(partial.clone())),
    )


def communicate_only(member: Member, tokens: int, hidden: int, inner: int) -> Task:
    """Add up as many numbers as the layer gives, and compute nothing."""
    return all_reduce.nccl(member, tokens * hidden * ELEMENT_SIZE)


def one_gpu(member: Member, *shape: int) -> Task:
    """Compute the whole layer on every GPU by itself."""
    layer = get_shared_layer(member, *shape)
    return make_layer_task(layer, lambda: whole_layer(layer.values, layer.up, layer.down), layer.check)


# --- declaration -----------------------------------------------------------------------------------------


def work(name: str, prepare: ranks.Prepare, settings: Mapping[str, str], device: Device, keys: Keys) -> Work:
    """Run the layer on all ranks, whose processes have these settings; each checks its result."""
    shape = tuple(int(keys[key]) for key in ("tokens", "hidden", "inner"))
    sent = {"bandwidth": Rate("B/s", bus_bytes(message_bytes(keys), device.count))}
    rates = sent if name == "communicate-only" else flops(keys)
    sample = ranks.sampler(ranks.team_with(settings, device), name, prepare, shape)
    return Work([], lambda: None, rates, sample=sample)  # the sampler has checked what it times


def message_bytes(keys: Keys) -> int:
    """Return the bytes that are added up over the ranks."""
    return int(keys["tokens"]) * int(keys["hidden"]) * ELEMENT_SIZE


def flops(keys: Keys) -> Mapping[str, Rate]:
    """Return the operations of the whole layer, all ranks together."""
    return {"throughput": Rate("FLOP/s", 4 * int(keys["tokens"]) * int(keys["hidden"]) * int(keys["inner"]))}


def beyond_one_shot(device: Device, keys: Keys) -> str | None:
    """Return why our kernel does not add up, if it does not."""
    most = largest_message(device.count)
    if message_bytes(keys) <= most:
        return None
    return f"sums beyond {most // 2**10} KiB are NCCL's in our function too"


def too_few_tokens(device: Device, keys: Keys) -> str | None:
    """Return why chunks make no sense, if they do not."""
    if int(keys["tokens"]) >= FEWEST_OVERLAPPED:
        return None
    return f"of fewer than {FEWEST_OVERLAPPED} tokens every chunk would read all weights again"


def bytes_needed(keys: Keys) -> float:
    """Return the memory of a case on a GPU: matrices whole, in parts and in float64, and what contenders give.

    The matrices are there in the processes of both teams, in float64 too, which PyTorch keeps after a check.
    """
    tokens, hidden, inner = (int(keys[key]) for key in ("tokens", "hidden", "inner"))
    matrices = 2 * 2 * hidden * inner * (ELEMENT_SIZE * 3 / 2 + 8)
    return matrices + 7 * tokens * (2 * inner + 4 * hidden) * ELEMENT_SIZE + 2 * GIB


contender = functools.partial(ranks.contender, work)


TENSOR_PARALLEL_LAYER = Benchmark(
    name="tensor-parallel-layer",
    title="A feed-forward layer divided among GPUs",
    question="What does a layer gain from more GPUs, and how much of that does the all-reduce take back?",
    contenders={
        "one-after-the-other": contender("one-after-the-other", one_after_the_other),
        "one-after-the-other-unmixed": contender("one-after-the-other-unmixed", one_after_the_other, settings=UNMIXED),
        "one-shot": contender("one-shot", one_shot, beyond_one_shot),
        "overlapped": contender("overlapped", overlap_chunks, too_few_tokens),
        "compute-only": contender("compute-only", compute_only),
        "communicate-only": contender("communicate-only", communicate_only),
        "one-gpu": contender("one-gpu", one_gpu),
    },
    cases=lambda device: (
        [{"tokens": tokens, "hidden": HIDDEN, "inner": INNER} for tokens in TOKENS]
        if device.is_gpu and INNER % device.count == 0
        else []
    ),
    memory=bytes_needed,
    budget=0.3,
    gpus="all",
    end=ranks.end,
)

"""A training step of GPT-2 small, rung by rung: what each gives in its place, alone, and when it is left out.

A step is forward pass, loss, backward pass and AdamW, timed by the host's clock around synchronised work, so that time
in which the GPU waits for launches counts. All contenders of a case take samples in turn. Before that, each takes one
step whose gradients are compared with those of fp32, computed by PyTorch without any rung but attention's, and then
trains.

Each case of :data:`COMPARED` has some contenders, and all have ``fp32`` and ``best``, so that each ratio is of
contenders that took turns. With :data:`LADDER_BATCH`, contenders that compute in 16 bits, and ``fp32``, train for
:data:`TRAINED` steps in the first of their cases, and the loss of the last ones is reported.

The memory of a step that is captured is that of its steps before the capture: ``torch.cuda.max_memory_allocated`` does
not see what a graph uses. Compiled contenders include their compilation in ``first_step``.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional

from gpuguide.benchmarks.training import contenders
from gpuguide.benchmarks.training.contenders import (
    SHAPE,
    Make,
    TrainedBy,
    many_compilations,
    model,
    settings,
    shape_of,
    windows,
)
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.models.gpt2 import GPT2Config
from gpuguide.training import make_step
from gpuguide.training.feeding import split_windows
from gpuguide.training.rungs import ALL

LADDER_BATCH = (64, 512)
"""Sequences of a batch, and their tokens, with which each rung is measured"""
PEERS = ("nanogpt-recipe", "hf-compile", "best-fed")
COMPARED = {
    "in-place": tuple(f"to-{name}" for name in contenders.LADDER[:-1]),
    "left-out": (*(f"without-{name}" for name in contenders.LADDER[:-1]), f"to-{contenders.LADDER[-2]}"),
    "alone": (f"to-{contenders.LADDER[0]}", *(f"only-{name}" for name in contenders.LADDER[1:5])),
    "peers": PEERS,
}
"""Which contenders a case compares with ``fp32`` and ``best``"""
OTHER_BATCHES = ((32, 1024), (8, 1024))
"""Batches with which peers are compared, too"""
TRAINED = 100
"""Steps after which the loss is reported, where it is"""
CHECKED = 10
"""Steps after which the loss must have fallen, elsewhere"""
AVERAGED = 8
"""Steps whose mean loss that is: batches differ more than contenders do"""
EVERYWHERE = ("fp32", "best")
"""Contenders of all cases"""
BF16 = frozenset({"gpu", "bf16"})
ACCEPTED = {"fp32": 2e-3, "bf16": 2e-2, "weights": 5e-2, "fp8": 2e-1}
"""Largest accepted error of all gradients together against fp32, as a ratio of norms"""
REFERENCE_BATCH = 8
"""Sequences of a pass of the reference"""


# --- work ------------------------------------------------------------------------------------------------


def work(
    make: Make, accepted: float, reports_loss_in: str | None, device: Device, keys: Keys, config: GPT2Config = SHAPE
) -> Work:
    """Train, and go on with the same batch again and again, or with those that the contender feeds itself."""
    rates = {"throughput": Rate("token/s", int(keys["batch"]) * int(keys["seq_len"]))}
    torch.compiler.reset()
    attend_once(device)
    before = memory_in_use(device)
    with many_compilations(), compiled_for_itself():
        trained = make(keys, device.torch_device, graph_pool(device))
        drawn = windows(keys)
        first = split_windows(drawn.draw(0).to(device.torch_device))
        began = time.perf_counter()
        loss = float(trained.step(*first))
        found: dict[str, Metric] = {"first_step": records.metric("s", [time.perf_counter() - began])}
        error = gradient_error(trained, reference_gradients(tuple(sorted(keys.items())), device.torch_device, config))
        found |= {"error": records.metric("1", [error]), **memory_metrics(device, before)}
        is_long = keys.get("compared") == reports_loss_in and shape_of(keys) == LADDER_BATCH
        steps = TRAINED if is_long else CHECKED
        losses = [trained.step(*split_windows(drawn.draw(step))) for step in range(1, steps)]
        last = float(torch.stack(losses[-AVERAGED:]).mean())
        if is_long:
            found["loss"] = records.metric("nat", [last])

    def call() -> None:
        with many_compilations(), compiled_for_itself():
            trained.step(*(first if trained.next_batch is None else trained.next_batch()))
        if trained.step.graph is None:
            for parameter in trained.step.parameters:
                parameter.grad = None  # its memory is for the next contender

    def check() -> None:
        assert error <= accepted, f"the gradients differ from fp32 by {error:.1e}, and {accepted:.0e} is accepted"
        assert last < loss, f"the loss went from {loss:.3f} to {last:.3f} in {steps} steps"

    def further() -> Mapping[str, Metric]:
        counted = count_kernels(call, device)
        trained.close()
        return {**found, **counted}

    return Work([call], check, rates, timing="wall", further=further)


def compiled_for_itself() -> AbstractContextManager[object]:
    """Let the compiler take no graph that another contender left on the disk.

    Compiled code keeps the attention kernel that it was traced with, and PyTorch's cache finds it for a contender that
    asked for another one (https://github.com/pytorch/pytorch/issues/185449).
    """
    import torch._functorch.config as config

    return config.patch(enable_autograd_cache=False)


def attend_once(device: Device) -> None:
    """Call attention, since the first call of a process does not honour the order of kernels that is asked for."""
    functional.scaled_dot_product_attention(*torch.zeros(3, 1, 1, 8, 64, device=device.torch_device))


@lru_cache(maxsize=1)
def reference_gradients(case: tuple[tuple[str, Any], ...], device: str, config: GPT2Config) -> list[torch.Tensor]:
    """Return the clipped gradients of the first batch in fp32, on the processor's side."""
    keys = dict(case)
    batch, seq_len = shape_of(keys)
    micro_batch = min(batch, REFERENCE_BATCH)
    step = make_step(model(config, device), batch, seq_len, {"attention"}, settings(micro_batch=micro_batch))
    step(*split_windows(windows(keys).draw(0)))
    return [each.cpu() for each in step.gradients()]


def gradient_error(trained: TrainedBy, expected: Sequence[torch.Tensor]) -> float:
    """Return the error of all gradients of the last step together, as a ratio of norms.

    Peers do not clip, so all are scaled to the norm of the reference. Further rows of a padded vocabulary do not count.
    """
    found = trained.step.gradients()
    assert len(found) == len(expected), f"{len(found)} of {len(expected)} parameters have a gradient"
    matched = [
        _as_ours(got, right, number in trained.transposed)
        for number, (got, right) in enumerate(zip(found, expected, strict=True))
    ]
    scale = _norm(expected) / _norm(matched)
    wrong = [got * scale - right for got, right in zip(matched, expected, strict=True)]
    return _norm(wrong) / _norm(expected)


def _norm(values: Sequence[torch.Tensor]) -> float:
    return sum(float(each.double().square().sum()) for each in values) ** 0.5


def _as_ours(found: torch.Tensor, expected: torch.Tensor, transposed: bool) -> torch.Tensor:
    """Return a gradient in the shape of ours, on the processor, in fp32."""
    values = found.detach().float().cpu()
    return (values.t() if transposed else values)[: len(expected)]


def count_kernels(call: Callable[[], object], device: Device) -> Mapping[str, Metric]:
    """Return the number of kernels of a call, where the profiler can count."""
    if device.backend != "cuda":
        return {}
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        call()
        torch.cuda.synchronize()
    kernels = [each for each in profiled.events() if each.device_type.name == "CUDA"]
    return {"kernels": records.metric("1", [len(kernels)])} if kernels else {}


def memory_in_use(device: Device) -> tuple[int, int]:
    """Return the bytes that are allocated and reserved, after what nobody needs is freed."""
    if device.backend != "cuda":
        return 0, 0
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # so that this contender's own count
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def memory_metrics(device: Device, before: tuple[int, int]) -> Mapping[str, Metric]:
    """Return the highest numbers of bytes that were allocated and reserved since, beyond those before."""
    if device.backend != "cuda":
        return {}
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated() - before[0], torch.cuda.max_memory_reserved() - before[1]
    return {
        "peak_memory": records.metric("B", [allocated]),
        "reserved_memory": records.metric("B", [reserved]),
    }


def graph_pool(device: Device) -> Any:
    """Return the memory that captured steps share, since they never run at the same time; none on a processor."""
    return _pool_owner().pool() if device.backend == "cuda" else None


@lru_cache(maxsize=1)
def _pool_owner() -> torch.cuda.CUDAGraph:
    """Return a graph of nothing, whose memory always has an owner: once no graph has any, no other may take it up."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")
    return graph


def end() -> None:
    """Forget what was compiled and kept."""
    _pool_owner.cache_clear()
    reference_gradients.cache_clear()
    torch.compiler.reset()


# --- declaration -----------------------------------------------------------------------------------------


def accepted_error(rungs: frozenset[str]) -> float:
    """Return the largest accepted error of gradients with some rungs."""
    return ACCEPTED["weights" if "weights" in rungs else "bf16" if "bf16" in rungs else "fp32"]


def compared_in(case: str) -> tuple[str, ...]:
    """Return the contenders of a case."""
    return (*EVERYWHERE, *COMPARED[case])


def not_compared(name: str, device: Device, keys: Keys) -> str | None:
    """Return the reason to leave out a contender, or None."""
    return None if name in compared_in(str(keys["compared"])) else "is measured in another case"


def contender(name: str, make: Make, accepted: float, *libraries: str, narrow: bool = True) -> Contender:
    """Return a way to take a step as a contender, with the libraries that it calls."""
    reports_loss = narrow or name == "fp32"
    first = next(case for case in COMPARED if name in compared_in(case))
    return Contender(
        functools.partial(work, make, accepted, first if reports_loss else None),
        BF16 if narrow else frozenset({"gpu"}),
        functools.partial(not_compared, name),
        ("cublas", "cudnn", *libraries),
    )


def of_rungs(name: str, rungs: frozenset[str]) -> Contender:
    """Return a step with some rungs as a contender."""
    return contender(name, contenders.with_rungs(rungs), accepted_error(rungs), narrow="bf16" in rungs)


def beyond(make: Make, accepted: float, *needs: str) -> Contender:
    """Return a change of the best step as a contender."""
    return Contender(functools.partial(work, make, accepted, None), BF16 | set(needs), libraries=("cublas", "cudnn"))


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes with all contenders set up: weights and states of each, and the largest step."""
    batch, seq_len = shape_of(keys)
    tokens, parameters = batch * seq_len, 124_475_904
    logits = 12 * tokens * SHAPE.vocab_size
    layers = SHAPE.layers * (60 * tokens * SHAPE.hidden + 8 * batch * SHAPE.heads * seq_len**2)
    return float(20 * parameters * max(map(len, COMPARED.values())) + logits + layers)


def cases(device: Device) -> list[Keys]:
    """Return the cases of the ladder, and those with which only peers are compared."""
    found: list[tuple[tuple[int, int], str]] = [(LADDER_BATCH, compared) for compared in COMPARED]
    found += [(batch, "peers") for batch in OTHER_BATCHES]
    return [
        {"batch": batch, "seq_len": seq_len, "compared": compared}
        for (batch, seq_len), compared in found
        if device.is_gpu
    ]


TRAINING_LADDER = Benchmark(
    name="training-ladder",
    title="A training step, rung by rung",
    question="What does each change that makes a step fast give: in its place, alone, and when it is left out?",
    contenders={
        **{name: of_rungs(name, rungs) for name, rungs in contenders.ladder().items()},
        "nanogpt-recipe": contender("nanogpt-recipe", contenders.nanogpt_recipe, ACCEPTED["bf16"]),
        "hf-compile": contender("hf-compile", contenders.hf_compile, ACCEPTED["bf16"], "transformers"),
        "best-fed": contender("best-fed", contenders.best_fed, ACCEPTED["weights"]),
    },
    cases=cases,
    memory=bytes_needed,
    budget=1.5,
    end=end,
)

TRAINING_BEYOND = Benchmark(
    name="training-beyond",
    title="Two further changes of the fastest training step",
    question="Do matmuls in fp8, or kernels that the compiler searches longer for, make the fastest step faster?",
    contenders={
        "best": beyond(contenders.with_rungs(ALL), ACCEPTED["weights"]),
        "best-fp8": beyond(contenders.best_fp8, ACCEPTED["fp8"], "fp8"),
        "best-autotune": beyond(contenders.with_rungs(ALL, mode="max-autotune-no-cudagraphs"), ACCEPTED["weights"]),
    },
    cases=lambda device: [{"batch": LADDER_BATCH[0], "seq_len": LADDER_BATCH[1]}] if device.is_gpu else [],
    memory=bytes_needed,
    budget=1.5,
    end=end,
)

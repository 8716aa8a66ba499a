"""What ``torch.compile`` and CUDA graphs gain in whole steps, what ``diagnose`` expects, and how long a start takes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gpuguide.benchmarks.fusion.launching import in_graph, launched_by_host, mark_steps
from gpuguide.benchmarks.fusion.scenarios import SCENARIOS, BlockCompiler, Compile, forget_compiled
from gpuguide.benchmarks.training.ladder import memory_in_use, memory_metrics
from gpuguide.fusion.counting import count_kernels
from gpuguide.fusion.diagnose import CHANGES, diagnose
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric

COMPARED = 4
"""Gradients or results that are compared with those of eager code"""
ACCEPTED = 0.1
"""Largest accepted difference from eager code in bf16, as a ratio of norms: compiled code rounds less often"""
CACHES = ("empty", "on-disk")
STARTS = 3
"""Starts that are measured, each of which takes many seconds"""


# --- gains -----------------------------------------------------------------------------------------------


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function itself."""
    return function


def whole() -> Compile:
    """Return what compiles a whole function for one shape."""
    return lambda function: torch.compile(function, dynamic=False)


def reduce_overhead() -> Compile:
    """Return the same, with graphs that the compiler captures."""
    return lambda function: mark_steps(torch.compile(function, dynamic=False, mode="reduce-overhead"))


def blocks() -> Compile:
    """Return what compiles each block of a model alone."""
    return BlockCompiler(lambda function: torch.compile(function, dynamic=False))


def work(make_compile: Callable[[], Compile], graph: bool, diagnosed: bool, device: Device, keys: Keys) -> Work:
    """Take the step of a scenario."""
    name = str(keys["scenario"])
    if diagnosed:  # the first contender of a case
        forget_compiled()
    before = memory_in_use(device)
    step = SCENARIOS[name].make(device.torch_device, make_compile())
    metrics = dict(memory_of_third_call(step, device, before))
    if diagnosed and device.backend == "cuda":
        predicted = diagnose(step).predicted
        names = {change: "expected_" + change.replace(" + ", "_") for change in CHANGES}
        metrics |= {names[change]: records.metric("s", [predicted[change]]) for change in CHANGES}

    def check() -> None:
        expected = tensors_of(SCENARIOS[name].make(device.torch_device, uncompiled)())
        for got, right in zip(tensors_of(step()), expected, strict=True):
            error = float((got.double() - right.double()).norm() / right.double().norm().clamp_min(1e-12))
            assert error <= ACCEPTED, f"the difference from eager code is {error:.1e}, and {ACCEPTED} is accepted"

    sampler = None if device.backend != "cuda" else in_graph(step) if graph else launched_by_host(step)

    def further() -> Mapping[str, Metric]:
        return {**metrics, "kernels": records.metric("1", [count_kernels(step).kernels])}

    return Work([step], check, sample=sampler, further=further if device.backend == "cuda" else lambda: metrics)


def memory_of_third_call(step: Callable[[], object], device: Device, before: tuple[int, int]) -> Mapping[str, Metric]:
    """Return the peak memory of a step's third call: the first one compiles, and the second may capture a graph."""
    step()
    step()
    if device.backend == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step()
    return memory_metrics(device, before)


def tensors_of(result: Any) -> list[torch.Tensor]:
    """Return the first tensors of a step's result."""
    many = result if isinstance(result, tuple) else (result,)
    return [each.detach().clone() for each in many if each is not None][:COMPARED]


def has_no_blocks(device: Device, keys: Keys) -> str | None:
    """Return why a scenario cannot be compiled block by block."""
    return None if SCENARIOS[str(keys["scenario"])].blocks else "has no blocks of one kind"


def contender(
    make_compile: Callable[[], Compile], graph: bool = False, *, diagnosed: bool = False, **more: Any
) -> Contender:
    """Return a contender that needs a GPU."""
    build = functools.partial(work, make_compile, graph, diagnosed)
    return Contender(build, frozenset({"gpu", "bf16"}), libraries=("cublas", "cudnn", "transformers"), **more)


COMPILE_GAIN = Benchmark(
    name="compile-gain",
    title="Whole steps, compiled and in a CUDA graph",
    question="By how much do torch.compile and a CUDA graph speed up steps of different kinds?",
    contenders={
        "eager": contender(lambda: uncompiled, diagnosed=True),
        "eager-graph": contender(lambda: uncompiled, graph=True),
        "compile": contender(whole),
        "compile-blocks": contender(blocks, skip_reason=has_no_blocks),
        "reduce-overhead": contender(reduce_overhead),
        "compile-replayed": contender(whole, graph=True),
    },
    cases=lambda device: [{"scenario": name} for name in SCENARIOS] if device.is_gpu else [],
    memory=lambda keys: 50.0 * 2**30 if keys["scenario"] in ("large-batch", "attention-written-out") else 8.0 * 2**30,
    budget=0.5,
    end=forget_compiled,
)


# --- starting --------------------------------------------------------------------------------------------


def start_work(make_compile: Callable[[], Compile], device: Device, keys: Keys) -> Work:
    """Make the first call of a training step of GPT-2 small, compiled, again and again."""
    from torch._inductor.utils import fresh_cache

    def first_call() -> float:
        forget_compiled()
        step = SCENARIOS["small-batch"].make(device.torch_device, make_compile())
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def with_empty_cache() -> float:
        with fresh_cache():
            return first_call()

    if keys["cache"] == "on-disk":
        first_call()  # fills it
    return Work([], sample=first_call if keys["cache"] == "on-disk" else with_empty_cache)


def start_contender(make_compile: Callable[[], Compile]) -> Contender:
    """Return a contender that needs a GPU."""
    return Contender(
        functools.partial(start_work, make_compile), frozenset({"gpu", "bf16"}), libraries=("cublas", "cudnn")
    )


COMPILE_START = Benchmark(
    name="compile-start",
    title="The first call of a compiled training step",
    question="How long does the first call of a compiled step take, with an empty cache and with a full one?",
    contenders={"compile": start_contender(whole), "compile-blocks": start_contender(blocks)},
    cases=lambda device: [{"cache": cache} for cache in CACHES] if device.is_gpu else [],
    memory=lambda keys: 8.0 * 2**30,
    samples=STARTS,
    end=forget_compiled,
)

"""Tokens a second by batch: how many sequences a GPU needs, launched one kernel at a time, compiled, and captured."""

from __future__ import annotations

import functools

import torch

from gpuguide.benchmarks.training import ladder
from gpuguide.benchmarks.training.contenders import (
    SHAPE,
    many_compilations,
    model,
    settings,
    shape_of,
    windows,
)
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate
from gpuguide.models.gpt2 import GPT2Config
from gpuguide.training import make_step
from gpuguide.training.feeding import split_windows
from gpuguide.training.rungs import ALL

BATCHES = (1, 4, 16, 64)
SEQ_LEN = 512
WARM_UP = 16
"""Steps before the loss must have fallen: the first ones of AdamW raise it, with moments of few gradients"""
WAYS = {"eager": ALL - {"compile", "graph"}, "compile": ALL - {"graph"}, "compile-graph": ALL}
"""The rungs of each contender"""


def work(rungs: frozenset[str], device: Device, keys: Keys, config: GPT2Config = SHAPE) -> Work:
    """Train one batch again and again."""
    rates = {"throughput": Rate("token/s", int(keys["batch"]) * int(keys["seq_len"]))}
    before = ladder.memory_in_use(device)
    tokens, targets = split_windows(windows(keys).draw(0).to(device.torch_device))
    with many_compilations():
        made = model(config, device.torch_device)
        step = make_step(made, *shape_of(keys), rungs, settings(), pool=ladder.graph_pool(device))
        losses = [float(step(tokens, targets)) for _ in range(WARM_UP)]
    found = ladder.memory_metrics(device, before)

    def call() -> torch.Tensor:
        with many_compilations():
            return step(tokens, targets)

    def check() -> None:
        assert losses[-1] < losses[0], f"the loss of a batch went from {losses[0]:.3f} to {losses[-1]:.3f}"

    return Work([call], check, rates, timing="wall", further=lambda: found)


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes with all contenders set up: weights and states of each, and two steps."""
    batch, seq_len = shape_of(keys)
    return float(3 * 24 * 124_475_904 + 2 * batch * seq_len * SHAPE.layers * SHAPE.hidden * 60 + 2**32)


BATCH_SPEED = Benchmark(
    name="batch-speed",
    title="Training speed by batch",
    question="How many sequences does a step need to keep the GPU busy, and what if its kernels are captured?",
    contenders={
        name: Contender(functools.partial(work, rungs), frozenset({"gpu", "bf16"}), libraries=("cublas", "cudnn"))
        for name, rungs in WAYS.items()
    },
    cases=lambda device: [{"batch": batch, "seq_len": SEQ_LEN} for batch in BATCHES] if device.is_gpu else [],
    memory=bytes_needed,
    budget=0.6,
    end=ladder.end,
)

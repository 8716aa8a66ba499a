"""Whole trainings of a small GPT, short enough to repeat for many settings and seeds.

A model with 4 layers of 256 reads 20,480 windows of 256 tokens, 5.2M tokens or 1.6 times the text, which is Python's
standard library in the tokens of the models that come with the library. Runs with one seed read the same windows in the
same order, whatever their batch. A run is timed in ten pieces, each of which ends when the GPU has ended it; the steps
are captured in a CUDA graph, which serves all runs of one batch.

Matmuls are in bf16, weights and AdamW in fp32. A run whose loss is not finite has ``diverged`` 1 and no ``loss``.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpuguide.benchmarks.precision.training import tokens
from gpuguide.benchmarks.training import ladder
from gpuguide.benchmarks.training.contenders import TrainedBy, many_compilations, text
from gpuguide.gradients.depth import WiredModel
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.training import StepSettings, TrainingStep, Windows, make_step
from gpuguide.training.feeding import split_windows
from gpuguide.training.rungs import whole_loss

SHAPE = GPT2Config(vocab_size=2048, context=256, layers=4, heads=4, hidden=256)
WINDOWS = 20_480
"""Windows of a run: 20 steps of the largest batch, 1,024"""
PIECES = 10
"""Parts of a run that are timed apart; they divide the steps of every batch"""
POINTS = 60
"""Means of the training loss that a run keeps, or as many as it has steps"""
HELD_OUT = 64
"""Windows that the loss is measured on in the end; none of their files is trained on"""
WEIGHT_DECAY, BETAS, CLIP = 0.1, (0.9, 0.95), 1.0
CAPTURED = frozenset({"bf16", "attention", "optimizer", "graph"})
"""Rungs of a step that is launched at once"""
COMPILED = CAPTURED | {"compile"}
EAGER = CAPTURED - {"graph"}
CHECKED_AT_ONCE = 64


@dataclass(frozen=True)
class Architecture:
    """What is trained: GPT-2 of some shape, or the same with another wiring."""

    config: GPT2Config
    wiring: str | None = None
    start: str = "gpt2"

    def build(self, seed: int) -> nn.Module:
        """Return the model with the first weights of a seed."""
        torch.manual_seed(seed)
        if self.wiring is None:
            return GPT2(self.config)
        shape = self.config
        return WiredModel(
            shape.vocab_size, shape.context, shape.layers, shape.heads, shape.hidden, self.wiring, self.start
        )


@dataclass(frozen=True)
class Plan:
    """How one contender trains."""

    architecture: Architecture
    batch: int
    rate: Callable[[int], float]
    """Learning rate of each step"""
    seed: int = 0
    steps: int | None = None
    """Steps, if not those of all windows"""
    betas: tuple[float, float] = BETAS
    clip: float = CLIP
    rungs: frozenset[str] = CAPTURED
    bad_every: int = 0
    """Every so many steps the batch is random tokens; 0 for never"""
    accepted: float = ladder.ACCEPTED["bf16"]
    """Largest relative error of the gradients of the first step against fp32"""

    @property
    def num_steps(self) -> int:
        """Number of steps of the run."""
        return self.steps or WINDOWS // self.batch


@functools.lru_cache(maxsize=1)
def ready_steps(config: GPT2Config, batch: int) -> dict[Any, tuple[nn.Module, TrainingStep]]:
    """Return the steps of one shape and batch; those of the last one are forgotten, with their memory."""
    return {}


def ready_step(owner: str, plan: Plan, device: str) -> tuple[nn.Module, TrainingStep]:
    """Return a model and its step, compiled, captured and checked once for all runs of one contender."""
    kept = ready_steps(plan.architecture.config, plan.batch)
    key = (owner, plan.architecture, plan.betas, plan.clip, plan.rungs, device)
    if key not in kept:
        model = plan.architecture.build(0).to(device).train()
        settings = StepSettings(weight_decay=WEIGHT_DECAY, betas=plan.betas, clip=plan.clip)
        step = make_step(model, plan.batch, plan.architecture.config.context, plan.rungs, settings)
        check_gradients(step, plan, device)
        kept[key] = (model, step)
    return kept[key]


def check_gradients(step: TrainingStep, plan: Plan, device: str) -> None:
    """Compare the gradients of a first step, which changes nothing, with those in fp32."""
    batch = windows(0, plan.batch, plan.architecture.config.context).to(device)
    step.set_learning_rate(0.0)
    with many_compilations():
        step(*split_windows(batch))
    exact = plan.architecture.build(0).to(device)
    loss = whole_loss(exact)
    for part in batch.split(CHECKED_AT_ONCE):
        (loss(*split_windows(part)) * (len(part) / len(batch))).backward()
    expected = [each.grad.cpu() for each in exact.parameters() if each.grad is not None]
    error = ladder.gradient_error(TrainedBy(step), expected)
    assert error <= plan.accepted, f"the gradients differ from fp32 by {error:.1e}; {plan.accepted:.0e} is accepted"


def restart(step: TrainingStep, values: list[torch.Tensor]) -> None:
    """Give a step other weights, and an optimizer that has seen nothing."""
    step.load(values)
    for state in step.optimizer.state.values():
        for each in state.values():
            each.zero_()


@functools.lru_cache(maxsize=6)
def windows(seed: int, count: int, seq_len: int) -> torch.Tensor:
    """Return the first windows in the order of a seed, ``(count, seq_len + 1)``, int64."""
    return Windows(text(), seq_len, count, seed).draw(0)


@functools.lru_cache(maxsize=2)
def held_out(seq_len: int) -> torch.Tensor:
    """Return windows that are not trained on, ``(windows, seq_len + 1)``."""
    return Windows(tokens()[1].numpy(), seq_len, 1).spread_windows(HELD_OUT)


class SmallRun:
    """A training, as far as it has come."""

    def __init__(self, owner: str, plan: Plan, device: str) -> None:
        self.plan, self.device = plan, device
        seq_len = plan.architecture.config.context
        self.model, self.step = ready_step(owner, plan, device)
        first = plan.architecture.build(plan.seed)
        restart(self.step, [each.detach().to(device) for each in first.parameters()])
        rows = windows(plan.seed, plan.num_steps * plan.batch, seq_len)
        self.batches = rows.unflatten(0, (plan.num_steps, plan.batch)).to(device)
        if plan.bad_every:
            self.batches = with_bad_batches(self.batches, plan)
        self.losses = torch.full((plan.num_steps,), math.nan, device=device)
        self.norms = torch.zeros_like(self.losses)
        self.taken = 0

    def take(self, count: int) -> None:
        """Take the next steps."""
        for number in range(self.taken, min(self.taken + count, self.plan.num_steps)):
            self.step.set_learning_rate(self.plan.rate(number))
            self.losses[number] = self.step(*split_windows(self.batches[number]))
            if self.step.grad_norm is not None:
                self.norms[number] = self.step.grad_norm
            self.taken += 1

    def sample(self) -> float:
        """Return the seconds of the next piece of the run."""
        synchronize(self.device)
        start = time.perf_counter_ns()
        self.take(self.plan.num_steps // PIECES)
        synchronize(self.device)
        return (time.perf_counter_ns() - start) * 1e-9

    def further(self) -> Mapping[str, Metric]:
        """Return losses and norms of gradients, after the steps that are left."""
        self.take(self.plan.num_steps)
        losses, norms = self.losses.tolist(), self.norms.tolist()
        loss = self.evaluate()
        finite = losses[: next((at for at, each in enumerate(losses) if not math.isfinite(each)), len(losses))]
        has_diverged = len(finite) < len(losses) or not math.isfinite(loss)
        found = {
            "diverged": records.metric("1", [float(has_diverged)]),
            "training_loss": records.metric("nat", means(finite)),
        }
        if not has_diverged:
            found["loss"] = records.metric("nat", [loss])
            found["gradient_norm"] = records.metric("1", maxima(norms))
        return found

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the mean loss on text that is not trained on, in fp32."""
        loss, parts = whole_loss(self.model), held_out(self.plan.architecture.config.context).to(self.device).split(16)
        return float(torch.stack([loss(*split_windows(part)) for part in parts]).mean())


def with_bad_batches(batches: torch.Tensor, plan: Plan) -> torch.Tensor:
    """Return the batches with random tokens in the last of every so many steps."""
    generator = torch.Generator().manual_seed(plan.seed)
    bad = batches[plan.bad_every - 1 :: plan.bad_every]
    drawn = torch.randint(plan.architecture.config.vocab_size, bad.shape, generator=generator)
    changed = batches.clone()
    changed[plan.bad_every - 1 :: plan.bad_every] = drawn.to(batches.device)
    return changed


def means(values: list[float]) -> list[float]:
    """Return the means of at most :data:`POINTS` parts of a list, equally long up to one."""
    return [sum(part) / len(part) for part in _parts(values)]


def maxima(values: list[float]) -> list[float]:
    """Return the largest value of each part."""
    return [max(part) for part in _parts(values)]


def _parts(values: list[float]) -> list[list[float]]:
    count = min(POINTS, len(values))
    ends = [number * len(values) // count for number in range(count + 1)]
    return [values[start:end] for start, end in itertools.pairwise(ends)]


def synchronize(device: str) -> None:
    """Wait for a GPU."""
    if device != "cpu":
        torch.cuda.synchronize()


def work(owner: str, plan: Plan, device: Device) -> Work:
    """Train once, in pieces."""
    run = SmallRun(owner, plan, device.torch_device)
    tokens_per_piece = plan.num_steps // PIECES * plan.batch * plan.architecture.config.context
    rates = {"throughput": Rate("token/s", tokens_per_piece)}
    return Work([], lambda: None, rates, sample=run.sample, further=run.further)


def bytes_needed(config: GPT2Config, batch: int, contenders: int) -> float:
    """Return roughly what the contenders of a case take: weights and states, activations, logits, and the windows."""
    count = batch * config.context
    parameters = (config.vocab_size + config.context) * config.hidden + 12 * config.layers * config.hidden**2
    activations = count * (60 * config.layers * config.hidden + 12 * config.vocab_size)
    return float(contenders * (24 * parameters + activations + 8 * WINDOWS * (config.context + 1)) + 2**30)


def end() -> None:
    """Forget what was compiled and captured."""
    ready_steps.cache_clear()
    windows.cache_clear()
    held_out.cache_clear()
    torch.compiler.reset()

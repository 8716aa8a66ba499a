"""A training that is drawn several times, and its step: on a GPU captured once in a CUDA graph."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional

from gpuguide.benchmarks.transfer_learning.methods import Groups, TransferMethod
from gpuguide.models.gpt2 import GPT2
from gpuguide.transfer_learning import NewHead, train_mode
from gpuguide.triton_support.graphs import workspace_of_its_own

Result = TypeVar("Result")
BATCH = 32
WEIGHT_DECAY, CLIP = 0.01, 1.0
RISING = 0.1
"""Share of the steps in which the learning rate rises; after them it falls to zero, both in straight lines"""
WARM_UP = 3
"""Steps that are taken and undone before one is captured: the first allocates what stays"""


def share_of_learning_rate(step: int, steps: int) -> float:
    """Return which part of the learning rate a step takes."""
    rising = max(round(RISING * steps), 1)
    return min((step + 1) / rising, (steps - step) / max(steps - rising, 1))


def order(examples: int, steps: int, seed: int) -> torch.Tensor:
    """Return which examples each step sees, ``(steps, batch)``: all of them once before any comes again."""
    generator = torch.Generator().manual_seed(seed)
    wanted = steps * BATCH
    rounds = [torch.randperm(examples, generator=generator) for _ in range(-(-wanted // examples))]
    return torch.cat(rounds)[:wanted].view(steps, BATCH)


@dataclass(frozen=True)
class Examples:
    """Training data: inputs and right answers, a row for each example."""

    inputs: Sequence[torch.Tensor]
    """Tokens ``(examples, seq)`` and the position that is read ``(examples,)``, int64"""
    wanted: torch.Tensor
    """The place of the right answer among the scores, ``(examples,)``, int64"""


class TransferStep:
    """One step of training on chosen examples, the same call every time.

    Parameters
    ----------
    module : nn.Module
        From the inputs to scores; what asks for a gradient is trained.
    groups : sequence of dict
        What is trained, with learning rates.
    inputs : sequence of torch.Tensor
        Of all examples, one a row.
    wanted : torch.Tensor
        ``(examples,)``, int64: the right score's place for each.
    """

    def __init__(self, module: nn.Module, groups: Groups, inputs: Sequence[torch.Tensor], wanted: torch.Tensor) -> None:
        self.module, self.inputs, self.wanted = module, inputs, wanted
        self.on_gpu = wanted.is_cuda
        self.places = torch.zeros(BATCH, dtype=torch.int64, device=wanted.device)
        self.highest = torch.tensor([group["lr"] for group in groups], device=wanted.device)
        self.rates = self.highest.clone()
        self.trained = [each for group in groups for each in group["params"]]
        rates = self.rates.unbind() if self.on_gpu else [group["lr"] for group in groups]
        given = [{**group, "lr": rate} for group, rate in zip(groups, rates, strict=True)]
        self.optimizer = torch.optim.AdamW(given, weight_decay=WEIGHT_DECAY, fused=self.on_gpu, capturable=self.on_gpu)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, places: torch.Tensor, share: float) -> None:
        """Take a step with examples ``(batch,)``, at a share of the learning rates."""
        self.places.copy_(places)
        torch.mul(self.highest, share, out=self.rates)
        if self.graph is not None:
            self.graph.replay()
            return
        if not self.on_gpu:
            for group, rate in zip(self.optimizer.param_groups, self.rates.tolist(), strict=True):
                group["lr"] = rate
        self.take()

    def loss(self) -> torch.Tensor:
        """Return the mean loss of the batch."""
        scores = self.module(*(each[self.places] for each in self.inputs))
        return functional.cross_entropy(scores, self.wanted[self.places])

    def take(self) -> None:
        """Take a step as it is, launched operation by operation."""
        self.optimizer.zero_grad(set_to_none=True)
        self.loss().backward()
        nn.utils.clip_grad_norm_(self.trained, CLIP, foreach=True)
        self.optimizer.step()

    def capture(self) -> int | None:
        """Prepare the step, and return the bytes that one takes above what was allocated before; None on a CPU.

        Parameters and the optimizer's state change; :meth:`begin_with` sets them.
        """
        self.rates.zero_()
        if not self.on_gpu:
            self(self.places, 0.0)
            return None
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.take()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.take()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with workspace_of_its_own(), torch.cuda.graph(self.graph):
            self.take()
        return peak

    @torch.no_grad()
    def begin_with(self, module: nn.Module) -> None:
        """Take over the parameters of a module of the same kind, and forget what the optimizer has seen."""
        for mine, theirs in zip(self.module.parameters(), module.parameters(), strict=True):
            mine.copy_(theirs)
        for state in self.optimizer.state.values():
            for kept in state.values():
                kept.zero_()


class TransferTraining:
    """A training method, on examples that can be changed, from a start that can be drawn.

    Parameters
    ----------
    method : TransferMethod
        What is trained.
    model : GPT2
        The pretrained model, on the device; it is copied.
    learning_rate : float
        At its highest.
    examples : Examples
        As many as there will be.
    """

    def __init__(self, method: TransferMethod, model: GPT2, learning_rate: float, examples: Examples) -> None:
        self.method, self.model = method, model
        before = measure_settled_memory(examples.wanted.device)
        self.module = method.prepare(copy.deepcopy(model))
        train_mode(self.module)
        self.texts = [each.clone() for each in examples.inputs]
        trained, seen, of_features = self.module, self.texts, 0
        if method.on_features:
            trained, seen = self.head(self.module), [self.features()]
            of_features = highest_memory(examples.wanted.device)
        self.step = TransferStep(trained, method.groups(self.module, learning_rate), seen, examples.wanted.clone())
        peak = self.step.capture()
        self.peak_memory = None if before is None or peak is None else max(peak, of_features) - before
        self.places = torch.empty(0, BATCH, dtype=torch.int64)
        self.taken = 0

    @staticmethod
    def head(module: nn.Module) -> nn.Module:
        """Return the part of a module that reads features."""
        return module.get_submodule("fc")

    @torch.no_grad()
    def features(self) -> torch.Tensor:
        """Return what the head reads of each text, ``(examples, hidden)``."""
        assert isinstance(self.module, NewHead)
        parts = zip(*(each.split(BATCH) for each in self.texts), strict=True)
        return torch.cat([self.module.features(*part) for part in parts])

    def begin(self, examples: Examples, steps: int, seed: int) -> None:
        """Begin anew, with other examples, and with what a seed draws."""
        for mine, given in zip([*self.texts, self.step.wanted], [*examples.inputs, examples.wanted], strict=True):
            mine.copy_(given)
        train_mode(self.module)  # whoever asked for answers in between has put it into use
        torch.manual_seed(seed)
        start = self.method.prepare(copy.deepcopy(self.model))
        self.step.begin_with(self.head(start) if self.method.on_features else start)
        self.places = order(len(examples.wanted), steps, seed).to(examples.wanted.device)
        self.taken = 0

    def next_step(self) -> None:
        """Take the next step. Features are computed once, before the first."""
        if self.method.on_features and self.taken == 0:
            self.step.inputs[0].copy_(self.features())
        self.step(self.places[self.taken], share_of_learning_rate(self.taken, len(self.places)))
        self.taken += 1

    def finish(self) -> float:
        """Take the steps that are left, and return the seconds that they took."""
        synchronize(self.places)
        begun = time.perf_counter()
        while self.taken < len(self.places):
            self.next_step()
        synchronize(self.places)
        return time.perf_counter() - begun


def use_tf32(call: Callable[[], Result]) -> Callable[[], Result]:
    """Return a call whose matmuls are computed in TF32 where a GPU can, as most trainings in fp32 are.

    The setting is the older of PyTorch's two, which its compiler understands in every version.
    """

    def run() -> Result:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return call()
        finally:
            torch.set_float32_matmul_precision(before)

    return run


def measure_settled_memory(device: torch.device) -> int | None:
    """Return the bytes in use on a GPU, with no workspace of cuBLAS, so that each contender's own count."""
    if device.type != "cuda":
        return None
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def highest_memory(device: torch.device) -> int:
    """Return the most bytes that were in use on a GPU since :func:`measure_settled_memory`; 0 on a CPU."""
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def synchronize(tensor: torch.Tensor) -> None:
    """Wait until a GPU has done what it was given."""
    if tensor.is_cuda:
        torch.cuda.synchronize()


def time_calls(call: Callable[[], object], on: torch.Tensor) -> float:
    """Return the seconds of a call, until a GPU has done it."""
    synchronize(on)
    start = time.perf_counter_ns()
    call()
    synchronize(on)
    return (time.perf_counter_ns() - start) * 1e-9

"""A run: a model, its step, and the windows that feed it, with the state from which it resumes to the bit."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gpuguide.models.gpt2 import GPT2
from gpuguide.pretraining.settings import HELD_OUT_WINDOWS, PretrainSetup
from gpuguide.training import STATE, StepMetrics, StepSettings, TrainingStep, Windows, rank, world_size
from gpuguide.training.checkpointing import RunState, describe_config
from gpuguide.training.data_parallel import LossModule, replicate, synchronise_last
from gpuguide.training.distributed import all_reduce_sum
from gpuguide.training.feeding import PinnedFeeder, split_windows
from gpuguide.training.rungs import loss_of, make_step, settings_of

BETAS = (0.9, 0.95)
REPORT_SECONDS = 0.5
"""Seconds of steps that are taken before anybody waits for their losses"""
MOST_AT_ONCE = 50


class PretrainingRun(RunState):
    """A run of a model.

    Parameters
    ----------
    setup : PretrainSetup
        Setup of the run.
    model : GPT2
        In fp32, on the device, with its first weights.
    """

    def __init__(self, setup: PretrainSetup, model: GPT2) -> None:
        self.setup, self.model = setup, model
        self.training_step = _make_step(setup, model)
        names = [name for name, each in model.named_parameters() if each.requires_grad]
        trained = dict(zip(names, self.training_step.masters.trained, strict=True))
        shapes = {name: list(each.shape) for name, each in trained.items()}
        identity = {
            **describe_config(setup.training),
            "seq_len": setup.seq_len,
            "data": setup.corpus.digest,
            "model": shapes,
            "rungs": sorted(setup.rungs & {"bf16", "weights"}),
        }
        super().__init__(setup.out / STATE, trained, setup.training, identity)
        self.windows = Windows(setup.corpus.training, setup.seq_len, setup.training.batch, setup.training.seed)
        held_out = Windows(setup.corpus.held_out, setup.seq_len, 1).spread_windows(HELD_OUT_WINDOWS)
        self.held_out = held_out[rank() :: world_size()].to(self.training_step.device)
        self._loss = loss_of(model, setup.rungs)
        self._at_once = 1
        self._feeder: PinnedFeeder | None = None

    def content(self) -> dict[str, Any]:
        """Return the step's state: weights in fp32, the optimizer, and the scaler of fp16."""
        return self.training_step.state()

    def take(self, content: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.training_step.restore(content)

    def advance(self, limit: int) -> Sequence[StepMetrics]:
        """Take as many steps as fit into :data:`REPORT_SECONDS`, at most ``limit``, and wait for their losses."""
        if self._feeder is None:
            self._feeder = PinnedFeeder(self._draw, self.training_step.device, self.step)
        began, rates, found = time.perf_counter(), list[float](), list[torch.Tensor]()
        for step in range(self.step, self.step + min(limit, self._at_once)):
            rates.append(self.config.learning_rate * self.config.lr_multiplier(step))
            self.training_step.set_learning_rate(rates[-1])
            loss = self.training_step(*self._feeder.next())
            assert self.training_step.grad_norm is not None
            found.append(torch.stack([loss, self.training_step.grad_norm.to(loss.dtype)]))
        values = torch.stack(found).tolist()  # the one place that waits for the device
        seconds = _mean((time.perf_counter() - began) / len(rates))  # all processes take as many steps at once
        self._at_once = min(max(int(REPORT_SECONDS / seconds), 1), MOST_AT_ONCE)
        lengths = (self.setup.seq_len,) * self.config.batch
        return [
            StepMetrics(self.step + number, _mean(loss), rate, self._applied(norm), lengths, seconds)
            for number, (rate, (loss, norm)) in enumerate(zip(rates, values, strict=True), 1)
        ]

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the mean loss of the held-out windows, computed as in training, uncompiled."""
        from gpuguide.precision.support import autocast

        losses, device = 0.0, self.training_step.device
        for windows in self.held_out.split(self.training_step.micro_batch):
            with autocast(self.training_step.settings.autocast, device):
                losses += float(self._loss(*split_windows(windows))) * len(windows)
        total, count = all_reduce_sum(losses, len(self.held_out))
        return total / count

    def close(self) -> None:
        """End the thread that gathers batches."""
        if self._feeder is not None:
            self._feeder.__exit__(None, None, None)

    def _applied(self, norm: float) -> float:
        """Return the norm of the gradients of a step, 0 for one that the scaler of fp16 left out."""
        left_out = self.training_step.scaler.is_enabled() and not math.isfinite(norm)
        return 0.0 if left_out else norm

    def _draw(self, step: int) -> torch.Tensor:
        return self.windows.draw(step, rank(), world_size())


def asked_anywhere(asked: bool) -> bool:
    """Return whether any process was asked to stop: all must end after the same step."""
    return all_reduce_sum(asked)[0] > 0


def _mean(value: float) -> float:
    """Return the mean of a value over processes."""
    return all_reduce_sum(value)[0] / world_size()


def _make_step(setup: PretrainSetup, model: GPT2) -> TrainingStep:
    """Return the step of a run: of one process all rungs, of several a replica in each."""
    training = setup.training
    local = training.batch // world_size()
    micro_batch = None if training.micro_batch in (None, local) else training.micro_batch
    settings = StepSettings(
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        betas=BETAS,
        clip=training.clip,
        micro_batch=micro_batch,
    )
    if world_size() == 1:
        return make_step(model, local, setup.seq_len, setup.rungs, settings)
    device = next(model.parameters()).device
    replica = replicate(LossModule(model, loss_of(model, setup.rungs)))
    chosen = settings_of(device, setup.rungs, settings)
    return TrainingStep(
        replica, model.parameters(), local, setup.seq_len, chosen, synchronised=synchronise_last(replica)
    )


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether the user asked to stop, by Ctrl-C or as batch systems do (SIGTERM).

    A step is finished and the state saved before the run ends. Whoever asks twice does not wait.
    """
    asked = threading.Event()

    def ask(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():  # which alone may have handlers
        yield asked.is_set
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""A contender that trains: its draws, the steps that are timed, and how it is declared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch

from gpuguide.benchmarks.transfer_learning.check import check_gradients
from gpuguide.benchmarks.transfer_learning.methods import TransferMethod
from gpuguide.benchmarks.transfer_learning.task import draw_functions, examples_for, load_model
from gpuguide.benchmarks.transfer_learning.training import BATCH, TransferTraining, time_calls, use_tf32
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Contender, Keys, Work
from gpuguide.measure.records import Metric

STEPS = 200
TIMED = 40
"""Steps, or answers, that are timed one by one"""


class MethodRun(Protocol):
    """A contender on one case."""

    def check(self) -> None:
        """Raise ``AssertionError`` if it computes something wrong."""

    def sample(self) -> float:
        """Return the seconds of a call."""

    def further(self) -> Mapping[str, Metric]:
        """Return what else is measured."""


class TrainedContender:
    """A training method on one case.

    Parameters
    ----------
    method : TransferMethod
        What is trained.
    learning_rate : float
        At its highest.
    draws : int
        Trainings with other examples, in another order, from another start.
    keys : mapping
        Of the case: ``model``, ``examples`` and ``steps``.
    device : str
        Where.
    """

    def __init__(self, method: TransferMethod, learning_rate: float, draws: int, keys: Keys, device: str) -> None:
        self.method, self.learning_rate, self.draws = method, learning_rate, draws
        self.device, self.name = device, str(keys["model"])
        self.count, self.steps = int(keys["examples"]), int(keys["steps"])
        texts = draw_functions(self.count, self.name, device, 0)
        model = load_model(self.name, device)
        module = method.prepare(copy.deepcopy(model))
        self.first = examples_for(module, texts)
        check_gradients(module, examples_for(module, texts.select(torch.arange(min(BATCH, self.count)))))
        self.training = TransferTraining(method, model, learning_rate, self.first)

    def check(self) -> None:
        """Take the first steps, which are not timed: the gradients were checked before."""
        self.begin(0)
        self.training.next_step()

    def begin(self, draw: int) -> None:
        """Begin a training."""
        texts = draw_functions(self.count, self.name, self.device, draw)
        self.training.begin(examples_for(self.training.module, texts), self.steps, draw)

    def sample(self) -> float:
        """Return the seconds of the next step."""
        if self.training.taken == self.steps:
            self.begin(0)
        return time_calls(self.training.next_step, self.training.places)

    def finish_draws(self) -> Iterator[tuple[int, float]]:
        """Finish every draw, and yield its number and the seconds of the steps that were left."""
        for draw in range(self.draws):
            if draw:
                self.begin(draw)
            yield draw, self.training.finish()


def contender(run_on: Callable[[Keys, str], MethodRun]) -> Contender:
    """Return a contender from what sets it up on a case and a device."""

    def build(device: Device, keys: Keys) -> Work:
        run = use_tf32(lambda: run_on(keys, device.torch_device))()
        return Work([], use_tf32(run.check), sample=use_tf32(run.sample), further=use_tf32(run.further))

    return Contender(build, libraries=("cublas",))

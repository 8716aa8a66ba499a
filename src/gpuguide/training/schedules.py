"""Learning rates by step: warm-up, then constant, linear, cosine, or constant with a decay at the end.

Steps are optimizer steps, not micro-batches: :func:`gpuguide.training.accumulation.optimizer_steps` counts them. The
rate of step ``s`` is that of the update number ``s + 1``, so the first step of a warm-up has a rate above zero. After
the last step the rate stays where it is, whereas a cosine that is not clamped climbs again.

References
----------
I. Loshchilov and F. Hutter, "SGDR", 2017, equation 5, for the cosine; S. Hu et al., "MiniCPM", 2024, section 4, for
warm-up, stable, decay.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gpuguide.errors import GpuguideError, unknown

SHAPES = ("constant", "linear", "cosine", "stable-decay")
"""What the rate does after the warm-up"""


@dataclass(frozen=True)
class Schedule:
    """Learning rate of each optimizer step of a run.

    Parameters
    ----------
    shape : str
        One of :data:`SHAPES`.
    learning_rate : float
        Highest rate, reached at the end of the warm-up.
    steps : int
        Optimizer steps of the run, the warm-up among them.
    warm_up : int
        Steps in which the rate rises along a line.
    final : float
        Rate at the end as a share of the highest, from 0 to 1; a constant rate has none.
    decay : float
        Share of all steps in which ``stable-decay`` falls along a line, the last ones.

    Raises
    ------
    GpuguideError
        If a number is out of its range, or the warm-up is longer than the run.

    Examples
    --------
    >>> cosine = Schedule("cosine", 1e-3, steps=100, warm_up=10)
    >>> [round(cosine(step), 6) for step in (0, 9, 10, 55, 100)]
    [0.0001, 0.001, 0.001, 0.00055, 0.0001]
    """

    shape: str
    learning_rate: float
    steps: int
    warm_up: int = 0
    final: float = 0.1
    decay: float = 0.2
    _warned: list[int] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise unknown("schedule", self.shape, SHAPES)
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise GpuguideError(f"learning_rate is {self.learning_rate}; it must be a positive number.")
        if self.steps < 1:
            raise GpuguideError(f"steps is {self.steps}; a run has at least 1 optimizer step.")
        if not 0 <= self.warm_up <= self.steps:
            raise GpuguideError(
                f"The warm-up takes {self.warm_up} steps and the whole run {self.steps}; both count optimizer steps. "
                "Shorten the warm-up."
            )
        if not 0 <= self.final <= 1:
            raise GpuguideError(f"final is {self.final}; it is a share of the highest rate, from 0 to 1.")
        if not 0 < self.decay <= 1:
            raise GpuguideError(f"decay is {self.decay}; it is a share of all steps, above 0 and at most 1.")

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step; the first is 0.

        From the end of the run on it is that of the end, and the first such call warns.

        Raises
        ------
        GpuguideError
            If the step is negative.
        """
        if step < 0:
            raise GpuguideError(f"step is {step}; the first step is 0.")
        if step > self.steps and not self._warned:
            self._warned.append(step)
            warnings.warn(
                f"Step {step} is beyond the {self.steps} steps of the schedule; the learning rate stays at "
                f"{self._at(self.steps):.3g}. Count optimizer steps, not micro-batches.",
                stacklevel=2,
            )
        return self._at(min(step, self.steps))

    def _at(self, step: int) -> float:
        if step < self.warm_up:
            return self.learning_rate * (step + 1) / self.warm_up
        share = self._share(step)
        return self.learning_rate * (self.final + (1 - self.final) * share)

    def _share(self, step: int) -> float:
        """Return what is left of the way from the highest rate to the final one, from 1 to 0."""
        if self.shape == "constant":
            return 1.0
        if self.shape == "stable-decay":
            falling = max(min(self.decay * self.steps, self.steps - self.warm_up), 1)
            return min((self.steps - step) / falling, 1.0)
        left = (self.steps - step) / max(self.steps - self.warm_up, 1)
        return left if self.shape == "linear" else (1 - math.cos(math.pi * left)) / 2

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        """Return PyTorch's scheduler with these rates; call its ``step()`` once after each ``optimizer.step()``."""
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(self.learning_rate)  # in its place, where a CUDA graph reads it
            else:
                group["lr"] = self.learning_rate
            group.pop("initial_lr", None)
        multiplier: Callable[[int], Any] = lambda step: self(step) / self.learning_rate  # noqa: E731
        return torch.optim.lr_scheduler.LambdaLR(optimizer, multiplier)

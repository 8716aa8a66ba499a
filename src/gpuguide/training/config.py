"""What decides a fine-tuning, where one is, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpuguide.errors import GpuguideError


@dataclass(frozen=True)
class Plan:
    """All that decides a fine-tuning, model and data aside.

    Parameters
    ----------
    steps, batch : int
        Steps at most, and sequences in each.
    learning_rate : float
        At its highest; it rises over ``warm_up`` steps and falls to zero along half a cosine.
    every : int
        Steps between two measurements of the held-out loss, each followed by saving the state.
    patience : int or None
        Measurements without a lower held-out loss after which the run stops; ``None`` never stops.
    precision : str
        What autocast computes in: ``"fp32"`` or ``"bf16"``.
    micro_batch : int or None
        Sequences that a process computes at once, for less memory; ``None`` computes its share of a step at once. The
        step is the same but for rounding, so a run that was stopped may go on with another number.
    backend : str or None
        What ``torch.compile`` calls for the model, such as ``"inductor"``; ``None`` compiles nothing. The first steps
        take a minute then, and again where sequences have other lengths.
    keep_best : bool
        Whether the model ends as it was when its held-out loss was lowest, or as it is after the last step.

    Raises
    ------
    GpuguideError
        If a number is out of its range.
    """

    steps: int
    batch: int = 4
    learning_rate: float = 3e-4
    warm_up: int = 0
    weight_decay: float = 0.0
    clip: float = 1.0
    every: int = 10
    patience: int | None = None
    precision: str = "fp32"
    seed: int = 0
    micro_batch: int | None = None
    backend: str | None = None
    keep_best: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "every"):
            if getattr(self, name) < 1:
                raise GpuguideError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("patience", "micro_batch"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise GpuguideError(f"{name} is {getattr(self, name)}; it must be at least 1, or None.")
        if not 0 <= self.seed < 2**32:
            raise GpuguideError(f"seed is {self.seed}; it must be at least 0 and below 2**32.")
        if not 0 < self.learning_rate < math.inf:
            raise GpuguideError(f"learning_rate is {self.learning_rate}; it must be a positive number.")
        if self.precision not in ("fp32", "bf16"):
            raise GpuguideError(f"precision is {self.precision!r}; choose fp32 or bf16.")

    def share_at(self, step: int) -> float:
        """Return which part of the learning rate a step takes."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        return 0.5 + 0.5 * math.cos(math.pi * (step - self.warm_up) / max(self.steps - self.warm_up, 1))


@dataclass(frozen=True)
class Progress:
    """Where a run is, for whoever shows it."""

    step: int
    steps: int
    loss: float
    """Of this step's batch, in nats a token"""
    held_out: float | None
    """Of the held-out sequences, where they were measured after this step"""
    losses: Sequence[float]
    """Of all steps until now, those before the run was stopped too"""
    measurements: Sequence[tuple[int, float]]
    """Step and held-out loss, until now"""


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    losses: tuple[float, ...]
    held_out: tuple[tuple[int, float], ...]
    """Step and loss, the first one before any step"""
    stopped_early: bool

    @property
    def best(self) -> tuple[int, float]:
        """The step after which the held-out loss was lowest, and that loss."""
        return min(self.held_out, key=lambda row: row[1])

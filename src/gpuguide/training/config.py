"""The settings of a training run, the metrics of its steps, and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpuguide.errors import GpuguideError


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides a run, apart from the model and the data.

    Parameters
    ----------
    steps, batch : int
        Maximum number of steps, and sequences per step.
    learning_rate : float
        Peak learning rate, reached after ``warm_up`` steps; it then decays to zero along half a cosine.
    warm_up : int
        Steps of linear warm-up.
    weight_decay : float
        Weight decay of AdamW.
    clip : float
        Largest norm of all gradients together; larger ones are scaled down to it.
    eval_every : int
        Steps between two evaluations of the held-out loss, each followed by saving the state.
    patience : int or None
        Evaluations without a lower held-out loss after which the run stops early; ``None`` never stops.
    precision : str
        Format of autocast: ``"fp32"`` or ``"bf16"``.
    seed : int
        Seed of dropout and of the order of the sequences.
    micro_batch : int or None
        Sequences that a process computes at a time (gradient accumulation), for less memory; ``None`` computes its
        share of a step in one pass. The step is the same except for rounding, so a stopped run may resume with
        another number.
    backend : str or None
        Backend of ``torch.compile`` for the model, such as ``"inductor"``; ``None`` compiles nothing. The first steps
        take a minute then, and again where sequences have other lengths.
    keep_best : bool
        Whether the model ends with the weights of its lowest held-out loss, or with those of the last step.

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
    eval_every: int = 10
    patience: int | None = None
    precision: str = "fp32"
    seed: int = 0
    micro_batch: int | None = None
    backend: str | None = None
    keep_best: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "eval_every"):
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

    def lr_multiplier(self, step: int) -> float:
        """Return the learning-rate multiplier of a step: linear warm-up, then cosine decay to zero."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        return 0.5 + 0.5 * math.cos(math.pi * (step - self.warm_up) / max(self.steps - self.warm_up, 1))


@dataclass(frozen=True)
class StepMetrics:
    """Metrics of one training step, over all processes."""

    step: int
    """Number of the step, from 1"""
    loss: float
    """Mean loss of the step's batch, in nats per token that counts"""
    learning_rate: float
    """Learning rate that the step used"""
    grad_norm: float
    """Norm of all gradients together, before clipping"""
    lengths: tuple[int, ...]
    """Tokens of each sequence that the model read, without padding"""
    seconds: float
    """Duration of the step by the host's clock, until its loss was known; evaluation is not part of it"""

    @property
    def tokens(self) -> int:
        """Number of tokens that the model read."""
        return sum(self.lengths)


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a run after a step."""

    metrics: StepMetrics
    """Metrics of this step"""
    eval_loss: float | None
    """Held-out loss, if it was evaluated after this step"""
    losses: Sequence[float]
    """Losses of all steps so far, including those before the run was stopped"""
    eval_losses: Sequence[tuple[int, float]]
    """Steps and held-out losses so far"""


@dataclass(frozen=True)
class TrainingResult:
    """Losses of a run that has ended."""

    losses: tuple[float, ...]
    """Losses of the steps"""
    eval_losses: tuple[tuple[int, float], ...]
    """Steps and held-out losses, the first one before any step"""
    stopped_early: bool

    @property
    def best(self) -> tuple[int, float]:
        """Step of the lowest held-out loss, and that loss."""
        return min(self.eval_losses, key=lambda row: row[1])

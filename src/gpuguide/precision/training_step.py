"""A training step in mixed precision: scaling, accumulation, clipping and schedule, in the correct order.

Dependencies between the parts:

* The loss is scaled before the backward pass, because that is where fp16 underflows.
* Each micro-batch adds its gradients to those before it, so all have to have the same scale: it is updated once, after
  the last. The losses are sums over tokens, divided by the tokens of all micro-batches together, so that a long
  micro-batch counts for more than a short one.
* Clipping compares the norm of the gradients with a number, so they are unscaled before.
* A step with an infinite gradient is skipped, and then the schedule does not advance either.

:mod:`gpuguide.precision.wrong_steps` shows the effect of other orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from gpuguide.cross_entropy.reference import IGNORE_INDEX
from gpuguide.precision.formats import FloatFormat
from gpuguide.precision.scaler import LossScaler
from gpuguide.precision.support import autocast

MicroBatches = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Inputs and targets; together they are the batch of one step"""
LossSum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function of the model's output and the targets that returns the sum of the losses of all targets"""


@dataclass
class TrainingSetup:
    """Model, optimizer, loss scaler and schedule, which a training step updates."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: LossScaler
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    format: str | FloatFormat = "fp16"
    """Format that autocast computes in: ``"fp16"``, ``"bf16"`` or ``"fp32"``"""
    clip: float = 1.0
    """Largest norm of all gradients together"""


@dataclass(frozen=True)
class StepResult:
    """Results of a training step."""

    loss: float
    """Mean over the targets of all micro-batches"""
    norm: float
    """Norm of all gradients together, before clipping; infinite or NaN where the step was skipped"""
    stepped: bool
    """Whether the optimizer took the step"""
    scale: float
    """Loss scale of the step"""


def cross_entropy_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum of the cross-entropies of all positions, in nats.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``; computed with in fp32.
    targets : torch.Tensor
        ``(...)``, int64; -100 where a position does not count.
    """
    return functional.cross_entropy(
        logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )


def train_step(training: TrainingSetup, batches: MicroBatches, loss_sum: LossSum = cross_entropy_sum) -> StepResult:
    """Take one step of training with the gradients of all micro-batches.

    Parameters
    ----------
    training : TrainingSetup
        Model, optimizer, scaler and schedule, which are changed.
    batches : sequence of (torch.Tensor, torch.Tensor)
        Inputs and targets, on the model's device.
    loss_sum : callable
        The sum of the losses of a micro-batch. Targets of -100 must add nothing.

    Returns
    -------
    StepResult
        The loss, the norm of the gradients, and whether the step was taken.

    Raises
    ------
    ValueError
        If no target counts, or the model's device does not multiply in the format.
    """
    model, optimizer, scaler = training.model, training.optimizer, training.scaler
    count, scale, total = count_targets(batches), scaler.current, torch.zeros(())
    optimizer.zero_grad(set_to_none=True)
    for inputs, batch_targets in batches:
        with autocast(training.format, batch_targets.device):
            loss = loss_sum(model(inputs), batch_targets) / count
        scaler.scale(loss).backward()
        total = total + loss.detach()  # not .item(), which would wait for the device
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), training.clip)
    stepped = scaler.step(optimizer)
    scaler.update()
    if stepped and training.schedule is not None:
        training.schedule.step()
    return StepResult(float(total), float(norm), stepped, scale)


def count_targets(batches: MicroBatches) -> int:
    """Return the number of targets that count.

    Raises
    ------
    ValueError
        If none does, so that there is no mean.
    """
    count = sum(int((targets != IGNORE_INDEX).sum()) for _, targets in batches)
    if not count:
        raise ValueError(
            f"{len(batches)} micro-batches hold no target that counts; all are {IGNORE_INDEX} or none are there."
        )
    return count

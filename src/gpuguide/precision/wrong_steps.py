"""Training steps with one thing wrong each, so that one can see what it does.

Each is :func:`gpuguide.precision.training_step.train_step` but for the line with the comment.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from gpuguide.precision.support import autocast
from gpuguide.precision.training_step import (
    LossSum,
    MicroBatches,
    StepResult,
    TrainingSetup,
    count_targets,
    cross_entropy_sum,
)

Step = Callable[[TrainingSetup, MicroBatches, LossSum], StepResult]


def clip_before_unscale(
    training: TrainingSetup, batches: MicroBatches, loss_sum: LossSum = cross_entropy_sum
) -> StepResult:
    """Clip gradients that are still scaled: their norm is multiplied by the scale, so the step is tiny."""
    total, scale = _accumulate(training, batches, loss_sum), training.scaler.current
    norm = _clip(training)  # wrong: before unscale_
    training.scaler.unscale_(training.optimizer)
    return _finish(training, total, norm, scale)


def never_unscale(training: TrainingSetup, batches: MicroBatches, loss_sum: LossSum = cross_entropy_sum) -> StepResult:
    """Step with the optimizer, not the scaler: gradients stay scaled, and infinite ones are not skipped."""
    total, scale = _accumulate(training, batches, loss_sum), training.scaler.current
    norm = _norm(training)
    training.optimizer.step()  # wrong: not scaler.step
    if training.schedule is not None:
        training.schedule.step()
    return StepResult(total, norm, True, scale)


def schedule_skipped_steps(
    training: TrainingSetup, batches: MicroBatches, loss_sum: LossSum = cross_entropy_sum
) -> StepResult:
    """Advance the schedule after a skipped step too: the warm-up passes while the scale is searched for."""
    total, scale = _accumulate(training, batches, loss_sum), training.scaler.current
    training.scaler.unscale_(training.optimizer)
    norm = _clip(training)
    stepped = training.scaler.step(training.optimizer)
    training.scaler.update()
    if training.schedule is not None:
        training.schedule.step()  # wrong: without asking whether a step was taken
    return StepResult(total, norm, stepped, scale)


def unscale_each(training: TrainingSetup, batches: MicroBatches, loss_sum: LossSum = cross_entropy_sum) -> StepResult:
    """Unscale after each micro-batch: the scaler refuses, as PyTorch's does."""
    total, scale = _accumulate(training, batches, loss_sum, _unscale), training.scaler.current  # wrong: not once
    return _finish(training, total, _clip(training), scale)


def update_each(training: TrainingSetup, batches: MicroBatches, loss_sum: LossSum = cross_entropy_sum) -> StepResult:
    """Unscale and update after each micro-batch: the earlier ones are divided by the scale again and again."""
    scale = training.scaler.current
    total = _accumulate(training, batches, loss_sum, _unscale_and_update)  # wrong: not once
    norm = _clip(training)
    training.optimizer.step()
    if training.schedule is not None:
        training.schedule.step()
    return StepResult(total, norm, True, scale)


def mean_of_means(training: TrainingSetup, batches: MicroBatches, loss_sum: LossSum = cross_entropy_sum) -> StepResult:
    """Divide each loss by its own targets and by the number of micro-batches: short ones count as much as long ones."""
    total, scale = _accumulate(training, batches, loss_sum, share=_own_share), training.scaler.current  # wrong
    training.scaler.unscale_(training.optimizer)
    return _finish(training, total, _clip(training), scale)


def sum_of_means(training: TrainingSetup, batches: MicroBatches, loss_sum: LossSum = cross_entropy_sum) -> StepResult:
    """Do not divide by the number of micro-batches: with four of them gradients are four times too large."""
    total, scale = _accumulate(training, batches, loss_sum, share=_no_share), training.scaler.current  # wrong
    training.scaler.unscale_(training.optimizer)
    return _finish(training, total, _clip(training), scale)


def zero_each(training: TrainingSetup, batches: MicroBatches, loss_sum: LossSum = cross_entropy_sum) -> StepResult:
    """Set gradients to zero before each micro-batch: only the last one counts."""
    targets, scale, total = count_targets(batches), training.scaler.current, 0.0
    for inputs, wanted in batches:
        training.optimizer.zero_grad(set_to_none=True)  # wrong: within the loop
        with autocast(training.format, wanted.device):
            loss = loss_sum(training.model(inputs), wanted) / targets
        training.scaler.scale(loss).backward()
        total += loss.item()
    training.scaler.unscale_(training.optimizer)
    return _finish(training, total, _clip(training), scale)


WRONG_STEPS: dict[str, Step] = {
    "clip before unscale": clip_before_unscale,
    "never unscale": never_unscale,
    "schedule skipped steps": schedule_skipped_steps,
    "unscale each micro-batch": unscale_each,
    "update each micro-batch": update_each,
    "mean of means": mean_of_means,
    "sum of means": sum_of_means,
    "zero gradients each micro-batch": zero_each,
}
"""All of them by name"""


def _share(batches: MicroBatches, number: int) -> int:
    """Return what is right to divide by: all targets."""
    return count_targets(batches)


def _own_share(batches: MicroBatches, number: int) -> int:
    return count_targets(batches[number : number + 1]) * len(batches)


def _no_share(batches: MicroBatches, number: int) -> int:
    return count_targets(batches[number : number + 1])


def _do_nothing(training: TrainingSetup) -> None:
    pass


def _unscale(training: TrainingSetup) -> None:
    training.scaler.unscale_(training.optimizer)


def _unscale_and_update(training: TrainingSetup) -> None:
    training.scaler.unscale_(training.optimizer)
    training.scaler.update()


def _accumulate(
    training: TrainingSetup,
    batches: MicroBatches,
    loss_sum: LossSum,
    after_each: Callable[[TrainingSetup], None] = _do_nothing,
    share: Callable[[MicroBatches, int], int] = _share,
) -> float:
    """Add the gradients of all micro-batches, and return the loss."""
    training.optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for number, (inputs, wanted) in enumerate(batches):
        with autocast(training.format, wanted.device):
            loss = loss_sum(training.model(inputs), wanted) / share(batches, number)
        training.scaler.scale(loss).backward()
        after_each(training)
        total += loss.item()
    return total


def _clip(training: TrainingSetup) -> float:
    return float(nn.utils.clip_grad_norm_(training.model.parameters(), training.clip))


def _norm(training: TrainingSetup) -> float:
    gradients = [each.grad for each in training.model.parameters() if each.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def _finish(training: TrainingSetup, total: float, norm: float, scale: float) -> StepResult:
    """Step, update and advance the schedule, as is right."""
    stepped = training.scaler.step(training.optimizer)
    training.scaler.update()
    if stepped and training.schedule is not None:
        training.schedule.step()
    return StepResult(total, norm, stepped, scale)

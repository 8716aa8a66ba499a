"""The training loop, on top of the step of :mod:`gpuguide.precision`.

Random numbers of a step depend on the seed and the step alone, so a killed run resumes from its last state as if it
had not been interrupted.

Where processes have joined a process group of ``torch.distributed``, they share the sequences of each step (data
parallel). The step is the same as in one process, except for rounding. Adapters are small, so their gradients are
all-reduced as one tensor after the backward pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.precision import cross_entropy_sum, train_step
from gpuguide.precision.training_step import LossSum
from gpuguide.training.batches import (
    check_data,
    collate,
    data_digest,
    global_batch,
    num_loss_tokens,
    step_seed,
    token_ids,
)
from gpuguide.training.checkpointing import STATE, RunState, TrainingState, copy_parameters, remove_state
from gpuguide.training.config import StepMetrics, TrainingConfig, TrainingProgress, TrainingResult
from gpuguide.training.distributed import all_reduce_sum, rank, world_size

SAVE_SECONDS = 30.0
"""Seconds after which the state is saved between two evaluations"""


def finetune(
    model: nn.Module,
    training: Sequence[torch.Tensor],
    held_out: Sequence[torch.Tensor],
    config: TrainingConfig,
    folder: Path,
    on_step: Callable[[TrainingProgress], None] = lambda progress: None,
    *,
    loss_sum: LossSum = cross_entropy_sum,
    discard: bool = False,
    keep_state: bool = False,
) -> TrainingResult:
    """Fine-tune the model's trainable parameters, resuming from a saved state if one exists.

    Parameters
    ----------
    model : nn.Module
        Maps token ids ``(batch, seq)`` to the input of ``loss_sum``; parameters that require no gradient are frozen.
    training, held_out : sequence of torch.Tensor
        Token ids, ``(seq,)`` each, int64, of two or more tokens; or ``(2, seq)`` with the loss mask below them. Shorter
        sequences of a batch are padded on the right, and padding does not count for the loss.
    config : TrainingConfig
        Settings of the run.
    folder : Path
        Folder of the saved state.
    on_step : callable
        Called after every step.
    loss_sum : callable
        Maps the model's output and targets, ``(batch, seq)``, to the sum of the losses of the targets that are not
        -100. With the default the model returns logits; with :meth:`gpuguide.training.WithoutHead.loss_sum` the model
        is a :class:`gpuguide.training.WithoutHead`, and most logits never exist.
    discard : bool
        Whether to start again where the state is damaged or belongs to another run; otherwise that is an error.
    keep_state : bool
        Whether the saved state stays after the last step. A caller that saves the model afterwards keeps the state
        until then, so that a full disk loses nothing, and calls :func:`~gpuguide.training.remove_state` at the end.

    Returns
    -------
    TrainingResult
        Losses of the steps, and held-out losses.

    Raises
    ------
    GpuguideError
        If no parameter requires a gradient, a set of sequences is empty, a sequence is too short or has no token that
        counts, one is in both sets, the state is damaged, belongs to another run or cannot be written, there are more
        processes than sequences in a step, or the loss is no longer finite.
    """
    check_data(training, held_out)
    if config.batch < world_size():
        raise GpuguideError(
            f"A step has {config.batch} sequences for {world_size()} processes; each needs one or more."
        )
    state = TrainingState(folder / STATE, model, config, data_digest(training, held_out))
    state.resume(discard)
    result = run_steps(
        state,
        lambda limit: [_step(state, training, loss_sum)],
        lambda: evaluate_loss(state.run.model, held_out, config, loss_sum),
        on_step,
    )
    if config.keep_best:
        copy_parameters(state.best, state.parameters)
    if rank() == 0 and not keep_state:
        remove_state(folder)
    return result


def run_steps(
    state: RunState,
    advance: Callable[[int], Sequence[StepMetrics]],
    evaluate: Callable[[], float],
    on_step: Callable[[TrainingProgress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainingResult:
    """Train until all steps of a run are done, evaluate and save its state on the way.

    Parameters
    ----------
    state : RunState
        Where the run is, and its settings.
    advance : callable
        Takes at least one step and at most as many as it is given, and returns their metrics.
    evaluate : callable
        Returns the held-out loss.
    on_step : callable
        Called after every step.
    should_stop : callable
        Asked between steps whether to stop; the state is saved then.

    Raises
    ------
    KeyboardInterrupt
        If ``should_stop`` said so.
    GpuguideError
        If the loss is no longer finite, or the state cannot be written.
    """
    config = state.config
    while state.step < config.steps and not state.should_stop_early():
        if not state.eval_losses:
            state.add_eval_loss(evaluate())
        until_evaluation = config.eval_every - state.step % config.eval_every
        *earlier, last = advance(min(until_evaluation, config.steps - state.step))
        stopping = should_stop()
        for metrics in (*earlier, last):
            _check_finite(metrics)
            state.step, eval_loss = metrics.step, None
            state.losses.append(metrics.loss)
            if metrics is last and (state.step % config.eval_every == 0 or state.step == config.steps):
                eval_loss = evaluate()
                state.add_eval_loss(eval_loss)
                state.save()
            elif metrics is last and (stopping or time.monotonic() > state.saved + SAVE_SECONDS):
                state.save()
            on_step(TrainingProgress(metrics, eval_loss, state.losses, state.eval_losses))
        if stopping:
            raise KeyboardInterrupt
    return TrainingResult(tuple(state.losses), tuple(state.eval_losses), state.step < config.steps)


def _check_finite(metrics: StepMetrics) -> None:
    if not math.isfinite(metrics.loss) or not math.isfinite(metrics.grad_norm):
        raise GpuguideError(
            f"The loss is {metrics.loss} and the gradient norm {metrics.grad_norm} at step {metrics.step}: the run has "
            "diverged. Lower the learning rate."
        )


def _step(state: TrainingState, sequences: Sequence[torch.Tensor], loss_sum: LossSum) -> StepMetrics:
    """Train one step and return its metrics."""
    began = time.perf_counter()
    config, model = state.config, state.run.model
    torch.manual_seed(step_seed(config.seed, state.step) + (rank() << 40))  # dropout
    model.train()
    everyone = global_batch(sequences, config, state.step)
    local = everyone[rank() :: world_size()]
    size = config.micro_batch or len(local)
    micro_batches = [collate(local[start : start + size], _device(model)) for start in range(0, len(local), size)]
    share = num_loss_tokens(local) / num_loss_tokens(everyone)

    def weigh_loss_sum(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return share * loss_sum(outputs, targets)  # a step divides by the targets of this process alone

    learning_rate = float(state.run.optimizer.param_groups[0]["lr"])
    outcome = train_step(state.run, micro_batches, weigh_loss_sum)
    (loss,) = all_reduce_sum(outcome.loss)
    lengths = tuple(len(token_ids(sequence)) - 1 for sequence in everyone)
    return StepMetrics(state.step + 1, loss, learning_rate, outcome.norm, lengths, time.perf_counter() - began)


@torch.no_grad()
def evaluate_loss(
    model: nn.Module, sequences: Sequence[torch.Tensor], config: TrainingConfig, loss_sum: LossSum = cross_entropy_sum
) -> float:
    """Return the mean loss of all tokens that count, in nats; parameters as in :func:`finetune`."""
    model.eval()
    loss = 0.0
    local, size = sequences[rank() :: world_size()], config.micro_batch or config.batch
    for start in range(0, len(local), size):
        inputs, targets = collate(local[start : start + size], _device(model))
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            loss += float(loss_sum(model(inputs), targets))
    loss, tokens = all_reduce_sum(loss, num_loss_tokens(local))
    return loss / tokens


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device

"""Fine-tuning that can be watched, stopped and gone on with, on top of the step of :mod:`gpuguide.precision`.

What is drawn in a step depends on the seed and the step alone, so a run that was killed goes on from its last state as
if it had not been.

Where processes have joined a group of ``torch.distributed``, they share the sequences of each step (data parallel). A
step is the same then as in one process, but for rounding. Adapters are small, so their gradients are summed in one
piece after the backward pass.
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
from gpuguide.training.batches import batch_of, check_data, counted, drawn, identity
from gpuguide.training.checkpointing import State, copy
from gpuguide.training.config import Plan, Progress, Result
from gpuguide.training.distributed import processes, rank, total

STATE = "unfinished.pt"
SAVE_SECONDS = 30.0
"""After which the state is saved between two measurements"""


def finetune(
    model: nn.Module,
    training: Sequence[torch.Tensor],
    held_out: Sequence[torch.Tensor],
    plan: Plan,
    folder: Path,
    report: Callable[[Progress], None] = lambda progress: None,
    keep: Callable[[Result], None] = lambda result: None,
    *,
    loss_sum: LossSum = cross_entropy_sum,
    discard: bool = False,
) -> Result:
    """Train what asks for gradients in a model, or go on with a run that was stopped.

    Parameters
    ----------
    model : nn.Module
        From tokens ``(batch, seq)`` to what ``loss_sum`` reads; what asks for no gradient is frozen.
    training, held_out : sequence of torch.Tensor
        Token numbers, ``(seq,)`` each, int64, of two or more tokens; or ``(2, seq)`` with a 1 below each token that
        counts for the loss, and a 0 below the others. Shorter ones of a batch are padded on the right, and padding
        counts for no loss.
    plan : Plan
        How to train.
    folder : Path
        Where the state is kept until the run ends.
    report : callable
        Called after every step.
    keep : callable
        Called after the last step, to save the model. The state is let go of when it has returned, so that nothing is
        lost if the disk is full. It may end the group of processes, since nothing is shared after it.
    loss_sum : callable
        From what the model gives and targets, ``(batch, seq)``, to the sum of the losses of those that are not -100.
        With the default the model gives logits, with :meth:`gpuguide.lora.WithoutHead.loss_sum` it is a
        :class:`gpuguide.lora.WithoutHead`, and most logits never exist.
    discard : bool
        Begin anew where the state is damaged or belongs to another run, which is an error otherwise.

    Raises
    ------
    GpuguideError
        If nothing asks for gradients, there is no data, a sequence is too short or has no token that counts, one is in
        both sets, the state is damaged or belongs to another run, it cannot be written, there are more processes than
        sequences in a step, or the loss is no longer finite.
    """
    check_data(training, held_out)
    if plan.batch < processes():
        raise GpuguideError(f"A step has {plan.batch} sequences for {processes()} processes; each needs one or more.")
    state = State(folder / STATE, model, plan, identity(training, held_out))
    state.resume(discard)
    while state.step < plan.steps and not state.exhausted():
        if not state.held_out:
            state.measured(held_out_loss(state.run.model, held_out, plan, loss_sum))
        loss = _step(state, training, loss_sum)
        measured = None
        if state.step % plan.every == 0 or state.step == plan.steps:
            measured = held_out_loss(state.run.model, held_out, plan, loss_sum)
            state.measured(measured)
            state.save()
        elif time.monotonic() > state.saved + SAVE_SECONDS:
            state.save()
        report(Progress(state.step, plan.steps, loss, measured, state.losses, state.held_out))
    if plan.keep_best:
        copy(state.best, state.parameters)
    result = Result(tuple(state.losses), tuple(state.held_out), state.step < plan.steps)
    first = rank() == 0  # before keep() may have left the group
    keep(result)
    if first:
        state.path.unlink(missing_ok=True)
    return result


def _step(state: State, sequences: Sequence[torch.Tensor], loss_sum: LossSum) -> float:
    """Take one step, and return its loss."""
    plan, model = state.plan, state.run.model
    torch.manual_seed(plan.seed * 1_000_003 + state.step + (rank() << 40))  # dropout
    model.train()
    everybodys = drawn(sequences, plan, state.step)
    own = everybodys[rank() :: processes()]
    at_once = plan.micro_batch or len(own)
    batches = [batch_of(own[start : start + at_once], _device(model)) for start in range(0, len(own), at_once)]
    share = counted(own) / counted(everybodys)

    def of_share(found: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return share * loss_sum(found, targets)  # a step divides by the targets of this process alone

    outcome = train_step(state.run, batches, of_share)
    (loss,) = total(outcome.loss)
    if not math.isfinite(loss) or not math.isfinite(outcome.norm):
        raise GpuguideError(
            f"The loss is {loss} and the gradients' norm {outcome.norm} at step {state.step + 1}: the run has "
            "diverged. Lower the learning rate."
        )
    state.step += 1
    state.losses.append(loss)
    return loss


@torch.no_grad()
def held_out_loss(
    model: nn.Module, sequences: Sequence[torch.Tensor], plan: Plan, loss_sum: LossSum = cross_entropy_sum
) -> float:
    """Return the mean loss of all held-out tokens that count, in nats; parameters as of :func:`finetune`."""
    model.eval()
    loss = 0.0
    own, at_once = sequences[rank() :: processes()], plan.micro_batch or plan.batch
    for start in range(0, len(own), at_once):
        inputs, targets = batch_of(own[start : start + at_once], _device(model))
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=plan.precision == "bf16"):
            loss += float(loss_sum(model(inputs), targets))
    loss, tokens = total(loss, counted(own))
    return loss / tokens


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device

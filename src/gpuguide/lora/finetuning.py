"""Fine-tuning that can be watched, stopped and gone on with, on top of the step of :mod:`gpuguide.precision`.

What is drawn in a step depends on the seed and the step alone, so a run that was killed goes on from its last state as
if it had not been.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.lora.files import write_whole
from gpuguide.lora.layer import adapted_layers
from gpuguide.precision import LossScaler, Training, cross_entropy_sum, train_step

STATE = "unfinished.pt"
IGNORED = -100


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

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "every"):
            if getattr(self, name) < 1:
                raise GpuguideError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.patience is not None and self.patience < 1:
            raise GpuguideError(f"patience is {self.patience}; it must be at least 1, or None.")
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


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    losses: tuple[float, ...]
    held_out: tuple[tuple[int, float], ...]
    """Step and loss, the first one before any step"""
    stopped_early: bool


def finetune(
    model: nn.Module,
    training: Sequence[torch.Tensor],
    held_out: Sequence[torch.Tensor],
    plan: Plan,
    folder: Path,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Result:
    """Train what asks for gradients in a model, or go on with a run that was stopped.

    Parameters
    ----------
    model : nn.Module
        From tokens ``(batch, seq)`` to logits ``(batch, seq, vocab_size)``; what asks for no gradient is frozen.
    training, held_out : sequence of torch.Tensor
        Token numbers, ``(seq,)`` each, int64, of two or more tokens. Shorter ones of a batch are padded on the right,
        and padding counts for no loss.
    plan : Plan
        How to train.
    folder : Path
        Where the state is kept until the run ends.
    report : callable
        Called after every step.

    Raises
    ------
    GpuguideError
        If nothing asks for gradients, there is no data or too short a sequence, a sequence is in both sets, the state
        is damaged or belongs to another run, it cannot be written, or the loss is no longer finite.
    """
    _check_data(training, held_out)
    state = _State(folder / STATE, model, plan, _identity(training, held_out))
    while state.step < plan.steps and not state.exhausted():
        if not state.held_out:
            state.held_out.append((0, _held_out_loss(model, held_out, plan)))
        loss = _step(state, training)
        measured = None
        if state.step % plan.every == 0 or state.step == plan.steps:
            measured = _held_out_loss(model, held_out, plan)
            state.held_out.append((state.step, measured))
            state.save()
        report(Progress(state.step, plan.steps, loss, measured))
    stopped = state.step < plan.steps
    state.path.unlink(missing_ok=True)
    return Result(tuple(state.losses), tuple(state.held_out), stopped)


class _State:
    """A run under way. Only what is trained is kept; the frozen base is the caller's."""

    def __init__(self, path: Path, model: nn.Module, plan: Plan, data: str) -> None:
        self.path, self.plan = path, plan
        self.parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if not self.parameters:
            raise GpuguideError("No parameter of the model asks for a gradient; add adapters, or unfreeze a layer.")
        optimizer = torch.optim.AdamW(self.parameters.values(), lr=plan.learning_rate, weight_decay=plan.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, plan.share_at)
        scaler = LossScaler(1.0, enabled=False)
        self.run = Training(model, optimizer, scaler, schedule, plan.precision, plan.clip)
        shapes = {name: list(each.shape) for name, each in self.parameters.items()}
        settings = {
            f"{name}.{each}": asdict(layer.adapter(each).settings)
            for name, layer in adapted_layers(model).items()
            for each in layer.adapters
        }
        self.identity = json.dumps({"plan": asdict(plan), "data": data, "trained": shapes, "adapters": settings})
        self.step, self.losses, self.held_out = 0, list[float](), list[tuple[int, float]]()
        if path.exists():
            self._resume()

    def exhausted(self) -> bool:
        """Return whether the held-out loss has not fallen for as long as the plan has patience."""
        patience, losses = self.plan.patience, [loss for _, loss in self.held_out]
        return patience is not None and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])

    def save(self) -> None:
        """Write the state; if that fails, the one before stays."""
        kept: dict[str, Any] = {
            "identity": self.identity,
            "parameters": {name: each.detach() for name, each in self.parameters.items()},
            "optimizer": self.run.optimizer.state_dict(),
            "schedule": self.run.schedule.state_dict() if self.run.schedule else None,
            "step": self.step,
            "losses": self.losses,
            "held_out": [list(row) for row in self.held_out],
        }
        content = io.BytesIO()
        torch.save(kept, content)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, content.getvalue())
        except OSError as error:
            raise GpuguideError(f"{self.path} cannot be written ({error.strerror}); the last one stays.") from error

    def _resume(self) -> None:
        try:
            kept = torch.load(self.path, map_location="cpu", weights_only=True)
            identity = kept["identity"]
        except Exception as error:  # a truncated file fails in many ways
            raise GpuguideError(f"{self.path} is damaged ({error}). Remove it to begin anew.") from error
        if identity != self.identity:
            raise GpuguideError(
                f"{self.path} belongs to a run with another plan, data or adapters. "
                "Name another folder, or remove the file to begin anew."
            )
        with torch.no_grad():
            for name, each in self.parameters.items():
                each.copy_(kept["parameters"][name])
        self.run.optimizer.load_state_dict(kept["optimizer"])
        if self.run.schedule:
            self.run.schedule.load_state_dict(kept["schedule"])
        self.step, self.losses = kept["step"], kept["losses"]
        self.held_out = [tuple(row) for row in kept["held_out"]]


def _step(state: _State, sequences: Sequence[torch.Tensor]) -> float:
    """Take one step, and return its loss."""
    plan, model = state.plan, state.run.model
    torch.manual_seed(plan.seed * 1_000_003 + state.step)  # dropout
    model.train()
    outcome = train_step(state.run, [_batch(_drawn(sequences, plan, state.step), _device(model))])
    if not math.isfinite(outcome.loss) or not math.isfinite(outcome.norm):
        raise GpuguideError(
            f"The loss is {outcome.loss} and the gradients' norm {outcome.norm} at step {state.step + 1}: the run has "
            "diverged. Lower the learning rate."
        )
    state.step += 1
    state.losses.append(outcome.loss)
    return outcome.loss


def _drawn(sequences: Sequence[torch.Tensor], plan: Plan, step: int) -> list[torch.Tensor]:
    """Return a step's sequences. Each epoch has an order of its own, and leaves none out."""
    chosen = []
    for place in range(step * plan.batch, (step + 1) * plan.batch):
        epoch, position = divmod(place, len(sequences))
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + epoch)
        chosen.append(sequences[int(torch.randperm(len(sequences), generator=generator)[position])])
    return chosen


def _batch(sequences: Sequence[torch.Tensor], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, ``(batch, longest - 1)``."""
    padded = nn.utils.rnn.pad_sequence(list(sequences), batch_first=True, padding_value=IGNORED).to(device)
    return padded[:, :-1].clamp(min=0), padded[:, 1:]


@torch.no_grad()
def _held_out_loss(model: nn.Module, sequences: Sequence[torch.Tensor], plan: Plan) -> float:
    """Return the mean loss of all held-out tokens, in nats."""
    model.eval()
    total, count = 0.0, 0
    for start in range(0, len(sequences), plan.batch):
        inputs, targets = _batch(sequences[start : start + plan.batch], _device(model))
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=plan.precision == "bf16"):
            total += float(cross_entropy_sum(model(inputs), targets))
        count += int((targets != IGNORED).sum())
    return total / count


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _identity(*sets: Sequence[torch.Tensor]) -> str:
    """Return a digest of the data."""
    digest = hashlib.sha256()
    for sequences in sets:
        digest.update(f"{[len(each) for each in sequences]}".encode())
        for each in sequences:
            digest.update(each.cpu().long().numpy().tobytes())
    return digest.hexdigest()


def _check_data(training: Sequence[torch.Tensor], held_out: Sequence[torch.Tensor]) -> None:
    for name, sequences in (("training", training), ("held-out", held_out)):
        if not sequences:
            raise GpuguideError(f"There are no {name} sequences.")
        for place, each in enumerate(sequences):
            if each.ndim != 1 or len(each) < 2:
                raise GpuguideError(
                    f"{name} sequence {place} has the shape {tuple(each.shape)}; it needs (seq,) with 2 or more."
                )
    seen = {tuple(each.tolist()) for each in training}
    leaking = sum(tuple(each.tolist()) in seen for each in held_out)
    if leaking:
        raise GpuguideError(f"{leaking} of {len(held_out)} held-out sequences are in the training data; remove them.")

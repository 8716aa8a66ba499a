"""Fine-tuning that can be watched, stopped and gone on with, on top of the step of :mod:`gpuguide.precision`.

What is drawn in a step depends on the seed and the step alone, so a run that was killed goes on from its last state as
if it had not been.

Where processes have joined a group of ``torch.distributed``, they share the sequences of each step (data parallel). A
step is the same then as in one process, but for rounding. Adapters are small, so their gradients are summed in one
piece after the backward pass.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.lora.files import write_whole
from gpuguide.lora.layer import adapted_layers
from gpuguide.lora.processes import SummingScaler, processes, rank, take_from_first, total
from gpuguide.precision import Training, cross_entropy_sum, train_step

STATE = "unfinished.pt"
IGNORED = -100
SAVE_SECONDS = 30.0
"""After which the state is saved between two measurements"""
SAMPLED = 64
"""Numbers of each frozen tensor by which the base of a run is known"""


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
    keep_best: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "every"):
            if getattr(self, name) < 1:
                raise GpuguideError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("patience", "micro_batch"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise GpuguideError(f"{name} is {getattr(self, name)}; it must be at least 1, or None.")
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


def finetune(
    model: nn.Module,
    training: Sequence[torch.Tensor],
    held_out: Sequence[torch.Tensor],
    plan: Plan,
    folder: Path,
    report: Callable[[Progress], None] = lambda progress: None,
    keep: Callable[[Result], None] = lambda result: None,
    *,
    discard: bool = False,
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
    keep : callable
        Called after the last step, to save the model. The state is let go of when it has returned, so that nothing is
        lost if the disk is full. It may end the group of processes, since nothing is shared after it.
    discard : bool
        Begin anew where the state is damaged or belongs to another run, which is an error otherwise.

    Raises
    ------
    GpuguideError
        If nothing asks for gradients, there is no data or too short a sequence, a sequence is in both sets, the state
        is damaged or belongs to another run, it cannot be written, there are more processes than sequences in a step,
        or the loss is no longer finite.
    """
    _check_data(training, held_out)
    if plan.batch < processes():
        raise GpuguideError(f"A step has {plan.batch} sequences for {processes()} processes; each needs one or more.")
    state = _State(folder / STATE, model, plan, _identity(training, held_out))
    state.resume(discard)
    while state.step < plan.steps and not state.exhausted():
        if not state.held_out:
            state.measured(held_out_loss(model, held_out, plan))
        loss = _step(state, training)
        measured = None
        if state.step % plan.every == 0 or state.step == plan.steps:
            measured = held_out_loss(model, held_out, plan)
            state.measured(measured)
            state.save()
        elif time.monotonic() > state.saved + SAVE_SECONDS:
            state.save()
        report(Progress(state.step, plan.steps, loss, measured, state.losses, state.held_out))
    if plan.keep_best:
        _copy(state.best, state.parameters)
    result = Result(tuple(state.losses), tuple(state.held_out), state.step < plan.steps)
    first = rank() == 0  # before keep() may have left the group
    keep(result)
    if first:
        state.path.unlink(missing_ok=True)
    return result


class _State:
    """A run under way. Only what is trained is kept; the frozen base is the caller's."""

    def __init__(self, path: Path, model: nn.Module, plan: Plan, data: str) -> None:
        self.path, self.plan = path, plan
        self.parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if not self.parameters:
            raise GpuguideError("No parameter of the model asks for a gradient; add adapters, or unfreeze a layer.")
        optimizer = torch.optim.AdamW(self.parameters.values(), lr=plan.learning_rate, weight_decay=plan.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, plan.share_at)
        scaler = SummingScaler(1.0, enabled=False)
        self.run = Training(model, optimizer, scaler, schedule, plan.precision, plan.clip)
        shapes = {name: list(each.shape) for name, each in self.parameters.items()}
        settings = {
            f"{name}.{each}": asdict(layer.adapter(each).settings)
            for name, layer in adapted_layers(model).items()
            for each in layer.adapters
        }
        self.identity = {
            "plan": {name: value for name, value in asdict(plan).items() if name != "micro_batch"},
            "data": data,
            "base": _sampled(model),
            "adapters": {"settings": settings, "shapes": shapes},
        }
        self.step, self.losses, self.held_out = 0, list[float](), list[tuple[int, float]]()
        self.best, self.saved = dict[str, torch.Tensor](), time.monotonic()

    def exhausted(self) -> bool:
        """Return whether the held-out loss has not fallen for as long as the plan has patience."""
        patience, losses = self.plan.patience, [loss for _, loss in self.held_out]
        return patience is not None and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])

    def measured(self, loss: float) -> None:
        """Note the held-out loss, and the parameters if it is the lowest."""
        if self.plan.keep_best and all(loss < other for _, other in self.held_out):
            self.best = {name: each.detach().clone() for name, each in self.parameters.items()}
        self.held_out.append((self.step, loss))

    def save(self) -> None:
        """Write the state; if that fails, the one before stays."""
        self.saved = time.monotonic()
        if rank() != 0:
            return
        kept: dict[str, Any] = {
            "identity": json.dumps(self.identity),
            "parameters": {name: each.detach() for name, each in self.parameters.items()},
            "best": self.best,
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
            raise GpuguideError(
                f"{self.path} cannot be written ({error.strerror}); the last one stays. "
                "Make room, and run the same again to go on from it."
            ) from error

    def resume(self, discard: bool) -> None:
        """Go on from the state that was kept, if there is one; ``discard`` as of :func:`finetune`."""
        try:
            if self.path.exists():
                self._read()
        except GpuguideError:
            if not discard:
                raise
        for each in self.parameters.values():
            take_from_first(each)

    def _read(self) -> None:
        try:
            kept = torch.load(self.path, map_location="cpu", weights_only=True)
            identity = json.loads(kept["identity"])
        except Exception as error:  # a truncated file fails in many ways
            raise GpuguideError(f"{self.path} is damaged ({error}). Remove it to begin anew.") from error
        own = json.loads(json.dumps(self.identity))
        if identity != own:
            differing = [part for part in own if identity.get(part) != own[part]]
            raise GpuguideError(
                f"{self.path} belongs to a run with another {' and '.join(differing)}. "
                "Name another folder, or remove the file to begin anew."
            )
        _copy(kept["parameters"], self.parameters)
        self.best = {name: each.to(self.parameters[name].device) for name, each in kept["best"].items()}
        self.run.optimizer.load_state_dict(kept["optimizer"])
        if self.run.schedule:
            self.run.schedule.load_state_dict(kept["schedule"])
        self.step, self.losses = kept["step"], kept["losses"]
        self.held_out = [tuple(row) for row in kept["held_out"]]


def _step(state: _State, sequences: Sequence[torch.Tensor]) -> float:
    """Take one step, and return its loss."""
    plan, model = state.plan, state.run.model
    torch.manual_seed(plan.seed * 1_000_003 + state.step + (rank() << 40))  # dropout
    model.train()
    drawn = _drawn(sequences, plan, state.step)
    own = drawn[rank() :: processes()]
    at_once = plan.micro_batch or len(own)
    batches = [_batch(own[start : start + at_once], _device(model)) for start in range(0, len(own), at_once)]
    share = sum(len(each) - 1 for each in own) / sum(len(each) - 1 for each in drawn)

    def loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return share * cross_entropy_sum(logits, targets)  # a step divides by the targets of this process alone

    outcome = train_step(state.run, batches, loss_sum)
    (loss,) = total(outcome.loss)
    if not math.isfinite(loss) or not math.isfinite(outcome.norm):
        raise GpuguideError(
            f"The loss is {loss} and the gradients' norm {outcome.norm} at step {state.step + 1}: the run has "
            "diverged. Lower the learning rate."
        )
    state.step += 1
    state.losses.append(loss)
    return loss


def _drawn(sequences: Sequence[torch.Tensor], plan: Plan, step: int) -> list[torch.Tensor]:
    """Return a step's sequences. Each epoch has an order of its own, and leaves none out."""
    chosen = []
    for place in range(step * plan.batch, (step + 1) * plan.batch):
        epoch, position = divmod(place, len(sequences))
        chosen.append(sequences[_order(len(sequences), plan.seed * 1_000_003 + epoch)[position]])
    return chosen


@functools.lru_cache(maxsize=2)
def _order(count: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def _batch(sequences: Sequence[torch.Tensor], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, ``(batch, longest - 1)``."""
    padded = nn.utils.rnn.pad_sequence(list(sequences), batch_first=True, padding_value=IGNORED).to(device)
    return padded[:, :-1].clamp(min=0), padded[:, 1:]


@torch.no_grad()
def held_out_loss(model: nn.Module, sequences: Sequence[torch.Tensor], plan: Plan) -> float:
    """Return the mean loss of all held-out tokens, in nats; parameters as of :func:`finetune`."""
    model.eval()
    loss, count = 0.0, 0
    own, at_once = sequences[rank() :: processes()], plan.micro_batch or plan.batch
    for start in range(0, len(own), at_once):
        inputs, targets = _batch(own[start : start + at_once], _device(model))
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=plan.precision == "bf16"):
            loss += float(cross_entropy_sum(model(inputs), targets))
        count += int((targets != IGNORED).sum())
    loss, tokens = total(loss, count)
    return loss / tokens


@torch.no_grad()
def _copy(values: dict[str, torch.Tensor], parameters: dict[str, nn.Parameter]) -> None:
    for name, each in parameters.items():
        each.copy_(values[name])


def _sampled(model: nn.Module) -> str:
    """Return a digest of the frozen weights, taken from some of the numbers of each."""
    digest = hashlib.sha256()
    for name, each in model.named_parameters():
        if not each.requires_grad:
            flat = each.detach().flatten()
            some = flat[:: max(1, flat.numel() // SAMPLED)].float().cpu()
            digest.update(f"{name} {tuple(each.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()


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

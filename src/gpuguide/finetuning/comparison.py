"""Methods of fine-tuning on one task, compared: adapters, all weights, the last layer alone.

Every method runs the same loop (:class:`gpuguide.training.TrainingStep`, uncompiled, captured on a GPU) on the same
functions in the same order, so that only the trained parameters differ.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

from gpuguide import lora, models
from gpuguide.cross_entropy.reference import IGNORE_INDEX
from gpuguide.errors import GpuguideError, unknown
from gpuguide.finetuning import return_types
from gpuguide.finetuning.return_types import Encoded, Score
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.tokenizer import Tokenizer
from gpuguide.training.step import StepSettings, TrainingStep

TARGETS = ("blocks.*",)
"""Layers that get adapters: all matrices of all blocks"""
AT_ONCE = 128
"""Functions that are answered together"""
COUNTED = ("answer", "text", "padding")
"""Tokens that the loss counts: the answer; every token of a text; padding too, as if it were text"""


@dataclass(frozen=True)
class Setting:
    """Settings of a training.

    Parameters
    ----------
    learning_rate : float
        At its highest; it rises over ``warm_up`` steps and falls to zero along half a cosine.
    batch, epochs : int
        Functions in a step, and how often each is read.
    counted : str
        One of :data:`COUNTED`.
    seed : int
        Of the order of the functions, dropout, and the first values of adapters.

    Raises
    ------
    GpuguideError
        If a number is out of its range, or ``counted`` is unknown.
    """

    learning_rate: float
    batch: int = 32
    epochs: int = 4
    counted: str = "answer"
    warm_up: int = 10
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.counted not in COUNTED:
            raise unknown("counting of the loss", self.counted, COUNTED)
        if min(self.batch, self.epochs) < 1:
            raise GpuguideError(f"batch is {self.batch} and epochs is {self.epochs}; both must be at least 1.")

    def rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step."""
        if step < self.warm_up:
            return self.learning_rate * (step + 1) / self.warm_up
        return self.learning_rate * (0.5 + 0.5 * math.cos(math.pi * (step - self.warm_up) / (steps - self.warm_up)))


@dataclass
class TrainingHistory:
    """Losses, scores and step times of a training."""

    losses: list[float] = field(default_factory=list)
    """Losses of the steps, in nats for each token that counts"""
    step_seconds: list[float] = field(default_factory=list)
    """Durations of the steps, by the host's clock around synchronised work; the first one sets up as well"""
    scores: list[tuple[int, Score]] = field(default_factory=list)
    """Steps done, and how well the functions that are watched were answered then; before the first step, too"""


def load_with_adapters(rank: int, alpha: float, *, seed: int = 0, device: str = "cpu") -> GPT2:
    """Return ``main`` with adapters beside all matrices of its blocks."""
    model = all_weights(device=device)
    torch.manual_seed(seed)  # A is drawn
    lora.add_adapters(model, TARGETS, lora.Settings(rank, alpha))
    return model


def all_weights(*, device: str = "cpu") -> GPT2:
    """Return ``main``, all of which is trained."""
    model = models.load("main").model.to(device)
    assert isinstance(model, GPT2)
    return model


def last_layer(*, device: str = "cpu") -> GPT2:
    """Return ``main``, of which the last block and the norm after it are trained."""
    model = all_weights(device=device).requires_grad_(False)
    model.blocks[-1].requires_grad_(True)
    model.final_norm.requires_grad_(True)
    return model


def train(
    model: GPT2,
    data: Encoded,
    setting: Setting,
    watched: Encoded | None = None,
    looks: int = 8,
    keep: Callable[[int], None] = lambda step: None,
) -> TrainingHistory:
    """Train what asks for gradients in a model, in fp32.

    Parameters
    ----------
    model : GPT2
        On the device on which to train.
    data : Encoded
        Functions to learn from.
    setting : Setting
        How.
    watched : Encoded, optional
        Functions to answer meanwhile.
    looks : int
        How often they are answered, evenly spread, the last time at the end.
    keep : callable
        Called with the number of steps done, after each.

    Raises
    ------
    GpuguideError
        If the loss is no longer finite.
    """
    device = next(model.parameters()).device
    data = data.to(device)
    targets = targets_of(data, setting.counted)
    steps = math.ceil(setting.epochs * len(data) / setting.batch)
    step = TrainingStep(
        loss_of(model),
        model.parameters(),
        setting.batch,
        data.tokens.shape[1],
        StepSettings(learning_rate=setting.learning_rate, clip=setting.clip, backend=None),
    )
    course = TrainingHistory()
    if watched is not None:
        course.scores.append((0, return_types.score(answer_logits(model, watched), watched)))
    torch.manual_seed(setting.seed)
    model.train()
    for number, places in enumerate(order(len(data), steps, setting)):
        step.set_learning_rate(setting.rate_at(number, steps))
        began = time.perf_counter()
        loss = float(step(data.tokens[places], targets[places]))
        course.step_seconds.append(time.perf_counter() - began)
        course.losses.append(loss)
        if not math.isfinite(loss):
            raise GpuguideError(f"The loss is {loss} at step {number + 1} of {steps}: lower the learning rate.")
        keep(number + 1)
        if watched is not None and (number + 1) * looks // steps > number * looks // steps:
            course.scores.append((number + 1, return_types.score(answer_logits(model, watched), watched)))
            model.train()
    return course


def loss_of(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the mean cross-entropy of the targets that count, as a function of tokens and targets."""

    def loss(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = model(tokens).float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX)

    return loss


def order(count: int, steps: int, setting: Setting) -> Iterator[torch.Tensor]:
    """Yield the places of each step's functions. Each epoch has an order of its own, and leaves none out."""
    generator = torch.Generator().manual_seed(setting.seed)
    epochs = -(-steps * setting.batch // count)
    drawn = torch.cat([torch.randperm(count, generator=generator) for _ in range(epochs)])
    yield from drawn[: steps * setting.batch].split(setting.batch)


def targets_of(data: Encoded, counted: str) -> torch.Tensor:
    """Return what is to be predicted at each place, ``(functions, length)``; -100 does not count.

    Parameters
    ----------
    data : Encoded
        Functions.
    counted : str
        One of :data:`COUNTED`. With ``"padding"`` an end of text follows the answer up to the end of the row, as where
        labels are a copy of padded inputs.
    """
    targets = data.targets
    if counted == "answer":
        return targets
    following = functional.pad(data.tokens[:, 1:], (0, 1), value=int(data.tokens[0, 0]))
    places = torch.arange(data.tokens.shape[1], device=targets.device)
    inside = places < data.last.unsqueeze(1)
    targets = torch.where(inside, following, targets)
    return torch.where(places > data.last.unsqueeze(1), following, targets) if counted == "padding" else targets


@torch.no_grad()
def answer_logits(model: GPT2, data: Encoded) -> torch.Tensor:
    """Return the logits at the end of each question, ``(functions, vocab_size)``; the model is left in ``eval``."""
    model.eval()
    device = next(model.parameters()).device
    by_length = data.last.argsort()
    found = []
    for places in by_length.split(AT_ONCE):
        some = data.select(places).to(device)
        tokens = some.tokens[:, : int(some.last[-1]) + 1]  # the longest comes last
        hidden = model.hidden_states(tokens)[-1][torch.arange(len(some), device=device), some.last]
        found.append(model.head(model.final_norm(hidden)))
    return torch.cat(found).to(data.tokens.device)[by_length.argsort()]


def score(model: GPT2, data: Encoded) -> Score:
    """Return how well a model answers."""
    return return_types.score(answer_logits(model, data), data)


def encode_splits(tokenizer: Tokenizer, samples: int | None = None) -> Mapping[str, Encoded]:
    """Return the task's parts as tokens: ``training`` (the first ``samples``), ``validation`` and ``held-out``."""
    parts = {
        "training": return_types.training(samples),
        "validation": return_types.validation(),
        "held-out": return_types.load_held_out(),
    }
    return {name: return_types.encode(part, tokenizer) for name, part in parts.items()}

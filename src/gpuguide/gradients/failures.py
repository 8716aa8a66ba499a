"""Ten failures of a training step that raise no error, each made as it happens, found by the report, and mended.

Each has a small model, an optimizer and one step on a batch of 16 vectors. :meth:`Failure.plant` takes the step with
the failure and :meth:`Failure.mend` without it; both stop between ``backward()`` and ``optimizer.step()``, where
:func:`gpuguide.gradients.report` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpuguide.gradients.report import Kind

WIDTH = 8


class TwoParts(nn.Module):
    """An encoder and a head, with a second encoder beside that a failure may forget."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, ``(batch, WIDTH)`` to ``(batch, 3)``."""
        return self.head(torch.tanh(self.encoder(x)) + torch.tanh(self.second(x)))


@dataclass
class Step:
    """A step after ``backward()``, as :func:`gpuguide.gradients.report` takes it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    run: Callable[[], torch.Tensor]
    """Computes the loss of the batch"""


@dataclass(frozen=True)
class Failure:
    """A failure that raises no error."""

    symptom: str
    """What one sees"""
    remedy: str
    kind: Kind
    """How the report names it"""
    names: tuple[str, ...]
    """Parameters that the report names, if they are some"""
    take_step: Callable[[bool], Step]
    """Takes the step: with the failure if given True, else mended"""

    def plant(self) -> Step:
        """Take the step with the failure in it."""
        torch.manual_seed(0)
        return self.take_step(True)

    def mend(self) -> Step:
        """Take the step without the failure."""
        torch.manual_seed(0)
        return self.take_step(False)


def batch(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs ``(16, WIDTH)`` and targets ``(16,)``, on the default device."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(16, WIDTH, generator=generator, device="cpu")
    targets = torch.randint(3, (16,), generator=generator, device="cpu")
    return inputs.to(torch.get_default_device()), targets.to(torch.get_default_device())


def adamw(model: nn.Module, rate: float = 1e-3) -> torch.optim.AdamW:
    """Return AdamW for all parameters of a model."""
    return torch.optim.AdamW(model.parameters(), lr=rate)


def _stepped(
    model: nn.Module, optimizer: torch.optim.Optimizer, logits: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Step:
    """Run forward and backward on the batch, and return the step."""
    inputs, targets = batch()

    def run() -> torch.Tensor:
        return functional.cross_entropy((logits or model)(inputs).float(), targets)

    run().backward()
    return Step(model, optimizer, run)


def frozen(fails: bool) -> Step:
    """Leave a part frozen after a warm-up of the head, with the optimizer holding it."""
    model = TwoParts()
    model.encoder.requires_grad_(not fails)
    return _stepped(model, adamw(model))


def forgotten(fails: bool) -> Step:
    """Never call a part in the forward pass."""
    model = TwoParts()
    without = lambda x: model.head(torch.tanh(model.encoder(x)))  # noqa: E731
    return _stepped(model, adamw(model), without if fails else None)


def detached(fails: bool) -> Step:
    """Cut a part off from the loss with ``detach()``."""
    model = TwoParts()

    def logits(x: torch.Tensor) -> torch.Tensor:
        encoded = torch.tanh(model.encoder(x))
        return model.head((encoded.detach() if fails else encoded) + torch.tanh(model.second(x)))

    return _stepped(model, adamw(model), logits)


def checkpointed(fails: bool) -> Step:
    """Checkpoint a part reentrantly whose input asks for no gradient."""
    model = TwoParts()

    def logits(x: torch.Tensor) -> torch.Tensor:
        encoded = checkpoint(model.encoder, x, use_reentrant=fails)
        return model.head(torch.tanh(encoded) + torch.tanh(model.second(x)))

    return _stepped(model, adamw(model), logits)


def where_nan(fails: bool) -> Step:
    """Guard a square root with ``where`` after it: the branch that is not chosen is NaN, and so is its derivative.

    The chain rule multiplies that NaN by the zero that arrives from ``where``, and the product is NaN. Making the
    input safe before the root leaves no NaN to multiply.
    """
    model = TwoParts()

    def logits(x: torch.Tensor) -> torch.Tensor:
        encoded = model.encoder(x)
        if fails:
            root = torch.where(encoded > 0, encoded.sqrt(), 0.0)
        else:
            root = torch.where(encoded > 0, torch.where(encoded > 0, encoded, 1.0).sqrt(), 0.0)
        return model.head(root + torch.tanh(model.second(x)))

    return _stepped(model, adamw(model), logits)


def clipped_infinite(fails: bool) -> Step:
    """Clip gradients of which one is infinite."""
    model = TwoParts()
    step = _stepped(model, adamw(model))
    if fails:  # as one overflow in fp16 does
        assert model.head.bias.grad is not None
        model.head.bias.grad[0] = torch.inf
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return step


def clipped_negative(fails: bool) -> Step:
    """Clip to a negative norm, which turns every gradient around."""
    model = TwoParts()
    step = _stepped(model, adamw(model))
    nn.utils.clip_grad_norm_(model.parameters(), -1.0 if fails else 1.0)
    return step


def not_zeroed(fails: bool) -> Step:
    """Forget ``zero_grad()``, so that the gradient of the last batch is still there."""
    model = TwoParts()
    optimizer = adamw(model)
    inputs, targets = batch(seed=2)
    functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    if not fails:
        optimizer.zero_grad()
    return _stepped(model, optimizer)


def replaced_head(fails: bool) -> Step:
    """Replace the head after the optimizer was made."""
    model = TwoParts()
    if not fails:
        model.head = nn.Linear(WIDTH, 3)
    optimizer = adamw(model)
    if fails:
        model.head = nn.Linear(WIDTH, 3)
    return _stepped(model, optimizer)


def rounded_away(fails: bool) -> Step:
    """Keep the weights in bf16 and train with a small learning rate."""
    model = TwoParts()
    if fails:
        model = model.bfloat16()
    dtype = torch.bfloat16 if fails else torch.float32
    return _stepped(model, adamw(model, rate=1e-5), lambda x: model(x.to(dtype)))


ENCODER = ("encoder.weight", "encoder.bias")
HEAD = ("head.weight", "head.bias")
FAILURES = {
    "frozen": Failure(
        "a part does not learn", "requires_grad_() before the optimizer", "frozen in optimizer", ENCODER, frozen
    ),
    "forgotten": Failure(
        "a part does not learn", "call it in forward", "no gradient", ("second.weight", "second.bias"), forgotten
    ),
    "detached": Failure("a part does not learn", "leave detach() out", "no gradient", ENCODER, detached),
    "checkpointed": Failure(
        "a checkpointed part does not learn", "use_reentrant=False", "no gradient", ENCODER, checkpointed
    ),
    "where-nan": Failure(
        "the loss is NaN from the second step", "make the input of sqrt safe", "not finite", ENCODER, where_nan
    ),
    "clipped-infinite": Failure(
        "the loss is NaN from the second step",
        "error_if_nonfinite=True, or skip the step",
        "clipped with infinite norm",
        HEAD[1:],
        clipped_infinite,
    ),
    "clipped-negative": Failure(
        "the loss climbs from the first step", "a positive max_norm", "reversed", (), clipped_negative
    ),
    "not-zeroed": Failure(
        "the loss climbs after some steps", "zero_grad() in each step", "holds more than this batch", (), not_zeroed
    ),
    "replaced-head": Failure(
        "the new head stays random", "the optimizer after the last change", "not in optimizer", HEAD, replaced_head
    ),
    "rounded-away": Failure(
        "the loss stands still at a small rate", "weights in fp32 with autocast", "rounded away", (), rounded_away
    ),
}
"""Failures by name"""

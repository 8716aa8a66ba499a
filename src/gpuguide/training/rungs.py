"""A training step with all that makes it fast, each part of which can be left out.

The parts are rungs of a ladder: each is a switch, so that what it gives can be measured alone, after those before it,
or by leaving it out. They take any model that :class:`gpuguide.training.WithoutHead` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpuguide.errors import unknown
from gpuguide.training.loss import WithoutHead
from gpuguide.training.step import Loss, StepSettings, TrainingStep

RUNGS = {
    "bf16": "matmuls in bf16, by autocast; in fp16 with a loss scaler where there is no bf16",
    "attention": "attention in one kernel, without its scores in memory",
    "compile": "the model compiled",
    "optimizer": "AdamW in one kernel; with the rung weights, clipping and rounding in the same pass",
    "loss": "the loss in chunks, without all logits",
    "weights": "weights and hidden states in bf16, with copies of the weights in fp32",
    "graph": "the whole step captured in a CUDA graph",
}
"""What each rung is, in the order of the ladder"""
ALL = frozenset(RUNGS)


def all_rungs_but(names: Iterable[str]) -> frozenset[str]:
    """Return all rungs but these.

    Raises
    ------
    UnknownName
        If there is no rung of a name.
    """
    for name in names:
        if name not in RUNGS:
            raise unknown("rung", name, RUNGS)
    return ALL - set(names)


def rungs_of(device: torch.device, rungs: Collection[str] = ALL) -> frozenset[str]:
    """Return those of the rungs that a device can take: a CPU has no graphs, and a GPU before Ampere no bf16."""
    lacking = set[str]()
    if device.type != "cuda":
        lacking |= {"graph"}
    elif not torch.cuda.is_bf16_supported(including_emulation=False):
        lacking |= {"weights", "graph"}  # a loss scaler asks in each step whether gradients are finite
    if "bf16" not in rungs:
        lacking |= {"weights"}
    return frozenset(rungs) - lacking


def autocast_format(device: torch.device, rungs: Collection[str]) -> str:
    """Return the format that matmuls of parameters in fp32 are cast to."""
    if "bf16" not in rungs or "weights" in rungs:
        return "fp32"
    can_bf16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if can_bf16 else "fp16"


def whole_loss(model: Callable[[torch.Tensor], torch.Tensor]) -> Loss:
    """Return the mean cross-entropy of a model from all of its logits at once, in fp32."""

    def loss(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())

    return loss


def loss_of(model: nn.Module, rungs: Collection[str]) -> Loss:
    """Return the mean loss of a model: without all of its logits, or with them."""
    return WithoutHead(model).loss if "loss" in rungs else whole_loss(model)


def settings_of(device: torch.device, rungs: Collection[str], settings: StepSettings | None = None) -> StepSettings:
    """Return the settings of a step with these rungs; what they do not decide is that of ``settings``."""
    return replace(
        settings or StepSettings(),
        autocast=autocast_format(device, rungs),
        attention=("cudnn" if device.type == "cuda" else None) if "attention" in rungs else "math",
        backend="inductor" if "compile" in rungs else None,
        graphed="graph" in rungs,
        fused="optimizer" in rungs,
        one_pass={"optimizer", "weights"} <= set(rungs),
    )


def make_step(
    model: nn.Module,
    batch: int,
    seq_len: int,
    rungs: Collection[str] = ALL,
    settings: StepSettings | None = None,
    *,
    pool: Any = None,
) -> TrainingStep:
    """Return the training step of a model; with the rung ``weights`` the model's own are rounded to bf16.

    Parameters
    ----------
    model : nn.Module
        Maps tokens, ``(batch, seq)``, to logits, and is where it is trained, in fp32.
    batch, seq_len : int
        Shape of the batches.
    rungs : collection of str
        Which of :data:`RUNGS` it has, as far as the device can.
    settings : StepSettings, optional
        Learning rate, clipping, micro-batches and all else that is no rung.
    pool : optional
        Memory that the step's graph shares, as of :class:`TrainingStep`.

    Raises
    ------
    GpuguideError
        As :class:`TrainingStep`.
    """
    device = next(model.parameters()).device
    rungs = rungs_of(device, rungs)
    chosen = settings_of(device, rungs, settings)
    values = [each.detach().clone() for each in model.parameters()] if "weights" in rungs else []
    if "weights" in rungs:
        model.to(torch.bfloat16)
    step = TrainingStep(loss_of(model, rungs), model.parameters(), batch, seq_len, chosen, pool=pool)
    with torch.no_grad():  # the copies keep what rounding took from the weights
        for master, value in zip(step.masters.trained, values, strict="weights" in rungs):
            master.copy_(value)
    return step

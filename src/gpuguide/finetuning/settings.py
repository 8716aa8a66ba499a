"""What is asked for, and what it comes to for a model, its data and a device.

Wrong settings are refused here, before anything is loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gpuguide import lora, training
from gpuguide.errors import GpuguideError, unknown
from gpuguide.finetuning import fitting
from gpuguide.hardware.device import Device
from gpuguide.inference.quantize import quantize_int4, quantize_int8
from gpuguide.lora.packed import Packing
from gpuguide.models import gpt2, llama, shapes
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.training import processes

if TYPE_CHECKING:
    from gpuguide.finetuning.preparing import Prepared

TARGETS = {"all": "blocks.*", "attention": "*.attention.*"}
"""Names for the layers of a model, and their patterns"""
LONGEST = 1024
"""Tokens of a sequence at most, unless one asks for more"""
MEASUREMENTS = 20
"""Of the held-out loss in a run, about"""
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
PACKINGS: dict[str, Packing | None] = {
    "plain": None,
    "int8": quantize_int8,
    "int4": quantize_int4,
    "nf4": lora.quantize_nf4,
}
"""How the frozen matrices that have adapters are stored"""
COSTS = {"plain": "bf16", "int8": "int8", "int4": "nf4", "nf4": "nf4"}
"""What the cost model calls them, or what is nearest"""


@dataclass(frozen=True)
class Request:
    """What a person asks for. What is ``None`` is chosen by the data, the model or the device."""

    data: Path
    model: str
    out: Path
    held_out: Path | None = None
    share: float = 0.1
    length: int | None = None
    too_long: str = "stop"
    targets: tuple[str, ...] = ("all",)
    rank: int = 16
    alpha: float | None = None
    stabilised: bool = False
    dropout: float = 0.0
    epochs: float = 3.0
    steps: int | None = None
    batch: int = 4
    micro_batch: int | None = None
    learning_rate: float = 3e-4
    every: int | None = None
    patience: int | None = 5
    dtype: str | None = None
    weights: str = "plain"
    counted: str = "all"
    compiled: bool = False
    seed: int = 0
    prompts: tuple[str, ...] = ()
    merge: bool = True
    again: bool = False


def length_of(request: Request, config: gpt2.Config | llama.Config) -> int:
    """Return the tokens of a sequence at most."""
    if request.length is not None and request.length > config.context:
        raise GpuguideError(f"length is {request.length}; {request.model} reads {config.context} tokens at most.")
    return request.length or min(config.context, LONGEST)


def alpha_of(request: Request) -> float:
    """Return alpha: twice the rank, unless another one is asked for."""
    return 2.0 * request.rank if request.alpha is None else request.alpha


def add_adapters(model: GPT2 | Llama, request: Request, packing: Packing | None = None) -> list[str]:
    """Put the adapters beside the layers that are asked for, and return the names of these."""
    settings = lora.Settings(request.rank, alpha_of(request), request.dropout, stabilised=request.stabilised)
    targets = [TARGETS.get(each, each) for each in request.targets]
    return lora.add_adapters(model, targets, settings, packing=packing)


def layers_of(request: Request, config: gpt2.Config | llama.Config) -> list[str]:
    """Return the layers that get adapters, found in a model that has shapes and no weights."""
    return add_adapters(shapes.without_memory(config, torch.float32), request)


def format_name(request: Request, device: Device) -> str:
    """Return the format of the frozen weights: bf16 on a GPU that has it, unless another one is asked for."""
    if request.dtype is not None and request.dtype not in FORMATS:
        raise unknown("format", request.dtype, FORMATS)
    return request.dtype or ("bf16" if device.is_gpu and "bf16" in device.supports else "fp32")


def plan_of(request: Request, prepared: Prepared, device: Device) -> training.Plan:
    """Return how to train; what is not asked for depends on the amount of data."""
    if not 0 < request.epochs < math.inf:
        raise GpuguideError(f"epochs is {request.epochs}; it must be a positive number.")
    steps = request.steps or math.ceil(request.epochs * len(prepared.training) / request.batch)
    return training.Plan(
        steps=steps,
        batch=request.batch,
        learning_rate=request.learning_rate,
        warm_up=min(100, steps // 10),
        every=request.every or max(1, steps // MEASUREMENTS),
        patience=request.patience,
        precision=format_name(request, device),
        seed=request.seed,
        micro_batch=request.micro_batch,
        backend="inductor" if request.compiled else None,
        keep_best=True,
    )


def checked_memory(
    request: Request,
    config: gpt2.Config | llama.Config,
    prepared: Prepared,
    plan: training.Plan,
    device: Device,
    layers: list[str],
) -> float | None:
    """Return the bytes that a step takes on a GPU, and raise if it has not as many; None on a processor."""
    if not device.is_gpu:
        return None
    own = math.ceil(plan.batch / processes())
    demand = fitting.Demand(
        config,
        min(own, plan.micro_batch or own),
        prepared.longest,
        request.rank,
        request.targets == ("attention",),
        FORMATS[plan.precision].itemsize,
        COSTS[request.weights],
        all_logits="head" in layers,
    )
    return fitting.check(demand, device.memory, device.name)

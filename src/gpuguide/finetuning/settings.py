"""Options of a run, and the settings that follow from them for a model, its data and a device.

Wrong options are refused here, before anything is loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gpuguide import lora
from gpuguide.errors import GpuguideError, unknown
from gpuguide.finetuning import memory_check
from gpuguide.hardware.device import Device
from gpuguide.lora.packed import Packing
from gpuguide.models import gpt2, llama, shapes
from gpuguide.models.checkpoint import Checkpoint
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.models.tokenizer import Tokenizer
from gpuguide.quantization import quantize_int4, quantize_int8
from gpuguide.training import TrainingConfig, world_size

if TYPE_CHECKING:
    from gpuguide.finetuning.data.splits import DatasetSplits

TARGETS = {"all": "blocks.*", "attention": "*.attention.*"}
"""Names of groups of layers, and their patterns"""
LONGEST = 1024
"""Default maximum of tokens in a sequence"""
EVALUATIONS = 20
"""Approximate number of evaluations in a run by default"""
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
PACKINGS: dict[str, Packing | None] = {
    "plain": None,
    "int8": quantize_int8,
    "int4": quantize_int4,
    "nf4": lora.quantize_nf4,
}
"""Storage formats of frozen matrices with adapters, and the functions that pack them"""
COSTS = {"plain": "bf16", "int8": "int8", "int4": "nf4", "nf4": "nf4"}
"""Names of these formats in the cost model, or the nearest ones"""


@dataclass(frozen=True)
class FinetuneOptions:
    """Options of a run, as on the command line. ``None`` lets the data, the model or the device decide.

    Parameters
    ----------
    data, eval_data : Path
        File to train on, and file of held-out data; without the latter, ``eval_share`` of the former is held out.
    model : str
        Name of a packaged model, or folder of a checkpoint.
    out : Path
        Output folder.
    length, overflow
        Maximum of tokens in a sequence, and the policy for longer ones: ``error``, ``truncate``, ``chunk``, ``drop``.
    targets, rank, alpha, rslora, dropout
        Layers with adapters, and the adapters' settings; ``rslora`` divides alpha by the root of the rank.
    epochs, steps, batch, micro_batch, learning_rate
        Length of the training, sequences per step and per pass, and peak learning rate.
    eval_every, patience
        Steps between evaluations, and evaluations without improvement after which the run stops.
    dtype, weights, compiled
        Format of frozen weights, their packing (:data:`PACKINGS`), and whether the model is compiled.
    train_on_assistant : bool
        Whether the loss counts only the answers of conversations.
    seed, prompts
        Seed of everything random, and prompts to continue before and after training.
    merge, overwrite : bool
        Whether to write a merged checkpoint, and whether to replace a finished run.
    """

    data: Path
    model: str
    out: Path
    eval_data: Path | None = None
    eval_share: float = 0.1
    length: int | None = None
    overflow: str = "error"
    targets: tuple[str, ...] = ("all",)
    rank: int = 16
    alpha: float | None = None
    rslora: bool = False
    dropout: float = 0.0
    epochs: float = 3.0
    steps: int | None = None
    batch: int = 4
    micro_batch: int | None = None
    learning_rate: float = 3e-4
    eval_every: int | None = None
    patience: int | None = 5
    dtype: str | None = None
    weights: str = "plain"
    train_on_assistant: bool = False
    compiled: bool = False
    seed: int = 0
    prompts: tuple[str, ...] = ()
    merge: bool = True
    overwrite: bool = False


@dataclass(frozen=True)
class RunSetup:
    """Everything that is settled before the model is loaded."""

    options: FinetuneOptions
    device: Device
    began: float
    """Time at which the run began, in seconds since the epoch"""
    checkpoint: Checkpoint
    """Checkpoint of the base model"""
    tokenizer: Tokenizer
    splits: DatasetSplits
    layers: tuple[str, ...]
    """Names of the layers that get adapters"""
    training: TrainingConfig
    predicted_memory: float | None
    """Predicted peak memory of a step in bytes; ``None`` on a CPU"""

    @property
    def out(self) -> Path:
        """Output folder."""
        return self.options.out


def sequence_length(options: FinetuneOptions, config: gpt2.GPT2Config | llama.LlamaConfig) -> int:
    """Return the maximum number of tokens in a sequence."""
    if options.length is not None and options.length > config.context:
        raise GpuguideError(f"length is {options.length}; {options.model} reads {config.context} tokens at most.")
    return options.length or min(config.context, LONGEST)


def adapter_alpha(options: FinetuneOptions) -> float:
    """Return alpha: twice the rank by default."""
    return 2.0 * options.rank if options.alpha is None else options.alpha


def add_adapters(model: GPT2 | Llama, options: FinetuneOptions, packing: Packing | None = None) -> list[str]:
    """Add adapters to the target layers of a model, and return the names of these layers."""
    settings = lora.Settings(options.rank, adapter_alpha(options), options.dropout, stabilised=options.rslora)
    targets = [TARGETS.get(target, target) for target in options.targets]
    return lora.add_adapters(model, targets, settings, packing=packing)


def target_layers(options: FinetuneOptions, config: gpt2.GPT2Config | llama.LlamaConfig) -> list[str]:
    """Return the names of the layers that get adapters, from a model of shapes without weights."""
    return add_adapters(shapes.build_meta_model(config, torch.float32), options)


def weight_format(options: FinetuneOptions, device: Device) -> str:
    """Return the format of the frozen weights: by default bf16 on a GPU that supports it, else fp32."""
    if options.dtype is not None and options.dtype not in FORMATS:
        raise unknown("format", options.dtype, FORMATS)
    return options.dtype or ("bf16" if device.is_gpu and "bf16" in device.supports else "fp32")


def training_config(options: FinetuneOptions, splits: DatasetSplits, device: Device) -> TrainingConfig:
    """Return the settings of the training loop; defaults depend on the amount of data."""
    if not 0 < options.epochs < math.inf:
        raise GpuguideError(f"epochs is {options.epochs}; it must be a positive number.")
    steps = options.steps or math.ceil(options.epochs * len(splits.training) / options.batch)
    return TrainingConfig(
        steps=steps,
        batch=options.batch,
        learning_rate=options.learning_rate,
        warm_up=min(100, steps // 10),
        eval_every=options.eval_every or max(1, steps // EVALUATIONS),
        patience=options.patience,
        precision=weight_format(options, device),
        seed=options.seed,
        micro_batch=options.micro_batch,
        backend="inductor" if options.compiled else None,
        keep_best=True,
    )


def predict_memory(
    options: FinetuneOptions,
    config: gpt2.GPT2Config | llama.LlamaConfig,
    splits: DatasetSplits,
    training: TrainingConfig,
    device: Device,
    layers: list[str],
) -> float | None:
    """Return the predicted bytes of a step on a GPU, and raise if the GPU has fewer; ``None`` on a CPU."""
    if not device.is_gpu:
        return None
    local = math.ceil(training.batch / world_size())
    estimate = memory_check.MemoryEstimate(
        config,
        min(local, training.micro_batch or local),
        splits.longest,
        options.rank,
        options.targets == ("attention",),
        FORMATS[training.precision].itemsize,
        COSTS[options.weights],
        all_logits="head" in layers,
    )
    return memory_check.check_memory(estimate, device.memory, device.name)

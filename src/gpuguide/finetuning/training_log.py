"""The log of a run: one CSV row a step with loss, learning rate, gradient norm, speed, MFU and memory.

MFU (model FLOP utilisation) is the rate of the operations that the step needs, divided by the measured ceiling of
matmuls on this GPU (:mod:`gpuguide.measure.measured_ceilings`). A GPU without a measured ceiling has no MFU.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median

from torch import nn

from gpuguide import files
from gpuguide.errors import GpuguideError
from gpuguide.hardware import datasheet
from gpuguide.hardware.datasheet_ceilings import Ceiling
from gpuguide.hardware.device import Device
from gpuguide.lora import AdaptedLayer, cost
from gpuguide.measure import measured_ceilings
from gpuguide.models import gpt2, llama
from gpuguide.training import StepMetrics, world_size

LOG = "log.csv"
"""Name of the file in the output folder"""


@dataclass(frozen=True)
class LogRow:
    """Row of the log. A cell is ``None``, and empty in the file, where there is no value."""

    step: int
    """Number of the step, from 1; the row of step 0 has the held-out loss before training and nothing else"""
    loss: float | None = None
    """Mean loss of the step's batch, in nats per token that counts"""
    eval_loss: float | None = None
    """Held-out loss after the step, if it was evaluated"""
    learning_rate: float | None = None
    grad_norm: float | None = None
    """Norm of all gradients together, before clipping"""
    tokens: int | None = None
    """Number of tokens that all processes read in the step, without padding"""
    step_seconds: float | None = None
    """Duration of the step, without evaluation"""
    tokens_per_second: float | None = None
    """Tokens of the step divided by its duration"""
    mfu: float | None = None
    """Share of the measured matmul ceiling, between 0 and 1"""
    peak_memory_bytes: int | None = None
    """Largest number of bytes that PyTorch had allocated on the GPU since training began"""


COLUMNS = {field.name: int if "int" in str(field.type) else float for field in fields(LogRow)}
"""Columns of the file, and the types of their values"""


class TrainingLog:
    """Writes the rows of a run to a file, and reads those of the steps before it was stopped.

    Parameters
    ----------
    path : Path
        File of the log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[LogRow] = read_log(path) if path.exists() else []

    def resume(self, step: int) -> None:
        """Keep the rows of earlier steps than ``step``, with which the run starts or resumes, and drop all others.

        Raises
        ------
        GpuguideError
            If the file cannot be written.
        """
        self.rows = [row for row in self.rows if row.step < step] if step > 1 else []
        files.write_text(self.path, _csv(self.rows, header=True))

    def append(self, row: LogRow) -> None:
        """Append a row to the file. Errors as in :meth:`resume`."""
        self.rows.append(row)
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(_csv([row]))
        except OSError as error:
            raise GpuguideError(f"{self.path} cannot be written ({error.strerror}).") from error


def read_log(path: Path) -> list[LogRow]:
    """Return the rows of a log; a last row that was cut off by a kill is dropped."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values() and set(row) == set(COLUMNS)]
    return [
        LogRow(**{name: kind(row[name]) if row[name] else None for name, kind in COLUMNS.items()})  # type: ignore[arg-type]
        for row in rows
    ]


@dataclass(frozen=True)
class SpeedSummary:
    """Medians over the steps of a run."""

    step_seconds: float
    tokens_per_second: float
    mfu: float | None
    """Share of the measured matmul ceiling; ``None`` if no ceiling of the GPU is on record"""


def summarize_speed(rows: Sequence[LogRow]) -> SpeedSummary | None:
    """Return the median speed of the steps; ``None`` before the first one."""
    seconds = [row.step_seconds for row in rows if row.step_seconds is not None]
    rates = [row.tokens_per_second for row in rows if row.tokens_per_second is not None]
    utilisations = [row.mfu for row in rows if row.mfu is not None]
    if not seconds:
        return None
    return SpeedSummary(median(seconds), median(rates), median(utilisations) if utilisations else None)


def _csv(rows: Sequence[LogRow], *, header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(COLUMNS)
    writer.writerows([getattr(row, name) for name in COLUMNS] for row in rows)
    return text.getvalue()


class Speedometer:
    """Computes the speed of steps: tokens per second, and MFU where the GPU has a measured ceiling.

    Parameters
    ----------
    model : GPT2 or Llama
        Model with its adapters.
    device : Device
        Device of this process.
    precision : str
        Format of the matmuls, ``"fp32"`` or ``"bf16"``.
    """

    def __init__(self, model: gpt2.GPT2 | llama.Llama, device: Device, precision: str) -> None:
        self.model, self.ceiling = model, find_measured_ceiling(device, precision)
        self._linear_flops = linear_flops_per_token(model)

    def flops(self, lengths: Sequence[int]) -> int:
        """Return the operations of a step: matmuls of layers, and causal attention, forward and backward."""
        config = self.model.config
        width = config.heads * config.head_dim
        attention = config.layers * sum(cost.attention_operations(length, width) for length in lengths)
        return sum(lengths) * self._linear_flops + attention

    def row(self, metrics: StepMetrics, eval_loss: float | None, peak_memory: int | None) -> LogRow:
        """Return the row of a step."""
        mfu = None
        if self.ceiling is not None:
            mfu = self.flops(metrics.lengths) / (metrics.seconds * self.ceiling.value * world_size())
        return LogRow(
            metrics.step,
            metrics.loss,
            eval_loss,
            metrics.learning_rate,
            metrics.grad_norm,
            metrics.tokens,
            metrics.seconds,
            metrics.tokens / metrics.seconds,
            mfu,
            peak_memory,
        )


def find_measured_ceiling(device: Device, precision: str) -> Ceiling | None:
    """Return the measured rate of matmuls of a GPU in a format; ``None`` if no measurement is on record."""
    gpu = datasheet.find(device.name) if device.is_gpu else None
    if gpu is None:
        return None
    ceiling = measured_ceilings.load(gpu.id).arithmetic.get(precision)
    return ceiling if ceiling is not None and ceiling.origin == "measured" else None


def linear_flops_per_token(model: nn.Module) -> int:
    """Return the operations per token of all linear layers with their adapters, forward and backward.

    Frozen weights get no gradient, so a frozen layer takes two matmuls a step instead of three.
    """
    adapted = {name: layer for name, layer in model.named_modules() if isinstance(layer, AdaptedLayer)}
    plain = [
        layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name.rpartition(".")[0] not in adapted
    ]
    operations = 0
    for linear in plain:
        count = cost.full_operations if linear.weight.requires_grad else cost.base_operations
        operations += count(linear.in_features, linear.out_features)
    for layer in adapted.values():
        rank = layer.adapter(layer.active).settings.rank if layer.active else 1
        operations += cost.lora_operations(layer.in_features, layer.out_features, rank)
    return operations

"""The record of a run, the recorder that makes it, and the callback that receives it with every progress event."""

from __future__ import annotations

import enum
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch

from gpuguide import lora
from gpuguide.finetuning.data.splits import DatasetSplits
from gpuguide.finetuning.examples import SampleGeneration
from gpuguide.finetuning.settings import FinetuneOptions, RunSetup
from gpuguide.finetuning.training_log import LOG, LogRow, Speedometer, TrainingLog
from gpuguide.hardware.datasheet_ceilings import Ceiling
from gpuguide.hardware.device import Device
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.training import TrainingConfig, TrainingProgress, TrainingResult, rank


class RunStage(enum.Enum):
    """Stage of a run."""

    LOAD_DATA = "load the data"
    TOKENIZE = "tokenise"
    PLAN = "plan"
    LOAD_MODEL = "load the model"
    GENERATE = "generate before training"
    TRAIN = "train"
    EXPORT = "export"

    @property
    def number(self) -> int:
        """Number of the stage, from 1."""
        return list(RunStage).index(self) + 1


class Setup(Protocol):
    """What is settled before any run begins: of a fine-tuning, :class:`RunSetup`."""

    @property
    def out(self) -> Path:
        """Output folder."""

    @property
    def device(self) -> Device:
        """Device of this process."""

    @property
    def began(self) -> float:
        """Time at which the run began, in seconds since the epoch."""

    @property
    def training(self) -> TrainingConfig:
        """Settings of the training."""

    @property
    def predicted_memory(self) -> float | None:
        """Predicted peak memory of a step in bytes; ``None`` on a CPU."""


@dataclass(frozen=True)
class RunProgress:
    """Results of any run so far: losses, the log, and when it will be over."""

    setup: Setup
    parameters: lora.Count
    ceiling: Ceiling | None
    """Measured matmul ceiling of the GPU, the base of the MFU; ``None`` if none is on record"""
    log: tuple[LogRow, ...] = ()
    losses: tuple[float, ...] = ()
    """Losses of the steps"""
    eval_losses: tuple[tuple[int, float], ...] = ()
    """Steps and held-out losses, the first one before any step"""
    seconds_left: float | None = None
    """Estimated time until the last step; ``None`` before two steps were timed"""
    stopped_early: bool = False
    interrupted_at: float | None = None
    """Time at which the run was interrupted, if it was"""
    finished_at: float | None = None
    """Time at which the results were complete"""

    @property
    def end_time(self) -> float | None:
        """Time at which the run finished or was interrupted; ``None`` while it goes on."""
        return self.finished_at or self.interrupted_at

    @property
    def best(self) -> tuple[int, float]:
        """Step of the lowest held-out loss, and that loss."""
        return min(self.eval_losses, key=lambda row: row[1])

    @property
    def peak_memory(self) -> int | None:
        """Largest number of bytes that PyTorch had allocated on the GPU; ``None`` on a CPU."""
        return max((row.peak_memory_bytes for row in self.log if row.peak_memory_bytes), default=None)


@dataclass(frozen=True, kw_only=True)
class RunRecord(RunProgress):
    """Results of a fine-tuning so far. Every event carries a new record; the last one is complete."""

    setup: RunSetup
    generations: tuple[SampleGeneration, ...]
    merged_loss: float | None = None
    """Held-out loss of the merged checkpoint as it was written"""


Record = TypeVar("Record", bound=RunProgress)


class RunRecorder(Generic[Record]):
    """Turns the progress of the training loop into records, and writes the log on rank 0.

    Parameters
    ----------
    record : RunProgress
        Record of the run before its first step.
    speedometer : Speedometer
        Measures the steps.
    """

    def __init__(self, record: Record, speedometer: Speedometer) -> None:
        self.record, self.speedometer = record, speedometer
        self.log = TrainingLog(record.setup.out / LOG)
        self._first: tuple[int, float] | None = None

    def add_step(self, progress: TrainingProgress) -> None:
        """Add a step to the record and to the log."""
        metrics, setup = progress.metrics, self.record.setup
        row = self.speedometer.row(metrics, progress.eval_loss, _peak_memory(setup.device))
        if self._first is None:
            self._first = metrics.step, time.monotonic()
            if rank() == 0:
                self.log.resume(metrics.step)
                if metrics.step == 1:
                    self.log.append(LogRow(0, eval_loss=progress.eval_losses[0][1]))
        if rank() == 0:
            self.log.append(row)
        step, began = self._first
        per_step = (time.monotonic() - began) / (metrics.step - step) if metrics.step > step else None
        self.record = replace(
            self.record,
            log=tuple(self.log.rows),
            losses=tuple(progress.losses),
            eval_losses=tuple(progress.eval_losses),
            seconds_left=None if per_step is None else per_step * (setup.training.steps - metrics.step),
        )

    def add_result(self, result: TrainingResult) -> Record:
        """Return the record after the last step."""
        return replace(
            self.record,
            log=tuple(self.log.rows),
            losses=result.losses,
            eval_losses=result.eval_losses,
            stopped_early=result.stopped_early,
            seconds_left=None,
        )

    def interrupt(self) -> Record:
        """Return the record of a run that is interrupted now."""
        return replace(self.record, interrupted_at=time.time())


def start_recorder(
    setup: RunSetup, model: GPT2 | Llama, generations: tuple[SampleGeneration, ...]
) -> RunRecorder[RunRecord]:
    """Return the recorder of a fine-tuning, with the texts that its model generated before."""
    speedometer = Speedometer(model, setup.device, setup.training.precision)
    record = RunRecord(
        setup=setup, parameters=lora.count_parameters(model), ceiling=speedometer.ceiling, generations=generations
    )
    return RunRecorder(record, speedometer)


def _peak_memory(device: Device) -> int | None:
    return torch.cuda.max_memory_allocated(device.torch_device) if device.backend == "cuda" else None


def summarize(record: RunRecord) -> dict[str, object]:
    """Return the content of ``finetune.json`` for a finished run."""
    setup = record.setup
    options = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(setup.options).items()}
    return {
        "options": options,
        "training": asdict(setup.training),
        "layers": setup.layers,
        "trained_parameters": record.parameters.trained,
        "device": setup.device.name,
        "peak_memory": record.peak_memory,
        "losses": record.losses,
        "eval_losses": record.eval_losses,
        "best": record.best,
        "merged_loss": record.merged_loss,
        "stopped_early": record.stopped_early,
    }


class ProgressCallback(Generic[Record]):
    """Receives progress events of any run. The base class ignores them."""

    def on_note(self, text: str) -> None:
        """Handle a note for the user."""

    def on_train_begin(self, record: Record) -> None:
        """Handle the beginning of the training loop."""

    def on_step(self, record: Record) -> None:
        """Handle a training step; its metrics are the last row of the log."""

    def on_evaluation(self, record: Record) -> None:
        """Handle a held-out loss."""

    def on_interrupt(self, record: Record) -> None:
        """Handle an interruption or a failure after training has begun."""

    def on_end(self, record: Record) -> None:
        """Handle the end of a finished run."""


class Callback(ProgressCallback[RunRecord]):
    """Receives progress events of a fine-tuning. The base class ignores them."""

    def on_stage(self, stage: RunStage, options: FinetuneOptions, device: Device) -> None:
        """Handle the beginning of a stage."""

    def confirm_data(self, splits: DatasetSplits) -> bool:
        """Return whether to train on these data."""
        return True

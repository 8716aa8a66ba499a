"""The record of a run, and the callback that receives it with every progress event."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from gpuguide import lora
from gpuguide.finetuning.data.splits import DatasetSplits
from gpuguide.finetuning.examples import SampleGeneration
from gpuguide.finetuning.settings import FinetuneOptions
from gpuguide.finetuning.training_log import LogRow
from gpuguide.hardware.datasheet_ceilings import Ceiling
from gpuguide.hardware.device import Device
from gpuguide.models.tokenizer import Tokenizer
from gpuguide.training import TrainingConfig


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


@dataclass(frozen=True)
class RunSetup:
    """Everything that is settled before the model is loaded."""

    options: FinetuneOptions
    device: Device
    began: float
    """Time at which the run began, in seconds since the epoch"""
    checkpoint: Path
    """Folder of the base model"""
    tokenizer: Tokenizer
    splits: DatasetSplits
    layers: tuple[str, ...]
    """Names of the layers that get adapters"""
    training: TrainingConfig
    predicted_memory: float | None
    """Predicted peak memory of a step in bytes; ``None`` on a CPU"""


@dataclass(frozen=True)
class RunRecord:
    """Results of a run so far. Every event carries a new record; the last one is complete."""

    setup: RunSetup
    parameters: lora.Count
    ceiling: Ceiling | None
    """Measured matmul ceiling of the GPU, the base of the MFU; ``None`` if none is on record"""
    generations: tuple[SampleGeneration, ...]
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
    merged_loss: float | None = None
    """Held-out loss of the merged checkpoint as it was written"""

    @property
    def ended_at(self) -> float | None:
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


class Callback:
    """Receives progress events of a run. The base class ignores them."""

    def on_stage(self, stage: RunStage, options: FinetuneOptions, device: Device) -> None:
        """Handle the beginning of a stage."""

    def on_note(self, text: str) -> None:
        """Handle a note for the user."""

    def confirm_data(self, splits: DatasetSplits) -> bool:
        """Return whether to train on these data."""
        return True

    def on_train_begin(self, record: RunRecord) -> None:
        """Handle the beginning of the training loop."""

    def on_step(self, record: RunRecord) -> None:
        """Handle a training step; its metrics are the last row of the log."""

    def on_evaluation(self, record: RunRecord) -> None:
        """Handle a held-out loss."""

    def on_interrupt(self, record: RunRecord) -> None:
        """Handle an interruption or a failure after training has begun."""

    def on_end(self, record: RunRecord) -> None:
        """Handle the end of a finished run."""

"""Training: a loop that evaluates, saves its state, resumes where it stopped, and runs data-parallel.

* :mod:`~gpuguide.training.step`: a whole step as one call, compiled and captured; :mod:`~gpuguide.training.loss`: the
  loss without all logits.
* :mod:`~gpuguide.training.config`: the settings of a run, the metrics of a step, and the result.
* :mod:`~gpuguide.training.batches`: the sequences of a step, and which of their tokens count for the loss.
* :mod:`~gpuguide.training.loop`: the loop; :mod:`~gpuguide.training.checkpointing`: the state from which it resumes.
* :mod:`~gpuguide.training.distributed`: the collectives of a data-parallel run.
"""

from gpuguide.training.checkpointing import STATE, remove_state
from gpuguide.training.config import StepMetrics, TrainingConfig, TrainingProgress, TrainingResult
from gpuguide.training.distributed import rank, world_size
from gpuguide.training.loop import evaluate_loss, finetune
from gpuguide.training.loss import WithoutHead
from gpuguide.training.step import StepSettings, TrainingStep

__all__ = [
    "STATE",
    "StepMetrics",
    "StepSettings",
    "TrainingConfig",
    "TrainingProgress",
    "TrainingResult",
    "TrainingStep",
    "WithoutHead",
    "evaluate_loss",
    "finetune",
    "rank",
    "remove_state",
    "world_size",
]

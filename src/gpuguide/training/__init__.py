"""Training: a step as fast as it can be, and a loop that evaluates, saves, resumes, and runs data-parallel.

* :mod:`~gpuguide.training.step`: a whole step as one call, compiled and captured; :mod:`~gpuguide.training.loss`: the
  loss without all logits; :mod:`~gpuguide.training.rungs`: what makes a step fast, each part a switch;
  :mod:`~gpuguide.training.cost`: what it costs by part.
* :mod:`~gpuguide.training.tokens`: a text on disk, and its windows by seed and step; :mod:`~gpuguide.training.feeding`:
  batches on time; :mod:`~gpuguide.training.data_parallel`: replicas and shards.
* :mod:`~gpuguide.training.config`: the settings of a run, the metrics of a step, and the result.
* :mod:`~gpuguide.training.batches`: the sequences of a step, and which of their tokens count for the loss.
* :mod:`~gpuguide.training.loop`: the loop; :mod:`~gpuguide.training.checkpointing`: the state from which it resumes.
* :mod:`~gpuguide.training.schedules`: learning rates by step; :mod:`~gpuguide.training.accumulation`: the micro-batches
  of an optimizer step; :mod:`~gpuguide.training.noise`: the noise of gradients, and the spread over seeds;
  :mod:`~gpuguide.training.repeat`: whether a step gives the same bits twice.
* :mod:`~gpuguide.training.distributed`: the collectives of a data-parallel run.
"""

from gpuguide.training.checkpointing import STATE, remove_state
from gpuguide.training.config import StepMetrics, TrainingConfig, TrainingProgress, TrainingResult
from gpuguide.training.data_parallel import LossModule, replicate, shard, synchronise_last
from gpuguide.training.distributed import rank, world_size
from gpuguide.training.feeding import PinnedFeeder, ResidentFeeder
from gpuguide.training.loop import evaluate_loss, finetune, run_steps
from gpuguide.training.loss import WithoutHead
from gpuguide.training.rungs import RUNGS, make_step
from gpuguide.training.step import StepSettings, TrainingStep
from gpuguide.training.tokens import Windows, open_tokens, write_tokens

__all__ = [
    "RUNGS",
    "STATE",
    "LossModule",
    "PinnedFeeder",
    "ResidentFeeder",
    "StepMetrics",
    "StepSettings",
    "TrainingConfig",
    "TrainingProgress",
    "TrainingResult",
    "TrainingStep",
    "Windows",
    "WithoutHead",
    "evaluate_loss",
    "finetune",
    "make_step",
    "open_tokens",
    "rank",
    "remove_state",
    "replicate",
    "run_steps",
    "shard",
    "synchronise_last",
    "world_size",
    "write_tokens",
]

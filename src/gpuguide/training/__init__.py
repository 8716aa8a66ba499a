"""Fine-tuning that can be watched, stopped and gone on with.

* :mod:`~gpuguide.training.config`: what decides a run, where one is, what came of it.
* :mod:`~gpuguide.training.batches`: which sequences a step takes, and which of their tokens count.
* :mod:`~gpuguide.training.loop`: the loop; :mod:`~gpuguide.training.checkpointing`: from where it goes on.
* :mod:`~gpuguide.training.distributed`: what the processes of a data-parallel run tell one another.
"""

from gpuguide.training.config import Plan, Progress, Result
from gpuguide.training.distributed import processes, rank
from gpuguide.training.loop import STATE, finetune, held_out_loss

__all__ = ["STATE", "Plan", "Progress", "Result", "finetune", "held_out_loss", "processes", "rank"]

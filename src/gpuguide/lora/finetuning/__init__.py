"""Fine-tuning that can be watched, stopped and gone on with.

* :mod:`~gpuguide.lora.finetuning.plan`: what decides a run, where one is, what came of it.
* :mod:`~gpuguide.lora.finetuning.sequences`: which sequences a step takes, and which of their tokens count.
* :mod:`~gpuguide.lora.finetuning.run`: the loop; :mod:`~gpuguide.lora.finetuning.state`: from where it goes on.
* :mod:`~gpuguide.lora.finetuning.processes`: what the processes of a data-parallel run tell one another.
"""

from gpuguide.lora.finetuning.plan import Plan, Progress, Result
from gpuguide.lora.finetuning.processes import processes, rank
from gpuguide.lora.finetuning.run import STATE, finetune, held_out_loss

__all__ = ["STATE", "Plan", "Progress", "Result", "finetune", "held_out_loss", "processes", "rank"]

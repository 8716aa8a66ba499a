"""The recipe of ``gpuguide train``: from texts to a model in the shape of GPT-2, as fast as the library can.

From a text to a checkpoint the code reads in this order:

1. ``cli/train.py`` takes the options, and :mod:`~gpuguide.pretraining.recipe` has the stages: prepare, train, export.
2. Prepare: :mod:`~gpuguide.pretraining.texts` tokenises once into the file of :mod:`gpuguide.training.tokens`, and
   :mod:`~gpuguide.pretraining.settings` plans: batch, steps, learning rate, and the largest micro-batch that fits.
   :mod:`~gpuguide.pretraining.expectation` says what time and memory to expect.
3. Train: :mod:`~gpuguide.pretraining.run` feeds windows (:mod:`gpuguide.training.feeding`) to the step
   (:mod:`gpuguide.training.step`) with the rungs of :mod:`gpuguide.training.rungs`, in the loop that fine-tuning has
   as well (:func:`gpuguide.training.run_steps`).
4. Export: :mod:`gpuguide.models.gpt2_checkpoint` writes the model. Log, record and report are those of
   :mod:`gpuguide.finetuning`.
"""

from gpuguide.pretraining.recipe import PretrainCallback, PretrainRecord, PretrainStage, export, prepare, train
from gpuguide.pretraining.report import write_report
from gpuguide.pretraining.settings import PretrainOptions, PretrainSetup

__all__ = [  # noqa: RUF022 - the order of the API reference
    "PretrainOptions",
    "prepare",
    "PretrainSetup",
    "train",
    "PretrainRecord",
    "export",
    "PretrainCallback",
    "PretrainStage",
    "write_report",
]

"""The recipe of ``gpuguide finetune``: from a model and a data file to an adapter, a merged checkpoint and a report.

From a text to an adapter the code reads in this order:

1. ``cli/finetune.py`` takes the options, and :mod:`~gpuguide.finetuning.recipe` has the stages: prepare,
   train, export.
2. Prepare: :mod:`~gpuguide.finetuning.data.files` loads, :mod:`~gpuguide.finetuning.data.splits` tokenises and holds
   some of the data out, and :mod:`~gpuguide.finetuning.settings` plans.
3. Train: :mod:`gpuguide.models.checkpoint` reads the model, :mod:`gpuguide.lora.layer` adds adapters,
   :mod:`gpuguide.training.loop` runs over the batches of :mod:`gpuguide.training.batches` with the step of
   :mod:`gpuguide.precision.training_step` and the loss of :mod:`gpuguide.training.loss`.
4. Export: :mod:`gpuguide.lora.files` writes the adapter.

The other modules are not on this path:

* :mod:`~gpuguide.finetuning.data.conversation`: conversations, by the chat template of the checkpoint.
* :mod:`~gpuguide.finetuning.memory_check`: whether a run fits the GPU.
* :mod:`~gpuguide.finetuning.run_record`: the record of a run, and callbacks; :mod:`~gpuguide.finetuning.training_log`:
  a row per step with speed, MFU and memory.
* :mod:`~gpuguide.finetuning.examples`: texts generated before and after.
* :mod:`~gpuguide.finetuning.curve`, :mod:`~gpuguide.finetuning.report`: one HTML file that shows the run.
* :mod:`~gpuguide.finetuning.return_types`, :mod:`~gpuguide.finetuning.comparison`: a task to fine-tune on, and methods
  of fine-tuning compared on it.
"""

from gpuguide.finetuning.data.files import DataFile, Message, Sample, load_data
from gpuguide.finetuning.data.splits import DataConfig, DatasetSplits, TokenizedExample, tokenize
from gpuguide.finetuning.recipe import Declined, TrainedModel, export, prepare, run, train
from gpuguide.finetuning.report import html, write_report
from gpuguide.finetuning.run_record import Callback, ProgressCallback, RunProgress, RunRecord, RunStage
from gpuguide.finetuning.settings import FinetuneOptions, RunSetup
from gpuguide.finetuning.training_log import LogRow, read_log

__all__ = [  # noqa: RUF022 - the order of the API reference
    "run",
    "FinetuneOptions",
    "prepare",
    "RunSetup",
    "train",
    "TrainedModel",
    "export",
    "RunProgress",
    "RunRecord",
    "LogRow",
    "read_log",
    "ProgressCallback",
    "Callback",
    "RunStage",
    "Declined",
    "load_data",
    "DataFile",
    "Sample",
    "Message",
    "tokenize",
    "DataConfig",
    "DatasetSplits",
    "TokenizedExample",
    "html",
    "write_report",
]

"""The recipe of ``gpuguide finetune``: from a model and a data file to an adapter, a merged checkpoint and a report.

* :mod:`~gpuguide.finetuning.data`: from a file to tokenised examples, some of them held out.
* :mod:`~gpuguide.finetuning.settings`: the options of a run; :mod:`~gpuguide.finetuning.memory_check`: whether it fits
  the GPU.
* :mod:`~gpuguide.finetuning.recipe`: prepare, train, export; :mod:`gpuguide.training` has the loop.
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
from gpuguide.finetuning.run_record import Callback, RunRecord, RunStage
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
    "RunRecord",
    "LogRow",
    "read_log",
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

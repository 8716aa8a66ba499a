"""The recipe of ``gpuguide finetune``: a model and a file with data in, an adapter and a report out.

* :mod:`~gpuguide.finetuning.reading`, :mod:`~gpuguide.finetuning.conversation`,
  :mod:`~gpuguide.finetuning.preparing`: from a file to sequences of tokens, some of them held out.
* :mod:`~gpuguide.finetuning.settings`: what is asked for, and what it comes to; :mod:`~gpuguide.finetuning.fitting`:
  whether it fits the GPU.
* :mod:`~gpuguide.finetuning.recipe`: the stages, one after another; :mod:`gpuguide.lora` trains.
* :mod:`~gpuguide.finetuning.examples`, :mod:`~gpuguide.finetuning.saving`: samples before and after, and how files are
  written.
* :mod:`~gpuguide.finetuning.return_types`, :mod:`~gpuguide.finetuning.comparison`: a task to fine-tune on, and ways of
  fine-tuning side by side on it.
* :mod:`~gpuguide.finetuning.curve`, :mod:`~gpuguide.finetuning.report`: one HTML file that shows it.
"""

from gpuguide.finetuning.preparing import Limits, Piece, Prepared, prepare
from gpuguide.finetuning.reading import Message, Sample, Source, read
from gpuguide.finetuning.recipe import Declined, Listener, Story, run
from gpuguide.finetuning.report import html, write_report
from gpuguide.finetuning.settings import Request

__all__ = [  # noqa: RUF022 - the order of the API reference
    "run",
    "Request",
    "Story",
    "Listener",
    "Declined",
    "read",
    "Source",
    "Sample",
    "Message",
    "prepare",
    "Limits",
    "Prepared",
    "Piece",
    "html",
    "write_report",
]

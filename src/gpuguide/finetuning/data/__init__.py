"""Data to fine-tune on: from a file to tokenised examples, some of them held out.

* :mod:`~gpuguide.finetuning.data.files`: texts, JSON Lines and Parquet; :mod:`~gpuguide.finetuning.data.format_hints`:
  hints for files that cannot be read.
* :mod:`~gpuguide.finetuning.data.chat_templates`, :mod:`~gpuguide.finetuning.data.conversation`: conversations as token
  ids, and the loss mask of their answers.
* :mod:`~gpuguide.finetuning.data.splits`: the training and the held-out split.
"""

"""A task to fine-tune on: which type does a function return?

* :mod:`~gpuguide.finetuning.return_types.data`: the functions, as text and as tokens, and how answers are scored.
* :mod:`~gpuguide.finetuning.return_types.making`: how they were taken from this project's source.
"""

from gpuguide.finetuning.return_types.data import (
    KINDS,
    LENGTH,
    Encoded,
    Function,
    Score,
    answers,
    asked,
    encode,
    functions,
    held_out,
    score,
    training,
    validation,
)

__all__ = [  # noqa: RUF022 - the order of the API reference
    "training",
    "validation",
    "held_out",
    "functions",
    "Function",
    "KINDS",
    "encode",
    "Encoded",
    "asked",
    "answers",
    "LENGTH",
    "score",
    "Score",
]

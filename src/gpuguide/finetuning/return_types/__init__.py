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
    encode,
    encode_question,
    functions,
    load_held_out,
    score,
    training,
    validation,
)

__all__ = [  # noqa: RUF022 - the order of the API reference
    "training",
    "validation",
    "load_held_out",
    "functions",
    "Function",
    "KINDS",
    "encode",
    "Encoded",
    "encode_question",
    "answers",
    "LENGTH",
    "score",
    "Score",
]

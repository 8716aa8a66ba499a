"""The task: which type does a function return? Functions of this project, without what says so.

Somebody wrote the annotation, and a type checker agreed, so there is a right answer. Its name and code remain of a
function: annotations, decorators and the docstring are gone, and so is the layout. A function that is held out stands
in a file of which no function is trained on.

The functions were taken from this project's source once, and lie beside this module: the source changes, a task that
measurements rest on must not. To predict types is a task with tools and papers of its own.

References
----------
M. Allamanis et al., "Typilus: Neural Type Hints", 2020, https://arxiv.org/abs/2004.10657
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch.nn import functional

from gpuguide.cross_entropy.reference import IGNORE_INDEX
from gpuguide.errors import GpuguideError
from gpuguide.models.tokenizer import Tokenizer

FILE = Path(__file__).parent / "functions.jsonl.xz"
KINDS = ("None", "Tensor", "bool", "dict", "float", "int", "list", "str", "tuple")
"""The answers. What is in a list and so on does not count."""
QUESTION = "\n# returns"
"""Text after a function; the next token is the answer"""
LENGTH = 128
"""Tokens of a function at most, with what comes before and after it"""
HELD_OUT_SHARE, VALIDATION_SHARE = 0.28, 0.09
"""Shares of the files"""
Part = Literal["training", "validation", "held-out"]


@dataclass(frozen=True)
class Function:
    """A function without annotations, and what it returns."""

    file: str
    text: str
    returns: str
    """One of :data:`KINDS`"""

    @property
    def part(self) -> Part:
        """Split that the function belongs to. The file's name decides."""
        drawn = int.from_bytes(hashlib.sha256(self.file.encode()).digest()[:4], "big") / 2**32
        if drawn < HELD_OUT_SHARE:
            return "held-out"
        return "validation" if drawn < HELD_OUT_SHARE + VALIDATION_SHARE else "training"


@cache
def functions() -> tuple[Function, ...]:
    """Return all functions, in an order that was drawn once."""
    lines = lzma.decompress(FILE.read_bytes()).decode().splitlines()
    return tuple(Function(**json.loads(line)) for line in lines)


def training(count: int | None = None) -> tuple[Function, ...]:
    """Return the functions to train on, or the first ``count`` of them.

    Raises
    ------
    GpuguideError
        If there are not so many.
    """
    found = _load_part("training")
    if count is not None and not 1 <= count <= len(found):
        raise GpuguideError(f"There are {len(found)} functions to train on, and {count} are asked for.")
    return found[:count]


def validation() -> tuple[Function, ...]:
    """Return the functions to choose settings by."""
    return _load_part("validation")


def load_held_out() -> tuple[Function, ...]:
    """Return the functions that results are measured with."""
    return _load_part("held-out")


def _load_part(part: Part) -> tuple[Function, ...]:
    return tuple(each for each in functions() if each.part == part)


def encode_question(function: Function, tokenizer: Tokenizer) -> list[int]:
    """Return what a model reads: an end of text, the function, and the question."""
    return [tokenizer.end_of_text, *tokenizer.encode(function.text + QUESTION)]


def answers(tokenizer: Tokenizer) -> list[int]:
    """Return the token by which each of :data:`KINDS` is answered: the first of its name after a space."""
    return [tokenizer.encode(f" {kind}")[0] for kind in KINDS]


@dataclass(frozen=True)
class Encoded:
    """Functions as tokens, padded on the right with ends of text, which causal attention does not see.

    Parameters
    ----------
    tokens : torch.Tensor
        ``(functions, length)``, int64.
    last : torch.Tensor
        ``(functions,)``, int64: where the question ends, so that the logits there are those of the answer.
    kinds : torch.Tensor
        ``(functions,)``, int64: places in :data:`KINDS`.
    answers : torch.Tensor
        ``(kinds,)``, int64: the token for each.
    """

    tokens: torch.Tensor
    last: torch.Tensor
    kinds: torch.Tensor
    answers: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device | str) -> Encoded:
        """Return the same on another device."""
        return Encoded(*(each.to(device) for each in (self.tokens, self.last, self.kinds, self.answers)))

    def select(self, places: torch.Tensor) -> Encoded:
        """Return some of the functions."""
        return Encoded(self.tokens[places], self.last[places], self.kinds[places], self.answers)

    @property
    def targets(self) -> torch.Tensor:
        """``(functions, length)``, int64: the answer where the question ends, and -100, which does not count, else."""
        targets = torch.full_like(self.tokens, IGNORE_INDEX)
        targets[torch.arange(len(self), device=targets.device), self.last] = self.answers[self.kinds]
        return targets


def encode(chosen: Sequence[Function], tokenizer: Tokenizer, length: int = LENGTH) -> Encoded:
    """Turn functions into tokens.

    Raises
    ------
    GpuguideError
        If there is none, or one is longer than ``length``.
    """
    if not chosen:
        raise GpuguideError("No functions are given.")
    rows = [encode_question(each, tokenizer) for each in chosen]
    longest = max(map(len, rows))
    if longest > length:
        raise GpuguideError(f"A function has {longest} tokens with its question, and {length} are taken.")
    tokens = torch.full((len(rows), length), tokenizer.end_of_text)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.tensor(row)
    last = torch.tensor([len(row) - 1 for row in rows])
    kinds = torch.tensor([KINDS.index(each.returns) for each in chosen])
    return Encoded(tokens, last, kinds, torch.tensor(answers(tokenizer)))


@dataclass(frozen=True)
class Score:
    """Score of the answers for some functions."""

    accuracy: float
    """Share of the functions whose answer is the likeliest of the nine"""
    loss: float
    """Mean of the surprises at the right answers, in nats, where any token may come"""


def score(logits: torch.Tensor, encoded: Encoded) -> Score:
    """Return how well logits answer.

    Parameters
    ----------
    logits : torch.Tensor
        ``(functions, vocab_size)``: those at the end of each question.
    encoded : Encoded
        The functions.

    Raises
    ------
    ValueError
        If there are not as many rows as functions.
    """
    if logits.ndim != 2 or len(logits) != len(encoded):
        raise ValueError(f"Logits of {len(encoded)} functions are needed; given {tuple(logits.shape)}.")
    wide = logits.float()
    right = wide[:, encoded.answers].argmax(1) == encoded.kinds
    loss = functional.cross_entropy(wide, encoded.answers[encoded.kinds])
    return Score(float(right.float().mean()), float(loss))

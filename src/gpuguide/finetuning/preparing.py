"""From what a file holds to what is trained on and what is held out, each as tokens.

A text is cut into pieces of one length, the last of which are held out. Of samples, some are drawn to be held out. What
is there twice is used once, so that nothing that is held out is trained on as well; how much that was is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from gpuguide.errors import GpuguideError, unknown
from gpuguide.finetuning.conversation import Conversations
from gpuguide.finetuning.reading import Sample, Source
from gpuguide.models.tokenizer import Tokenizer

TOO_LONG = ("stop", "cut", "split", "skip")
"""What to do with a sample that is longer than a sequence may be"""
SHORTEST, FEWEST = 8, 20
"""A short text is cut into so many pieces, of at least so many tokens"""
PROMPT = 32
"""Tokens of a text at most that a model is asked to continue"""


@dataclass(frozen=True)
class Piece:
    """A sequence to train on or to measure with."""

    place: str
    text: str
    tokens: torch.Tensor
    """``(seq,)``, int64"""
    prompt: int
    """How many tokens of it a model is given where it is asked to go on"""


@dataclass(frozen=True)
class Prepared:
    """What is trained on, what is held out, and what was done to the data."""

    training: tuple[Piece, ...]
    held_out: tuple[Piece, ...]
    duplicates: int
    """Left out, because the same was there before, but for case and spaces"""
    leaking: int
    """Left out of what is trained on, because it is held out"""
    too_long: int
    """Cut, split or left out, because they were longer than a sequence may be"""
    notes: tuple[str, ...]
    """All this in sentences"""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(len(each.tokens) for each in (*self.training, *self.held_out))


@dataclass(frozen=True)
class Limits:
    """How data are cut and divided.

    Parameters
    ----------
    length : int
        Tokens of a sequence at most.
    too_long : str
        One of :data:`TOO_LONG`.
    share : float
        Of the data that is held out.
    seed : int
        Of the draw.
    """

    length: int
    too_long: str = "stop"
    share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.too_long not in TOO_LONG:
            raise unknown("way with long samples", self.too_long, TOO_LONG)
        if self.length < SHORTEST:
            raise GpuguideError(f"length is {self.length}; it must be at least {SHORTEST}.")
        if not 0 < self.share < 1:
            raise GpuguideError(f"The share that is held out is {self.share}; it must lie between 0 and 1.")


def prepare(
    source: Source, apart: Source | None, tokenizer: Tokenizer, conversations: Conversations, limits: Limits
) -> Prepared:
    """Return what is trained on and what is held out.

    Parameters
    ----------
    source, apart : Source
        What to train on, and what to hold out; if that is ``None``, a part of the first.
    tokenizer, conversations
        Those of the model.
    limits : Limits
        How to cut and divide.

    Raises
    ------
    GpuguideError
        If a sample is too long, or too little is left.
    """
    cutter = _Cutter(tokenizer, conversations, limits)
    pieces, duplicates = _once(cutter.pieces(source))
    if apart is None:
        training, held_out = _divided(pieces, limits, drawn=not source.is_one_text)
        leaking = 0
    else:
        held_out, again = _once(cutter.pieces(apart))
        duplicates += again
        training = _without(pieces, held_out)
        leaking = len(pieces) - len(training)
    if not training or not held_out:
        raise GpuguideError(
            f"{source.path} has {_counted(len(pieces), 'sample')} to use; one or more to train on and one or more to "
            "hold out are needed"
            + (f", and {leaking} of these are held out in {apart.path}." if apart and leaking else ".")
        )
    notes = _notes(duplicates, leaking, cutter.too_long, limits, apart)
    return Prepared(tuple(training), tuple(held_out), duplicates, leaking, cutter.too_long, notes)


class _Cutter:
    """Makes pieces of samples, and counts those that were too long."""

    def __init__(self, tokenizer: Tokenizer, conversations: Conversations, limits: Limits) -> None:
        self.tokenizer, self.conversations, self.limits = tokenizer, conversations, limits
        self.too_long = 0

    def pieces(self, source: Source) -> list[Piece]:
        if source.is_one_text:
            return self._of_text(source)
        found: list[Piece] = []
        first = None
        for sample in source.samples:
            tokens, prompt = self._tokens(sample, source)
            if len(tokens) > self.limits.length:
                self.too_long += 1
                first = first or (sample.place, len(tokens))
            found += self._cut(sample, tokens, prompt)
        if first and self.limits.too_long == "stop":
            raise GpuguideError(
                f"{source.path}, {first[0]}: this has {first[1]} tokens, and a sequence may have {self.limits.length}; "
                f"{self.too_long} of {len(source.samples)} are too long. Say what to do with them: --too-long "
                "cut trains on the beginning of each, split on all of its parts, skip leaves them out."
            )
        return found

    def _tokens(self, sample: Sample, source: Source) -> tuple[list[int], int]:
        """Return a sample's tokens, and how many of them are its prompt."""
        if not sample.messages:
            tokens = [*self.tokenizer.prompt(sample.text), self.tokenizer.end_of_text]
            return tokens, _beginning(tokens)
        try:
            tokens = self.conversations.tokens(sample.messages)
            asked = self.conversations.tokens(sample.messages[:-1], answer=True) if len(sample.messages) > 1 else []
        except GpuguideError as error:
            raise GpuguideError(f"{source.path}, {sample.place}: {error}") from error
        return tokens, len(asked) if asked and tokens[: len(asked)] == asked else _beginning(tokens)

    def _cut(self, sample: Sample, tokens: list[int], prompt: int) -> list[Piece]:
        length, way = self.limits.length, self.limits.too_long
        text = sample.text or self.conversations.text(sample.messages)
        if len(tokens) <= length:
            return [Piece(sample.place, text, torch.tensor(tokens), prompt)]
        if way in ("stop", "skip"):
            return []
        parts = [tokens[start : start + length] for start in range(0, len(tokens) if way == "split" else 1, length)]
        return [
            Piece(f"{sample.place}, part {number}", self.tokenizer.decode(part), torch.tensor(part), _beginning(part))
            for number, part in enumerate(parts, 1)
            if len(part) > 1
        ]

    def _of_text(self, source: Source) -> list[Piece]:
        opening = list(self.tokenizer.opening)
        tokens = self.tokenizer.encode(source.samples[0].text)
        length = min(self.limits.length - len(opening), max(SHORTEST, len(tokens) // FEWEST))
        if len(tokens) < 2 * SHORTEST:
            raise GpuguideError(f"{source.path} has {len(tokens)} tokens; {2 * SHORTEST} or more are needed.")
        parts = [tokens[start : start + length] for start in range(0, len(tokens), length)]
        if len(parts[-1]) < SHORTEST:
            parts.pop()
        return [
            Piece(
                f"piece {number}",
                self.tokenizer.decode(part),
                torch.tensor([*opening, *part]),
                _beginning([*opening, *part]),
            )
            for number, part in enumerate(parts, 1)
        ]


def _beginning(tokens: Sequence[int]) -> int:
    return max(1, min(PROMPT, len(tokens) // 2))


def _keys(piece: Piece) -> tuple[object, object]:
    """Return what two pieces have in common that are the same: their words, or their tokens."""
    return " ".join(piece.text.casefold().split()), tuple(piece.tokens.tolist())


def _once(pieces: Iterable[Piece]) -> tuple[list[Piece], int]:
    """Return the pieces without those that came before, and how many these were."""
    seen: set[object] = set()
    kept: list[Piece] = []
    duplicates = 0
    for piece in pieces:
        keys = _keys(piece)
        if seen.isdisjoint(keys):
            kept.append(piece)
        else:
            duplicates += 1
        seen.update(keys)
    return kept, duplicates


def _without(pieces: Iterable[Piece], others: Iterable[Piece]) -> list[Piece]:
    taken = {key for other in others for key in _keys(other)}
    return [piece for piece in pieces if taken.isdisjoint(_keys(piece))]


def _divided(pieces: list[Piece], limits: Limits, *, drawn: bool) -> tuple[list[Piece], list[Piece]]:
    """Hold out some pieces: drawn ones, or the last ones of a text, whose neighbours go on with one another."""
    count = min(max(1, round(limits.share * len(pieces))), max(len(pieces) - 1, 0))
    order = list(range(len(pieces)))
    if drawn:
        order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(limits.seed)).tolist()
    chosen = set(order[len(pieces) - count :])
    training = [piece for place, piece in enumerate(pieces) if place not in chosen]
    return training, [piece for place, piece in enumerate(pieces) if place in chosen]


def _notes(duplicates: int, leaking: int, too_long: int, limits: Limits, apart: Source | None) -> tuple[str, ...]:
    notes = []
    if duplicates:
        notes.append(f"{_counted(duplicates, 'duplicate')} left out: the same text, but for case and spaces.")
    if leaking and apart:
        notes.append(
            f"{_counted(leaking, 'sample')} left out of the training, because {apart.path} holds the same: a held-out "
            "loss on what was trained on says nothing."
        )
    if too_long:
        done = {"cut": "cut after", "split": "split every", "skip": "left out, being longer than"}[limits.too_long]
        notes.append(f"{_counted(too_long, 'sample')} {done} {limits.length} tokens.")
    return tuple(notes)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

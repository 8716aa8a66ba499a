"""From what a file holds to what is trained on and what is held out, each as tokens.

A text is cut into pieces of one length, the last of which are held out. Of samples, some are drawn to be held out. What
is there twice is used once, so that nothing that is held out is trained on as well; how much that was is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass

import torch

from gpuguide.errors import GpuguideError, unknown
from gpuguide.finetuning.conversation import ANSWERS, Conversations
from gpuguide.finetuning.reading import Sample, Source
from gpuguide.models.tokenizer import Tokenizer, encode_with_special, prompt_with_special, special_tokens

TOO_LONG = ("stop", "cut", "split", "skip")
"""What to do with a sample that is longer than a sequence may be"""
COUNTED = ("all", "answers")
"""What the loss counts: every token, or those that the assistant says"""
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
    counted: torch.Tensor | None = None
    """``(seq,)``, bool: which tokens count for the loss; all where there is none"""

    @property
    def sequence(self) -> torch.Tensor:
        """The sequence as :func:`gpuguide.training.finetune` takes it."""
        return self.tokens if self.counted is None else torch.stack([self.tokens, self.counted.long()])


@dataclass(frozen=True)
class Prepared:
    """What is trained on, what is held out, and what was done to the data."""

    training: tuple[Piece, ...]
    held_out: tuple[Piece, ...]
    duplicates: int
    """Left out, because the same was there before"""
    leaking: int
    """Left out of what is trained on, because it is held out"""
    too_long: int
    """Cut, split or left out, because they were longer than a sequence may be"""
    unanswered: int
    """Left out, because no part of an answer is in them, where answers alone count"""
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
    counted : str
        One of :data:`COUNTED`.
    """

    length: int
    too_long: str = "stop"
    share: float = 0.1
    seed: int = 0
    counted: str = "all"

    def __post_init__(self) -> None:
        if self.too_long not in TOO_LONG:
            raise unknown("way with long samples", self.too_long, TOO_LONG)
        if self.counted not in COUNTED:
            raise unknown("loss", self.counted, COUNTED)
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
        drawn, held_out = _divided(pieces, limits, drawn=not source.is_one_text)
    else:
        held_out, again = _once(cutter.pieces(apart))
        drawn, duplicates = pieces, duplicates + again
    training = _without(drawn, held_out)
    leaking = len(drawn) - len(training)
    if not training or not held_out:
        raise GpuguideError(
            f"{source.path} has {_counted(len(pieces), 'sample')} to use; one or more to train on and one or more to "
            "hold out are needed"
            + (f", and {leaking} of these are held out{_of(apart)}." if leaking else ".")
            + (f" In {_counted(cutter.unanswered, 'part')} no answer is to be learnt." if cutter.unanswered else "")
        )
    notes = _notes(duplicates, leaking, cutter, limits, apart)
    counts = (duplicates, leaking, cutter.too_long, cutter.unanswered)
    return Prepared(tuple(training), tuple(held_out), *counts, notes)


class _Cutter:
    """Makes pieces of samples, and counts those that were too long."""

    def __init__(self, tokenizer: Tokenizer, conversations: Conversations, limits: Limits) -> None:
        self.tokenizer, self.conversations, self.limits = tokenizer, conversations, limits
        self.special = special_tokens(tokenizer)
        self.too_long = self.unanswered = self.with_special = 0

    def pieces(self, source: Source) -> list[Piece]:
        if source.is_one_text:
            return self._of_text(source)
        found: list[Piece] = []
        first = None
        for sample in source.samples:
            try:
                whole = self._whole(sample)
            except GpuguideError as error:
                raise GpuguideError(f"{source.path}, {sample.place}: {error}") from error
            if len(whole.tokens) > self.limits.length:
                self.too_long += 1
                first = first or (sample.place, len(whole.tokens))
            found += self._cut(whole)
        if first and self.limits.too_long == "stop":
            raise GpuguideError(
                f"{source.path}, {first[0]}: this has {first[1]} tokens, and a sequence may have {self.limits.length}; "
                f"{self.too_long} of {len(source.samples)} are too long. Say what to do with them: --too-long "
                "cut trains on the beginning of each, split on all of its parts, skip leaves them out."
            )
        answered = [each for each in found if each.counted is None or bool(each.counted[1:].any())]
        self.unanswered += len(found) - len(answered)
        return answered

    def _whole(self, sample: Sample) -> Piece:
        """Return a sample as a piece, however long it is."""
        of_answers = self.limits.counted == "answers"
        if not sample.messages:
            if of_answers:
                raise GpuguideError("this is no conversation, so there is no answer to learn (--loss answers).")
            tokens = prompt_with_special(self.tokenizer, sample.text)
            self.with_special += not self.special.isdisjoint(tokens[len(self.tokenizer.opening) :])
            if tokens[-1] not in self.tokenizer.ends:
                tokens.append(self.tokenizer.end_of_text)
            return Piece(sample.place, sample.text, torch.tensor(tokens), _beginning(tokens))
        return self._of_conversation(sample)

    def _of_conversation(self, sample: Sample) -> Piece:
        messages, tools, of_answers = sample.messages, sample.tools, self.limits.counted == "answers"
        unlearnt = [number for number, each in enumerate(messages, 1) if each.role == ANSWERS and not each.is_learnt]
        if unlearnt and not of_answers:
            raise GpuguideError(
                f"message {unlearnt[0]} is not to be learnt (weight 0, or train false), but every token counts. Count "
                "the other answers alone (--loss answers), or take the field out."
            )
        tokens = self.conversations.tokens(messages, tools=tools)
        counted = self.conversations.counted(messages, tokens, tools=tools) if of_answers else None
        asked = self.conversations.tokens(messages[:-1], answer=True, tools=tools) if len(messages) > 1 else []
        prompt = len(asked) if asked and tokens[: len(asked)] == asked else _beginning(tokens)
        text = self.conversations.text(messages, tools=tools)
        return Piece(
            sample.place, text, torch.tensor(tokens), prompt, None if counted is None else torch.tensor(counted)
        )

    def _cut(self, whole: Piece) -> list[Piece]:
        length, way, count = self.limits.length, self.limits.too_long, len(whole.tokens)
        if count <= length:
            return [whole]
        if way in ("stop", "skip"):
            return []
        starts = range(0, count if way == "split" else 1, length)
        parts = [slice(start, start + length) for start in starts if min(length, count - start) > 1]
        return [self._part(whole, part, number) for number, part in enumerate(parts, 1)]

    def _part(self, whole: Piece, part: slice, number: int) -> Piece:
        tokens = whole.tokens[part]
        text = self.tokenizer.decode(tokens.tolist())
        counted = None if whole.counted is None else whole.counted[part]
        return Piece(f"{whole.place}, part {number}", text, tokens, _beginning(tokens), counted)

    def _of_text(self, source: Source) -> list[Piece]:
        if self.limits.counted == "answers":
            raise GpuguideError(f"{source.path} is a text, so there is no answer to learn (--loss answers).")
        opening = list(self.tokenizer.opening)
        tokens = encode_with_special(self.tokenizer, source.samples[0].text)
        self.with_special = int(not self.special.isdisjoint(tokens))
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


def _beginning(tokens: Sized) -> int:
    return max(1, min(PROMPT, len(tokens) // 2))


def _key(piece: Piece) -> tuple[bytes, bytes]:
    """Return what two pieces have in common that are the same: their tokens, and which of them count."""
    counted = b"" if piece.counted is None else piece.counted.numpy().tobytes()
    return piece.tokens.numpy().tobytes(), counted


def _once(pieces: Iterable[Piece]) -> tuple[list[Piece], int]:
    """Return the pieces without those that came before, and how many these were."""
    given = list(pieces)
    first: dict[tuple[bytes, bytes], Piece] = {}
    for piece in given:
        first.setdefault(_key(piece), piece)
    return list(first.values()), len(given) - len(first)


def _without(pieces: Iterable[Piece], others: Iterable[Piece]) -> list[Piece]:
    """Return the pieces whose tokens are not those of others, whichever of them count."""
    taken = {_key(other)[0] for other in others}
    return [piece for piece in pieces if _key(piece)[0] not in taken]


def _of(apart: Source | None) -> str:
    return f" in {apart.path}" if apart else ""


def _divided(pieces: list[Piece], limits: Limits, *, drawn: bool) -> tuple[list[Piece], list[Piece]]:
    """Hold out some pieces: drawn ones, or the last ones of a text, whose neighbours go on with one another."""
    count = min(max(1, round(limits.share * len(pieces))), max(len(pieces) - 1, 0))
    order = list(range(len(pieces)))
    if drawn:
        order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(limits.seed)).tolist()
    chosen = set(order[len(pieces) - count :])
    training = [piece for place, piece in enumerate(pieces) if place not in chosen]
    return training, [piece for place, piece in enumerate(pieces) if place in chosen]


def _notes(duplicates: int, leaking: int, cutter: _Cutter, limits: Limits, apart: Source | None) -> tuple[str, ...]:
    notes = []
    if duplicates:
        notes.append(f"{_counted(duplicates, 'duplicate')} left out: exactly the same text.")
    if leaking:
        notes.append(
            f"{_counted(leaking, 'sample')} left out of the training, because the same is held out{_of(apart)}: a "
            "held-out loss on what was trained on says nothing."
        )
    if cutter.with_special:
        notes.append(
            f"{_counted(cutter.with_special, 'text')} with special tokens of the model, which are read as these tokens "
            "and not as letters."
        )
    if cutter.too_long:
        done = {"cut": "cut after", "split": "split every", "skip": "left out, being longer than"}[limits.too_long]
        notes.append(f"{_counted(cutter.too_long, 'sample')} {done} {limits.length} tokens.")
    if cutter.unanswered:
        notes.append(f"{_counted(cutter.unanswered, 'part')} left out, in which no answer is that could be learnt.")
    return tuple(notes)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

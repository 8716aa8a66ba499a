"""From the content of a data file to tokenised examples: a training split and a held-out split.

A text is cut into chunks of one length, the last of which are held out. Of samples, random ones are held out.
Duplicates are used once, so that no held-out example is trained on as well; the number of removed ones is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass

import torch

from gpuguide.errors import GpuguideError, unknown
from gpuguide.finetuning.data.conversation import ASSISTANT, Conversations
from gpuguide.finetuning.data.files import DataFile, Sample
from gpuguide.models.tokenizer import Tokenizer, encode_with_special, prompt_with_special, special_tokens

OVERFLOW = ("error", "truncate", "chunk", "drop")
"""Policies for a sample that is longer than a sequence may be"""
OLD_OVERFLOW = {"stop": "error", "cut": "truncate", "split": "chunk", "skip": "drop"}
"""Earlier names of these policies, accepted for one more release"""
SHORTEST, FEWEST = 8, 20
"""A short text is cut into so many chunks, of at least so many tokens"""
PROMPT = 32
"""Largest number of tokens of a text that a model is asked to continue"""


@dataclass(frozen=True)
class TokenizedExample:
    """A sequence of the training or the held-out split."""

    location: str
    """Place in the file, for messages: ``line 7, part 2``"""
    text: str
    tokens: torch.Tensor
    """Token ids, ``(seq,)``, int64"""
    prompt_length: int
    """Number of leading tokens that serve as the prompt where the model is asked to continue the example"""
    loss_mask: torch.Tensor | None = None
    """Mask of the tokens that count for the loss, ``(seq,)``, bool; ``None`` where all count"""

    @property
    def sequence(self) -> torch.Tensor:
        """The sequence in the form that :func:`gpuguide.training.finetune` takes."""
        return self.tokens if self.loss_mask is None else torch.stack([self.tokens, self.loss_mask.long()])


@dataclass(frozen=True)
class DatasetSplits:
    """The two splits, and the numbers of samples that were removed or changed on the way."""

    training: tuple[TokenizedExample, ...]
    held_out: tuple[TokenizedExample, ...]
    duplicates: int
    """Number of examples that were dropped as copies of earlier ones"""
    leaked: int
    """Number of training examples that were dropped because they are held out"""
    overflowing: int
    """Number of samples that were longer than a sequence may be"""
    without_answer: int
    """Number of chunks that were dropped because no token of an answer is in them, where only answers count"""
    notes: tuple[str, ...]
    """Sentences that report these numbers"""

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence."""
        return max(len(example.tokens) for example in (*self.training, *self.held_out))


@dataclass(frozen=True)
class DataConfig:
    """Settings of tokenisation and of the split.

    Parameters
    ----------
    length : int
        Maximum number of tokens of a sequence.
    overflow : str
        Policy for longer samples, one of :data:`OVERFLOW`: ``"error"`` refuses them, ``"truncate"`` keeps the beginning
        of each, ``"chunk"`` makes several sequences of each, ``"drop"`` removes them.
    eval_share : float
        Share of the data that is held out.
    seed : int
        Seed of the random split.
    train_on_assistant : bool
        Whether the loss counts only the answers of conversations, instead of every token.
    """

    length: int
    overflow: str = "error"
    eval_share: float = 0.1
    seed: int = 0
    train_on_assistant: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "overflow", OLD_OVERFLOW.get(self.overflow, self.overflow))
        if self.overflow not in OVERFLOW:
            raise unknown("overflow policy", self.overflow, OVERFLOW)
        if self.length < SHORTEST:
            raise GpuguideError(f"length is {self.length}; it must be at least {SHORTEST}.")
        if not 0 < self.eval_share < 1:
            raise GpuguideError(f"The held-out share is {self.eval_share}; it must lie between 0 and 1.")


def tokenize(
    data: DataFile, eval_data: DataFile | None, tokenizer: Tokenizer, conversations: Conversations, config: DataConfig
) -> DatasetSplits:
    """Tokenise the data and split it into what is trained on and what is held out.

    Parameters
    ----------
    data, eval_data : DataFile
        Data to train on, and held-out data; if the latter is ``None``, a share of the former is held out.
    tokenizer, conversations
        Tokenizer and chat template of the model.
    config : DataConfig
        Settings.

    Raises
    ------
    GpuguideError
        If a sample is too long, or too little data is left.
    """
    tokenizing = _Tokenizing(tokenizer, conversations, config)
    examples, duplicates = _deduplicate(tokenizing.examples(data))
    if eval_data is None:
        candidates, held_out = _split(examples, config, at_random=not data.is_one_text)
    else:
        held_out, repeated = _deduplicate(tokenizing.examples(eval_data))
        candidates, duplicates = examples, duplicates + repeated
    training = _remove_leaks(candidates, held_out)
    leaked = len(candidates) - len(training)
    if not training or not held_out:
        raise GpuguideError(
            f"{data.path} has {_count(len(examples), 'sample')} to use; one or more to train on and one or more to "
            "hold out are needed"
            + (f", and {leaked} of these are held out{_describe_file(eval_data)}." if leaked else ".")
            + (
                f" {_count(tokenizing.without_answer, 'sample')} had no answer to learn."
                if tokenizing.without_answer
                else ""
            )
        )
    return DatasetSplits(
        tuple(training),
        tuple(held_out),
        duplicates,
        leaked,
        tokenizing.overflowing,
        tokenizing.without_answer,
        _notes(duplicates, leaked, tokenizing, eval_data),
    )


class _Tokenizing:
    """Makes examples of samples, and counts the samples that were too long or had no answer."""

    def __init__(self, tokenizer: Tokenizer, conversations: Conversations, config: DataConfig) -> None:
        self.tokenizer, self.conversations, self.config = tokenizer, conversations, config
        self.special = special_tokens(tokenizer)
        self.overflowing = self.without_answer = self.with_special = 0

    def examples(self, data: DataFile) -> list[TokenizedExample]:
        if data.is_one_text:
            return self._chunk_text(data)
        examples: list[TokenizedExample] = []
        first = None
        for sample in data.samples:
            try:
                whole = self._tokenize_sample(sample)
            except GpuguideError as error:
                raise GpuguideError(f"{data.path}, {sample.location}: {error}") from error
            if len(whole.tokens) > self.config.length:
                self.overflowing += 1
                first = first or (sample.location, len(whole.tokens))
            examples += self._apply_overflow(whole)
        if first and self.config.overflow == "error":
            raise GpuguideError(
                f"{data.path}, {first[0]}: this sample has {first[1]} tokens, and a sequence may have "
                f"{self.config.length}; {self.overflowing} of {len(data.samples)} samples are too long. Choose an "
                "overflow policy: --overflow truncate trains on the beginning of each, chunk on all of its parts, drop "
                "removes them."
            )
        with_loss = [example for example in examples if example.loss_mask is None or bool(example.loss_mask[1:].any())]
        self.without_answer += len(examples) - len(with_loss)
        return with_loss

    def _tokenize_sample(self, sample: Sample) -> TokenizedExample:
        """Return a sample as one example, however long it is."""
        if sample.messages:
            return self._tokenize_conversation(sample)
        if self.config.train_on_assistant:
            raise GpuguideError("this is no conversation, so it has no answer to learn (--train-on-assistant).")
        tokens = prompt_with_special(self.tokenizer, sample.text)
        self.with_special += not self.special.isdisjoint(tokens[len(self.tokenizer.opening) :])
        if tokens[-1] not in self.tokenizer.ends:
            tokens.append(self.tokenizer.end_of_text)
        return TokenizedExample(sample.location, sample.text, torch.tensor(tokens), _prompt_length(tokens))

    def _tokenize_conversation(self, sample: Sample) -> TokenizedExample:
        messages, tools, only_answers = sample.messages, sample.tools, self.config.train_on_assistant
        excluded = [
            number for number, message in enumerate(messages, 1) if message.role == ASSISTANT and not message.is_learnt
        ]
        if excluded and not only_answers:
            raise GpuguideError(
                f"message {excluded[0]} is excluded from the loss (weight 0, or train false), but every token counts. "
                "Train on the other answers alone (--train-on-assistant), or remove the field."
            )
        tokens = self.conversations.tokens(messages, tools=tools)
        mask = self.conversations.loss_mask(messages, tokens, tools=tools) if only_answers else None
        question = self.conversations.tokens(messages[:-1], answer=True, tools=tools) if len(messages) > 1 else []
        is_prefix = bool(question) and tokens[: len(question)] == question
        return TokenizedExample(
            sample.location,
            self.conversations.text(messages, tools=tools),
            torch.tensor(tokens),
            len(question) if is_prefix else _prompt_length(tokens),
            None if mask is None else torch.tensor(mask),
        )

    def _apply_overflow(self, whole: TokenizedExample) -> list[TokenizedExample]:
        """Return the sequences that a sample becomes: itself if it is short enough, else by the overflow policy."""
        length, policy, count = self.config.length, self.config.overflow, len(whole.tokens)
        if count <= length:
            return [whole]
        if policy in ("error", "drop"):
            return []
        starts = range(0, count if policy == "chunk" else 1, length)
        parts = [slice(start, start + length) for start in starts if min(length, count - start) > 1]
        return [self._part(whole, part, number) for number, part in enumerate(parts, 1)]

    def _part(self, whole: TokenizedExample, part: slice, number: int) -> TokenizedExample:
        tokens = whole.tokens[part]
        text = self.tokenizer.decode(tokens.tolist())
        mask = None if whole.loss_mask is None else whole.loss_mask[part]
        return TokenizedExample(f"{whole.location}, part {number}", text, tokens, _prompt_length(tokens), mask)

    def _chunk_text(self, data: DataFile) -> list[TokenizedExample]:
        if self.config.train_on_assistant:
            raise GpuguideError(f"{data.path} is a text, so it has no answer to learn (--train-on-assistant).")
        opening = list(self.tokenizer.opening)
        tokens = encode_with_special(self.tokenizer, data.samples[0].text)
        self.with_special = int(not self.special.isdisjoint(tokens))
        length = min(self.config.length - len(opening), max(SHORTEST, len(tokens) // FEWEST))
        if len(tokens) < 2 * SHORTEST:
            raise GpuguideError(f"{data.path} has {len(tokens)} tokens; {2 * SHORTEST} or more are needed.")
        chunks = [tokens[start : start + length] for start in range(0, len(tokens), length)]
        if len(chunks[-1]) < SHORTEST:
            chunks.pop()
        return [
            TokenizedExample(
                f"chunk {number}",
                self.tokenizer.decode(chunk),
                torch.tensor([*opening, *chunk]),
                _prompt_length([*opening, *chunk]),
            )
            for number, chunk in enumerate(chunks, 1)
        ]


def _prompt_length(tokens: Sized) -> int:
    return max(1, min(PROMPT, len(tokens) // 2))


def _key(example: TokenizedExample) -> tuple[bytes, bytes]:
    """Return the key by which duplicates are recognised: the tokens and the loss mask."""
    mask = b"" if example.loss_mask is None else example.loss_mask.numpy().tobytes()
    return example.tokens.numpy().tobytes(), mask


def _deduplicate(examples: Iterable[TokenizedExample]) -> tuple[list[TokenizedExample], int]:
    """Return the examples without copies of earlier ones, and the number of copies."""
    everything = list(examples)
    first: dict[tuple[bytes, bytes], TokenizedExample] = {}
    for example in everything:
        first.setdefault(_key(example), example)
    return list(first.values()), len(everything) - len(first)


def _remove_leaks(examples: Iterable[TokenizedExample], held_out: Iterable[TokenizedExample]) -> list[TokenizedExample]:
    """Return the examples whose tokens are not held out, whatever their loss masks."""
    keys = {_key(example)[0] for example in held_out}
    return [example for example in examples if _key(example)[0] not in keys]


def _describe_file(data: DataFile | None) -> str:
    return f" in {data.path}" if data else ""


def _split(
    examples: list[TokenizedExample], config: DataConfig, *, at_random: bool
) -> tuple[list[TokenizedExample], list[TokenizedExample]]:
    """Hold out random examples, or the last ones of a text, where neighbouring chunks continue each other."""
    count = min(max(1, round(config.eval_share * len(examples))), max(len(examples) - 1, 0))
    order = list(range(len(examples)))
    if at_random:
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(config.seed)).tolist()
    held_out = set(order[len(examples) - count :])
    training = [example for index, example in enumerate(examples) if index not in held_out]
    return training, [example for index, example in enumerate(examples) if index in held_out]


def _notes(duplicates: int, leaked: int, tokenizing: _Tokenizing, eval_data: DataFile | None) -> tuple[str, ...]:
    notes = []
    if duplicates:
        notes.append(f"{_count(duplicates, 'duplicate')} dropped: exactly the same text.")
    if leaked:
        notes.append(
            f"{_count(leaked, 'sample')} dropped from the training data, because the same text is held "
            f"out{_describe_file(eval_data)}: a held-out loss on training data says nothing."
        )
    if tokenizing.with_special:
        notes.append(
            f"{_count(tokenizing.with_special, 'text')} with special tokens of the model, which are read as these "
            "tokens and not as letters."
        )
    if tokenizing.overflowing:
        length = tokenizing.config.length
        action = {
            "truncate": f"truncated to {length} tokens",
            "chunk": f"cut into chunks of {length} tokens",
            "drop": f"dropped, being longer than {length} tokens",
        }[tokenizing.config.overflow]
        notes.append(f"{_count(tokenizing.overflowing, 'sample')} {action}.")
    if tokenizing.without_answer:
        notes.append(f"{_count(tokenizing.without_answer, 'sequence')} dropped, without an answer to learn.")
    return tuple(notes)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

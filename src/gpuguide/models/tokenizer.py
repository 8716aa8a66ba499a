"""A byte-level BPE tokenizer: any bytes become tokens, and the tokens become the same bytes again.

The merging of pairs is done by the ``tokenizers`` library. Its alphabet writes each byte as a printable character,
as GPT-2's does, so a vocabulary with all 256 of them can spell everything. The tokenizers of GPT-2 and of Llama 3 are
of this kind; that of Llama 2, which marks spaces and spells other bytes as ``<0x0A>``, is not.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer as Merges
from tokenizers import decoders, models, pre_tokenizers, trainers

from gpuguide import file_kinds
from gpuguide.errors import GpuguideError

END_OF_TEXT = "<|endoftext|>"
"""The token between two texts. It is token 0 of our tokenizer."""
PROBE = "A  e\u0301\n 12345 \U0001f642\x00"
"""A text that a tokenizer would change if it normalised accents or spaces"""
_NOT_UTF8 = re.compile("([\udc80-\udcff])")
"""Error handler with which Python decodes a byte that is not part of UTF-8"""


class Tokenizer:
    """Text or bytes to token numbers, and back.

    Parameters
    ----------
    merges : tokenizers.Tokenizer
        A byte-level BPE with the whole alphabet of bytes in its vocabulary.
    ends : collection of int or str
        The tokens that end a text, as numbers or names, at least one; the first also separates texts.

    Raises
    ------
    GpuguideError
        If a byte or an end-of-text token is missing in the vocabulary, or a text would not come back as it was.
    """

    def __init__(self, merges: Merges, ends: Collection[int | str] = (END_OF_TEXT,)) -> None:
        self._merges = merges
        self._of_byte = _tokens_of_bytes(merges)
        self._bytes = {symbol: byte for byte, symbol in enumerate(_alphabet())}
        self._special = {token: added.content.encode() for token, added in merges.get_added_tokens_decoder().items()}
        self.ends: tuple[int, ...] = tuple(self._number_of(end) for end in ends)
        """The numbers of the tokens after which a text is over"""
        self.end_of_text: int = self.ends[0]
        """The number of the token that separates texts"""
        self.opening: tuple[int, ...] = _opening(merges)
        """Tokens before each text: none for GPT-2, a begin-of-text token for Llama 3"""
        merges.encode_special_tokens = True  # a text that contains the letters <|endoftext|> does not end there
        if self.decode_bytes(self.encode(PROBE)) != PROBE.encode():
            raise GpuguideError(
                "The tokenizer changes texts, so they do not come back; only byte-level ones without a normalizer are "
                "read, as those of GPT-2 and Llama 3 are."
            )

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int = 2048) -> Tokenizer:
        """Learn the merges from texts. The same texts in the same order give the same tokenizer."""
        merges = Merges(models.BPE())
        merges.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        merges.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        merges.train_from_iterator(texts, trainer)
        return cls(merges)

    @classmethod
    def read(cls, path: Path, ends: Collection[int | str] = (END_OF_TEXT,)) -> Tokenizer:
        """Read a ``tokenizer.json``.

        Parameters
        ----------
        path : Path
            The file.
        ends : collection of int or str
            The tokens that end a text, as numbers or names, which the file does not say.

        Raises
        ------
        GpuguideError
            If the file is missing or damaged, holds another kind of tokenizer, or has no such tokens.
        """
        try:
            return cls(Merges.from_file(str(path)), ends)
        except GpuguideError as error:
            raise GpuguideError(f"{path}: {error}") from error
        except Exception as error:  # the library raises bare Exception
            raise GpuguideError(f"{path} cannot be read as a tokenizer ({error}).") from error

    def write(self, path: Path) -> None:
        """Write a ``tokenizer.json``, which ``transformers`` reads too."""
        path.write_text(self._merges.to_str(pretty=False), encoding="utf-8")

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self._merges.get_vocab_size()

    def encode(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text. Bytes that are no UTF-8 become one token each.

        Raises
        ------
        GpuguideError
            If a string holds half of a surrogate pair, which no bytes stand for.
        """
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="surrogateescape")
        tokens: list[int] = []
        for index, part in enumerate(_NOT_UTF8.split(text)):
            if index % 2:
                tokens.append(self._of_byte[ord(part) - 0xDC00])
            elif part:
                tokens += self._merges.encode(_check(part), add_special_tokens=False).ids
        return tokens

    def prompt(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text from its beginning, as a model reads it: at least one.

        That is :attr:`opening` and the text's tokens. A text without any, for a model that needs no opening, is
        what follows the end of another. Errors as :meth:`encode`.
        """
        return [*self.opening, *self.encode(text)] or [self.end_of_text]

    def decode_bytes(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes that tokens stand for.

        Raises
        ------
        GpuguideError
            If a number is no token.
        """
        return b"".join(self._bytes_of(int(token)) for token in tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text that tokens stand for, with a replacement character where it is no UTF-8; raises as above."""
        return self.decode_bytes(tokens).decode("utf-8", errors="replace")

    def _bytes_of(self, token: int) -> bytes:
        symbols = self._merges.id_to_token(token) if token >= 0 else None
        if symbols is None:
            raise GpuguideError(f"{token} is no token; the vocabulary has the numbers 0 to {self.vocab_size - 1}.")
        if token in self._special:
            return self._special[token]
        if not self._bytes.keys() >= set(symbols):
            raise GpuguideError(f"The tokenizer is not a byte-level one: its token {token} is {symbols!r}.")
        return bytes(self._bytes[symbol] for symbol in symbols)

    def _number_of(self, end: int | str) -> int:
        number = self._merges.token_to_id(end) if isinstance(end, str) else end
        if number is None or number < 0 or self._merges.id_to_token(number) is None:
            raise GpuguideError(f"The tokenizer has no token {end}, which ends a text.")
        return number


class CheckpointTokenizer(Tokenizer):
    """The tokenizer of a checkpoint, whose model may have more numbers than there are tokens.

    A model's vocabulary is often filled up to a round number. What stands for none of the tokens has no text, so that a
    model that draws it goes on.

    Parameters
    ----------
    merges, ends
        As for :class:`Tokenizer`.
    numbers : int
        How many tokens the model tells apart.
    """

    def __init__(self, merges: Merges, ends: Collection[int | str], numbers: int) -> None:
        self.numbers = numbers
        super().__init__(merges, ends)

    @classmethod
    def from_file(cls, path: Path, ends: Collection[int | str], numbers: int) -> CheckpointTokenizer:
        """Read a ``tokenizer.json``. Parameters and errors as of :class:`CheckpointTokenizer` and :meth:`read`."""
        try:
            # Not by its path, which the library wants in UTF-8.
            return cls(Merges.from_buffer(path.read_bytes()), ends, numbers)
        except GpuguideError as error:
            raise GpuguideError(f"{path}: {error}") from error
        except Exception as error:  # the library raises bare Exception
            raise GpuguideError(f"{path} cannot be read as a tokenizer ({error}).{file_kinds.hint(path)}") from error

    def has(self, token: int | str) -> bool:
        """Return whether there is such a token, by number or name."""
        number = self._merges.token_to_id(token) if isinstance(token, str) else token
        return number is not None and number >= 0 and self._merges.id_to_token(number) is not None

    def _bytes_of(self, token: int) -> bytes:
        symbols = self._merges.id_to_token(token) if token >= 0 else None
        if symbols is None and 0 <= token < self.numbers:
            return b""
        if symbols is not None and token not in self._special and not self._bytes.keys() >= set(symbols):
            return symbols.encode()  # as the decoder of the library does with a token that is not made of bytes
        return super()._bytes_of(token)


def special_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens that stand for no bytes of a text, such as its end."""
    return frozenset(tokenizer._special)


def encode_with_special(tokenizer: Tokenizer, text: str | bytes) -> list[int]:
    """Return the tokens of a text in which special tokens may be written by their names, as ``transformers`` reads it.

    A text that a chat template wrote has such names. :meth:`Tokenizer.encode` takes them for letters. Errors as there.
    """
    merges = tokenizer._merges
    merges.encode_special_tokens = False
    try:
        return tokenizer.encode(text)
    finally:
        merges.encode_special_tokens = True


def prompt_with_special(tokenizer: Tokenizer, text: str | bytes) -> list[int]:
    """Return the tokens of a text from its beginning, as a model reads it: at least one.

    As :meth:`Tokenizer.prompt`, but special tokens may be written in the text. One that begins with
    :attr:`Tokenizer.opening` gets no second one. Errors as of :meth:`Tokenizer.encode`.
    """
    tokens = encode_with_special(tokenizer, text)
    opening = tokenizer.opening
    whole = tokens if tuple(tokens[: len(opening)]) == opening else [*opening, *tokens]
    return whole or [tokenizer.end_of_text]


def _tokens_of_bytes(merges: Merges) -> list[int]:
    """Return the token of each byte."""
    if getattr(merges.model, "byte_fallback", False):
        raise GpuguideError(
            "The tokenizer is not a byte-level one: it spells bytes as <0x0A>, as Llama 2's does. Only byte-level ones "
            "can be read, as those of GPT-2 and Llama 3 are."
        )
    spelt = [merges.token_to_id(symbol) for symbol in _alphabet()]
    found = [token for token in spelt if token is not None]
    if missing := len(spelt) - len(found):
        raise GpuguideError(
            f"The tokenizer is not a byte-level one: it has no token for {missing} of the 256 bytes. Only byte-level "
            "ones with all of them can be read, as those of GPT-2 and Llama 3 are."
        )
    return found


def _opening(merges: Merges) -> tuple[int, ...]:
    """Return the tokens that the tokenizer puts before a text that is to be read by its model."""
    plain = merges.encode("a", add_special_tokens=False).ids
    whole = merges.encode("a", add_special_tokens=True).ids
    if whole[len(whole) - len(plain) :] != plain:
        raise GpuguideError("The tokenizer puts tokens after a text, which no model here was trained on.")
    return tuple(whole[: len(whole) - len(plain)])


def _check(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GpuguideError(
            f"The text holds half of a surrogate pair at position {error.start}, which no bytes stand for. "
            "Give the text's bytes instead."
        ) from error
    return text


@functools.cache
def _alphabet() -> tuple[str, ...]:
    """Return the character that stands for each byte: itself where it prints, else one from 256 on, in order."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return tuple(chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256))

"""Loss of a model on a text, in three units, and the size of the same text after compressors."""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from gpuguide.cross_entropy.reference import bits_per_byte, perplexity
from gpuguide.errors import GpuguideError
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.models.tokenizer import Tokenizer

WINDOWS_AT_ONCE = 8


@dataclass(frozen=True)
class Evaluation:
    """Loss of a model on a text of ``tokens`` tokens and ``bytes`` bytes."""

    tokens: int
    bytes: int
    loss: float
    """Mean surprise at a token, in nats"""

    @property
    def perplexity(self) -> float:
        """The number of equally likely tokens that would surprise as much. Depends on the tokenizer."""
        return perplexity(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """Bits that the model would need for a byte of the text, as a compressor. Independent of the tokenizer."""
        return bits_per_byte(self.loss, self.tokens, self.bytes)


def evaluate(model: GPT2 | Llama, tokenizer: Tokenizer, text: str | bytes) -> Evaluation:
    """Return how well a model predicts a text, all of it, as if it came after the end of another text.

    Each token is predicted once. The text is read in windows of the model's context that overlap by half, so that
    every token but the first ones has at least half a context before it.

    Raises
    ------
    GpuguideError
        If the text is empty.
    """
    data = text.encode() if isinstance(text, str) else text
    if not data:
        raise GpuguideError("The text is empty, so there is nothing to predict.")
    tokens = tokenizer.encode(data)
    stream = [tokenizer.prompt("")[-1], *tokens]
    model.eval()
    surprise = sum(_surprise(model, windows) for windows in _batches(stream, model.config.context))
    return Evaluation(tokens=len(tokens), bytes=len(data), loss=surprise / len(tokens))


@dataclass(frozen=True)
class _Window:
    """A stretch of the text, of which the targets from ``first`` on are counted."""

    tokens: list[int]
    first: int


def _batches(stream: Sequence[int], context: int) -> Iterator[list[_Window]]:
    """Yield windows in batches. All but the last window of a text are of the same length."""
    step = max(context // 2, 1)
    windows = []
    counted = 0  # targets so far; target i is stream[i + 1]
    start = 0
    while counted < len(stream) - 1:
        window = list(stream[start : start + context + 1])
        windows.append(_Window(window, counted - start))
        counted = start + len(window) - 1
        start = counted - (context - step)
    full = [window for window in windows if len(window.tokens) == context + 1]
    for index in range(0, len(full), WINDOWS_AT_ONCE):
        yield full[index : index + WINDOWS_AT_ONCE]
    yield from ([window] for window in windows if len(window.tokens) != context + 1)


@torch.inference_mode()
def _surprise(model: GPT2 | Llama, windows: list[_Window]) -> float:
    """Return the sum of the counted tokens' surprise in nats."""
    device = next(model.parameters()).device
    tokens = torch.tensor([window.tokens for window in windows], device=device)
    logits = model(tokens[:, :-1]).float()
    losses = functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").double()
    return sum(float(row[window.first :].sum()) for row, window in zip(losses, windows, strict=True))


# --- compressors -----------------------------------------------------------------------------------------


def xz_bits_per_byte(text: str) -> float:
    """Return the bits a byte that ``xz -9`` needs, without the headers of its file format."""
    data = text.encode()
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9}]
    return 8 * len(lzma.compress(data, format=lzma.FORMAT_RAW, filters=filters)) / len(data)


def zstd_bits_per_byte(text: str, dictionary: str = "") -> float:
    """Return the bits a byte that ``zstd -19`` needs, which may refer to a dictionary that both sides have.

    Needs the ``zstandard`` package.
    """
    import zstandard

    data = text.encode()
    parameters = zstandard.ZstdCompressionParameters(
        compression_level=19, window_log=27, write_content_size=False, write_checksum=False
    )
    known = zstandard.ZstdCompressionDict(dictionary.encode(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    compressor = zstandard.ZstdCompressor(dict_data=known if dictionary else None, compression_params=parameters)
    return 8 * len(compressor.compress(data)) / len(data)

from __future__ import annotations

import lzma
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.errors import GpuguideError
from gpuguide.models.evaluation import _batches, evaluate, xz_bits_per_byte, zstd_bits_per_byte
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.pretraining import Corpus


def test_loss_is_the_mean_surprise(tiny_model: GPT2, small_corpus: Corpus) -> None:
    tokenizer = small_corpus.tokenizer
    text = "def f(x): return x"
    tokens = [tokenizer.end_of_text, *tokenizer.encode(text)]
    assert len(tokens) <= tiny_model.config.context + 1
    with torch.no_grad():
        probabilities = torch.softmax(tiny_model(torch.tensor([tokens[:-1]])).double(), dim=-1)[0]
    surprise = [-math.log(float(row[token])) for row, token in zip(probabilities, tokens[1:], strict=True)]
    result = evaluate(tiny_model, tokenizer, text)
    assert result.tokens == len(tokens) - 1
    assert result.loss == pytest.approx(sum(surprise) / len(surprise), rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(result.loss))
    assert result.bits_per_byte == pytest.approx(sum(surprise) / math.log(2) / len(text), rel=1e-5)
    assert evaluate(tiny_model, tokenizer, text.encode()) == result


@given(length=st.integers(2, 200), context=st.integers(1, 40))
def test_every_token_is_predicted_once_from_half_a_context_or_more(length: int, context: int) -> None:
    counted = []
    for windows in _batches(range(length), context):
        for window in windows:
            assert 2 <= len(window.tokens) <= context + 1
            assert window.tokens == list(range(window.tokens[0], window.tokens[-1] + 1))
            for position, target in enumerate(window.tokens[1:]):
                if position >= window.first:
                    counted.append(target)
                    seen = position + 1
                    assert seen >= min(target, context - max(context // 2, 1) + 1)
    assert sorted(counted) == list(range(1, length))


def test_long_text_in_windows(tiny_model: GPT2, small_corpus: Corpus) -> None:
    tokenizer = small_corpus.tokenizer
    text = "def g(value):\n    return value - 3\n" * 30
    tokens = [tokenizer.end_of_text, *tokenizer.encode(text)]
    surprise, context = 0.0, tiny_model.config.context
    start = 0
    for target in range(1, len(tokens)):
        while target > start + context:
            start += context // 2
        with torch.no_grad():
            scores = tiny_model(torch.tensor([tokens[start:target]]))[0, -1].double()
        surprise -= float(torch.log_softmax(scores, dim=-1)[tokens[target]])
    assert evaluate(tiny_model, tokenizer, text).loss == pytest.approx(surprise / (len(tokens) - 1), rel=1e-5)


def test_empty_text(tiny_model: GPT2, small_corpus: Corpus) -> None:
    with pytest.raises(GpuguideError, match="The text is empty"):
        evaluate(tiny_model, small_corpus.tokenizer, "")


def test_compressors() -> None:
    text = "def f(x):\n    return x\n" * 100
    assert 0 < xz_bits_per_byte(text) <= 8 * len(lzma.compress(text.encode(), preset=9)) / len(text)
    import zstandard

    whole = zstandard.ZstdCompressor(level=19).compress(text.encode())
    assert 0 < zstd_bits_per_byte(text) <= 8 * len(whole) / len(text)
    unlike = random.Random(0).randbytes(500).hex()
    assert zstd_bits_per_byte(unlike, dictionary="x" * 1000 + unlike) < 0.1 * zstd_bits_per_byte(unlike)

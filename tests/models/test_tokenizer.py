from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Merges
from tokenizers import models as merge_models

from gpuguide import models
from gpuguide.errors import GpuguideError
from gpuguide.models import corpus
from gpuguide.models.tokenizer import END_OF_TEXT, Tokenizer

TOKENIZER = models.load("draft").tokenizer


@given(st.binary(max_size=200))
def test_any_bytes_come_back(data: bytes) -> None:
    tokens = TOKENIZER.encode(data)
    assert TOKENIZER.decode_bytes(tokens) == data
    assert all(0 <= token < TOKENIZER.vocab_size for token in tokens)


@given(st.text(max_size=200))
def test_any_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_all_single_bytes() -> None:
    for byte in range(256):
        assert TOKENIZER.decode_bytes(TOKENIZER.encode(bytes([byte]))) == bytes([byte])


def test_text_and_its_bytes_give_the_same_tokens() -> None:
    text = corpus.held_out()
    assert TOKENIZER.encode(text) == TOKENIZER.encode(text.encode())


@pytest.mark.parametrize("name", models.PACKAGED)
def test_same_tokens_as_transformers(name: str) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(models.packaged_folder(name))
    text = corpus.held_out() + "naïve  café\t\n\n  日本語 🙂 1234567890"
    tokens = models.load(name).tokenizer.encode(text)
    assert tokens == theirs.encode(text)
    assert theirs.decode(tokens) == text
    assert theirs.eos_token_id == TOKENIZER.end_of_text


def test_the_end_of_text_cannot_be_written_by_a_text() -> None:
    tokens = TOKENIZER.encode(f"a{END_OF_TEXT}b")
    assert TOKENIZER.end_of_text not in tokens
    assert TOKENIZER.decode(tokens) == f"a{END_OF_TEXT}b"
    assert TOKENIZER.decode([TOKENIZER.end_of_text]) == END_OF_TEXT


def test_empty_text_has_no_tokens() -> None:
    assert TOKENIZER.encode("") == TOKENIZER.encode(b"") == []
    assert TOKENIZER.decode([]) == ""


def test_a_cut_character_is_replaced_in_text_and_kept_in_bytes() -> None:
    tokens = TOKENIZER.encode("é".encode()[:1])
    assert TOKENIZER.decode(tokens) == "\ufffd"
    assert TOKENIZER.decode_bytes(tokens) == b"\xc3"


@pytest.mark.parametrize("token", [-1, 2048, 10**6])
def test_numbers_that_are_no_tokens(token: int) -> None:
    with pytest.raises(GpuguideError, match=rf"{token} is no token; the vocabulary has the numbers 0 to 2047"):
        TOKENIZER.decode([token])


def test_half_a_surrogate_pair() -> None:
    with pytest.raises(GpuguideError, match="half of a surrogate pair at position 1"):
        TOKENIZER.encode("a\ud83d")


def test_training_is_repeatable(tmp_path: Path) -> None:
    texts = ["for x in range(10):\n    print(x)\n"] * 5
    first, second = (Tokenizer.train(texts, 280) for _ in range(2))
    for index, tokenizer in enumerate((first, second)):
        tokenizer.write(tmp_path / str(index))
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
    again = Tokenizer.read(tmp_path / "0")
    assert again.encode(texts[0]) == first.encode(texts[0])
    assert len(first.encode(texts[0])) < len(texts[0])


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"\xff\xfe", b'{"model": {"type": "BPE"}}'])
def test_damaged_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(GpuguideError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        Tokenizer.read(path)


def test_tokenizer_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Merges(merge_models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(path))
    with pytest.raises(GpuguideError, match=r"tokenizer\.json: .* no token for 254 of the 256 bytes"):
        Tokenizer.read(path)

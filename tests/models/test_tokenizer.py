from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Merges
from tokenizers import models as merge_models
from tokenizers import normalizers, processors

from gpuguide import models
from gpuguide.errors import GpuguideError
from gpuguide.models import corpus
from gpuguide.models.tokenizer import (
    END_OF_TEXT,
    CheckpointTokenizer,
    Tokenizer,
    encode_with_special,
    prompt_with_special,
)

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
    text = corpus.load_held_out()
    assert TOKENIZER.encode(text) == TOKENIZER.encode(text.encode())


@pytest.mark.parametrize("name", models.PACKAGED)
def test_same_tokens_as_transformers(name: str) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(models.checkpoint_folder(name))
    text = corpus.load_held_out() + "naïve  café\t\n\n  日本語 🙂 1234567890"
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


def test_a_prompt_begins_as_the_model_expects(llama3_tokenizer: Path) -> None:
    assert TOKENIZER.opening == ()
    assert TOKENIZER.prompt("def f") == TOKENIZER.encode("def f")
    assert TOKENIZER.prompt("") == [TOKENIZER.end_of_text]
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(llama3_tokenizer))
    ours = Tokenizer.read(llama3_tokenizer, [401])
    assert ours.opening == (400,)
    for text in ("", "def f(x):\n    return 1234567", "naïve 日本 🙂\r\n\n"):
        assert ours.prompt(text) == theirs.encode(text)
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_come_back_through_a_tokenizer_like_llama_3s(llama3_tokenizer: Path, data: bytes) -> None:
    ours = Tokenizer.read(llama3_tokenizer, [401])
    tokens = ours.encode(data)
    assert ours.decode_bytes(tokens) == data
    assert all(token < 400 for token in tokens)


@pytest.mark.parametrize("ends", [[402, 401], ["<|eot_id|>", "<|end_of_text|>"]])
def test_a_text_may_have_several_ends(llama3_tokenizer: Path, ends: list[int | str]) -> None:
    ours = Tokenizer.read(llama3_tokenizer, ends)
    assert ours.ends == (402, 401)
    assert ours.end_of_text == 402
    assert ours.decode([400, 402]) == "<|begin_of_text|><|eot_id|>"
    assert not {400, 401, 402} & set(ours.encode("<|begin_of_text|>a<|eot_id|>"))


@pytest.mark.parametrize("end", ["<|endoftext|>", 403, -1])
def test_an_end_that_the_vocabulary_lacks(llama3_tokenizer: Path, end: int | str) -> None:
    with pytest.raises(GpuguideError, match=r"tokenizer\.json: The tokenizer has no token .*, which ends a text"):
        Tokenizer.read(llama3_tokenizer, [end])


SPECIAL_TEXTS = ("<|begin_of_text|>def f<|eot_id|>\n<|eot_id|>", "a <|eot_id|> b", "<|begin|>", "")


@pytest.mark.parametrize("strips", [{}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}])
def test_special_tokens_written_in_a_text(llama3_tokenizer: Path, tmp_path: Path, strips: dict[str, bool]) -> None:
    content = json.loads(llama3_tokenizer.read_text())
    content["added_tokens"] = [{**added, **strips} for added in content["added_tokens"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.read(tmp_path / "tokenizer.json", [401])
    for text in SPECIAL_TEXTS:
        assert encode_with_special(ours, text) == theirs.encode(text, add_special_tokens=False)
        assert 402 not in ours.encode(text)  # and everywhere else they are letters
    assert encode_with_special(ours, b"\xff<|eot_id|>") == [*ours.encode(b"\xff"), 402]


def test_a_prompt_that_begins_with_the_opening_has_no_second_one(llama3_tokenizer: Path) -> None:
    ours = Tokenizer.read(llama3_tokenizer, [401])
    assert (
        prompt_with_special(ours, "<|begin_of_text|>def f")
        == prompt_with_special(ours, "def f")
        == ours.prompt("def f")
    )
    assert prompt_with_special(TOKENIZER, "") == [TOKENIZER.end_of_text]


def test_a_path_that_is_no_utf8(llama3_tokenizer: Path, tmp_path: Path) -> None:
    """As Python writes the bytes of ``ü`` where the locale is C."""
    path = tmp_path / os.fsdecode(b"\xff.json")
    path.write_bytes(llama3_tokenizer.read_bytes())
    assert CheckpointTokenizer.from_file(path, [401], 403).vocab_size == 403


def spoilt(path: Path, folder: Path, **changes: object) -> Path:
    """Write a tokenizer.json in which parts are replaced."""
    merges = Merges.from_file(str(path))
    for part, value in changes.items():
        setattr(merges, part, value)
    merges.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_a_tokenizer_that_normalises(llama3_tokenizer: Path, tmp_path: Path) -> None:
    path = spoilt(llama3_tokenizer, tmp_path, normalizer=normalizers.NFC())
    with pytest.raises(GpuguideError, match=r"tokenizer\.json: The tokenizer changes texts"):
        Tokenizer.read(path, [401])


def test_a_tokenizer_that_puts_tokens_after_a_text(llama3_tokenizer: Path, tmp_path: Path) -> None:
    ending = processors.TemplateProcessing("$A <|eot_id|>", special_tokens=[("<|eot_id|>", 402)])
    path = spoilt(llama3_tokenizer, tmp_path, post_processor=ending)
    with pytest.raises(GpuguideError, match=r"tokenizer\.json: The tokenizer puts tokens after a text"):
        Tokenizer.read(path, [401])


def test_a_tokenizer_like_llama_2s(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "▁a": 257}
    merges = Merges(merge_models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    merges.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(GpuguideError, match=r"tokenizer\.json: .* spells bytes as <0x0A>, as Llama 2's does"):
        Tokenizer.read(tmp_path / "tokenizer.json")


def test_a_token_that_no_bytes_spell(tmp_path: Path) -> None:
    symbols = [*tokenizers.pre_tokenizers.ByteLevel.alphabet(), END_OF_TEXT, "日"]
    merges = Merges(merge_models.BPE({symbol: index for index, symbol in enumerate(symbols)}, []))
    merges.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.read(tmp_path / "tokenizer.json")
    assert ours.decode(ours.encode("日")) == "日"
    with pytest.raises(GpuguideError, match="not a byte-level one: its token 257 is '日'"):
        ours.decode([257])

"""From samples to sequences: what is cut, what is left out, what is held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from gpuguide import models
from gpuguide.errors import GpuguideError
from gpuguide.finetuning import Limits, Message, Prepared, prepare, read
from gpuguide.finetuning.conversation import Conversations
from gpuguide.models.tokenizer import Tokenizer

FOLDER = models.packaged_folder("draft")
TOKENIZER = Tokenizer.read(FOLDER / "tokenizer.json")
LONG = "import os\n" * 40


def prepared(folder: Path, texts: Sequence[str], held_out: Sequence[str] | None = None, **limits: object) -> Prepared:
    sources = []
    for name, given in (("data.jsonl", texts), ("held.jsonl", held_out)):
        if given is not None:
            (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in given))
            sources.append(read(folder / name))
    source, apart = (*sources, None)[:2]
    chosen = Limits(**{"length": 64, **limits})  # type: ignore[arg-type]
    assert source is not None
    return prepare(source, apart, TOKENIZER, Conversations(FOLDER, TOKENIZER), chosen)


def test_a_tenth_is_held_out_and_the_seed_says_which(tmp_path: Path) -> None:
    texts = [f"sample number {number}" for number in range(30)]
    first, again, other = (prepared(tmp_path, texts, seed=seed) for seed in (1, 1, 2))
    assert (len(first.training), len(first.held_out)) == (27, 3)
    assert [each.text for each in first.held_out] == [each.text for each in again.held_out]
    assert [each.text for each in first.held_out] != [each.text for each in other.held_out]
    assert sorted(each.text for each in (*first.training, *first.held_out)) == sorted(texts)
    piece = first.training[0]
    assert piece.tokens.tolist() == [*TOKENIZER.encode(piece.text), TOKENIZER.end_of_text]
    assert first.notes == ()


def test_duplicates_are_left_out_and_counted(tmp_path: Path) -> None:
    done = prepared(tmp_path, ["one two", "other", "One  two\n", "one two", "third"])
    assert done.duplicates == 2
    assert len(done.training) + len(done.held_out) == 3
    assert done.notes == ("2 duplicates left out: the same text, but for case and spaces.",)


def test_what_is_held_out_is_not_trained_on(tmp_path: Path) -> None:
    done = prepared(tmp_path, ["one", "two", "three", "four"], ["Two", "five", "five"])
    assert (done.leaking, done.duplicates) == (1, 1)
    assert [each.text for each in done.training] == ["one", "three", "four"]
    assert [each.text for each in done.held_out] == ["Two", "five"]
    assert any("1 sample left out of the training, because" in note for note in done.notes)
    with pytest.raises(GpuguideError, match=r"has 1 sample to use; .* and 1 of these are held out in"):
        prepared(tmp_path, ["one"], ["one"])


def test_too_little(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match="has 1 sample to use; one or more to train on and one or more to hold out"):
        prepared(tmp_path, ["one", "one"])


def test_a_sample_that_is_too_long_is_named_and_the_remedies(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match=r"line 2: this has \d+ tokens, and a sequence may have 64; 1 of 3 .* cut"):
        prepared(tmp_path, ["a", LONG, "b"])
    cut, split, skipped = (prepared(tmp_path, ["a", LONG, "b"], too_long=way) for way in ("cut", "split", "skip"))
    assert [done.too_long for done in (cut, split, skipped)] == [1, 1, 1]
    assert cut.longest == 64
    places = {each.place for each in (*split.training, *split.held_out)}
    assert {"line 1", "line 3", "line 2, part 1"} <= places
    assert {each.text for each in (*skipped.training, *skipped.held_out)} == {"a", "b"}
    assert cut.notes == ("1 sample cut after 64 tokens.",)
    assert skipped.notes == ("1 sample left out, being longer than 64 tokens.",)


def test_limits_that_make_no_sense() -> None:
    with pytest.raises(GpuguideError, match="There is no way with long samples named 'chop'"):
        Limits(64, "chop")
    with pytest.raises(GpuguideError, match="length is 4; it must be at least 8"):
        Limits(4)
    with pytest.raises(GpuguideError, match="The share that is held out is 1"):
        Limits(64, share=1.0)


def test_the_end_of_a_text_is_held_out(tmp_path: Path) -> None:
    text = "".join(f"line {number} of a text\n" for number in range(200))
    (tmp_path / "a.txt").write_text(text)
    done = prepare(read(tmp_path / "a.txt"), None, TOKENIZER, Conversations(FOLDER, TOKENIZER), Limits(64))
    assert "".join(each.text for each in (*done.training, *done.held_out)) == text
    assert len(done.held_out) == round(0.1 * (len(done.training) + len(done.held_out)))
    (tmp_path / "b.txt").write_text("so short")
    with pytest.raises(GpuguideError, match=r"b\.txt has \d tokens; 16 or more are needed"):
        prepare(read(tmp_path / "b.txt"), None, TOKENIZER, Conversations(FOLDER, TOKENIZER), Limits(64))


SAID = (Message("user", "Name <|endoftext|> it."), Message("assistant", "os.path"))


def test_a_conversation_without_a_template() -> None:
    plain = Conversations(FOLDER, TOKENIZER)
    assert plain.text(SAID) == "user: Name <|endoftext|> it.\n\nassistant: os.path"
    asked, whole = plain.tokens(SAID[:1], answer=True), plain.tokens(SAID)
    assert whole[: len(asked)] == asked
    assert whole.count(TOKENIZER.end_of_text) == 1
    assert whole[-1] == TOKENIZER.end_of_text


def test_a_conversation_is_written_as_transformers_does(chat_folder: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(chat_folder)
    ours = Conversations(chat_folder, Tokenizer.read(chat_folder / "tokenizer.json"))
    messages = [{"role": each.role, "content": each.content} for each in SAID]
    assert ours.text(SAID) == theirs.apply_chat_template(messages, tokenize=False)
    assert ours.tokens(SAID) == theirs(theirs.apply_chat_template(messages, tokenize=False))["input_ids"]
    assert ours.text(SAID, answer=True) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_a_template_that_is_damaged_or_refuses(chat_folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.read(chat_folder / "tokenizer.json")
    (chat_folder / "chat_template.jinja").write_text("{{ raise_exception('no system message') }}")
    data = tmp_path / "a.jsonl"
    data.write_text('{"text": "x"}\n{"messages": [{"role": "user", "content": "y"}]}\n')
    with pytest.raises(GpuguideError, match=r"a\.jsonl, line 2: The chat template .* refuses it: no system message"):
        prepare(read(data), None, tokenizer, Conversations(chat_folder, tokenizer), Limits(64))
    (chat_folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__() }}")
    with pytest.raises(GpuguideError, match="refuses it"):
        Conversations(chat_folder, tokenizer).text(SAID)
    (chat_folder / "chat_template.jinja").write_text("{{ messages[0].content + 1 }}")
    with pytest.raises(GpuguideError, match="refuses it"):
        Conversations(chat_folder, tokenizer).text(SAID)
    (chat_folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(GpuguideError, match=r"The chat template in .* is damaged"):
        Conversations(chat_folder, tokenizer)

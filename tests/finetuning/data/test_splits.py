"""From samples to sequences: what is cut, what is left out, what is held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from gpuguide import models
from gpuguide.errors import GpuguideError
from gpuguide.finetuning import DataConfig, DatasetSplits, Message, load_data, tokenize
from gpuguide.finetuning.data import splits
from gpuguide.finetuning.data.conversation import Conversations
from gpuguide.models.checkpoint import open_checkpoint
from gpuguide.models.tokenizer import Tokenizer

FOLDER = models.checkpoint_folder("draft")
TOKENIZER = Tokenizer.read(FOLDER / "tokenizer.json")
CONVERSATIONS = Conversations(open_checkpoint(FOLDER), TOKENIZER)
LONG = "import os\n" * 40


def split_texts(
    folder: Path, texts: Sequence[str], held_out: Sequence[str] | None = None, **settings: object
) -> DatasetSplits:
    sources = []
    for name, given in (("data.jsonl", texts), ("held.jsonl", held_out)):
        if given is not None:
            (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in given))
            sources.append(load_data(folder / name))
    source, apart = (*sources, None)[:2]
    chosen = DataConfig(**{"length": 64, **settings})  # type: ignore[arg-type]
    assert source is not None
    return tokenize(source, apart, TOKENIZER, CONVERSATIONS, chosen)


def test_a_tenth_is_held_out_and_the_seed_says_which(tmp_path: Path) -> None:
    texts = [f"sample number {number}" for number in range(30)]
    first, again, other = (split_texts(tmp_path, texts, seed=seed) for seed in (1, 1, 2))
    assert (len(first.training), len(first.held_out)) == (27, 3)
    assert [each.text for each in first.held_out] == [each.text for each in again.held_out]
    assert [each.text for each in first.held_out] != [each.text for each in other.held_out]
    assert sorted(each.text for each in (*first.training, *first.held_out)) == sorted(texts)
    piece = first.training[0]
    assert piece.tokens.tolist() == [*TOKENIZER.encode(piece.text), TOKENIZER.end_of_text]
    assert first.notes == ()


def test_duplicates_are_left_out_and_counted(tmp_path: Path) -> None:
    done = split_texts(tmp_path, ["one two", "other", "one two", "one two", "third"])
    assert done.duplicates == 2
    assert len(done.training) + len(done.held_out) == 3
    assert len(done.notes) == 1


@pytest.mark.parametrize(
    "texts", [("the US", "the us"), ("if x:\n    y\nz", "if x:\n    y\n    z"), ("one two", "one  two")]
)
def test_texts_that_differ_in_case_or_spaces_are_two(tmp_path: Path, texts: tuple[str, str]) -> None:
    done = split_texts(tmp_path, texts)
    assert done.duplicates == 0
    assert len(done.training) + len(done.held_out) == 2


def test_conversations_that_differ_in_what_is_learnt_are_two(tmp_path: Path) -> None:
    turns = [("user", "a?"), ("assistant", "b"), ("user", "c?"), ("assistant", "d")]
    rows = [
        {
            "messages": [
                {"role": role, "content": said, "weight": int(at == learnt)} for at, (role, said) in enumerate(turns)
            ]
        }
        for learnt in (1, 3)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    (tmp_path / "b.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "e?"}, {"role": "assistant", "content": "f"}]}'
    )
    limits = DataConfig(64, train_on_assistant=True)
    sources = load_data(tmp_path / "a.jsonl"), load_data(tmp_path / "b.jsonl")
    done = tokenize(*sources, TOKENIZER, CONVERSATIONS, limits)
    assert done.duplicates == 1
    learnt = [TOKENIZER.decode(each.tokens[each.loss_mask].tolist()) for each in done.training]
    assert learnt == [" b", " d<|endoftext|>"]
    with pytest.raises(GpuguideError, match="2 of these are held out"):  # what differs so is not held out of itself
        tokenize(load_data(tmp_path / "a.jsonl"), sources[0], TOKENIZER, CONVERSATIONS, limits)


def test_what_is_held_out_is_not_trained_on(tmp_path: Path) -> None:
    done = split_texts(tmp_path, ["one", "two", "three", "four"], ["two", "five", "five"])
    assert (done.leaked, done.duplicates) == (1, 1)
    assert [each.text for each in done.training] == ["one", "three", "four"]
    assert [each.text for each in done.held_out] == ["two", "five"]
    assert any("1 sample" in note for note in done.notes)
    with pytest.raises(GpuguideError, match=r"has 1 sample to use; .* and 1 of these are held out in"):
        split_texts(tmp_path, ["one"], ["one"])


def test_too_little(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match="has 1 sample to use; one or more to train on and one or more to hold out"):
        split_texts(tmp_path, ["one", "one"])


def test_a_sample_that_is_too_long_is_named_and_the_remedies(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match=r"line 2: .* 64; 1 of 3 .*--overflow"):
        split_texts(tmp_path, ["a", LONG, "b"])
    truncated, chunked, dropped = (
        split_texts(tmp_path, ["a", LONG, "b"], overflow=policy) for policy in ("truncate", "chunk", "drop")
    )
    assert [done.overflowing for done in (truncated, chunked, dropped)] == [1, 1, 1]
    assert truncated.longest == 64
    locations = {each.location for each in (*chunked.training, *chunked.held_out)}
    assert {"line 1", "line 3", "line 2, part 1"} <= locations
    assert {each.text for each in (*dropped.training, *dropped.held_out)} == {"a", "b"}
    for old, new in splits.OLD_OVERFLOW.items():
        assert DataConfig(64, old) == DataConfig(64, new)


def test_limits_that_make_no_sense() -> None:
    with pytest.raises(GpuguideError, match="'chop'"):
        DataConfig(64, "chop")
    with pytest.raises(GpuguideError, match="length is 4; it must be at least 8"):
        DataConfig(4)
    with pytest.raises(GpuguideError, match="share is 1"):
        DataConfig(64, eval_share=1.0)


def test_the_end_of_a_text_is_held_out(tmp_path: Path) -> None:
    text = "".join(f"line {number} of a text\n" for number in range(200))
    (tmp_path / "a.txt").write_text(text)
    done = tokenize(load_data(tmp_path / "a.txt"), None, TOKENIZER, CONVERSATIONS, DataConfig(64))
    assert "".join(each.text for each in (*done.training, *done.held_out)) == text
    assert len(done.held_out) == round(0.1 * (len(done.training) + len(done.held_out)))
    (tmp_path / "b.txt").write_text("so short")
    with pytest.raises(GpuguideError, match=r"b\.txt has \d tokens; 16 or more are needed"):
        tokenize(load_data(tmp_path / "b.txt"), None, TOKENIZER, CONVERSATIONS, DataConfig(64))


SAID = (Message("user", "Name <|endoftext|> it."), Message("assistant", "os.path"))


def test_a_conversation_without_a_template() -> None:
    assert CONVERSATIONS.text(SAID) == "user: Name <|endoftext|> it.\n\nassistant: os.path"
    asked, whole = CONVERSATIONS.tokens(SAID[:1], answer=True), CONVERSATIONS.tokens(SAID)
    assert whole[: len(asked)] == asked
    assert whole.count(TOKENIZER.end_of_text) == 1
    assert whole[-1] == TOKENIZER.end_of_text


def test_a_conversation_is_written_as_transformers_does(chat_folder: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(chat_folder)
    ours = Conversations(open_checkpoint(chat_folder), Tokenizer.read(chat_folder / "tokenizer.json"))
    messages = [{"role": each.role, "content": each.content} for each in SAID]
    assert ours.text(SAID) == theirs.apply_chat_template(messages, tokenize=False)
    assert ours.tokens(SAID) == theirs(theirs.apply_chat_template(messages, tokenize=False))["input_ids"]
    assert ours.text(SAID, answer=True) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


TURNS = (
    Message("system", "Short."),
    Message("user", "Név? 🐍"),
    Message("assistant", "ős.path 🐍"),
    Message("user", "And?"),
    Message("assistant", "os"),
)
MARKED = (
    "{% for message in messages %}{{ message.role }}<{% if message.role == 'assistant' %}{% generation %}"
    "{{ message.content }}>{{ eos_token }}\n{% endgeneration %}{% else %}{{ message.content }}>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}assistant<{% endif %}"
)


def said(conversations: Conversations, tokens: list[int], marks: list[bool]) -> list[str]:
    """What is counted, a text for each stretch."""
    stretches = groupby(zip(tokens, marks, strict=True), key=lambda pair: pair[1])
    return [conversations.tokenizer.decode([token for token, _ in each]) for counted, each in stretches if counted]


def test_answers_are_counted_with_what_ends_them(chat_folder: Path) -> None:
    tokens = CONVERSATIONS.tokens(TURNS)
    assert said(CONVERSATIONS, tokens, CONVERSATIONS.loss_mask(TURNS, tokens)) == [" ős.path 🐍", " os<|endoftext|>"]
    first = (Message("assistant", "Hello"), Message("user", "Bye"))
    tokens = CONVERSATIONS.tokens(first)
    assert said(CONVERSATIONS, tokens, CONVERSATIONS.loss_mask(first, tokens)) == [" Hello"]
    with pytest.raises(GpuguideError, match="assistant"):
        CONVERSATIONS.loss_mask(TURNS[:2], CONVERSATIONS.tokens(TURNS[:2]))


def test_answers_are_those_that_transformers_marks(chat_folder: Path) -> None:
    (chat_folder / "chat_template.jinja").write_text(MARKED)
    theirs = AutoTokenizer.from_pretrained(chat_folder)
    ours = Conversations(open_checkpoint(chat_folder), Tokenizer.read(chat_folder / "tokenizer.json"))
    messages = [{"role": each.role, "content": each.content} for each in TURNS]
    marked = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    tokens = ours.tokens(TURNS)
    assert tokens == marked["input_ids"]
    assert list(map(int, ours.loss_mask(TURNS, tokens))) == marked["assistant_masks"]


def test_a_template_that_rewrites_what_was_said_is_refused(chat_folder: Path) -> None:
    (chat_folder / "chat_template.jinja").write_text(
        "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    ours = Conversations(open_checkpoint(chat_folder), Tokenizer.read(chat_folder / "tokenizer.json"))
    with pytest.raises(GpuguideError, match="--train-on-assistant"):
        ours.loss_mask(TURNS, ours.tokens(TURNS))


def test_only_what_holds_a_part_of_an_answer_is_trained_on(tmp_path: Path) -> None:
    long = {"messages": [{"role": "user", "content": "x = 1\n" * 30}, {"role": "assistant", "content": "y = 2"}]}
    short = [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": str(n)}]} for n in range(9)
    ]
    data = tmp_path / "a.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in (long, *short)))

    def done(**more: Any) -> DatasetSplits:
        return tokenize(
            load_data(data), None, TOKENIZER, CONVERSATIONS, DataConfig(48, train_on_assistant=True, **more)
        )

    cut = done(overflow="truncate")
    assert cut.without_answer == 1
    assert len(cut.training) + len(cut.held_out) == 9
    for piece in (*cut.training, *cut.held_out):
        tokens, marks = piece.sequence
        assert torch.equal(tokens, piece.tokens)
        assert TOKENIZER.decode(tokens[marks.bool()].tolist()) == f" {piece.text.rpartition(' ')[2]}<|endoftext|>"
    split = done(overflow="chunk")
    parts = [each for each in (*split.training, *split.held_out) if "part" in each.location]
    assert len(parts) + split.without_answer > 1
    assert "".join(TOKENIZER.decode(each.tokens[each.loss_mask].tolist()) for each in parts) == " y = 2<|endoftext|>"


def test_answers_need_conversations(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text " * 40)
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    for name, says in (("a.txt", "is a text, so it has no answer"), ("a.jsonl", "line 1: this is no conversation")):
        with pytest.raises(GpuguideError, match=says):
            tokenize(
                load_data(tmp_path / name), None, TOKENIZER, CONVERSATIONS, DataConfig(64, train_on_assistant=True)
            )


def test_a_template_that_is_damaged_or_refuses(chat_folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.read(chat_folder / "tokenizer.json")
    (chat_folder / "chat_template.jinja").write_text("{{ raise_exception('no system message') }}")
    data = tmp_path / "a.jsonl"
    data.write_text('{"text": "x"}\n{"messages": [{"role": "user", "content": "y"}]}\n')
    conversations = Conversations(open_checkpoint(chat_folder), tokenizer)
    with pytest.raises(GpuguideError, match=r"a\.jsonl, line 2: The chat template .* refuses it: no system message"):
        tokenize(load_data(data), None, tokenizer, conversations, DataConfig(64))
    (chat_folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__() }}")
    with pytest.raises(GpuguideError, match="refuses it"):
        Conversations(open_checkpoint(chat_folder), tokenizer).text(SAID)
    (chat_folder / "chat_template.jinja").write_text("{{ messages[0].content + 1 }}")
    with pytest.raises(GpuguideError, match="refuses it"):
        Conversations(open_checkpoint(chat_folder), tokenizer).text(SAID)
    (chat_folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(GpuguideError, match=r"The chat template in .* is damaged"):
        Conversations(open_checkpoint(chat_folder), tokenizer)

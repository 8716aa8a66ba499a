"""Chat templates and what of a conversation is learnt, beside what transformers makes of the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from gpuguide.errors import GpuguideError
from gpuguide.finetuning import DataConfig, Message, load_data, tokenize
from gpuguide.finetuning.data.conversation import Conversations
from gpuguide.models.checkpoint import open_checkpoint
from gpuguide.models.tokenizer import Tokenizer

TURNS = [
    {"role": "system", "content": "Short."},
    {"role": "user", "content": "Név? 🐍"},
    {"role": "assistant", "content": " ős </think> 🐍"},
    {"role": "user", "content": "  and?  "},
    {"role": "assistant", "content": "  two words "},
]
LLAMA = (
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}<|{{ m['role'] }}|>\n\n"
    "{{ m['content'] | trim }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>\n\n{% endif %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + '\n' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] + '<|end|>\n' }}{% endgeneration %}{% else %}{{ m['content'] + '<|end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
WITHOUT_MARKS = PHI.replace("{% generation %}", "").replace("{% endgeneration %}", "")
SPECIAL = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")


@pytest.fixture
def folder(gpt2_folder: Path) -> Path:
    (gpt2_folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return gpt2_folder


def with_template(
    folder: Path, template: object, special: dict[str, bool] | None = None, **settings: object
) -> Conversations:
    """Write a chat template, and special tokens for it that may take white space with them."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    if special is not None:
        content["added_tokens"] += [
            {"id": 2048 + number, "content": name, **plain, **special} for number, name in enumerate(SPECIAL)
        ]
    path.write_text(json.dumps(content))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template, **settings}))
    return Conversations(open_checkpoint(folder), Tokenizer.read(folder / "tokenizer.json"))


def messages(given: list[dict[str, Any]]) -> list[Message]:
    return [
        Message(each["role"], each["content"], {name: each[name] for name in each if name not in ("role", "content")})
        for each in given
    ]


def learnt(ours: Conversations, given: list[dict[str, Any]]) -> list[str]:
    """The stretches that are counted."""
    said = messages(given)
    tokens = ours.tokens(said)
    stretches: list[list[int]] = [[]]
    for token, counted in zip(tokens, ours.loss_mask(said, tokens), strict=True):
        if counted:
            stretches[-1].append(token)
        elif stretches[-1]:
            stretches.append([])
    return [ours.tokenizer.decode(each) for each in stretches if each]


STRIPS = [{}, {"rstrip": True}, {"lstrip": True}, {"lstrip": True, "rstrip": True}]


@pytest.mark.parametrize("special", STRIPS)
def test_marked_answers_are_those_of_transformers(folder: Path, special: dict[str, bool]) -> None:
    """As the special tokens of Phi-3 and Phi-4, which take white space with them."""
    ours = with_template(folder, PHI, special)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        TURNS, return_dict=True, return_assistant_tokens_mask=True
    )
    said = messages(TURNS)
    tokens = ours.tokens(said)
    assert tokens == theirs["input_ids"]
    assert list(map(int, ours.loss_mask(said, tokens))) == theirs["assistant_masks"]
    assert 0 < sum(theirs["assistant_masks"]) < len(tokens)


@pytest.mark.parametrize("special", STRIPS)
def test_answers_that_a_template_does_not_mark(folder: Path, special: dict[str, bool]) -> None:
    ours = with_template(folder, WITHOUT_MARKS, special)
    first, last = learnt(ours, TURNS)
    assert first.strip() == "ős </think> 🐍<|end|>"
    assert last.strip() == ("two words<|end|>" if "lstrip" in special else "two words <|end|>")


@pytest.mark.parametrize("template", [LLAMA, PHI, WITHOUT_MARKS, None])
def test_the_header_of_an_assistant_who_speaks_first_does_not_count(folder: Path, template: str | None) -> None:
    ours = with_template(folder, template, {}, bos_token="<|endoftext|>")
    first, _, last = learnt(ours, [{"role": "assistant", "content": "hello"}, *TURNS[1:]])
    assert first.removesuffix("\n").removesuffix("<|end|>").strip() == "hello"
    assert last.strip().startswith("two words")


@pytest.mark.parametrize("template", [LLAMA, PHI, None])
@pytest.mark.parametrize("field", [{"weight": 0}, {"train": False}])
def test_what_has_no_weight_is_not_learnt(folder: Path, template: str | None, field: dict[str, Any]) -> None:
    ours = with_template(folder, template, {})
    (only,) = learnt(ours, [*TURNS[:2], {**TURNS[2], **field}, *TURNS[3:]])
    assert only.strip().startswith("two words")
    assert learnt(ours, [*TURNS[:2], {**TURNS[2], **field}]) == []


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # The prompt for an answer goes on with a tag to think in, which answers of the data have not.
        (WITHOUT_MARKS.replace("{{ '<|assistant|>\n' }}", "{{ '<|assistant|>\n<think>\n' }}"), "  two words <|end|>\n"),
        # A call stands before the header that the prompt for an answer has.
        ("{% for m in messages %}{% if m.tool_calls is defined %}CALL{% endif %}{{ m.role }}|{{ m.content }}<|end|>"
         "{% endfor %}{% if add_generation_prompt %}assistant|{% endif %}", "CALLassistant|  two words <|end|>"),
    ],
)  # fmt: skip
def test_answers_that_do_not_begin_as_they_are_asked_for(folder: Path, template: str, expected: str) -> None:
    ours = with_template(folder, template, {})
    said = [*TURNS[:4], {**TURNS[4], **({"tool_calls": CALL} if "CALL" in template else {})}]
    assert learnt(ours, said)[-1].strip() == expected.strip()  # a line break of the header and spaces are one token


def test_weights_where_every_token_counts_are_refused(folder: Path, tmp_path: Path) -> None:
    rows = [{"messages": [TURNS[1], {**TURNS[2], "weight": 0}]}, {"messages": TURNS[1:3]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ours = with_template(folder, LLAMA)
    with pytest.raises(GpuguideError, match=r"line 1: message 2 .*weight 0.*--train-on-assistant"):
        tokenize(load_data(tmp_path / "a.jsonl"), None, ours.tokenizer, ours, DataConfig(64))


def test_weights_need_a_mark_for_each_answer(folder: Path) -> None:
    template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    with pytest.raises(GpuguideError, match=r"weight 0.* marks 5 answers where there are 2"):
        learnt(with_template(folder, template), [*TURNS[:2], {**TURNS[2], "weight": 0}, *TURNS[3:]])


CALLS = (
    "{% for m in messages %}{{ m.role }}<{% if m.content %}{{ m.content }}{% endif %}{% if m.tool_calls is defined %}"
    "{{ m.tool_calls | tojson(indent=2) }}{% endif %}>{% endfor %}"
    "{% if tools is none %}without{% else %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}assistant<{% endif %}"
)
CALL = [{"type": "function", "function": {"name": "größe", "arguments": "{}"}}]
CALLING = [TURNS[1], {"role": "assistant", "content": "", "tool_calls": CALL}]


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "größe"}}]])
def test_calls_of_tools_are_written_as_transformers_does(folder: Path, tools: Any) -> None:
    ours = with_template(folder, CALLS)
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(CALLING, tools=tools, tokenize=False)
    assert ours.text(messages(CALLING), tools=tools) == expected
    assert "größe" in expected
    assert expected.endswith("without" if tools is None else "}]")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("[{{ m.tool_calls[0].type if m.content is none else m.content }}]", "[Név? 🐍][function]"),
        ("{{ '[' + m.content + ']' }}{% if m.tool_calls %}!{% endif %}", "[Név? 🐍][]!"),
        ("[{{ m.content }}]{% if m.tool_calls %}!{% endif %}", "[Név? 🐍][]!"),
    ],
)  # fmt: skip
def test_calls_without_a_content(folder: Path, template: str, expected: str) -> None:
    """A template may ask whether there is one, need a text, or write "None"."""
    ours = with_template(folder, f"{{% for m in messages %}}{template}{{% endfor %}}")
    assert ours.text(messages([TURNS[1], {**CALLING[1], "content": None}])) == expected


@pytest.mark.parametrize("field", ["tool_calls", "function_call", "reasoning_content"])
@pytest.mark.parametrize("template", [LLAMA, None])
def test_what_would_be_lost_is_refused(folder: Path, template: str | None, field: str) -> None:
    ours = with_template(folder, template)
    said = messages([TURNS[1], {**TURNS[2], field: [{"name": "x"}]}])
    with pytest.raises(GpuguideError, match=f"message 2 has {field}, which would be lost"):
        ours.tokens(said)
    assert ours.tokens(messages([TURNS[1], {**TURNS[2], field: []}])) == ours.tokens(messages(TURNS[1:3]))


@pytest.mark.parametrize("decoder", [{}, {"added_tokens_decoder": {}}])
def test_special_tokens_that_only_the_map_names(folder: Path, decoder: dict[str, Any]) -> None:
    """Which transformers reads where tokenizer_config.json is of an old form."""
    ours = with_template(folder, LLAMA, **decoder)
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<|endoftext|>"}}))
    ours = Conversations(open_checkpoint(folder), ours.tokenizer)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(TURNS, return_dict=True)["input_ids"]
    assert ours.tokens(messages(TURNS)) == theirs
    assert (theirs[0] == 0) == (not decoder)


def test_all_names_of_special_tokens(folder: Path) -> None:
    template = "{{ unk_token }}{{ pad_token }}{{ sep_token is defined }}{{ bos_token }}{{ documents is none }}"
    ours = with_template(folder, template, unk_token="U", pad_token={"content": "P", "__type": "AddedToken"})
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(TURNS, tokenize=False)
    assert ours.text(messages(TURNS)) == theirs == "UPFalseTrue"


def test_names_that_gpt2s_tokenizer_has_of_itself(folder: Path) -> None:
    ours = with_template(folder, "{{ bos_token }}a", tokenizer_class="GPT2Tokenizer")
    assert ours.text(messages(TURNS)) == AutoTokenizer.from_pretrained(folder).apply_chat_template(
        TURNS, tokenize=False
    )


def test_several_templates(folder: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]
    ours = with_template(folder, named)
    said = messages(TURNS)
    assert (ours.text(said), ours.text(said, tools=[{"a": 1}])) == ("plain", "1 tools")
    ours = with_template(folder, [named[1], {"name": "rag", "template": "x"}])
    with pytest.raises(GpuguideError, match="none that is named 'default': rag, tool_use"):
        ours.text(said)
    (folder / "chat_template.jinja").write_text("from the file")
    assert Conversations(open_checkpoint(folder), ours.tokenizer).text(said) == "from the file"
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(GpuguideError, match=r"The chat template default in .* is 7; it must be a text"):
        with_template(folder, 7)


def test_half_of_a_surrogate_pair_is_named_by_its_line(folder: Path, tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "a \ud83d"}, TURNS[2]]}
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x"}) + "\n" + json.dumps(row) + "\n")
    for template in (LLAMA, None):
        ours = with_template(folder, template)
        with pytest.raises(GpuguideError, match=r"line 2: .*half of a surrogate pair"):
            tokenize(load_data(tmp_path / "a.jsonl"), None, ours.tokenizer, ours, DataConfig(64))


def test_a_text_that_a_template_wrote_before(folder: Path, tmp_path: Path) -> None:
    ours = with_template(folder, LLAMA, {}, bos_token="<|endoftext|>")
    written = [ours.text(messages([TURNS[1], {"role": "assistant", "content": str(n)}])) for n in range(3)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*written, "plain"]))
    done = tokenize(load_data(tmp_path / "a.jsonl"), None, ours.tokenizer, ours, DataConfig(64))
    theirs = AutoTokenizer.from_pretrained(folder)
    pieces = {piece.location: piece.tokens.tolist() for piece in (*done.training, *done.held_out)}
    assert pieces["line 2"] == [*theirs(written[1], add_special_tokens=False)["input_ids"], ours.tokenizer.end_of_text]
    assert "3 texts with special tokens of the model" in " ".join(done.notes)
    (tmp_path / "b.txt").write_text("\n".join(f"{text} {number}" for number, text in enumerate(written * 9)))
    done = tokenize(load_data(tmp_path / "b.txt"), None, ours.tokenizer, ours, DataConfig(64))
    whole = [token for piece in (*done.training, *done.held_out) for token in piece.tokens.tolist()]
    assert whole == theirs((tmp_path / "b.txt").read_text(), add_special_tokens=False)["input_ids"]
    assert whole.count(0) == 27
    assert "special tokens of the model" in " ".join(done.notes)


def test_a_text_that_ends_with_an_end_gets_no_second_one(folder: Path, tmp_path: Path) -> None:
    ours = with_template(folder, LLAMA)
    (tmp_path / "a.jsonl").write_text('{"text": "one<|endoftext|>"}\n{"text": "two"}\n')
    done = tokenize(load_data(tmp_path / "a.jsonl"), None, ours.tokenizer, ours, DataConfig(64))
    pieces = {piece.location: piece.tokens.tolist() for piece in (*done.training, *done.held_out)}
    assert pieces["line 1"] == [*ours.tokenizer.encode("one"), 0]

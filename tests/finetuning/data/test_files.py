"""Texts, JSON Lines and Parquet become samples; what is wrong is named by its line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from gpuguide.errors import GpuguideError
from gpuguide.finetuning import Message, Sample, load_data

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
SAID = (Message("user", "Hi"), Message("assistant", "Hello"))


def test_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("one\ntwo ü\n", encoding="utf-8")
    source = load_data(path)
    assert source.is_one_text
    assert [sample.text for sample in source.samples] == ["one\ntwo ü\n"]


def test_lines_in_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\r\n\n' + json.dumps({"messages": CHAT, "id": 3}).encode())
    source = load_data(path)
    assert not source.is_one_text
    assert source.samples == (Sample("line 1", "one"), Sample("line 3", messages=SAID))


def test_rows_in_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["one", None], "messages": [None, CHAT], "other": [1, 2]}), path)
    assert load_data(path).samples == (Sample("row 1", "one"), Sample("row 2", messages=SAID))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "b"', r"line 2: this is no JSON"),
        ("plain words", r"line 2: this is no JSON"),
        ('[{"text": "b"}]', r"line 2: this is a list\. The file must hold one object in each line"),
        ("{", r"line 2: this is no JSON .* one object in each line, on that line alone"),
        ("[", r"line 2: this is no JSON .* The file must hold one object in each line, not one list"),
        ("7", r"line 2: this must be \{\"text\""),
        ('{"prompt": "b"}', r"line 2: this must be .* it has prompt\."),
        ('{"text": ""}', r"line 2: text must be a text that is not empty; it is ''"),
        ('{"text": 5}', r"line 2: text must be a text that is not empty; it is 5"),
        ('{"messages": []}', r"line 2: messages must be a list that is not empty"),
        ('{"messages": [{"role": "user"}]}', r"line 2: message 1 needs content, as text"),
        ('{"messages": ["hi"]}', r"line 2: message 1 needs role and content, as text"),
        (b'{"text": "\xff"}', r"line 2: this is no text in UTF-8 \(byte 0xff.*WINDOWS-1252"),
        ('{"text": "b"},', r"line 2: this is no JSON .* comma follows"),
        ('{"messages": [{"role": "user", "content": ["a"]}]}', r"message 1 needs content, as text\. content is a list"),
        ('{"messages": "[]"}', r"line 2: messages must be a list .* parse it first"),
        ('{"messages": [{"from": "human", "value": "a"}]}', r"message 1 needs role and content.*ShareGPT"),
        (
            '{"messages": [{"role": "a", "content": "b", "weight": 0.5}]}',
            r"message 1 has the weight 0\.5; it must be 1, or 0",
        ),
        ('{"messages": [{"role": "assistant", "content": null}]}', r"message 1 needs content, as text"),
        (
            '{"instruction": "a", "input": "", "output": "b"}',
            r"it has instruction, input, output\. .*Alpaca.*\"messages\"",
        ),
        ('{"conversations": []}', r"line 2: .* it has conversations\. .*ShareGPT"),
        ('{"prompt": "a", "chosen": "b", "rejected": "c"}', r"pairs of a preference"),
        ('{"prompt": "a", "completion": "c"}', r"prompt and completion are not read.*\"messages\""),
        ('{"question": "a", "answer": "c"}', r"question and answer are not read"),
        ('{"text": null}', r"line 2: this must be"),
        ('{"messages": [{"role": "a", "content": "b"}], "tools": "x"}', r"line 2: tools is a text that is no JSON"),
        (
            '{"messages": [{"role": "a", "content": "b"}], "tools": 5}',
            r"line 2: tools must be a list of objects; it is 5",
        ),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, line: str | bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(GpuguideError, match=said):
        load_data(path)


CALL = {"type": "function", "function": {"name": "time", "arguments": "{}"}}


def test_messages_keep_all_that_they_hold(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [CALL], "weight": 0, "name": None}
    rows = [{"messages": [*CHAT, said], "tools": [{"type": "function"}], "text": None}, {"text": "a", "messages": None}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = load_data(tmp_path / "a.jsonl").samples
    assert first.messages == (*SAID, Message("assistant", None, {"tool_calls": [CALL], "weight": 0}))
    assert [each.is_learnt for each in first.messages] == [True, True, False]
    assert first.tools == ({"type": "function"},)
    assert second == Sample("line 2", "a")
    assert not Message("assistant", "a", {"train": False}).is_learnt


def test_rows_of_parquet_hold_no_fields_that_only_others_have(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": None}]}
    parquet.write_table(
        pyarrow.table({"messages": [[*CHAT, said]], "tools": ['[{"type": "x"}]']}), tmp_path / "a.parquet"
    )
    (sample,) = load_data(tmp_path / "a.parquet").samples
    assert sample.messages == (*SAID, Message("assistant", None, {"tool_calls": [CALL]}))
    assert sample.tools == ({"type": "x"},)
    parquet.write_table(pyarrow.table({"conversations": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(GpuguideError, match=r"columns are: conversations\. .*ShareGPT"):
        load_data(tmp_path / "b.parquet")


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(mark + b"one\r\ntwo")
    assert load_data(tmp_path / "a.txt").samples[0].text == "one\r\ntwo"
    (tmp_path / "a.jsonl").write_bytes(mark + b'{"text": "one"}\n' + mark + b'{"text": "two"}\n')
    assert [each.text for each in load_data(tmp_path / "a.jsonl").samples] == ["one", "two"]
    (tmp_path / "b.txt").write_bytes(mark)
    with pytest.raises(GpuguideError, match=r"b\.txt is empty"):
        load_data(tmp_path / "b.txt")


@pytest.mark.parametrize("name", ["a.txt", "a", "a.data"])
def test_json_lines_with_another_ending(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('\n{"text": "one"}\n{"text": "two"}\n')
    source = load_data(tmp_path / name)
    assert not source.is_one_text
    assert [each.text for each in source.samples] == ["one", "two"]
    (tmp_path / name).write_text(json.dumps([{"text": "one"}], indent=1))
    with pytest.raises(GpuguideError, match=r"line 1: this is no JSON .*not one list"):
        load_data(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        "{x} is a set\n",
        "[1] Author, title\n",
        "[a link](b)\n",
        "PAR1 is a gene.\n",
        "<!DOCTYPE html>\n",
        '{"a": 1\n',
        "7\n",
    ],
)
def test_a_text_that_only_begins_like_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.md").write_text(text)
    source = load_data(tmp_path / "a.md")
    assert source.is_one_text
    assert source.samples[0].text == text


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"a,b\n1,2\n", "is a table, no text.*JSON Lines"),
        ("a.TSV", b"a\tb\n1\t2\n", "is a table, no text"),
        ("a.xlsx", b"PK\x03\x04", "is a spreadsheet"),
        ("a.jsonl.gz", b"\x1f\x8b\x08", "is packed. Unpack it"),
        ("a.txt", b"ARROW1\0\0" + b"\0" * 64, "is no text. It is an Arrow file; write it as Parquet"),
        ("a.arrow", b"ARROW1\0\0", "is an Arrow file, no text"),
        ("a.bin", b"some\0bytes", "is no text: its byte 5 is zero"),
        ("a.jsonl", b"PAR1\x15", "is no text. It is a Parquet file; let its name end in .parquet"),
        ("a", b"\x1f\x8b\x08\x00", "compressed with gzip"),
        ("a.txt", b"%PDF-1.7", "a PDF; extract its text"),
        ("a.txt", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer.*git lfs pull"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\n", "as Parquet .*Git LFS pointer"),
        ("a.jsonl", '{"text": "a"}\n'.encode("utf-16"), "is written in UTF-16"),
        ("a.jsonl", '{"text": "a"}\n'.encode("utf-16-le"), "is written in UTF-16"),
        ("a.txt", "some text".encode("utf-16-be"), "is written in UTF-16"),
        ("a.txt", "some text".encode("utf-32"), "is written in UTF-32"),
        ("a.txt", "one\nd\xe9j\xe0".encode("latin-1"), "line 2: this is no text in UTF-8.*WINDOWS-1252"),
    ],
)
def test_what_is_no_text_says_what_it_is(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GpuguideError, match=rf"{name}[, ].*{says}"):
        load_data(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("content", ["", " \n\n"])
def test_an_empty_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(GpuguideError, match=rf"{name} is empty"):
        load_data(tmp_path / name)


def test_other_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match=r"none\.txt does not exist"):
        load_data(tmp_path / "none.txt")
    with pytest.raises(GpuguideError, match="is a folder; name a file in it"):
        load_data(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"one\ntwo \xff")
    with pytest.raises(GpuguideError, match=r"a\.txt, line 2: this is no text in UTF-8"):
        load_data(tmp_path / "a.txt")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(GpuguideError, match=r"a\.parquet cannot be read as Parquet"):
        load_data(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"words": ["one"]}), tmp_path / "b.parquet")
    with pytest.raises(GpuguideError, match="has no column text or messages; its columns are: words"):
        load_data(tmp_path / "b.parquet")
    parquet.write_table(pyarrow.table({"text": ["one", None]}), tmp_path / "c.parquet")
    with pytest.raises(GpuguideError, match=r"c\.parquet, row 2: this must be"):
        load_data(tmp_path / "c.parquet")
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "d.parquet")
    with pytest.raises(GpuguideError, match=r"d\.parquet is empty"):
        load_data(tmp_path / "d.parquet")

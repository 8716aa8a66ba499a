"""Texts, JSON Lines and Parquet become samples; what is wrong is named by its line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from gpuguide.errors import GpuguideError
from gpuguide.finetuning import Message, Sample, read

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
SAID = (Message("user", "Hi"), Message("assistant", "Hello"))


def test_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("one\ntwo ü\n", encoding="utf-8")
    source = read(path)
    assert source.is_one_text
    assert [sample.text for sample in source.samples] == ["one\ntwo ü\n"]


def test_lines_in_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\r\n\n' + json.dumps({"messages": CHAT, "id": 3}).encode())
    source = read(path)
    assert not source.is_one_text
    assert source.samples == (Sample("line 1", "one"), Sample("line 3", messages=SAID))


def test_rows_in_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["one", None], "messages": [None, CHAT], "other": [1, 2]}), path)
    assert read(path).samples == (Sample("row 1", "one"), Sample("row 2", messages=SAID))


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
        (b'{"text": "\xff"}', r"line 2: this is no JSON"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, line: str | bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(GpuguideError, match=said):
        read(path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("content", ["", " \n\n"])
def test_an_empty_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(GpuguideError, match=rf"{name} is empty"):
        read(tmp_path / name)


def test_other_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match=r"none\.txt does not exist"):
        read(tmp_path / "none.txt")
    with pytest.raises(GpuguideError, match="is a folder; name a file in it"):
        read(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"one\ntwo \xff")
    with pytest.raises(GpuguideError, match=r"a\.txt, line 2: this is no text in UTF-8"):
        read(tmp_path / "a.txt")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(GpuguideError, match=r"a\.parquet cannot be read as Parquet"):
        read(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"words": ["one"]}), tmp_path / "b.parquet")
    with pytest.raises(GpuguideError, match="has no column text or messages; its columns are: words"):
        read(tmp_path / "b.parquet")
    parquet.write_table(pyarrow.table({"text": ["one", None]}), tmp_path / "c.parquet")
    with pytest.raises(GpuguideError, match=r"c\.parquet, row 2: this must be"):
        read(tmp_path / "c.parquet")
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "d.parquet")
    with pytest.raises(GpuguideError, match=r"d\.parquet is empty"):
        read(tmp_path / "d.parquet")

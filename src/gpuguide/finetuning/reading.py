"""Data to fine-tune on, read from a file: a text, JSON Lines, or Parquet.

A line or row is either ``{"text": "..."}`` or a conversation,
``{"messages": [{"role": "...", "content": "..."}, ...]}``. Any other file is one text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuguide.errors import GpuguideError

LINES = (".jsonl", ".ndjson", ".json")
PARQUET = (".parquet", ".pq")
FORMS = '{"text": "..."} or {"messages": [{"role": "...", "content": "..."}]}'


@dataclass(frozen=True)
class Message:
    """What one side of a conversation says."""

    role: str
    content: str


@dataclass(frozen=True)
class Sample:
    """What stands in one line or row: a text, or a conversation."""

    place: str
    """Where in the file, for messages: ``line 7``"""
    text: str = ""
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Source:
    """The content of a file."""

    path: Path
    samples: tuple[Sample, ...]
    is_one_text: bool
    """Whether it is a text that may be cut anywhere, rather than samples that begin and end"""


def read(path: Path) -> Source:
    """Read a file.

    Raises
    ------
    GpuguideError
        If it is missing, empty or damaged, a line or row has another form (it is named by its number), or a package is
        missing that reads it.
    """
    if not path.is_file():
        what = "is a folder; name a file in it" if path.is_dir() else "does not exist"
        raise GpuguideError(f"The data file {path} {what}.")
    kind = path.suffix.lower()
    if kind in PARQUET:
        samples = tuple(_rows(path))
    elif kind in LINES:
        samples = tuple(_lines(path))
    else:
        samples = tuple(_text(path))
    if not samples:
        raise GpuguideError(f"The data file {path} is empty.")
    return Source(path, samples, kind not in (*PARQUET, *LINES))


def _text(path: Path) -> Iterator[Sample]:
    content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise GpuguideError(f"{path}, line {line}: this is no text in UTF-8 ({error.reason}).") from error
    if text.strip():
        yield Sample("the text", text)


def _lines(path: Path) -> Iterator[Sample]:
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            given = json.loads(line)
        except (ValueError, UnicodeDecodeError) as error:
            how = {b"[": ", not one list", b"{": ", on that line alone"}.get(line.lstrip()[:1])
            hint = f" The file must hold one object in each line{how}." if how else ""
            raise GpuguideError(f"{path}, {place}: this is no JSON ({error}).{hint}") from error
        yield _sample(given, place, path)


def _rows(path: Path) -> Iterator[Sample]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise GpuguideError(
            f"{path} is read with pyarrow, which is not installed: pip install 'gpuguide[dataframes]'. "
            "JSON Lines need nothing."
        ) from error
    try:
        file = parquet.ParquetFile(path)
        names = [name for name in ("messages", "text") if name in file.schema_arrow.names]
        if not names:
            columns = ", ".join(file.schema_arrow.names)
            raise GpuguideError(f"{path} has no column text or messages; its columns are: {columns}.")
        number = 0
        for batch in file.iter_batches(columns=names):
            for given in batch.to_pylist():
                number += 1
                yield _sample(
                    {name: value for name, value in given.items() if value is not None}, f"row {number}", path
                )
    except (OSError, ValueError) as error:  # pyarrow's errors are of these
        raise GpuguideError(f"{path} cannot be read as Parquet ({error}).") from error


def _sample(given: Any, place: str, path: Path) -> Sample:
    """Return what a line or row holds."""
    if isinstance(given, list):
        raise GpuguideError(
            f"{path}, {place}: this is a list. The file must hold one object in each line, such as {FORMS}."
        )
    if not isinstance(given, Mapping) or not ("text" in given or "messages" in given):
        held = f"has {', '.join(map(str, given)) or 'nothing'}" if isinstance(given, Mapping) else f"is {given!r:.40}"
        raise GpuguideError(f"{path}, {place}: this must be {FORMS}; it {held}.")
    if "messages" in given:
        return Sample(place, messages=_messages(given["messages"], place, path))
    if not isinstance(given["text"], str) or not given["text"].strip():
        raise GpuguideError(f"{path}, {place}: text must be a text that is not empty; it is {given['text']!r:.40}.")
    return Sample(place, given["text"])


def _messages(given: Any, place: str, path: Path) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise GpuguideError(f"{path}, {place}: messages must be a list that is not empty; it is {given!r:.40}.")
    for number, each in enumerate(given, 1):
        wrong = [key for key in ("role", "content") if not isinstance(each, Mapping) or type(each.get(key)) is not str]
        if wrong:
            raise GpuguideError(f"{path}, {place}: message {number} needs {' and '.join(wrong)}, as text.")
    return tuple(Message(each["role"], each["content"]) for each in given)

"""Data files to fine-tune on: a text, JSON Lines, or Parquet.

A line or row is either ``{"text": "..."}`` or a conversation,
``{"messages": [{"role": "...", "content": "..."}, ...]}``, whose messages may have more fields for the chat template. A
file with another ending is JSON Lines if its content is, and otherwise one text; files that are neither are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuguide import file_kinds
from gpuguide.errors import GpuguideError
from gpuguide.finetuning.data import format_hints

LINES = (".jsonl", ".ndjson", ".json")
PARQUET = (".parquet", ".pq")
FORMS = '{"text": "..."} or {"messages": [{"role": "...", "content": "..."}]}'
BYTE_ORDER = "\ufeff"
"""Byte-order mark that some programs put before a text in UTF-8; it is not part of the text"""
CALLS = ("tool_calls", "function_call")
"""Fields of a message that may replace its content"""


@dataclass(frozen=True)
class Message:
    """A message of a conversation."""

    role: str
    content: str | None
    """Content; ``None`` only where another field replaces it, such as ``tool_calls``"""
    extra_fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields, for the chat template"""

    @property
    def fields(self) -> dict[str, Any]:
        """All fields, as a chat template takes them."""
        return {"role": self.role, "content": self.content, **self.extra_fields}

    @property
    def is_learnt(self) -> bool:
        """Flag that the loss may count this answer: its ``weight`` is not 0, and ``train`` is not false."""
        return bool(self.extra_fields.get("weight", 1)) and self.extra_fields.get("train") is not False


@dataclass(frozen=True)
class Sample:
    """Content of one line or row: a text, or a conversation."""

    location: str
    """Place in the file, for messages: ``line 7``"""
    text: str = ""
    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] | None = None
    """Tools that the assistant of a conversation may call, for the chat template"""


@dataclass(frozen=True)
class DataFile:
    """Content of a data file."""

    path: Path
    samples: tuple[Sample, ...]
    is_one_text: bool
    """Flag for a text that may be cut anywhere, rather than samples that begin and end"""


def load_data(path: Path) -> DataFile:
    """Read a data file.

    Raises
    ------
    GpuguideError
        If it is missing, empty, damaged or of a kind that is not read, a line or row has another form (it is named by
        its number), or a package is missing that reads it.
    """
    if not path.is_file():
        what = "is a folder; name a file in it" if path.is_dir() else "does not exist"
        raise GpuguideError(f"The data file {path} {what}.")
    kind = path.suffix.lower()
    if kind in format_hints.ENDINGS:
        raise GpuguideError(f"{path} {format_hints.ENDINGS[kind]}.")
    if kind in PARQUET:
        samples, is_one_text = tuple(_rows(path)), False
    else:
        content = path.read_bytes()
        _check_text(content, path)
        is_one_text = kind not in LINES and not _is_json(content)
        samples = tuple((_text if is_one_text else _lines)(content, path))
    if not samples:
        raise GpuguideError(f"The data file {path} is empty.")
    return DataFile(path, samples, is_one_text)


def _check_text(content: bytes, path: Path) -> None:
    """Raise if a file is no text, or one in another encoding than UTF-8."""
    if encoding := file_kinds.encoding_of(content[: file_kinds.HEAD]):
        raise GpuguideError(f"{path} is written in {encoding}, and must be in UTF-8. Save it as UTF-8.")
    if kind := file_kinds.kind_of(content[: file_kinds.HEAD]):
        raise GpuguideError(f"{path} is no text. It is {kind}.")
    if (offset := content.find(b"\0")) >= 0:
        raise GpuguideError(f"{path} is no text: its byte {offset + 1} is zero, as only in binary files.")


def _is_json(content: bytes) -> bool:
    """Return whether a content is JSON Lines, or JSON, rather than a text: it is or begins with an object or a list."""
    text = content.decode("utf-8", errors="replace").removeprefix(BYTE_ORDER).lstrip()
    if text[:1] not in ("{", "["):
        return False
    for part in (text.split("\n", 1)[0], text):
        try:
            given = json.loads(part)
        except ValueError:
            continue
        if isinstance(given, dict) or (isinstance(given, list) and any(isinstance(each, dict) for each in given)):
            return True
    return False


def _decode(content: bytes, path: Path, location: str | None = None) -> str:
    try:
        return content.decode("utf-8").removeprefix(BYTE_ORDER)
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise GpuguideError(
            f"{path}, {location or f'line {number}'}: this is no text in UTF-8 (byte 0x{content[error.start]:02x}, "
            f"{error.reason}). If it is in Latin-1 or Windows-1252, save it as UTF-8: iconv -f WINDOWS-1252 -t UTF-8."
        ) from error


def _text(content: bytes, path: Path) -> Iterator[Sample]:
    text = _decode(content, path)
    if text.strip():
        yield Sample("the text", text)


def _lines(content: bytes, path: Path) -> Iterator[Sample]:
    for number, line in enumerate(content.split(b"\n"), 1):
        location = f"line {number}"
        text = _decode(line, path, location)
        if not text.strip():
            continue
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise GpuguideError(
                f"{path}, {location}: this is no JSON ({error}).{format_hints.line_hint(text)}"
            ) from error
        yield _sample(_drop_nulls(given), location, path)


def _drop_nulls(given: Any) -> Any:
    return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


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
        columns = file.schema_arrow.names
        names = [name for name in ("messages", "text", "tools") if name in columns]
        if names in ([], ["tools"]):
            raise GpuguideError(
                f"{path} has no column text or messages; its columns are: {', '.join(columns)}."
                f"{format_hints.form_hint(columns)}"
            )
        number = 0
        for batch in file.iter_batches(columns=names):
            for given in batch.to_pylist():
                number += 1
                yield _sample(_drop_nested_nulls(given), f"row {number}", path)
    except (OSError, ValueError) as error:  # pyarrow's errors are of these
        raise GpuguideError(f"{path} cannot be read as Parquet ({error}).{file_kinds.hint(path)}") from error


def _drop_nested_nulls(given: Any) -> Any:
    """Return a row without the fields that are null, at any depth: Parquet has each field in every row."""
    if isinstance(given, dict):
        return {name: _drop_nested_nulls(value) for name, value in given.items() if value is not None}
    return [_drop_nested_nulls(each) for each in given] if isinstance(given, list) else given


def _sample(given: Any, location: str, path: Path) -> Sample:
    """Return what a line or row holds."""
    if isinstance(given, list):
        raise GpuguideError(
            f"{path}, {location}: this is a list. The file must hold one object in each line, such as {FORMS}. "
            "jq -c '.[]' makes lines of a list."
        )
    if not isinstance(given, Mapping) or not ("text" in given or "messages" in given):
        held = f"has {', '.join(map(str, given)) or 'nothing'}" if isinstance(given, Mapping) else f"is {given!r:.40}"
        hint = format_hints.form_hint(list(given)) if isinstance(given, Mapping) else ""
        raise GpuguideError(f"{path}, {location}: this must be {FORMS}; it {held}.{hint}")
    if "messages" in given:
        tools = _tools(given.get("tools"), location, path)
        return Sample(location, messages=_messages(given["messages"], location, path), tools=tools)
    if not isinstance(given["text"], str) or not given["text"].strip():
        raise GpuguideError(f"{path}, {location}: text must be a text that is not empty; it is {given['text']!r:.40}.")
    return Sample(location, given["text"])


def _tools(given: Any, location: str, path: Path) -> tuple[Mapping[str, Any], ...] | None:
    """Return what may be called, which some files hold as JSON in a text."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise GpuguideError(f"{path}, {location}: tools is a text that is no JSON ({error}).") from error
    if not given:
        return None
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        raise GpuguideError(f"{path}, {location}: tools must be a list of objects; it is {given!r:.40}.")
    return tuple(given)


def _messages(given: Any, location: str, path: Path) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        hint = " It is a text; parse it first (json.loads)." if isinstance(given, str) else ""
        raise GpuguideError(
            f"{path}, {location}: messages must be a list that is not empty; it is {given!r:.40}.{hint}"
        )
    return tuple(_message(each, f"{path}, {location}: message {number}") for number, each in enumerate(given, 1))


def _message(given: Any, where: str) -> Message:
    """Return a message with all that it holds; a field that is null is not there."""
    fields = dict(given) if isinstance(given, Mapping) else {}
    more = {name: value for name, value in fields.items() if name not in ("role", "content") and value is not None}
    called = [name for name in CALLS if more.get(name)]
    content = fields.get("content")
    wrong = [name for name in ("role", "content") if type(fields.get(name)) is not str]
    if content is None and called:
        wrong.remove("content")
    if wrong:
        parts = " content is a list of parts; join their texts into one." if isinstance(content, list) else ""
        hint = parts or format_hints.message_hint(fields)
        raise GpuguideError(f"{where} needs {' and '.join(wrong)}, as text.{hint}")
    if more.get("weight", 1) not in (0, 1):
        raise GpuguideError(
            f"{where} has the weight {more['weight']!r}; it must be 1, or 0 for one that is not learnt."
        )
    return Message(fields["role"], content, more)

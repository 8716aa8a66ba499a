"""JSON values read one by one: each is checked, and an error names the file and the field."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from gpuguide.errors import GpuguideError


class DamagedRecord(GpuguideError):
    """A record file that cannot be trusted. The message names the file and the field."""

    def __init__(self, path: Path | None, where: str, problem: str) -> None:
        super().__init__(
            f"The record {path or '(in memory)'} is damaged at {where}: {problem}. "
            "Restore the file, or remove it and measure again with 'gpuguide bench run'."
        )
        self.where = where


def parse_json(text: str, path: Path | None) -> Any:
    """Return what JSON text holds; ``path`` is only named in errors."""
    try:
        return json.loads(text, object_pairs_hook=_Object)
    except json.JSONDecodeError as error:
        raise DamagedRecord(
            path, f"line {error.lineno}, column {error.colno}", f"it is not JSON ({error.msg})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DamagedRecord(path, "the text", str(error)) from error


class _Object(dict[str, Any]):
    """A JSON object that remembers a name which stands in it twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = next((name for name in self if names.count(name) > 1), None) if len(self) < len(names) else None


T = TypeVar("T")


class Fields:
    """Checks parsed JSON value by value, and knows at which field it stands when something is wrong."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def fail(self, where: str, problem: str) -> DamagedRecord:
        """Return the error that something is wrong at a field."""
        return DamagedRecord(self.path, where, problem)

    def fields(self, value: Any, where: str, names: Sequence[str]) -> dict[str, Any]:
        """Check that ``value`` is an object with exactly ``names``."""
        self.object(value, where)
        for name in names:
            if name not in value:
                raise self.fail(f"{where}.{name}".lstrip("."), "the field is missing")
        for name in value:
            if name not in names:
                raise self.fail(f"{where}.{name}".lstrip("."), "no field of that name belongs here")
        return value

    def object(self, value: Any, where: str) -> None:
        """Check that ``value`` is an object that names no field twice."""
        if not isinstance(value, _Object):
            raise self.fail(where or "the top", f"expected an object, found {kind_of(value)}")
        if value.twice is not None:
            raise self.fail(f"{where}.{value.twice}".lstrip("."), "the field stands twice")

    def items(self, value: Any, where: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
        """Read a list, each item by ``read``."""
        if not isinstance(value, list):
            raise self.fail(where, f"expected a list, found {kind_of(value)}")
        return tuple(read(item, f"{where}[{index}]") for index, item in enumerate(value))

    def table(self, value: Any, where: str, read: Callable[[Any, str], T]) -> dict[str, T]:
        """Read an object of any names, each value by ``read``."""
        self.object(value, where)
        for name in value:
            if not name:
                raise self.fail(where, "a name in it is empty")
        return {name: read(item, f"{where}.{name}") for name, item in value.items()}

    def text(self, value: Any, where: str, *, empty: bool = False) -> str:
        """Read a text, which is not empty unless it may be."""
        if not isinstance(value, str):
            raise self.fail(where, f"expected text, found {kind_of(value)}")
        if not value and not empty:
            raise self.fail(where, "it is empty")
        return value

    def optional_text(self, value: Any, where: str) -> str | None:
        """Read a text or null."""
        return None if value is None else self.text(value, where)

    def number(self, value: Any, where: str, *, least: float = -math.inf) -> float:
        """Read a finite number of at least ``least``."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(where, f"expected a number, found {kind_of(value)}")
        if not abs(value) <= sys.float_info.max:
            raise self.fail(where, "the number is not finite")
        if value < least:
            raise self.fail(where, f"the number {value} is below {least}")
        return value

    def optional_number(self, value: Any, where: str, *, least: float = -math.inf) -> float | None:
        """Read a finite number of at least ``least``, or null."""
        return None if value is None else self.number(value, where, least=least)

    def integer(self, value: Any, where: str, *, least: int | None = None) -> int:
        """Read an integer of 64 bits."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(where, f"expected an integer, found {kind_of(value)}")
        if abs(value) >= 2**63:
            raise self.fail(where, "the number does not fit into 64 bits")
        if least is not None and value < least:
            raise self.fail(where, f"the number {value} is below {least}")
        return value

    def choice(self, value: Any, where: str, choices: Sequence[T]) -> T:
        """Read one of several texts."""
        for choice in choices:
            if value == choice and isinstance(value, str):
                return choice
        raise self.fail(where, f"{value!r} is none of {', '.join(map(str, choices))}")

    def moment(self, value: Any, where: str) -> str:
        """Read a date and time in UTC, as ISO 8601 writes it."""
        text = self.text(value, where)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self.fail(where, f"{text!r} is not an ISO 8601 date and time") from None
        if not text.startswith(f"{moment.date().isoformat()}T"):
            raise self.fail(where, f"{text!r} is not written as 2026-11-21T01:10:26+00:00")
        if moment.utcoffset() != timedelta(0):
            raise self.fail(where, f"{text!r} is not in UTC (+00:00)")
        return text

    def digest(self, value: Any, where: str) -> str:
        """Read a digest: ``sha256:`` and 64 hexadecimal digits."""
        text = self.text(value, where)
        head, _, digits = text.partition(":")
        if head != "sha256" or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
            raise self.fail(where, f"{text!r} is not 'sha256:' and 64 hexadecimal digits")
        return text


def kind_of(value: Any) -> str:
    """Name a JSON value's type as JSON does."""
    names = {
        _Object: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)

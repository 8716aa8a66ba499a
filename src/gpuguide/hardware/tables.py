"""TOML tables of published figures, read field by field; an error names the file, the table and the key."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from gpuguide.errors import GpuguideError, unknown


def parse_toml(text: str, origin: str) -> dict[str, Any]:
    """Return what TOML text holds; ``origin`` is the name of the file, for messages."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise GpuguideError(f"{origin} is not valid TOML: {error}.") from error


def only(table: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    """Check that a table holds no other keys than ``allowed``."""
    for key in table:
        if key not in allowed:
            raise GpuguideError(f"{where}: {unknown('key', key, allowed)}")


def text_of(table: Mapping[str, Any], key: str, where: str) -> str:
    """Read a text that is not empty."""
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise GpuguideError(f"{where}: {key} is {value!r}; write a text that is not empty.")
    return value


def texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """Read a list of texts."""
    values = table.get(key)
    if not isinstance(values, list) or not values or not all(isinstance(text, str) for text in values):
        raise GpuguideError(f"{where}: {key} is {values!r}; write a list of texts.")
    return tuple(values)

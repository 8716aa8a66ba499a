"""Texts that a fine-tuning leaves behind, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from gpuguide.errors import GpuguideError
from gpuguide.lora.files import write_whole


def write_note(path: Path, content: dict[str, object]) -> None:
    """Write a JSON file, whole or not at all.

    Raises
    ------
    GpuguideError
        If it cannot be written.
    """
    write(path, json.dumps(content, indent=2) + "\n")


def write(path: Path, text: str) -> None:
    """Write a text, whole or not at all. Errors as :func:`write_note`.

    Names of files may stand in it as Python has them where the locale is C: they become the bytes that they were.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode(errors="surrogateescape"))
    except OSError as error:
        raise GpuguideError(f"{path} cannot be written ({error.strerror}); what was there before stays.") from error

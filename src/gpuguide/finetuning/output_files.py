"""Files in the output folder of a run, written atomically."""

from __future__ import annotations

import json
from pathlib import Path

from gpuguide.errors import GpuguideError
from gpuguide.files import replace_atomically


def write_json(path: Path, content: dict[str, object]) -> None:
    """Write a JSON file atomically.

    Raises
    ------
    GpuguideError
        If it cannot be written.
    """
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text atomically. Errors as in :func:`write_json`.

    File names in it may contain surrogate escapes, as in the C locale: they become the original bytes.
    """
    try:
        with replace_atomically(path) as temporary:
            temporary.write_bytes(text.encode(errors="surrogateescape"))
    except OSError as error:
        raise GpuguideError(f"{path} cannot be written ({error.strerror}); the earlier file stays.") from error

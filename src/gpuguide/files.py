"""Files and folders that no reader ever sees half written."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuguide.errors import GpuguideError


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary file to write, which takes the place of ``path`` once it is written.

    Where the block raises, whatever stood at ``path`` before is still there, and the temporary file is gone. Folders
    above ``path`` are made.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replace_folder_atomically(folder: Path, *, marker: str | None = None) -> Iterator[Path]:
    """Yield a temporary folder to fill, which takes the place of ``folder`` once all of its files are written.

    Where the block raises, whatever stood at ``folder`` before is still there, and the temporary folder is gone.

    Parameters
    ----------
    folder : Path
        Folder to replace, or to make. Folders above it are made.
    marker : str, optional
        Name of the file without which nobody reads the folder, such as ``config.json``. With a marker, an existing
        folder keeps its other files: the old marker goes first, and the new one comes last.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    keeps_others = marker is not None and folder.is_dir()
    parent = folder if keeps_others else folder.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=parent, prefix=f".{folder.name}-", suffix=".tmp"))
    try:
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                _sync(path)
        temporary.chmod(0o755)
        if keeps_others:
            _move_files(temporary, folder, str(marker))
        else:
            _swap_folders(temporary, folder.resolve())
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path, content: Mapping[str, object]) -> None:
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


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _move_files(source: Path, folder: Path, marker: str) -> None:
    (folder / marker).unlink(missing_ok=True)
    for path in sorted(source.iterdir(), key=lambda path: path.name == marker):
        os.replace(path, folder / path.name)


def _swap_folders(source: Path, folder: Path) -> None:
    """Rename a folder into the place of another one, which comes back if that fails."""
    if not folder.exists():
        source.rename(folder)
        return
    earlier = source.with_suffix(".old")
    folder.rename(earlier)
    try:
        source.rename(folder)
    except OSError:
        earlier.rename(folder)
        raise
    shutil.rmtree(earlier, ignore_errors=True)

"""The files of a checkpoint in the format of ``transformers``: settings in JSON, tensors in one file or in shards."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch

from gpuguide.errors import GpuguideError

INDEX = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"
READABLE = ("F64", "F32", "F16", "BF16")
"""Formats of stored tensors, as ``safetensors`` calls them. Others are quantised and need scales."""
FEW = 3
"""Names that a message lists before it counts the rest"""


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises
    ------
    GpuguideError
        If there is no such file, or it holds something else.
    """
    if not path.is_file():
        raise GpuguideError(f"There is no {path.name} in {path.parent}.")
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise GpuguideError(f"{path} is no JSON ({error}).") from error
    if not isinstance(given, dict):
        raise GpuguideError(f"{path} holds a {type(given).__name__}; it must hold an object, in braces.")
    return given


def listed(names: Collection[str]) -> str:
    """Return names for a message, the first few of them in order.

    >>> listed({"d", "a", "c", "b"})
    'a, b, c and 1 more'
    """
    few = ", ".join(sorted(names)[:FEW])
    return f"{few} and {len(names) - FEW} more" if len(names) > FEW else few


@dataclass(frozen=True)
class Tensors:
    """The tensors of a checkpoint, read one by one as they are asked for."""

    source: Path
    """The file, or the index of several; messages name it"""
    files: Mapping[str, tuple[Path, Any]]
    """Where each tensor is: the file, and what ``safetensors`` reads it with"""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, which takes no reading of its numbers."""
        return tuple(self._file(name).get_slice(name).get_shape())

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor in its own format.

        Raises
        ------
        GpuguideError
            If it is in a format of quantised weights.
        """
        format_name = self._file(name).get_slice(name).get_dtype()
        if format_name not in READABLE:
            raise GpuguideError(
                f"{self.files[name][0]}: {name} is in {format_name}; only {', '.join(READABLE)} can be read."
            )
        return self._file(name).get_tensor(name)

    def _file(self, name: str) -> Any:
        return self.files[name][1]


@contextmanager
def opened(folder: Path) -> Iterator[Tensors]:
    """Open the weights in a folder: ``model.safetensors``, or the shards that ``model.safetensors.index.json`` names.

    Raises
    ------
    GpuguideError
        If neither is there, a shard is missing, or a file is damaged.
    """
    source, paths = weight_files(folder)
    with ExitStack() as stack:
        files: dict[str, tuple[Path, Any]] = {}
        for path in paths:
            try:
                file = stack.enter_context(safetensors.safe_open(path, framework="pt"))
            except (safetensors.SafetensorError, ValueError, OSError) as error:
                raise GpuguideError(f"{path} is damaged or no safetensors file ({error}).") from error
            files |= dict.fromkeys(file.keys(), (path, file))
        yield Tensors(source, files)


def weight_files(folder: Path) -> tuple[Path, list[Path]]:
    """Return the file that stands for all weights, and the files that hold them. Errors as :func:`opened`."""
    if (folder / ONE_FILE).is_file():
        return folder / ONE_FILE, [folder / ONE_FILE]
    index = folder / INDEX
    if not index.is_file():
        raise GpuguideError(f"There is no {ONE_FILE} in {folder}, and no {INDEX}, which would name several files.")
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(_is_file_name(name) for name in places.values()):
        raise GpuguideError(f"{index}: weight_map must name, for each tensor, a file of its folder.")
    shards = [folder / name for name in sorted(set(places.values()))]
    for shard in shards:
        if not shard.is_file():
            raise GpuguideError(f"There is no {shard.name} in {folder}, which {INDEX} names; fetch all files.")
    return index, shards


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and bool(name) and Path(name).name == name

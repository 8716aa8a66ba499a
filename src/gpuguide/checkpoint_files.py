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

from gpuguide import file_kinds
from gpuguide.errors import GpuguideError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
GENERATION_CONFIG = "generation_config.json"
READABLE = ("F64", "F32", "F16", "BF16")
"""Formats of stored tensors, as ``safetensors`` calls them. Others are quantised and need scales."""
REMEDIES = {"quantization_config": " The weights are quantised; take the checkpoint that was quantised."}
"""What to do where a setting has another value than the one that is computed"""
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
        raise GpuguideError(
            f"There is no {path.name} in {path.parent}."
            f"{file_kinds.instead_of_config(path.parent) if path.name == CONFIG else ''}"
        )
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise GpuguideError(f"{path} is no JSON ({error}).{file_kinds.hint(path)}") from error
    if not isinstance(given, dict):
        raise GpuguideError(f"{path} holds a {type(given).__name__}; it must hold an object, in braces.")
    return given


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a tokenizer that ``tokenizer.json`` does not hold, as ``transformers`` 5 collects them.

    They are those of ``tokenizer_config.json``, and in folders of before 2023, which have no ``added_tokens_decoder``
    there, the names of special tokens in ``special_tokens_map.json``. Errors as of :func:`read_json`.
    """
    settings = read_json(folder / TOKENIZER_CONFIG) if (folder / TOKENIZER_CONFIG).is_file() else {}
    if "added_tokens_decoder" not in settings and (folder / SPECIAL_TOKENS).is_file():
        settings |= read_json(folder / SPECIAL_TOKENS)
    return settings


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON file to be read by people."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def whole_number(given: Mapping[str, Any], key: str, path: Path) -> int:
    """Return a setting that must be a whole number.

    Raises
    ------
    GpuguideError
        If it is missing or something else.
    """
    if type(given.get(key)) is not int:
        raise GpuguideError(f"{path}: {key} is {given.get(key)!r}; it must be a whole number.")
    return int(given[key])


def number(given: Mapping[str, Any], key: str, path: Path, otherwise: float | None = None) -> float:
    """Return a setting that must be a number; ``otherwise``, if there is one, where it is missing. Errors as above."""
    value = given.get(key, otherwise)
    if type(value) not in (int, float):
        raise GpuguideError(f"{path}: {key} is {value!r}; it must be a number.")
    return float(value)


def check_assumed(given: Mapping[str, Any], assumed: Mapping[str, object], path: Path) -> None:
    """Compare settings with the one value of each that a model computes; one that is missing has it.

    Raises
    ------
    GpuguideError
        If one has another value.
    """
    for key, value in assumed.items():
        if given.get(key, value) != value:
            raise GpuguideError(f"{path}: {key} is {given[key]!r}; only {value!r} can be read.{REMEDIES.get(key, '')}")


def format_names(names: Collection[str]) -> str:
    """Return names for a message, the first few of them in order.

    >>> format_names({"d", "a", "c", "b"})
    'a, b, c and 1 more'
    """
    few = ", ".join(sorted(names)[:FEW])
    return f"{few} and {len(names) - FEW} more" if len(names) > FEW else few


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: where it is, and what it is called there."""

    path: Path
    file: Any
    """What ``safetensors`` reads it with"""
    name: str

    def shape(self) -> tuple[int, ...]:
        """Return its shape, which takes no reading of its numbers."""
        return tuple(self.file.get_slice(self.name).get_shape())

    def read(self) -> torch.Tensor:
        """Return it in its own format.

        Raises
        ------
        GpuguideError
            If that is a format of quantised weights.
        """
        stored_as = self.file.get_slice(self.name).get_dtype()
        if stored_as not in READABLE:
            raise GpuguideError(
                f"{self.path}: {self.name} is in {stored_as}; only {', '.join(READABLE)} can be read. "
                "The weights are quantised; take the checkpoint that was quantised."
            )
        return self.file.get_tensor(self.name)


@contextmanager
def open_weights(paths: list[Path], prefix: str) -> Iterator[dict[str, StoredTensor]]:
    """Open the files that hold a checkpoint's weights, and give its tensors by name, less a prefix that some bear.

    Raises
    ------
    GpuguideError
        If one is damaged.
    """
    with ExitStack() as stack:
        tensors: dict[str, StoredTensor] = {}
        for path in paths:
            try:
                file = stack.enter_context(safetensors.safe_open(path, framework="pt"))
            except (safetensors.SafetensorError, ValueError, OSError) as error:
                raise GpuguideError(
                    f"{path} is damaged or no safetensors file ({error}).{file_kinds.hint(path)}"
                ) from error
            tensors |= {name.removeprefix(prefix): StoredTensor(path, file, name) for name in file.keys()}  # noqa: SIM118
        yield tensors


def weight_files(folder: Path) -> tuple[Path, list[Path]]:
    """Return the file that stands for all weights, and the files that hold them.

    The first is ``model.safetensors``, or the ``model.safetensors.index.json`` that names several.

    Raises
    ------
    GpuguideError
        If neither is there, the index is damaged, or a file that it names is missing.
    """
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS, [folder / WEIGHTS]
    index = folder / INDEX
    if not index.is_file():
        raise GpuguideError(
            f"There is no {WEIGHTS} in {folder}, and no {INDEX}, which would name several files."
            f"{file_kinds.instead_of_weights(folder)}"
        )
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

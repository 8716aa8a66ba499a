"""A checkpoint with an adapter merged in: the base's own files, names and formats, so that whatever read it still does.

Nothing is loaded but one file of weights at a time, and no model is built: any checkpoint of ``transformers`` in
safetensors can be merged into, whatever its architecture.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from gpuguide import file_kinds
from gpuguide.errors import GpuguideError
from gpuguide.files import replace_folder_atomically
from gpuguide.lora.files import read_adapter, read_config
from gpuguide.lora.places import StoredAdapter

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OUTER = ("transformer.", "model.")
"""What the names of a whole model's tensors begin with, and those of its body alone do not"""
LEFT_OUT = (".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".onnx", ".safetensors")
"""Ends of files that hold the weights once more, as they were"""
OF_THE_BASE = ("training.json", "trainer_state.json")
"""Files that say how the weights came to be, as they were"""


def merge_into_checkpoint(base: Path, adapter: Path, folder: Path, *, replace: bool = False) -> list[str]:
    """Write a checkpoint in which an adapter has been added to the weights, in fp32, rounded once to their format.

    Parameters
    ----------
    base : Path
        A checkpoint in the format of ``transformers``: one file of safetensors or several with an index.
    adapter : Path
        Folder of an adapter in PEFT's format.
    folder : Path
        Output folder. The new checkpoint appears in it as a whole.
    replace : bool
        Whether to replace an existing checkpoint. Otherwise the folder must be empty or missing.

    Returns
    -------
    list of str
        The tensors that were changed.

    Raises
    ------
    GpuguideError
        If a folder or file is missing or damaged, the adapter is for another base, its weights are quantised, or the
        new one cannot be written.
    """
    files = _weight_files(base)
    if folder.exists() and (not folder.is_dir() or (not replace and any(folder.iterdir()))):
        raise GpuguideError(f"{folder} is not empty; name another folder for the merged checkpoint.")
    stored, transposed = read_adapter(adapter), bool(read_config(adapter).get("fan_in_fan_out"))
    changes = _match_names(_tensor_names(files), stored, base, adapter)
    try:
        with replace_folder_atomically(folder) as temporary:
            for file in files:
                _write_merged(file, temporary / file.name, changes, transposed)
            for file in base.iterdir():
                if file.is_file() and file.suffix not in LEFT_OUT and file.name not in OF_THE_BASE:
                    shutil.copyfile(file, temporary / file.name)
    except GpuguideError:
        raise
    except Exception as error:  # safetensors has errors of its own
        raise GpuguideError(f"{folder} cannot be written ({error}); what was there before stays.") from error
    return list(changes)


def _weight_files(base: Path) -> list[Path]:
    if (base / WEIGHTS).is_file():
        return [base / WEIGHTS]
    try:
        names = set(json.loads((base / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GpuguideError(
            f"There is no {WEIGHTS} in {base}, and no readable {INDEX} ({error}).{file_kinds.instead_of_weights(base)}"
        ) from error
    for name in names:
        if not (base / name).is_file():
            raise GpuguideError(f"There is no {name} in {base}, which {INDEX} names; fetch all files.")
    return [base / name for name in sorted(names)]


def _tensor_names(files: Collection[Path]) -> set[str]:
    found: set[str] = set()
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                found |= set(file.keys())
        except Exception as error:  # a truncated file fails in several ways
            raise GpuguideError(
                f"{path} is damaged or no safetensors file ({error}).{file_kinds.hint(path)}"
            ) from error
    return found


def _match_names(
    tensors: Collection[str], stored: Mapping[str, StoredAdapter], base: Path, adapter: Path
) -> dict[str, StoredAdapter]:
    """Return adapters by the tensors of a checkpoint that they change. Some files leave the first part of names out."""
    found = {}
    for path, each in stored.items():
        plain = f"{path}.weight"
        names = [plain, *(plain.removeprefix(outer) for outer in OUTER), *(outer + plain for outer in OUTER)]
        name = next((name for name in names if name in tensors), None)
        if name is None:
            raise GpuguideError(f"The adapter in {adapter} is for another base: {base} has no tensor {plain}.")
        found[name] = each
    return found


def _write_merged(source: Path, target: Path, changes: Mapping[str, StoredAdapter], transposed: bool) -> None:
    with safe_open(source, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    for name in tensors.keys() & changes.keys():
        tensors[name] = _merge(tensors[name], changes[name], name, transposed)
    save_file(tensors, target, metadata=metadata)
    shutil.copymode(source, target)  # safetensors lets nobody else read what it writes


def _merge(weight: torch.Tensor, stored: StoredAdapter, name: str, transposed: bool) -> torch.Tensor:
    """Return a weight with the change added. Where it is square, its order is what the adapter's file says."""
    if not weight.is_floating_point() or weight.element_size() < 2:
        raise GpuguideError(
            f"{name} is stored in {weight.dtype}, to which nothing can be added; merge into the original."
        )
    change = stored.settings.scale * (stored.up.float() @ stored.down.float())
    if weight.shape == change.t().shape and (transposed or weight.shape != change.shape):
        change = change.t()
    if weight.shape != change.shape:
        raise GpuguideError(
            f"The adapter is for another base: {name} is {tuple(weight.shape)}, and its change {tuple(change.shape)}."
        )
    wide = torch.promote_types(weight.dtype, torch.float32)
    return (weight.to(wide) + change.to(wide)).to(weight.dtype).contiguous()

"""A checkpoint with an adapter merged in: the base's own files, names and formats, so that whatever read it still does.

Nothing is loaded but one file of weights at a time, and no model is built: any checkpoint of ``transformers`` in
safetensors can be merged into, whatever its architecture.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from gpuguide.checkpoint_files import open_weights, weight_files
from gpuguide.errors import GpuguideError
from gpuguide.files import replace_folder_atomically
from gpuguide.lora.files import read_adapter, read_config
from gpuguide.lora.places import StoredAdapter

OUTER = ("transformer.", "model.")
"""Prefixes of the tensors of a whole model, which those of its body alone lack"""
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
    _, files = weight_files(base)
    if folder.exists() and (not folder.is_dir() or (not replace and any(folder.iterdir()))):
        raise GpuguideError(f"{folder} is not empty; name another folder for the merged checkpoint.")
    stored, transposed = read_adapter(adapter), bool(read_config(adapter).get("fan_in_fan_out"))
    with open_weights(files, "") as tensors:
        changes = _match_names(tensors.keys(), stored, base, adapter)
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

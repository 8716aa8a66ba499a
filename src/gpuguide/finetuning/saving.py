"""What a fine-tuning leaves behind: the adapter, and a checkpoint that has it merged into its weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from gpuguide import lora
from gpuguide.errors import GpuguideError
from gpuguide.models import checkpoint, gpt2_checkpoint
from gpuguide.models.checkpoint_files import CONFIG, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS, weight_files
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama

COPIED = (CONFIG, TOKENIZER, TOKENIZER_CONFIG, "chat_template.jinja", "generation_config.json",
          "special_tokens_map.json", "vocab.json", "merges.txt")  # fmt: skip
"""Files of a checkpoint, its weights aside, as far as it has them"""
STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def save_merged(base: Path, adapter: Path, folder: Path) -> torch.dtype:
    """Write a checkpoint like the base with the adapter in its weights, which ``transformers`` can read.

    It is written beside its place and renamed, so a full disk leaves what was there.

    Parameters
    ----------
    base, adapter : Path
        Folders of the checkpoint and of the adapter, which are read anew.
    folder : Path
        Where it goes; what is there is written over.

    Returns
    -------
    torch.dtype
        Format of the weights: the base's. Each sum is taken in fp32 and rounded once.

    Raises
    ------
    GpuguideError
        If a file cannot be read, or the checkpoint cannot be written.
    """
    dtype = stored_format(base)
    model = checkpoint.read_model(base, dtype)
    lora.load_adapter(model, adapter)
    lora.merge(model)
    _without_adapters(model)
    with _whole(folder) as beside:
        save_file(_tensors(model), beside / WEIGHTS, metadata={"format": "pt"})
        for name in COPIED:
            if (base / name).is_file():
                shutil.copyfile(base / name, beside / name)
    return dtype


def stored_format(base: Path) -> torch.dtype:
    """Return the format in which a checkpoint holds its matrices."""
    _, paths = weight_files(base)
    with safe_open(paths[0], framework="pt") as tensors:
        slices = [tensors.get_slice(name) for name in tensors.keys()]  # noqa: SIM118 - it is no mapping
        largest = max(slices, key=lambda each: torch.Size(each.get_shape()).numel())
        return STORED.get(largest.get_dtype(), torch.float32)


def write_note(path: Path, content: dict[str, object]) -> None:
    """Write a JSON file, whole or not at all.

    Raises
    ------
    GpuguideError
        If it cannot be written.
    """
    write(path, json.dumps(content, indent=2) + "\n")


def write(path: Path, text: str) -> None:
    """Write a text, whole or not at all. Errors as :func:`write_note`."""
    beside = path.with_name(f"{path.name}.writing")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise GpuguideError(f"{path} cannot be written ({error.strerror}); what was there before stays.") from error


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Give a folder beside one, which takes its place if all goes well."""
    beside = folder.with_name(f"{folder.name}.writing")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        yield beside
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GpuguideError(
            f"{folder} cannot be written ({reason}). What was trained is kept: make room, and run the same command "
            "again to write it."
        ) from error


def _without_adapters(model: nn.Module) -> None:
    """Put the layers, into which adapters were merged, in the places of those that held both."""
    for name, layer in lora.adapted_layers(model).items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, layer.base)


def _tensors(model: GPT2 | Llama) -> dict[str, torch.Tensor]:
    if isinstance(model, GPT2):
        return gpt2_checkpoint.to_transformers(model)
    return {name: place.contiguous().clone() for name, place in checkpoint.places_in(model).items()}

"""Adapters on disk, in PEFT's own format: ``adapter_config.json`` and ``adapter_model.safetensors``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.lora.layer import AdaptedLayer, Settings, adapted_layers
from gpuguide.lora.model import add_adapters, use_adapter

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
UNREAD = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias", "layer_replication")
"""Settings of PEFT that change what is computed, and are not computed here"""


def save_adapter(model: nn.Module, folder: Path, name: str = "default", *, base: str | None = None) -> None:
    """Write an adapter so that PEFT can read it.

    Each file is written beside its place and renamed, so a full disk leaves the files that were there.

    Parameters
    ----------
    model : nn.Module
        With adapters. For PEFT it must be one of transformers, since layers are found by name.
    folder : Path
        Where the two files go; it is made if it is not there.
    name : str
        The adapter's.
    base : str, optional
        What the base model is called; it is only noted.

    Raises
    ------
    GpuguideError
        If no layer has the adapter, or the files cannot be written.
    """
    layers = {path: layer for path, layer in adapted_layers(model).items() if name in layer.adapters}
    if not layers:
        raise GpuguideError(f"No layer has an adapter named {name!r}, so there is nothing to save.")
    weights = {}
    for path, layer in layers.items():
        adapter = layer.adapter(name)
        weights[f"{PREFIX}{path}.lora_A.weight"] = adapter.down.detach().cpu().contiguous()
        weights[f"{PREFIX}{path}.lora_B.weight"] = adapter.up.detach().cpu().contiguous()
    config = json.dumps(_described(layers, name, base), indent=2).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / WEIGHTS, save(weights, metadata={"format": "pt"}))
        write_whole(folder / CONFIG, config)
    except OSError as error:
        raise GpuguideError(f"{folder} cannot be written ({error.strerror}); what was there before stays.") from error


def load_adapter(
    model: nn.Module, folder: Path, name: str = "default", *, dtype: torch.dtype = torch.float32
) -> list[str]:
    """Read an adapter that PEFT or :func:`save_adapter` wrote, add it to a model and use it.

    Returns
    -------
    list of str
        The names of the layers.

    Raises
    ------
    GpuguideError
        If a file is missing or damaged, the adapter is of a kind that is not computed here, or it belongs to another
        base. The model is left as it was.
    """
    settings = _settings(folder / CONFIG)
    weights = _tensors(folder / WEIGHTS)
    ends = {"lora_A.weight": 0, "lora_B.weight": 1}
    layers: dict[str, list[torch.Tensor | None]] = {}
    for key, tensor in weights.items():
        end = next((end for end in ends if key.startswith(PREFIX) and key.endswith(f".{end}")), None)
        if end is None:
            raise GpuguideError(f"{folder / WEIGHTS}: {key} is no part of a LoRA adapter.")
        layers.setdefault(key[len(PREFIX) : -len(end) - 1], [None, None])[ends[end]] = tensor
    _check_base(model, layers, settings, folder)
    add_adapters(model, list(layers), settings, name=name, dtype=dtype)
    with torch.no_grad():
        for path, (down, up) in layers.items():
            adapter = adapted_layers(model)[path].adapter(name)
            adapter.down.copy_(down)  # type: ignore[arg-type]
            adapter.up.copy_(up)  # type: ignore[arg-type]
    use_adapter(model, name)
    return list(layers)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place, then rename it, so that there is a whole one at any time."""
    beside = path.with_name(f"{path.name}.writing")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _described(layers: dict[str, AdaptedLayer], name: str, base: str | None) -> dict[str, Any]:
    first = next(iter(layers.values()))
    settings = first.adapter(name).settings
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "use_rslora": settings.stabilised,
        "fan_in_fan_out": first.transposed,
        "target_modules": list(layers),
        "bias": "none",
        "inference_mode": True,
    }


def _settings(path: Path) -> Settings:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        found = given["peft_type"], given["r"], given["lora_alpha"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GpuguideError(f"{path} is no description of an adapter ({error}).") from error
    if found[0] != "LORA" or given.get("bias", "none") != "none":
        raise GpuguideError(
            f"{path}: the adapter is {found[0]} with bias {given.get('bias')}; only plain LoRA is read."
        )
    for name in UNREAD:
        if given.get(name):
            raise GpuguideError(f"{path}: {name} is {given[name]}, which is not computed here.")
    return Settings(found[1], found[2], given.get("lora_dropout", 0.0), bool(given.get("use_rslora")))


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # a truncated file fails in several ways
        raise GpuguideError(f"{path} cannot be read ({error}).") from error


def _check_base(
    model: nn.Module, layers: dict[str, list[torch.Tensor | None]], settings: Settings, folder: Path
) -> None:
    """Raise unless each layer is there and has the adapter's sizes."""
    modules = dict(model.named_modules())
    for path, (down, up) in layers.items():
        if down is None or up is None:
            raise GpuguideError(f"{folder / WEIGHTS}: {path} has one of its two matrices only.")
        if path not in modules:
            raise GpuguideError(f"The adapter in {folder} is for another base: the model has no layer {path}.")
        layer = modules[path]
        shape = tuple(getattr(layer, "weight", torch.empty(0)).shape)
        if isinstance(layer, AdaptedLayer):
            shape = (layer.out_features, layer.in_features)
        elif not isinstance(layer, nn.Linear):
            shape = shape[::-1]
        wanted = (up.shape[0], down.shape[1])
        if shape != wanted or not down.shape[0] == up.shape[1] == settings.rank:
            raise GpuguideError(
                f"The adapter in {folder} is for another base: for {path} it has {tuple(down.shape)} and "
                f"{tuple(up.shape)} of rank {settings.rank}; the layer is {shape}."
            )

"""Adapters on disk, in PEFT's own format: ``adapter_config.json`` and ``adapter_model.safetensors``.

PEFT finds layers by the names that ``transformers`` gives them, and *places* say which these are. What an adapter of
ours was before :mod:`gpuguide.lora.places` made several of it, or one of a higher rank, is noted in the metadata of the
file, which PEFT does not look at; so what was saved is loaded bit for bit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.files import replace_folder_atomically
from gpuguide.lora import foreign
from gpuguide.lora.layer import AdaptedLayer, Settings, find_adapted_layers, shape_of
from gpuguide.lora.model import add_to_targets, layers_with
from gpuguide.lora.packed import Packing
from gpuguide.lora.places import Places, StoredAdapter, TransformersMatrix, adapter_at, join_adapters
from gpuguide.lora.targets import Target

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
PARTS = "gpuguide.parts"
"""Metadata key of the adapters for parts of a matrix"""
PART_ALPHAS = "gpuguide.part_alphas"
"""Metadata key of their alphas, whose last bits the conversion to the higher rank and back may lose"""
SHARED_DOWN = "gpuguide.shared_down"
"""Metadata key of the adapters that are one of ours, with one A"""
UNREAD = (
    "use_dora",
    "modules_to_save",
    "lora_bias",
    "layer_replication",
    "use_qalora",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "target_parameters",
)
"""Settings of PEFT that change what is computed, and are not computed here"""

STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of ``init_lora_weights`` that leave the base as it is; others, such as PiSSA, change it as well"""


def save_adapter(
    model: nn.Module, folder: Path, name: str = "default", *, base: str | None = None, places: Places | None = None
) -> None:
    """Write an adapter so that PEFT can read it.

    Both files are written elsewhere and then moved into the folder, so a full disk leaves the files that were there.

    Parameters
    ----------
    model : nn.Module
        With adapters.
    folder : Path
        Where the two files go; it is made if it is not there.
    name : str
        The adapter's.
    base : str, optional
        What the base model is called; it is only noted.
    places : mapping, optional
        The layers' names in ``transformers``, for a model of :mod:`gpuguide.models`:
        :func:`gpuguide.finetuning.peft_names.places` gives them. Without, they are those of the model.

    Raises
    ------
    GpuguideError
        If no layer has the adapter, a layer has no place, or the files cannot be written.
    """
    stored: dict[str, StoredAdapter] = {}
    transposed = False
    for path, layer in layers_with(model, name).items():
        if places is not None and path not in places:
            raise GpuguideError(f"{path} has no name in transformers; leave out the places to keep the names as here.")
        for place in (TransformersMatrix(path, None, layer.transposed),) if places is None else places[path]:
            transposed |= place.transposed
            if (found := adapter_at(place, layer.adapter(name))) is not None:
                stored[place.name] = found
    weights = {}
    for path, each in stored.items():
        weights[f"{PREFIX}{path}.lora_A.weight"] = each.down.detach().cpu().clone().contiguous()
        weights[f"{PREFIX}{path}.lora_B.weight"] = each.up.detach().cpu().clone().contiguous()
    noted = {
        PARTS: {path: each.parts for path, each in stored.items() if each.parts},
        PART_ALPHAS: {path: each.part_alpha for path, each in stored.items() if each.part_alpha is not None},
        SHARED_DOWN: [path for path, each in stored.items() if each.shares_down],
    }
    metadata = {"format": "pt", **{key: json.dumps(note) for key, note in noted.items() if note}}
    config = json.dumps(_describe(stored, base, transposed), indent=2).encode()
    try:
        with replace_folder_atomically(folder, marker=CONFIG) as temporary:
            (temporary / WEIGHTS).write_bytes(save(weights, metadata=metadata))
            (temporary / CONFIG).write_bytes(config)
    except OSError as error:
        raise GpuguideError(f"{folder} cannot be written ({error.strerror}); what was there before stays.") from error


def load_adapter(
    model: nn.Module,
    folder: Path,
    name: str = "default",
    *,
    dtype: torch.dtype = torch.float32,
    places: Places | None = None,
    packing: Packing | None = None,
) -> list[str]:
    """Read an adapter that PEFT or :func:`save_adapter` wrote, add it to a model and use it.

    Parameters
    ----------
    model : nn.Module
        The base, with or without other adapters.
    folder : Path
        With the two files.
    name : str
        What the adapter will be called.
    dtype : torch.dtype
        Format in which it is stored and trained.
    places : mapping, optional
        As :func:`save_adapter` has them.
    packing : callable, optional
        How the frozen matrices are packed, as in :func:`gpuguide.lora.add_adapters`.

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
    found = _match_layers(model, read_adapter(folder), places, folder)
    targets = {target: each.settings for target, each in found.items()}
    add_to_targets(model, targets, name=name, dtype=dtype, packing=packing)
    layers = find_adapted_layers(model)
    with torch.no_grad():
        for target, each in found.items():
            adapter = layers[target.name].adapter(name)
            adapter.down.copy_(each.down)
            adapter.up.copy_(each.up)
    return [target.name for target in found]


def read_adapter(folder: Path) -> dict[str, StoredAdapter]:
    """Return what the files of an adapter hold, by the names of layers that are in them.

    Raises
    ------
    GpuguideError
        If a file is missing or damaged, or the adapter is of a kind that is not computed here.
    """
    given = read_config(folder)
    tensors, noted = _tensors(folder / WEIGHTS)
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        match = re.fullmatch(rf"{re.escape(PREFIX)}(.+)\.lora_(A|B)\.weight", key)
        if match is None:
            raise GpuguideError(f"{folder / WEIGHTS}: {key} is no part of a LoRA adapter.{foreign.key_hint(key)}")
        halves.setdefault(match[1], {})[match[2]] = tensor
    if not halves:
        raise GpuguideError(f"{folder / WEIGHTS} holds no adapter of any layer.")
    stored = {}
    for path, half in halves.items():
        if half.keys() != {"A", "B"}:
            raise GpuguideError(f"{folder / WEIGHTS}: {path} has one of its two matrices only.")
        settings = _settings_of(given, path, folder / CONFIG)
        down, up = half["A"], half["B"]
        if down.ndim != 2 or up.ndim != 2 or not down.shape[0] == up.shape[1] == settings.rank:
            raise GpuguideError(
                f"{folder / WEIGHTS}: {path} has {tuple(down.shape)} and {tuple(up.shape)}, at rank {settings.rank}."
            )
        parts, part_alpha = tuple(noted[PARTS].get(path, ())), noted[PART_ALPHAS].get(path)
        stored[path] = StoredAdapter(down, up, settings, parts, part_alpha, path in noted[SHARED_DOWN])
    return stored


def read_config(folder: Path) -> dict[str, Any]:
    """Return the description of an adapter.

    Raises
    ------
    GpuguideError
        If it is missing or damaged, or it is not plain LoRA.
    """
    path = folder / CONFIG
    try:
        given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kind, _, _ = given["peft_type"], given["r"], given["lora_alpha"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GpuguideError(
            f"{path} is no description of an adapter ({error}).{foreign.instead_of_description(folder)}"
        ) from error
    if kind != "LORA" or given.get("bias", "none") != "none":
        raise GpuguideError(f"{path}: the adapter is {kind} with bias {given.get('bias')}; only plain LoRA is read.")
    for name in UNREAD:
        if given.get(name):
            raise GpuguideError(f"{path}: {name} is {given[name]}, which is not computed here.")
    if (start := given.get("init_lora_weights")) not in STARTS:
        raise GpuguideError(f"{path}: init_lora_weights is {start!r}. {foreign.CHANGED_BASE}")
    return given


# --- writing ---------------------------------------------------------------------------------------------


def _describe(stored: Mapping[str, StoredAdapter], base: str | None, transposed: bool) -> dict[str, Any]:
    settings = next(iter(stored.values())).settings
    for path, each in stored.items():
        if (each.settings.stabilised, each.settings.dropout) != (settings.stabilised, settings.dropout):
            raise GpuguideError(f"{path} has another scale or dropout than other layers, which PEFT cannot store.")
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "rank_pattern": _pattern({path: each.settings.rank for path, each in stored.items()}, settings.rank),
        "alpha_pattern": _pattern({path: each.settings.alpha for path, each in stored.items()}, settings.alpha),
        "lora_dropout": settings.dropout,
        "use_rslora": settings.stabilised,
        "fan_in_fan_out": transposed,
        "target_modules": list(stored),
        "bias": "none",
        "inference_mode": True,
    }


def _pattern(values: Mapping[str, float], default: float) -> dict[str, float]:
    """Return the values that differ from the default, by path.

    A path also stands for all longer ones that end with it, and PEFT takes the first that fits. So longer paths come
    first, and one that would be taken for a shorter one is named even with the default.
    """
    differing = [path for path, value in values.items() if value != default]
    named = [path for path in values if path in differing or any(path.endswith(f".{end}") for end in differing)]
    return {path: values[path] for path in sorted(named, key=len, reverse=True)}


# --- reading ---------------------------------------------------------------------------------------------


def _settings_of(given: Mapping[str, Any], path: str, config: Path) -> Settings:
    """Return the settings of a layer. A pattern of PEFT is a regular expression for the end of its name."""

    def choose(patterns: object, otherwise: Any) -> Any:
        found = patterns.items() if isinstance(patterns, dict) else ()
        return next((value for key, value in found if re.match(rf"(.*\.)?({key})$", path)), otherwise)

    rank = choose(given.get("rank_pattern"), given["r"])
    alpha = choose(given.get("alpha_pattern"), given["lora_alpha"])
    try:
        return Settings(rank, alpha, given.get("lora_dropout", 0.0), bool(given.get("use_rslora")))
    except TypeError as error:
        raise GpuguideError(f"{config}: r, lora_alpha and lora_dropout must be numbers ({error}).") from error


def _tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors of a file, and what its metadata note of the adapters."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            noted = {key: json.loads(metadata.get(key, "{}")) for key in (PARTS, PART_ALPHAS, SHARED_DOWN)}
            return {name: file.get_tensor(name) for name in file.keys()}, noted  # noqa: SIM118
    except Exception as error:  # a truncated file fails in several ways
        raise GpuguideError(f"{path} cannot be read ({error}).{foreign.instead_of_weights(path)}") from error


def _match_layers(
    model: nn.Module, stored: Mapping[str, StoredAdapter], places: Places | None, folder: Path
) -> dict[Target, StoredAdapter]:
    """Return what belongs to each layer of a model, if all of it has a layer that it fits."""
    modules = dict(model.named_modules())
    known = {path: [TransformersMatrix(path)] for path in stored} if places is None else places
    ours = {place.name: layer for layer, each in known.items() for place in each}
    for path in stored:
        if ours.get(path) not in modules:
            raise GpuguideError(f"The adapter in {folder} is for another base: the model has no layer {path}.")
    found = {}
    for layer in dict.fromkeys(ours[path] for path in stored):
        here = {place: stored[place.name] for place in known[layer] if place.name in stored}
        target, joined = join_adapters(model, layer, here, folder)
        _check_shape(modules[layer], target, joined, folder)
        found[target] = joined
    return found


def _check_shape(layer: nn.Module, target: Target, stored: StoredAdapter, folder: Path) -> None:
    """Raise unless an adapter has the sizes of a layer."""
    has = shape_of(layer) if isinstance(layer, AdaptedLayer) or hasattr(layer, "weight") else (0, 0)
    rows = has[0] if target.spans is None else sum(stop - start for start, stop in target.spans)
    if (rows, has[1]) != (stored.up.shape[0], stored.down.shape[1]):
        raise GpuguideError(
            f"The adapter in {folder} is for another base: for {target.name} it has {tuple(stored.down.shape)} and "
            f"{tuple(stored.up.shape)}, and the layer is {has}."
        )

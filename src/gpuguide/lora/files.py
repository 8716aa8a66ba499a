"""Adapters on disk, in PEFT's own format: ``adapter_config.json`` and ``adapter_model.safetensors``.

PEFT finds layers by the names that ``transformers`` gives them, and knows nothing of parts of a matrix. So an adapter
that stands beside parts is written as the one of a higher rank that does the same, with zeros in B; what it was is
noted in the file's metadata, which PEFT does not look at. Where a matrix of ours is several there, *places* say which.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.lora import foreign
from gpuguide.lora.layer import AdaptedLayer, Adapter, Settings, adapted_layers, shape_of
from gpuguide.lora.model import add_to_targets, layers_with
from gpuguide.lora.packed import Packing
from gpuguide.lora.product import Spans, whole_up
from gpuguide.lora.targets import Target, parts_of_layer

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
PARTS = "gpuguide.parts"
"""Where the metadata of the weights say which adapters stand beside parts of a matrix"""
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


@dataclass(frozen=True)
class Place:
    """What ``transformers`` calls a matrix of ours, or some of its rows."""

    name: str
    rows: tuple[int, int] | None = None
    """First row, and the one after the last; all where there are none"""
    transposed: bool = False
    """Whether it is a ``Conv1D`` there"""


Places = Mapping[str, Sequence[Place]]
"""By the name of our layer"""


@dataclass(frozen=True)
class StoredAdapter:
    """What a file holds for one layer: A, ``(rank, in)``, B, ``(out, rank)``, and the settings."""

    down: torch.Tensor
    up: torch.Tensor
    settings: Settings
    parts: tuple[str, ...] = ()
    """Parts of the matrix that it stands beside, where they were noted"""


def save_adapter(
    model: nn.Module, folder: Path, name: str = "default", *, base: str | None = None, places: Places | None = None
) -> None:
    """Write an adapter so that PEFT can read it.

    Each file is written beside its place and renamed, so a full disk leaves the files that were there.

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
        :func:`gpuguide.models.adapters.places` gives them. Without, they are those of the model.

    Raises
    ------
    GpuguideError
        If no layer has the adapter, a layer has no place, or the files cannot be written.
    """
    stored, transposed = {}, False
    for path, layer in layers_with(model, name).items():
        if places is not None and path not in places:
            raise GpuguideError(f"{path} has no name in transformers; leave out the places to keep the names as here.")
        for place in (Place(path, None, layer.transposed),) if places is None else places[path]:
            transposed |= place.transposed
            if (found := _at(place, layer.adapter(name))) is not None:
                stored[place.name] = found
    weights = {}
    for path, each in stored.items():
        weights[f"{PREFIX}{path}.lora_A.weight"] = each.down.detach().cpu().clone().contiguous()
        weights[f"{PREFIX}{path}.lora_B.weight"] = each.up.detach().cpu().clone().contiguous()
    parts = {path: each.parts for path, each in stored.items() if each.parts}
    metadata = {"format": "pt", **({PARTS: json.dumps(parts)} if parts else {})}
    config = json.dumps(_described(stored, base, transposed), indent=2).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / WEIGHTS, save(weights, metadata=metadata))
        write_whole(folder / CONFIG, config)
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
    found = _by_layer(model, read_adapter(folder), places, folder)
    targets = {target: each.settings for target, each in found.items()}
    add_to_targets(model, targets, name=name, dtype=dtype, packing=packing)
    layers = adapted_layers(model)
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
    tensors, parts = _tensors(folder / WEIGHTS)
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
        stored[path] = StoredAdapter(down, up, settings, tuple(parts.get(path, ())))
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


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place, then rename it, so that there is a whole one at any time."""
    beside = path.with_name(f"{path.name}.writing")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError:
        with suppress(OSError):  # there is nothing where the folder is none
            beside.unlink(missing_ok=True)
        raise


# --- writing ---------------------------------------------------------------------------------------------


def _at(place: Place, adapter: Adapter) -> StoredAdapter | None:
    """Return what an adapter does at a place, or ``None`` if nothing."""
    start, stop = place.rows or (0, adapter.outputs)
    if adapter.spans is None:
        return StoredAdapter(adapter.down, adapter.up[start:stop], adapter.settings)
    if (start, stop) in adapter.spans:
        number, rank = adapter.spans.index((start, stop)), adapter.settings.rank
        up = adapter.up.split([end - begin for begin, end in adapter.spans])[number]
        return StoredAdapter(adapter.down[number * rank : (number + 1) * rank], up, adapter.settings)
    if not any(begin < stop and start < end for begin, end in adapter.spans):
        return None
    settings = _of_rank(adapter.settings, len(adapter.spans) * adapter.settings.rank)
    return StoredAdapter(adapter.down, adapter.whole_up()[start:stop], settings, adapter.parts)


def _of_rank(settings: Settings, rank: int) -> Settings:
    """Return settings of another rank that scale as before."""
    alpha = settings.scale * (math.sqrt(rank) if settings.stabilised else rank)
    return Settings(rank, alpha, settings.dropout, settings.stabilised)


def _described(stored: Mapping[str, StoredAdapter], base: str | None, transposed: bool) -> dict[str, Any]:
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
        "rank_pattern": {
            path: each.settings.rank for path, each in stored.items() if each.settings.rank != settings.rank
        },
        "alpha_pattern": {
            path: each.settings.alpha for path, each in stored.items() if each.settings.alpha != settings.alpha
        },
        "lora_dropout": settings.dropout,
        "use_rslora": settings.stabilised,
        "fan_in_fan_out": transposed,
        "target_modules": list(stored),
        "bias": "none",
        "inference_mode": True,
    }


# --- reading ---------------------------------------------------------------------------------------------


def _settings_of(given: Mapping[str, Any], path: str, config: Path) -> Settings:
    """Return the settings of a layer. A pattern of PEFT is a regular expression for the end of its name."""

    def chosen(patterns: object, otherwise: Any) -> Any:
        found = patterns.items() if isinstance(patterns, dict) else ()
        return next((value for key, value in found if re.match(rf"(.*\.)?({key})$", path)), otherwise)

    rank = chosen(given.get("rank_pattern"), given["r"])
    alpha = chosen(given.get("alpha_pattern"), given["lora_alpha"])
    try:
        return Settings(rank, alpha, given.get("lora_dropout", 0.0), bool(given.get("use_rslora")))
    except TypeError as error:
        raise GpuguideError(f"{config}: r, lora_alpha and lora_dropout must be numbers ({error}).") from error


def _tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, list[str]]]:
    """Return the tensors of a file, and which parts of matrices were noted."""
    try:
        with safe_open(path, framework="pt") as file:
            noted = (file.metadata() or {}).get(PARTS, "{}")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(noted)  # noqa: SIM118
    except Exception as error:  # a truncated file fails in several ways
        raise GpuguideError(f"{path} cannot be read ({error}).{foreign.instead_of_weights(path)}") from error


def _by_layer(
    model: nn.Module, stored: Mapping[str, StoredAdapter], places: Places | None, folder: Path
) -> dict[Target, StoredAdapter]:
    """Return what belongs to each layer of a model, if all of it has a layer that it fits."""
    modules = dict(model.named_modules())
    known = {path: [Place(path)] for path in stored} if places is None else places
    ours = {place.name: layer for layer, each in known.items() for place in each}
    for path in stored:
        if ours.get(path) not in modules:
            raise GpuguideError(f"The adapter in {folder} is for another base: the model has no layer {path}.")
    found = {}
    for layer in dict.fromkeys(ours[path] for path in stored):
        here = {place: stored[place.name] for place in known[layer] if place.name in stored}
        target, joined = _joined(model, layer, here, folder)
        _check_shape(modules[layer], target, joined, folder)
        found[target] = joined
    return found


def _joined(
    model: nn.Module, layer: str, here: Mapping[Place, StoredAdapter], folder: Path
) -> tuple[Target, StoredAdapter]:
    """Return what several places of one matrix hold as one adapter of ours."""
    first = next(iter(here.values()))
    if [place.rows for place in here] == [None]:
        return _apart(model, layer, first) if first.parts else (Target(layer), first)
    spans = tuple(place.rows for place in here if place.rows is not None)
    if any(each.settings != first.settings for each in here.values()):
        raise GpuguideError(f"The adapters in {folder} for parts of {layer} differ in rank or scale.")
    names = {rows: part for part, rows in parts_of_layer(model, layer).items()}
    parts = tuple(names.get(rows, f"{rows[0]} to {rows[1]}") for rows in spans)
    down, up = (torch.cat([getattr(each, half) for each in here.values()]) for half in ("down", "up"))
    return Target(layer, parts, spans), StoredAdapter(down, up, first.settings, parts)


def _apart(model: nn.Module, layer: str, stored: StoredAdapter) -> tuple[Target, StoredAdapter]:
    """Return an adapter beside parts of a matrix, which was stored as one of a higher rank."""
    known = parts_of_layer(model, layer) if layer in dict(model.named_modules()) else {}
    if not set(stored.parts) <= known.keys() or stored.settings.rank % len(stored.parts):
        return Target(layer), stored
    spans: Spans = tuple(known[part] for part in stored.parts)
    rank = stored.settings.rank // len(spans)
    columns = stored.up.split(rank, dim=1)
    up = torch.cat([part[start:stop] for part, (start, stop) in zip(columns, spans, strict=True)])
    if not torch.equal(whole_up(up, spans, len(stored.up)), stored.up):  # trained on in PEFT: no zeros any more
        return Target(layer), stored
    return Target(layer, stored.parts, spans), StoredAdapter(
        stored.down, up, _of_rank(stored.settings, rank), stored.parts
    )


def _check_shape(layer: nn.Module, target: Target, stored: StoredAdapter, folder: Path) -> None:
    """Raise unless an adapter has the sizes of a layer."""
    has = shape_of(layer) if isinstance(layer, AdaptedLayer) or hasattr(layer, "weight") else (0, 0)
    rows = has[0] if target.spans is None else sum(stop - start for start, stop in target.spans)
    if (rows, has[1]) != (stored.up.shape[0], stored.down.shape[1]):
        raise GpuguideError(
            f"The adapter in {folder} is for another base: for {target.name} it has {tuple(stored.down.shape)} and "
            f"{tuple(stored.up.shape)}, and the layer is {has}."
        )

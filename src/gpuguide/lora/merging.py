"""Adapters merged into the frozen weights, so that they cost nothing in use, and taken out again.

The sum is formed in fp32 and rounded once. In bf16 an update below half the distance between neighbouring numbers is
lost; :func:`merge` says how much of it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.lora.adapting import adapted_layers, require_unmerged
from gpuguide.lora.layer import AdaptedLayer, Adapter, frozen_parts, is_conv1d


@dataclass(frozen=True)
class Merged:
    """What came of merging one layer."""

    update: float
    """Norm of the update"""
    lost: float
    """Norm of what rounding made of it, less the update, over the norm of the update; 0 for an update of zero"""


@torch.no_grad()
def merge(model: nn.Module, *, keep: bool = False) -> dict[str, Merged]:
    """Add the active adapter to the frozen weights, in place.

    Parameters
    ----------
    model : torch.nn.Module
        With an active adapter.
    keep : bool
        Whether to keep a copy of each weight, so that :func:`unmerge` restores it to the last bit. That takes as much
        memory as the weights; without it, unmerging subtracts and may be off by a rounding or two.

    Returns
    -------
    dict of str to Merged
        For each layer, what rounding lost.

    Raises
    ------
    GpuguideError
        If an adapter is merged already, none is active, or a weight is stored in few bits, which would be rounded to
        those again. The model is then as it was.
    """
    require_unmerged(model, "before another is merged")
    layers = {name: layer for name, layer in adapted_layers(model).items() if layer.active is not None}
    if not layers:
        raise GpuguideError("No adapter is active, so there is nothing to merge; choose one with select.")
    for name, layer in layers.items():
        weight, _ = frozen_parts(layer.base)
        if not isinstance(weight, torch.Tensor):
            raise GpuguideError(
                f"{name} is stored as {type(weight).__name__}, and a sum would be rounded to that again; "
                "turn the weights back with to_dense first."
            )
    return {name: _merge(layer, keep) for name, layer in layers.items()}


def _merge(layer: AdaptedLayer, keep: bool) -> Merged:
    weight, update = _weight(layer), _update(layer)
    before = weight.clone()
    weight.copy_(weight.to(update.dtype) + update)
    layer.merged, layer.kept = layer.active, before if keep else None
    norm = float(update.norm())
    moved = weight.to(update.dtype) - before.to(update.dtype)
    return Merged(norm, float((moved - update).norm()) / norm if norm else 0.0)


@torch.no_grad()
def unmerge(model: nn.Module) -> None:
    """Take the merged adapter out of the weights: to the last bit from a kept copy, else by subtraction.

    Subtracting rounds a second time, so a weight in a format of precision ``eps`` comes back within ``eps`` times the
    larger of itself and the sum.

    Raises
    ------
    GpuguideError
        If none is merged.
    """
    layers = [layer for layer in adapted_layers(model).values() if layer.merged is not None]
    if not layers:
        raise GpuguideError("No adapter is merged, so there is nothing to take out.")
    for layer in layers:
        weight = _weight(layer)
        if layer.kept is not None:
            weight.copy_(layer.kept)
        else:
            update = _update(layer)
            weight.copy_(weight.to(update.dtype) - update)
        layer.merged = layer.kept = None


@torch.no_grad()
def to_dense(model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
    """Turn weights in few bits beside adapters into ordinary ones, in place, so that adapters can be merged.

    Parameters
    ----------
    model : torch.nn.Module
        Layers that are stored in few bits become :class:`torch.nn.Linear`; others stay.
    dtype : torch.dtype
        Of the weights and biases.
    """
    from gpuguide.lora.adapting import replace
    from gpuguide.lora.frozen import QuantizedLinear

    for name, layer in list(model.named_modules()):
        if isinstance(layer, QuantizedLinear):
            stored = layer.stored
            dense = nn.Linear(stored.in_features, stored.out_features, layer.bias is not None, layer.device, dtype)
            dense.weight.copy_(stored.dequantize(dtype))
            if layer.bias is not None:
                dense.bias.copy_(layer.bias)
            replace(model, name, dense.requires_grad_(False).train(layer.training))


def _weight(layer: AdaptedLayer) -> torch.Tensor:
    weight, _ = frozen_parts(layer.base)
    assert isinstance(weight, torch.Tensor)
    return weight.data


def _update(layer: AdaptedLayer) -> torch.Tensor:
    """Return the update of the adapter that is or will be merged, in the layout of the weight."""
    name = layer.merged or layer.active
    assert name is not None
    adapter: Adapter = layer.adapter(name)
    update = adapter.update().to(_weight(layer).device)
    return update.t() if is_conv1d(layer.base) else update

"""Adapters merged into the frozen weights, so that they cost nothing in use, and taken out again.

The sum is formed in fp32 and rounded once. In bf16 a change below half of the distance between neighbouring numbers is
lost; :func:`measure_merging_loss` says how much of it that would be.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.lora.layer import AdaptedLayer, find_adapted_layers


@dataclass(frozen=True)
class Loss:
    """Rounding loss of merging an adapter into one layer."""

    change: float
    """Norm of what the adapter adds to the matrix"""
    lost: float
    """Norm of the difference between that and what is added after rounding, over the first; 0 where nothing is added"""
    unmoved: float
    """Share of the weights that should change and do not"""


def merge(model: nn.Module, *, keep: bool = False) -> dict[str, torch.Tensor]:
    """Merge the active adapters of all layers into their weights, in place.

    Parameters
    ----------
    model : nn.Module
        With an active adapter.
    keep : bool
        Whether to return the weights as they were, for :func:`unmerge`. They take as much memory as the weights.

    Returns
    -------
    dict of str to torch.Tensor
        By the name of the layer; empty without ``keep``.

    Raises
    ------
    GpuguideError
        If an adapter is merged already, none is active, or a matrix is packed. Then nothing is merged.
    """
    layers = _mergeable(model)
    kept = {name: layer.merge(keep=keep) for name, layer in layers.items()}
    return {name: weight for name, weight in kept.items() if weight is not None}


def unmerge(model: nn.Module, kept: dict[str, torch.Tensor] | None = None) -> None:
    """Take merged adapters out again: bit for bit with the weights that :func:`merge` returned, else nearly.

    Subtracting rounds a second time: in a format of precision ``eps`` a weight comes back within ``eps`` times the
    larger of itself and the sum.

    Raises
    ------
    GpuguideError
        If none is merged, or the weights are those of other layers.
    """
    layers = {name: layer for name, layer in find_adapted_layers(model).items() if layer.merged is not None}
    if not layers:
        raise GpuguideError("No adapter is merged, so there is nothing to take out.")
    if kept is not None and kept.keys() != layers.keys():
        raise GpuguideError(
            f"The weights that were kept are those of {len(kept)} layers, and adapters are merged into {len(layers)} "
            "layers with other names; give what merge() returned."
        )
    for name, layer in layers.items():
        layer.unmerge(None if kept is None else kept[name])


@torch.no_grad()
def measure_merging_loss(model: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Loss]:
    """Return what merging the active adapters would lose to rounding. Nothing is merged.

    Parameters
    ----------
    model : nn.Module
        With an active adapter.
    dtype : torch.dtype, optional
        Format that the sum is rounded to: that of the weights if it is left out.

    Returns
    -------
    dict of str to Loss
        By the name of the layer.

    Raises
    ------
    GpuguideError
        As :func:`merge`.
    """
    return {name: _loss(layer, dtype) for name, layer in _mergeable(model).items()}


def _loss(layer: AdaptedLayer, dtype: torch.dtype | None) -> Loss:
    assert layer.active is not None
    weight = layer.base.weight
    assert isinstance(weight, torch.Tensor)
    change = layer.to_stored_layout(layer.adapter(layer.active).change()).double()
    before = weight.to(dtype or weight.dtype)
    moved = (before.double() + change).to(before.dtype).double() - before.double()
    size, meant = float(change.norm()), change != 0
    lost = float((moved - change).norm()) / size if size else 0.0
    return Loss(size, lost, float((meant & (moved == 0)).sum()) / max(int(meant.sum()), 1))


def _mergeable(model: nn.Module) -> dict[str, AdaptedLayer]:
    """Return the layers with an active adapter, if all of them can be merged."""
    layers = {name: layer for name, layer in find_adapted_layers(model).items() if layer.active is not None}
    if not layers:
        raise GpuguideError("No adapter is active, so there is nothing to merge; choose one with use_adapter().")
    for name, layer in layers.items():
        layer.check_unmerged("merge")
        if layer.packed is not None:
            raise GpuguideError(
                f"{name} is packed, which has no room for a change; merge into the weights it was made from, for "
                "example with merge_into_checkpoint()."
            )
    return layers

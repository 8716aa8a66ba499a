"""Adapters for the layers of a model whose names fit a pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gpuguide.errors import GpuguideError, unknown
from gpuguide.lora.layer import AdaptedLayer, Settings, check_rank, find_adapted_layers, shape_of
from gpuguide.lora.packed import Packing
from gpuguide.lora.targets import Target, check_not_tied, find_targets


@dataclass(frozen=True)
class Count:
    """Parameters of a model, tied ones counted once."""

    trained: int
    frozen: int

    @property
    def share(self) -> float:
        """Trained ones of all, as PEFT prints it."""
        return self.trained / (self.trained + self.frozen)


def add_adapters(
    model: nn.Module,
    targets: Sequence[str],
    settings: Settings | None = None,
    *,
    name: str = "default",
    dtype: torch.dtype = torch.float32,
    packing: Packing | None = None,
) -> list[str]:
    """Freeze a model, and put an adapter beside each layer that a pattern fits; the model is changed in place.

    Parameters
    ----------
    model : nn.Module
        For example a :class:`gpuguide.models.gpt2.GPT2`, or a model of transformers.
    targets : sequence of str
        Names as PEFT takes them (``"c_attn"`` is every layer whose name ends so), patterns for the whole name
        (``"*.attention.*"``), or parts of a matrix (``"c_attn:query,value"``): see :mod:`gpuguide.lora.targets`.
    settings : Settings, optional
        Rank 16, alpha 32 if they are left out.
    name : str
        The adapter's. A second one joins the first on the same layers.
    dtype : torch.dtype
        Format in which the adapters are stored and trained.
    packing : callable, optional
        How the frozen matrices are packed. They stay as they are if it is left out.

    Returns
    -------
    list of str
        The names of the layers.

    Raises
    ------
    GpuguideError
        If a pattern fits no layer, a layer's weights are tied to another's, or the rank is above a layer's size.
        The model is left as it was.
    """
    chosen = find_targets(model, targets)
    add_to_targets(model, dict.fromkeys(chosen, settings or Settings()), name=name, dtype=dtype, packing=packing)
    return [target.name for target in chosen]


def add_to_targets(
    model: nn.Module,
    chosen: Mapping[Target, Settings],
    *,
    name: str = "default",
    dtype: torch.dtype = torch.float32,
    packing: Packing | None = None,
) -> None:
    """Do what :func:`add_adapters` does for layers that are found already, each with settings of its own."""
    _check_name(name)
    check_not_tied(model, [target.name for target in chosen])
    for target, settings in chosen.items():
        _check_possible(target, model.get_submodule(target.name), name, settings, packing)
    model.requires_grad_(False)
    for target, settings in chosen.items():
        found = model.get_submodule(target.name)
        adapted = found if isinstance(found, AdaptedLayer) else _replace(model, target.name, packing)
        adapted.add(name, settings, dtype, spans=target.spans, parts=target.parts)
    use_adapter(model, name)


def use_adapter(model: nn.Module, name: str | None) -> None:
    """Use one adapter in all layers that have it, and train that one alone; ``None`` gives the base.

    Raises
    ------
    GpuguideError
        If no layer has it.
    """
    layers = _find_adapted(model)
    if name is not None:
        layers_with(model, name)
    for layer in layers.values():
        layer.check_unmerged("change the adapter")
    for layer in layers.values():
        layer.use(name if name is not None and name in layer.adapters else None)
        for each, adapter in layer.adapters.items():
            adapter.requires_grad_(each == name)


def remove_adapter(model: nn.Module, name: str) -> None:
    """Take an adapter away from all layers. Layers stay what they are, with whatever adapters they have left.

    Raises
    ------
    GpuguideError
        If no layer has it, or it is merged.
    """
    layers = layers_with(model, name)
    for layer in layers.values():
        layer.check_unmerged("remove an adapter")
    for layer in layers.values():
        del layer.adapters[name]
        layer.active = None if layer.active == name else layer.active


def layers_with(model: nn.Module, name: str) -> dict[str, AdaptedLayer]:
    """Return the layers that have an adapter of a name.

    Raises
    ------
    UnknownName
        If none has; the names that there are are listed.
    """
    layers = _find_adapted(model)
    found = {path: layer for path, layer in layers.items() if name in layer.adapters}
    if not found:
        raise unknown("adapter", name, {each for layer in layers.values() for each in layer.adapters})
    return found


def count_parameters(model: nn.Module) -> Count:
    """Return how many parameters are trained, and how many are not; a packed matrix counts its numbers."""
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    frozen = sum(each.numel() for each in model.parameters() if not each.requires_grad)
    packed = [layer.packed for layer in find_adapted_layers(model).values() if layer.packed is not None]
    return Count(trained, frozen + sum(each.in_features * each.out_features for each in packed))


def _check_name(name: str) -> None:
    if not name or "." in name:
        raise GpuguideError(f"An adapter cannot be named {name!r}: a name has letters, and no point.")


def _find_adapted(model: nn.Module) -> dict[str, AdaptedLayer]:
    layers = find_adapted_layers(model)
    if not layers:
        raise GpuguideError(f"{type(model).__name__} has no adapters; add them with add_adapters().")
    return layers


def _check_possible(
    target: Target, layer: nn.Module, adapter: str, settings: Settings, packing: Packing | None
) -> None:
    """Raise what adding the adapter would, before anything is changed."""
    name = target.name
    if isinstance(layer, AdaptedLayer):
        if packing is not None and layer.packed is None:
            raise GpuguideError(f"{name} has an adapter and weights that are not packed; pack them with the first one.")
        if layer.merged is not None:
            raise GpuguideError(f"The adapter {layer.merged!r} is merged into {name}; unmerge it first.")
        if adapter in layer.adapters:
            raise GpuguideError(f"{name} has an adapter named {adapter!r} already; choose another name.")
    check_rank(shape_of(layer), settings, target.spans, name)


def _replace(model: nn.Module, name: str, packing: Packing | None) -> AdaptedLayer:
    layer = model.get_submodule(name)
    packed = None
    if packing is not None:
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        packed = packing(weight.detach() if isinstance(layer, nn.Linear) else weight.detach().t().contiguous())
    adapted = AdaptedLayer(layer, packed).train(layer.training)
    model.set_submodule(name, adapted)
    return adapted

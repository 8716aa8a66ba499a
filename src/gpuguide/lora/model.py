"""Adapters for the layers of a model whose names fit a pattern."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.lora.layer import AdaptedLayer, Settings, adapted_layers, is_adaptable
from gpuguide.lora.product import Packed

Packing = Callable[[torch.Tensor], Packed]
"""From a matrix ``(out, in)`` to the same in few bits, for example ``gpuguide.inference.quantize.quantize_int4``"""


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
        Names as PEFT takes them (``"c_attn"`` is every layer whose name ends so), or patterns for the whole name with
        ``*`` and ``?`` (``"*.attention.*"``).
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
    settings = settings or Settings()
    chosen = fitting_layers(model, targets)
    _check_ties(model, chosen)
    for layer in chosen:
        _check_possible(layer, model.get_submodule(layer), name, settings, packing)
    model.requires_grad_(False)
    for layer in chosen:
        found = model.get_submodule(layer)
        adapted = found if isinstance(found, AdaptedLayer) else _replaced(model, layer, packing)
        adapted.add(name, settings, dtype)
    use_adapter(model, name)
    return chosen


def fitting_layers(model: nn.Module, targets: Sequence[str]) -> list[str]:
    """Return the names of the layers that the patterns fit, in the order of the model.

    Raises
    ------
    GpuguideError
        If a pattern fits none; the near names are listed.
    """
    # The layer inside an adapted one bears its name, and is no target itself.
    inside = {id(layer.base) for layer in adapted_layers(model).values()}
    names = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, AdaptedLayer) or (is_adaptable(layer) and id(layer) not in inside)
    ]
    for target in targets:
        if not any(_fits(name, target) for name in names):
            ends = sorted({name.rpartition(".")[2] for name in names})
            near = difflib.get_close_matches(target.rpartition(".")[2], ends, n=3, cutoff=0.4)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise GpuguideError(
                f"No layer fits {target!r}.{hint} Layers that can have adapters end in: {', '.join(ends) or 'none'}."
            )
    if not targets:
        raise GpuguideError("No targets are given; name the layers that get adapters.")
    return [name for name in names if any(_fits(name, target) for target in targets)]


def use_adapter(model: nn.Module, name: str | None) -> None:
    """Use one adapter in all layers that have it, and train that one alone; ``None`` gives the base.

    Raises
    ------
    GpuguideError
        If no layer has it.
    """
    layers = _adapted(model)
    if name is not None and not any(name in layer.adapters for layer in layers.values()):
        raise GpuguideError(f"No layer has an adapter named {name!r}.")
    for layer in layers.values():
        layer.use(name if name is not None and name in layer.adapters else None)
        for each, adapter in layer.adapters.items():
            adapter.requires_grad_(each == name)


def merge(model: nn.Module, *, keep: bool = False) -> dict[str, torch.Tensor]:
    """Merge the active adapters of all layers into their weights, and return the weights as they were, if asked.

    Errors as :meth:`AdaptedLayer.merge`; then nothing is merged.
    """
    layers = {name: layer for name, layer in _adapted(model).items() if layer.active is not None or layer.merged}
    for layer in layers.values():
        if layer.merged is not None or layer.packed is not None:
            layer.merge()  # which raises before it changes anything
    if not layers:
        raise GpuguideError("No adapter is active, so there is nothing to merge; choose one with use_adapter().")
    kept = {name: layer.merge(keep=keep) for name, layer in layers.items()}
    return {name: weight for name, weight in kept.items() if weight is not None}


def unmerge(model: nn.Module, kept: dict[str, torch.Tensor] | None = None) -> None:
    """Take merged adapters out again: bit for bit with the weights that :func:`merge` returned, else nearly.

    Errors as :meth:`AdaptedLayer.unmerge`.
    """
    layers = {name: layer for name, layer in _adapted(model).items() if layer.merged is not None}
    if not layers:
        raise GpuguideError("No adapter is merged, so there is nothing to take out.")
    for name, layer in layers.items():
        layer.unmerge((kept or {}).get(name))


def count_parameters(model: nn.Module) -> Count:
    """Return how many parameters are trained, and how many are not; a packed matrix counts its numbers."""
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    frozen = sum(each.numel() for each in model.parameters() if not each.requires_grad)
    packed = [layer.packed for layer in adapted_layers(model).values() if layer.packed is not None]
    return Count(trained, frozen + sum(each.in_features * each.out_features for each in packed))


def _adapted(model: nn.Module) -> dict[str, AdaptedLayer]:
    layers = adapted_layers(model)
    if not layers:
        raise GpuguideError(f"{type(model).__name__} has no adapters; add them with add_adapters().")
    return layers


def _fits(name: str, target: str) -> bool:
    if any(sign in target for sign in "*?["):
        return fnmatchcase(name, target)
    return name == target or name.endswith(f".{target}")


def _check_ties(model: nn.Module, chosen: Sequence[str]) -> None:
    """Raise if a weight has two places: the change would reach one of them only, or, merged, the other one too."""
    places: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)
    for layer in chosen:
        weight = getattr(model.get_submodule(layer), "weight", None)
        others = [name for name in places.get(id(weight), []) if name != f"{layer}.weight"]
        if others:
            raise GpuguideError(
                f"The weight of {layer} is tied to {', '.join(others)}, which an adapter would not change; "
                "leave the layer out, or untie it."
            )


def _check_possible(name: str, layer: nn.Module, adapter: str, settings: Settings, packing: Packing | None) -> None:
    """Raise what adding the adapter would, before anything is changed."""
    if isinstance(layer, AdaptedLayer):
        shape, taken = (layer.out_features, layer.in_features), adapter in layer.adapters
        if packing is not None and layer.packed is None:
            raise GpuguideError(f"{name} has an adapter and weights that are not packed; pack them with the first one.")
        if layer.merged is not None:
            raise GpuguideError(f"The adapter {layer.merged!r} is merged into {name}; unmerge it first.")
    else:
        shape, taken = tuple(layer.weight.shape), False  # type: ignore[arg-type]
    if taken:
        raise GpuguideError(f"{name} has an adapter named {adapter!r} already; choose another name.")
    if settings.rank > min(shape):
        raise GpuguideError(
            f"The rank is {settings.rank}, but {name} has a rank of {min(shape)} at most; choose a lower one."
        )


def _replaced(model: nn.Module, name: str, packing: Packing | None) -> AdaptedLayer:
    layer = model.get_submodule(name)
    packed = None
    if packing is not None:
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        packed = packing(weight.detach() if isinstance(layer, nn.Linear) else weight.detach().t().contiguous())
    adapted = AdaptedLayer(layer, packed).train(layer.training)
    model.set_submodule(name, adapted)
    return adapted

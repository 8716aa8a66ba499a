"""Models whose weights went through quantisation and back, for whoever wants to know what it costs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from gpuguide.quantization.rounding import quantize_int4, quantize_int8

HEADS = ("head", "lm_head")
"""Names of the layer that makes logits"""
Weights = str | Callable[[torch.Tensor], torch.Tensor]
"""``int8`` or ``int4``, or a function from a matrix to the values that would be read back, ``(out, in)`` both"""
Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def quantize_model(model: Model, weights: Weights = "int4", group: int = 128, *, head: bool = False) -> Model:
    """Return a model that computes as before, with the values to which quantised weights would be turned back.

    Any code can evaluate it, and so see what quantising costs; it is neither smaller nor faster. Biases, norms and
    embeddings stay. A head that is tied to the token embedding is untied if it is quantised.

    Parameters
    ----------
    model : torch.nn.Module
        For example a :class:`gpuguide.models.gpt2.GPT2`; it stays as it is.
    weights : str or callable
        ``int8`` or ``int4``, or a function from a matrix to the values that would be read back, for example
        :func:`round_to_nearest`.
    group : int
        Inputs that share a scale, with ``int4``.
    head : bool
        Whether the layer that makes logits is quantised too.

    Raises
    ------
    ValueError
        If there is no such format or group, or no linear layer.
    """
    changed = copy.deepcopy(model)
    for layer in linear_layers(changed, head=head).values():
        layer.weight = nn.Parameter(_read_back(layer.weight, weights, group), layer.weight.requires_grad)
    return changed


@torch.no_grad()
def relative_errors(model: nn.Module, weights: Weights = "int4", group: int = 128) -> dict[str, float]:
    """Return how far quantised weights are from those of a model, for each kind of layer, the head among them.

    The error is the root of the sum of squared differences, over that of squared weights: 0.1 is 10 %. Of layers of
    zeros it is 0 if they come back as zeros, and infinite otherwise. Layers of all blocks that have one name,
    ``attention.out`` for example, are one kind.

    Parameters, and errors, as :func:`quantize_model`.
    """
    sums: dict[str, torch.Tensor] = {}
    for name, layer in linear_layers(model).items():
        exact = layer.weight.float()
        missed = _read_back(layer.weight, weights, group).float() - exact
        squares = torch.stack([missed.square().sum(), exact.square().sum()]).double()
        kind = _kind(name)
        sums[kind] = sums.get(kind, 0) + squares
    return {kind: float((missed / whole).sqrt()) if missed else 0.0 for kind, (missed, whole) in sums.items()}


def linear_layers(model: nn.Module, *, head: bool = True) -> dict[str, nn.Linear]:
    """Return the linear layers of a model by name, with or without its head.

    Raises
    ------
    ValueError
        If there is none.
    """
    found = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    chosen = {name: layer for name, layer in found.items() if head or name.rpartition(".")[2] not in HEADS}
    if not chosen:
        raise ValueError(f"{type(model).__name__} has no layer of torch.nn.Linear that could be quantised.")
    return chosen


def _kind(name: str) -> str:
    """Return a layer's name without its number: ``attention.out`` for ``blocks.3.attention.out``."""
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[numbers[-1] + 1 :] if numbers else parts)


def _read_back(weight: torch.Tensor, weights: Weights, group: int) -> torch.Tensor:
    """Return the values that quantised weights are turned back to, in the format of the weights."""
    if callable(weights):
        return weights(weight).to(weight.dtype)
    if weights == "int8":
        return quantize_int8(weight).dequantize(weight.dtype)
    if weights == "int4":
        return quantize_int4(weight, group).dequantize(weight.dtype)
    raise ValueError(f"There are no weights {weights!r}; choose int8, int4 or a function of a matrix.")

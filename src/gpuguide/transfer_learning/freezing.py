"""Freeze parts of a model, keep their statistics fixed, and give each layer its learning rate."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn


def train_only(model: nn.Module, *patterns: str) -> int:
    """Let only some parameters be trained, and return how many numbers these are. The model is changed in place.

    Parameters
    ----------
    model : nn.Module
        Any.
    *patterns : str
        Names of parameters as ``named_parameters`` gives them, with ``*`` for any letters: ``"fc.*"``. Without any,
        nothing is trained.

    Raises
    ------
    ValueError
        If a pattern fits no parameter; near names are listed. The model is left as it was.
    """
    parameters = dict(model.named_parameters())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            near = difflib.get_close_matches(pattern, parameters, n=3, cutoff=0.3) or list(parameters)[-3:]
            raise ValueError(f"the pattern {pattern!r} fits no parameter; there are, for example, {', '.join(near)}")
    for name, parameter in parameters.items():
        parameter.requires_grad_(any(fnmatchcase(name, pattern) for pattern in patterns))
    return count_trained_parameters(model)


def count_trained_parameters(model: nn.Module) -> int:
    """Return how many numbers are trained, tied ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def train_mode(model: nn.Module) -> None:
    """Put a model into training mode, but for its frozen parts, which stay as they are in use.

    ``model.train()`` alone reaches frozen parts too: their batch norms normalise by each batch and let their running
    statistics follow it, and their dropout drops. A module without parameters, such as dropout, follows the module
    around it.
    """
    for name, module in model.named_modules():  # a part comes before what is in it
        around = model.get_submodule(name.rpartition(".")[0]).training if name else True
        parameters = list(module.parameters())
        module.training = any(each.requires_grad for each in parameters) if parameters else around


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of all parameters and buffers, by name."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def find_changed(model: nn.Module, before: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of all parameters and buffers that are not what they were, bit for bit.

    Parameters
    ----------
    model : nn.Module
        With every name that ``before`` has.
    before : mapping
        From :func:`snapshot`.
    """
    now = model.state_dict()
    return [name for name, value in before.items() if not torch.equal(now[name], value)]


def layer_rates(layers: Sequence[nn.Module], learning_rate: float, decay: float = 1 / 2.6) -> list[dict[str, Any]]:
    """Return groups for an optimizer in which each layer learns more slowly than the next one.

    Parameters
    ----------
    layers : sequence of nn.Module
        From the input to the output. Layers without trained parameters get no group.
    learning_rate : float
        Of the last layer.
    decay : float
        What a layer's rate is of that of the next layer; by default that of the source.

    Returns
    -------
    list of dict
        With ``params`` and ``lr``, for any optimizer of ``torch.optim``.

    Raises
    ------
    ValueError
        If the decay is not above 0 and at most 1, or nothing is trained.

    Notes
    -----
    Source: Howard and Ruder, "Universal Language Model Fine-tuning for Text Classification", 2018, section 3.2.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"decay is {decay}; it must be above 0 and at most 1")
    groups = []
    for distance, layer in enumerate(reversed(layers)):
        trained = [each for each in layer.parameters() if each.requires_grad]
        if trained:
            groups.append({"params": trained, "lr": learning_rate * decay**distance})
    if not groups:
        raise ValueError("no layer has a trained parameter; unfreeze what is to learn first")
    return groups[::-1]

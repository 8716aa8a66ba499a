"""Reference loss and gradients, in fp32 and without any code of adapters.

Each adapter is added to its matrix, W' = W + scale B A, and the model is trained as a whole. With G the gradient of W',
those of the adapter are dA = scale Bᵀ G and dB = scale G Aᵀ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.nn import functional

from gpuguide.benchmarks.lora import problem
from gpuguide.benchmarks.lora.problem import Thin
from gpuguide.lora.places import TransformersMatrix
from gpuguide.measure.benchmark import Keys

ACCEPTED_LOSS = 2e-3
"""Largest accepted relative error of the loss"""
ACCEPTED_GRADIENT = 0.06
"""Largest accepted relative error of all gradients together, which are rounded to bf16 in each layer on their way: on a
processor 0.012 for GPT-2 small, whoever computes them, and 0.026 for six layers of the Llama's shape. It grows about as
the root of the layers, so to 0.043 for all sixteen."""
ACCEPTED_MATRIX = 0.25
"""Largest accepted relative error of the gradient of one A or B: beside all others together, one that is missing or
that has taken the place of another would hardly be seen. On a processor the worst of six layers has 0.03."""
AT_ONCE = 2
"""Sequences that are computed together"""


@dataclass(frozen=True)
class Expected:
    """The loss, and the gradients that a contender should find, by the names of matrices in ``transformers``."""

    loss: float
    gradients: Mapping[str, tuple[torch.Tensor, ...]]


def compute_adapter_gradients(keys: Keys, device: str) -> Expected:
    """Return the loss with a case's adapters, and the gradients of A and B."""
    return _compute_gradients(tuple(sorted(keys.items())), device, True)


def compute_weight_gradients(keys: Keys, device: str) -> Expected:
    """Return the loss without adapters, and the gradients of the weights of the first and last block."""
    return _compute_gradients(tuple(sorted(keys.items())), device, False)


@lru_cache(maxsize=2)
def _compute_gradients(items: tuple[tuple[str, object], ...], device: str, with_adapters: bool) -> Expected:
    keys: Keys = dict(items)  # type: ignore[arg-type]
    model = problem.model(keys, device, torch.float32).requires_grad_(False)
    values = problem.values(keys, device)
    places = problem.find_adapted_matrices(keys) if with_adapters else find_end_matrices(keys)
    weights = {}
    for name, (layer, place) in places.items():
        weight = model.get_submodule(layer).weight
        assert isinstance(weight, torch.Tensor)
        weights[name] = weight.requires_grad_()
        if with_adapters:
            down, up = (each.float() for each in values[name])
            with torch.no_grad():
                rows_of(weight, place)[:] += problem.scale(keys) * (up @ down)
    loss = _backward(model, *problem.batch(keys, device))
    found: dict[str, tuple[torch.Tensor, ...]] = {}
    for name, (_, place) in places.items():
        gradient = weights[name].grad
        assert gradient is not None
        of_rows = rows_of(gradient, place)
        found[name] = _adapter_gradients(of_rows, values[name], problem.scale(keys)) if with_adapters else (of_rows,)
    return Expected(loss, found)


def find_end_matrices(keys: Keys) -> dict[str, tuple[str, TransformersMatrix]]:
    """Return the matrices of a case's first and last block that have adapters elsewhere."""
    last = problem.config(keys).layers - 1
    return {
        name: (layer, place)
        for name, (layer, place) in problem.find_adapted_matrices(keys).items()
        if layer.startswith(("blocks.0.", f"blocks.{last}."))
    }


def rows_of(weight: torch.Tensor, place: TransformersMatrix) -> torch.Tensor:
    """Return the rows of one of our matrices that are a matrix of their own elsewhere."""
    return weight if place.rows is None else weight[slice(*place.rows)]


def errors(expected: Expected, loss: float, gradients: Mapping[str, tuple[torch.Tensor, ...]]) -> dict[str, float]:
    """Return the relative errors of the loss, of all gradients together and of the worst one.

    Raises
    ------
    AssertionError
        If gradients are missing.
    """
    missing = expected.gradients.keys() - gradients.keys()
    assert not missing, f"there are no gradients for {', '.join(sorted(missing)[:3])}"
    wrong = right = worst = 0.0
    for name, wanted in expected.gradients.items():
        for ours, exact in zip(gradients[name], wanted, strict=True):
            off, size = float((ours.float() - exact).square().sum()), float(exact.square().sum())
            wrong, right, worst = wrong + off, right + size, max(worst, off / size)
    return {
        "loss": abs(loss / expected.loss - 1),
        "gradient": (wrong / right) ** 0.5,
        "gradient of one matrix": worst**0.5,
    }


def refuse(found: Mapping[str, float]) -> None:
    """Raise an :class:`AssertionError` if an error is larger than accepted, or none at all."""
    accepted = {"loss": ACCEPTED_LOSS, "gradient": ACCEPTED_GRADIENT, "gradient of one matrix": ACCEPTED_MATRIX}
    for name, largest in accepted.items():
        assert found[name] <= largest, (
            f"the relative error of the {name} is {found[name]:.1e}, and at most {largest:.0e} is accepted"
        )


def _backward(model: problem.Model, tokens: torch.Tensor, targets: torch.Tensor) -> float:
    """Compute the mean loss and its gradients, some sequences at a time."""
    count = int((targets != problem.IGNORED).sum())
    total = 0.0
    for some, wanted in zip(tokens.split(AT_ONCE), targets.split(AT_ONCE), strict=True):
        logits = model(some).flatten(0, 1)
        loss = functional.cross_entropy(logits, wanted.flatten(), ignore_index=problem.IGNORED, reduction="sum") / count
        loss.backward()
        total += float(loss.detach())
    return total


def _adapter_gradients(gradient: torch.Tensor, values: Thin, scale: float) -> Thin:
    down, up = (each.float() for each in values)
    return scale * (up.t() @ gradient), scale * (gradient @ down.t())

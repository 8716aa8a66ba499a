"""Gradients compared with central differences: nudge a weight both ways, and see how much the loss changes.

The error of a central difference has two parts. The truncated Taylor series leaves ``h² f'''/6``, which a smaller step
makes smaller, and rounding of the two losses leaves about ``ε f / h``, which a smaller step makes larger. They balance
near ``h = ε^(1/3)`` times the size of the weight: 6e-6 in float64, where about ten digits of the gradient are right,
and 5e-3 in float32, where about four are.

References
----------
W. H. Press et al., "Numerical Recipes", 3rd edition, section 5.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

Loss = Callable[[], torch.Tensor]
"""Function that computes the loss from the parameters as they are now"""


@dataclass(frozen=True)
class GradientCheck:
    """One weight: its gradient by autograd and by a central difference."""

    name: str
    index: tuple[int, ...]
    autograd: float
    difference: float

    @property
    def error(self) -> float:
        """Difference of the two, relative to the larger of them; 0 where both are 0."""
        largest = max(abs(self.autograd), abs(self.difference))
        return abs(self.autograd - self.difference) / largest if largest else 0.0


def best_step(weight: float, dtype: torch.dtype) -> float:
    """Return the step of a central difference in a floating-point format, ``ε^(1/3) max(|w|, 1)``."""
    return float(torch.finfo(dtype).eps ** (1 / 3) * max(abs(weight), 1.0))


@torch.no_grad()
def central_difference(loss: Loss, parameter: torch.Tensor, index: tuple[int, ...], step: float | None = None) -> float:
    """Return ``(f(w + h) − f(w − h)) / 2h`` for one weight, which is as it was afterwards.

    Parameters
    ----------
    loss : callable
        Computes the loss, and gives the same one each time: without dropout, on the same batch.
    parameter : torch.Tensor
        Parameter that the weight belongs to, floating point.
    index : tuple of int
        Index of the weight.
    step : float, optional
        ``h``; :func:`best_step` by default.

    Raises
    ------
    ValueError
        If the parameter holds integers, the step is not positive, or the loss differs between two calls.
    """
    if not parameter.is_floating_point():
        raise ValueError(f"A parameter in {parameter.dtype} has no gradient; differences need floating point.")
    weight = parameter[index].item()
    h = best_step(weight, parameter.dtype) if step is None else step
    if not h > 0:
        raise ValueError(f"The step is {h}; it must be a positive number.")
    first, second = float(loss()), float(loss())
    if first != second:
        raise ValueError(
            f"The loss is {first} and then {second} with the same weights; call model.eval(), which turns dropout off, "
            "and use one batch."
        )
    values = []
    for nudged in (weight + h, weight - h):
        parameter[index] = nudged
        values.append((parameter[index].item(), float(loss())))
    parameter[index] = weight
    (above, loss_above), (below, loss_below) = values
    return (loss_above - loss_below) / (above - below)  # the nudge as it was rounded


@torch.no_grad()
def loss_slice(loss: Loss, parameter: torch.Tensor, index: tuple[int, ...], offsets: Iterable[float]) -> list[float]:
    """Return the loss along one weight, with each offset added to it; the weight is as it was afterwards.

    Parameters as of :func:`central_difference`.
    """
    weight, losses = parameter[index].item(), list[float]()
    for offset in offsets:
        parameter[index] = weight + offset
        losses.append(float(loss()))
    parameter[index] = weight
    return losses


def check_gradients(
    loss: Loss, parameters: Iterable[tuple[str, nn.Parameter]], count: int = 2, seed: int = 0
) -> list[GradientCheck]:
    """Compare gradients by autograd with central differences, at weights drawn at random.

    Parameters
    ----------
    loss : callable
        Computes the loss, the same one each time.
    parameters : iterable of (str, nn.Parameter)
        For example ``model.named_parameters()``, in float64 for an error near 1e-9. Those that ask for no gradient are
        left out.
    count : int
        Weights of each parameter, half of them where the gradient is largest.
    seed : int
        Seed of the others.

    Returns
    -------
    list of GradientCheck
        The largest error first.

    Raises
    ------
    ValueError
        If no parameter asks for a gradient; otherwise as :func:`central_difference`.
    """
    named = [(name, each) for name, each in parameters if each.requires_grad]
    if not named:
        raise ValueError("No parameter asks for a gradient; set requires_grad of one.")
    found = torch.autograd.grad(loss(), [each for _, each in named], allow_unused=True)
    generator, checks = torch.Generator().manual_seed(seed), list[GradientCheck]()
    for (name, parameter), gradient in zip(named, found, strict=True):
        values = torch.zeros_like(parameter) if gradient is None else gradient
        largest = values.abs().flatten().topk(min((count + 1) // 2, values.numel())).indices.tolist()
        drawn = torch.randint(values.numel(), (count // 2,), generator=generator).tolist()
        for place in dict.fromkeys(largest + drawn):
            index = tuple(int(each) for each in torch.unravel_index(torch.tensor(place), parameter.shape))
            checks.append(GradientCheck(name, index, float(values[index]), central_difference(loss, parameter, index)))
    return sorted(checks, key=lambda check: -check.error)

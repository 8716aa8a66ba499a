"""Effects of a format on the gradients and weights of a run: underflow, overflow, and updates that change no weight.

All functions take tensors or several of them, for example ``gradients(model)``, and count over all together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from gpuguide.precision.formats import FloatFormat, format_by_name
from gpuguide.precision.rounding import round_to

Tensors = torch.Tensor | Iterable[torch.Tensor]


@dataclass(frozen=True)
class Shares:
    """Shares of values that become zero, subnormal, normal or infinite in a format; they add up to 1."""

    count: int
    """Values"""
    zero: float
    """Zero before"""
    underflow: float
    """Not zero, and rounded to zero"""
    subnormal: float
    """Rounded to a subnormal number, which has fewer significant bits"""
    normal: float
    """Rounded to a normal number"""
    overflow: float
    """Finite, and so large that rounding makes it infinite or NaN; none in fp4, which cuts off"""
    infinite: float
    """Infinite or NaN before"""


@dataclass(frozen=True)
class Exponents:
    """Histogram of values by their power of two: a value of 0.3 lies from 2^-2 to 2^-1 and has the exponent -2."""

    exponents: list[int]
    """Exponents from the smallest that occurs to the largest, without gaps"""
    counts: list[int]
    """Values with each"""
    zeros: int
    infinite: int
    """Infinite or NaN"""

    @property
    def shares(self) -> list[float]:
        """Counts as shares of all values, zeros and infinite ones among them."""
        return [count / max(sum(self.counts) + self.zeros + self.infinite, 1) for count in self.counts]


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients of a model's parameters by name; parameters that have none are left out."""
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@torch.no_grad()
def shares(values: Tensors, format: str | FloatFormat | torch.dtype, scale: float = 1.0) -> Shares:
    """Return where values end up if they are multiplied by a scale and rounded to a format.

    Parameters
    ----------
    values : torch.Tensor or iterable of them
        For example ``gradients(model).values()``, as they are in fp32.
    format : str, FloatFormat or torch.dtype
        ``"fp16"``, for example.
    scale : float
        As a loss scaler would multiply by.

    Raises
    ------
    ValueError
        If there is no such format, no value, or the scale is not positive.
    """
    wanted = format_by_name(format)
    if not scale > 0:
        raise ValueError(f"The scale is {scale!r}; it must be a positive number.")
    count = zero = under = subnormal = over = infinite = 0
    for tensor in _each(values):
        wide = tensor.detach().double() * scale
        finite = wide.isfinite()
        rounded = round_to(wide.where(finite, 0), wanted, saturate=True)
        beyond = finite & (wide.abs() >= wanted.overflow_from)
        count += wide.numel()
        zero += int((wide == 0).sum())
        under += int(((rounded == 0) & finite & (wide != 0)).sum())
        subnormal += int(((rounded != 0) & (rounded.abs() < wanted.smallest_normal)).sum())
        over += int(beyond.sum())
        infinite += int((~finite).sum())
    if not count:
        raise ValueError("There are no values to count; gradients exist after loss.backward().")
    normal = count - zero - under - subnormal - over - infinite
    return Shares(count, zero / count, under / count, subnormal / count, normal / count, over / count, infinite / count)


@torch.no_grad()
def unmoved_share(
    weights: Tensors,
    updates: Tensors,
    format: str | FloatFormat | torch.dtype | None = None,
    *,
    share_of_zero: bool = False,
) -> float:
    """Return the share of updates that change no weight: less than half the distance to the weight's neighbour.

    Parameters
    ----------
    weights : torch.Tensor or iterable of them
        Weights as they are stored.
    updates : torch.Tensor or iterable of them
        Updates of the same shapes, which are added: the learning rate times the step, with its sign.
    format : str, FloatFormat or torch.dtype, optional
        Format in which the weights are stored; by default their dtype.
    share_of_zero : bool
        Whether updates of zero count as updates, although they change nothing in any format.

    Raises
    ------
    ValueError
        If the shapes differ, or no update counts.
    """
    stuck = count = 0
    for weight, update in zip(_each(weights), _each(updates), strict=True):
        if weight.shape != update.shape:
            raise ValueError(f"An update of the shape {tuple(update.shape)} is no update of {tuple(weight.shape)}.")
        stored = weight.dtype if format is None else format
        held = round_to(weight.double(), stored)
        counted = torch.ones_like(update, dtype=torch.bool) if share_of_zero else update != 0
        stuck += int(((round_to(held + update.double(), stored) == held) & counted).sum())
        count += int(counted.sum())
    if not count:
        raise ValueError("No update is other than zero, so there is no share of them.")
    return stuck / count


@torch.no_grad()
def exponents(values: Tensors) -> Exponents:
    """Count values by their power of two, for a histogram over the range of a format.

    Parameters
    ----------
    values : torch.Tensor or iterable of them
        Floating point, for example ``gradients(model).values()``.
    """
    found: dict[int, int] = {}
    zeros = infinite = 0
    for tensor in _each(values):
        flat = tensor.detach().double().flatten()
        zeros += int((flat == 0).sum())
        infinite += int((~flat.isfinite()).sum())
        powers, counts = (torch.frexp(flat[flat.isfinite() & (flat != 0)]).exponent - 1).unique(return_counts=True)
        for power, count in zip(powers.tolist(), counts.tolist(), strict=True):
            found[power] = found.get(power, 0) + count
    every = list(range(min(found), max(found) + 1)) if found else []
    return Exponents(every, [found.get(power, 0) for power in every], zeros, infinite)


def _each(values: Tensors) -> Iterable[torch.Tensor]:
    return [values] if isinstance(values, torch.Tensor) else values

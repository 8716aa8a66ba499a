"""The checks before a method is timed: gradients and scores, against the same in float64."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from gpuguide.benchmarks.transfer_learning.training import Examples

ACCEPTED_ERROR = 2e-2
"""Largest accepted error against float64, as a ratio of norms; matmuls are computed in TF32, with 10 bits"""


def check_gradients(module: nn.Module, examples: Examples) -> None:
    """Check the gradients of what is trained.

    Raises
    ------
    AssertionError
        If they are wrong, or something has a gradient that is not trained.
    """
    found, exact = gradients(module, examples), gradients(copy.deepcopy(module).double(), examples)
    module.zero_grad(set_to_none=True)
    assert found.keys() == exact.keys(), "other parameters have gradients than in float64"
    assert found.keys() == {name for name, each in module.named_parameters() if each.requires_grad}
    wrong = sum(float((found[name].double() - right).square().sum()) for name, right in exact.items())
    whole = sum(float(right.square().sum()) for right in exact.values())
    accept((wrong / whole) ** 0.5, "gradients")


def gradients(module: nn.Module, examples: Examples) -> dict[str, torch.Tensor]:
    """Return the gradients of the mean loss, by the names of the parameters that have one."""
    module.zero_grad(set_to_none=True)
    functional.cross_entropy(module(*examples.inputs), examples.wanted).backward()
    return {name: each.grad.clone() for name, each in module.named_parameters() if each.grad is not None}


@torch.no_grad()
def check_scores(module: nn.Module, tokens: torch.Tensor, last: torch.Tensor) -> None:
    """Check scores, ``(texts, vocab_size)``.

    Raises
    ------
    AssertionError
        If they are wrong.
    """
    exact = copy.deepcopy(module).double()(tokens, last)
    accept(float((module(tokens, last).double() - exact).norm() / exact.norm()), "scores")


def accept(error: float, what: str) -> None:
    """Raise ``AssertionError`` if an error is too large."""
    assert error <= ACCEPTED_ERROR, (
        f"the relative error of the {what} is {error:.1e}, and at most {ACCEPTED_ERROR:.0e} is accepted"
    )

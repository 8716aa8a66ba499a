"""Arithmetic of attention: operations of the products, and exponentials."""

from __future__ import annotations

from gpuguide.attention.cost.sizes import AttentionProblem
from gpuguide.costs import roofline


def forward_flops(p: AttentionProblem) -> int:
    """Return the operations of the forward pass: two products, each of ``2 * head_dim`` for a pair.

    Hidden pairs are not counted, even where a kernel computes them for the sake of whole tiles. The softmax is left
    out: per pair it does a handful of operations, where the products do ``4 * head_dim``.
    """
    return 4 * p.head_dim * p.pairs


def backward_flops(p: AttentionProblem, products: int = 5) -> int:
    """Return the operations of the backward pass: five products, one of which makes the scores again.

    A version with a second loop for the gradient of the queries, as :func:`gpuguide.attention.tiled.backward`, does
    seven. Rates are usually given for five, so that a product done twice does not count as speed.
    """
    return products * 2 * p.head_dim * p.pairs


def exponentials(p: AttentionProblem) -> int:
    """Return the exponentials of the forward pass, one a pair, and of the backward pass, which makes them again.

    Those that correct the sums are left out: one a row and block of keys.
    """
    return p.pairs


def intensity(p: AttentionProblem, moved: float) -> float:
    """Return the arithmetic intensity of the forward pass in FLOP/B, if it moves so many bytes."""
    return roofline.arithmetic_intensity(forward_flops(p), moved)

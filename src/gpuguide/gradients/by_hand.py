"""Forward and backward pass of a transformer block, written out in the symbols of the papers.

A forward function returns its result; the backward function of the same name takes the gradient of the result, ``dy``,
and what the forward pass kept, and returns the gradients of the inputs. ``dx`` stands for the derivative of the loss
with respect to ``x`` and has its shape. All functions take any floating-point format; float64 shows that they are
right.

References
----------
Y. LeCun et al., "Efficient BackProp", 1998, section 4; J. L. Ba et al., "Layer Normalization", 2016; A. Vaswani et al.,
"Attention Is All You Need", 2017, section 3.2.1; D. Hendrycks and K. Gimpel, "Gaussian Error Linear Units", 2016.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

Tensors = Mapping[str, torch.Tensor]
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def linear(x: torch.Tensor, W: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``x Wᵀ + b``: ``(..., in)`` to ``(..., out)``, with ``W`` of the shape ``(out, in)``."""
    return x @ W.T + b


def linear_backward(
    dy: torch.Tensor, x: torch.Tensor, W: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``dx``, ``dW`` and ``db``. Each position adds its share to ``dW``, so that ``x`` has to be kept."""
    dy_rows, x_rows = dy.flatten(0, -2), x.flatten(0, -2)
    return dy @ W, dy_rows.T @ x_rows, dy_rows.sum(0)


def layer_norm(
    x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the normalised, scaled and shifted ``x``, and what the backward pass needs: ``x_hat`` and ``1/σ``."""
    centred = x - x.mean(-1, keepdim=True)
    inverse_sigma = (centred.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    x_hat = centred * inverse_sigma
    return x_hat * gamma + beta, x_hat, inverse_sigma


def layer_norm_backward(
    dy: torch.Tensor, x_hat: torch.Tensor, inverse_sigma: torch.Tensor, gamma: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``dx``, ``dgamma`` and ``dbeta``.

    The result does not change when ``x`` is shifted or scaled, so ``dx`` has no part along either: the mean of
    ``dx_hat`` and its projection on ``x_hat`` are taken away.
    """
    dx_hat = dy * gamma
    projection = x_hat * (dx_hat * x_hat).mean(-1, keepdim=True)
    dx = inverse_sigma * (dx_hat - dx_hat.mean(-1, keepdim=True) - projection)
    return dx, (dy * x_hat).flatten(0, -2).sum(0), dy.flatten(0, -2).sum(0)


def attention(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, causal: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``O = P V`` and the probabilities ``P = softmax(Q Kᵀ/√d)``; inputs are ``(..., seq, head_dim)``."""
    S = Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])
    if causal:
        S = S.masked_fill(torch.ones(S.shape[-2:], dtype=torch.bool, device=S.device).triu(1), -math.inf)
    P = S.softmax(-1)
    return P @ V, P


def attention_backward(
    dO: torch.Tensor, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, P: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``dQ``, ``dK`` and ``dV``.

    Probabilities of a row add up to 1, so softmax takes the mean of ``dP``, weighted by ``P``, away from it. Where the
    mask made ``P`` zero, ``dS`` is zero as well.
    """
    dV = P.transpose(-2, -1) @ dO
    dP = dO @ V.transpose(-2, -1)
    dS = P * (dP - (P * dP).sum(-1, keepdim=True)) / math.sqrt(Q.shape[-1])
    return dS @ K, dS.transpose(-2, -1) @ Q, dV


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return GELU in GPT-2's approximation, ``x/2 (1 + tanh(√(2/π)(x + 0.044715 x³)))``."""
    return 0.5 * x * (1 + torch.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x**3)))


def gelu_backward(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return ``dx``: the product rule, with ``tanh' = 1 − tanh²``."""
    tanh = torch.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x**3))
    inner = SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x**2)
    return dy * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * inner)


class Kept(NamedTuple):
    """What the forward pass of a block keeps for the backward pass, in the order in which it is made."""

    x_hat_1: torch.Tensor
    inverse_sigma_1: torch.Tensor
    normed_1: torch.Tensor
    Q: torch.Tensor
    K: torch.Tensor
    V: torch.Tensor
    P: torch.Tensor
    mixed: torch.Tensor
    x_hat_2: torch.Tensor
    inverse_sigma_2: torch.Tensor
    normed_2: torch.Tensor
    before_gelu: torch.Tensor
    after_gelu: torch.Tensor


def block(x: torch.Tensor, weights: Tensors, heads: int) -> tuple[torch.Tensor, Kept]:
    """Return the result of a pre-norm GPT-2 block, and what its backward pass needs.

    Parameters
    ----------
    x : torch.Tensor
        ``(batch, seq, hidden)``
    weights : mapping of str to torch.Tensor
        By the names of :class:`gpuguide.models.gpt2.GPT2Block`: ``dict(block.named_parameters())``.
    heads : int
        Attention heads, which divide the hidden size.
    """
    w = weights
    normed_1, x_hat_1, inverse_sigma_1 = layer_norm(x, w["attention_norm.weight"], w["attention_norm.bias"])
    qkv = linear(normed_1, w["attention.query_key_value.weight"], w["attention.query_key_value.bias"])
    Q, K, V = (_split_heads(part, heads) for part in qkv.chunk(3, -1))
    attended, P = attention(Q, K, V)
    mixed = _join_heads(attended)
    x = x + linear(mixed, w["attention.out.weight"], w["attention.out.bias"])  # the residual connection
    normed_2, x_hat_2, inverse_sigma_2 = layer_norm(x, w["feed_forward_norm.weight"], w["feed_forward_norm.bias"])
    before_gelu = linear(normed_2, w["feed_forward.up.weight"], w["feed_forward.up.bias"])
    after_gelu = gelu(before_gelu)
    y = x + linear(after_gelu, w["feed_forward.down.weight"], w["feed_forward.down.bias"])
    return y, Kept(
        x_hat_1,
        inverse_sigma_1,
        normed_1,
        Q,
        K,
        V,
        P,
        mixed,
        x_hat_2,
        inverse_sigma_2,
        normed_2,
        before_gelu,
        after_gelu,
    )


def block_backward(dy: torch.Tensor, kept: Kept, weights: Tensors) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return ``dx``, and the gradients of the weights by name.

    At each addition the gradient goes both ways unchanged: along the residual connection, and into what was added.
    """
    w = weights
    grads: dict[str, torch.Tensor] = {}

    def back(name: str, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        dx, grads[f"{name}.weight"], grads[f"{name}.bias"] = linear_backward(dy, x, w[f"{name}.weight"])
        return dx

    def norm_back(name: str, dy: torch.Tensor, x_hat: torch.Tensor, inverse_sigma: torch.Tensor) -> torch.Tensor:
        found = layer_norm_backward(dy, x_hat, inverse_sigma, w[f"{name}.weight"])
        dx, grads[f"{name}.weight"], grads[f"{name}.bias"] = found
        return dx

    # -- feed-forward part, last operation first
    d_after = back("feed_forward.down", dy, kept.after_gelu)
    d_normed = back("feed_forward.up", gelu_backward(d_after, kept.before_gelu), kept.normed_2)
    dx = dy + norm_back("feed_forward_norm", d_normed, kept.x_hat_2, kept.inverse_sigma_2)
    # -- attention
    dO = _split_heads(back("attention.out", dx, kept.mixed), kept.Q.shape[1])
    dQKV = attention_backward(dO, kept.Q, kept.K, kept.V, kept.P)
    d_normed = back("attention.query_key_value", torch.cat([_join_heads(each) for each in dQKV], -1), kept.normed_1)
    return dx + norm_back("attention_norm", d_normed, kept.x_hat_1, kept.inverse_sigma_1), grads


def _split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Return ``(batch, seq, hidden)`` as ``(batch, heads, seq, head_dim)``."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _join_heads(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(-2)

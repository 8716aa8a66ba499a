"""Attention by tiles: stand-in until the library's own kernels land."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched."""

    rows: int = 128
    columns: int = 64
    warps: int = 4
    stages: int = 3
    split: bool = True
    exp2: bool = True
    descriptors: bool = True
    warp_specialize: bool = False


LAUNCHES = {
    ("forward", 64): Launch(128, 64, 4, 3),
    ("forward", 128): Launch(128, 64, 8, 3),
    ("backward", 64): Launch(64, 128, 8, 2),
    ("backward", 128): Launch(64, 64, 8, 2),
}


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """Return softmax(q kᵀ · scale) v."""
    return functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, launch: Launch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the log-sum-exp of every row."""
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return flash_attention(q, k, v, causal=causal, scale=scale), scores.logsumexp(dim=-1)


def backward(
    d_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    scale: float,
    launch: Launch,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of q, k and v."""
    with torch.enable_grad():
        parts = [part.detach().requires_grad_() for part in (q, k, v)]
        result = flash_attention(*parts, causal=causal, scale=scale)
    d_q, d_k, d_v = torch.autograd.grad(result, parts, d_out)
    return d_q, d_k, d_v

"""Attention as it is defined: every score of every query with every key, in four steps.

With queries ``Q``, keys ``K`` and values ``V`` of one head::

    S = scale * Q @ K.T      # scores, (queries, keys)
    S = -inf where a query must not see a key
    P = softmax(S)           # probabilities, each row adds up to one
    O = P @ V                # output, (queries, head_dim)

The faster versions never hold ``S`` or ``P``. They are compared with this one.

Conventions, here and in the whole package. Queries are ``(batch, heads, queries, head_dim)``, keys and values
``(batch, kv_heads, keys, head_dim)``. With fewer heads of keys than of queries, ``heads / kv_heads`` neighbouring heads
of queries share one. Causal means that the last query sees all keys, and each one before it one key less: query ``i``
sees key ``j`` if ``j <= i + keys - queries``. A query that sees no key has an output of zeros and a log-sum-exp of
``-inf``. Arithmetic is in fp32, or in float64 if that is the dtype of the inputs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from gpuguide.logits import promote_to_fp32


class AttentionResult(NamedTuple):
    """Results of the forward pass: with the inputs, all that the backward pass needs."""

    output: torch.Tensor
    """Output, ``(batch, heads, queries, head_dim)``, in the dtype of the queries"""
    log_sum_exp: torch.Tensor
    """Log-sum-exp of each row of scores, ``(batch, heads, queries)``, in fp32 or wider; ``-inf`` if no key is seen"""


class AttentionGradients(NamedTuple):
    """Gradients of a loss, each with the shape and dtype of its tensor."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def naive_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """Return attention with all scores in memory: one operation a line, one tensor an operation.

    It computes in the dtype of its inputs, and returns NaN for a query that sees no key. Its cost is modelled by
    :func:`gpuguide.attention.cost.naive_forward`. Parameters as :func:`attention`.
    """
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    scores = q @ k.mT
    scores = scores * scale_or_default(scale, q.shape[-1])
    if causal:
        hidden = ~causal_mask(q.shape[-2], k.shape[-2], q.device)
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """Return attention. It can be differentiated, in float64 too.

    Parameters
    ----------
    q : torch.Tensor
        ``(batch, heads, queries, head_dim)``, floating point.
    k, v : torch.Tensor
        ``(batch, kv_heads, keys, head_dim)``. ``heads`` is a multiple of ``kv_heads``.
    causal : bool
        Hide from each query the keys after its own position; the last query has the position of the last key.
    mask : torch.Tensor, optional
        Mask that broadcasts to ``(batch, heads, queries, keys)``. Boolean: true where a query sees a key.
        Floating point: added to the scores.
    scale : float, optional
        Factor of the scores; ``1 / sqrt(head_dim)`` by default.

    Returns
    -------
    torch.Tensor
        ``(batch, heads, queries, head_dim)``, in the dtype of ``q``.
    """
    return attention_with_log_sum_exp(q, k, v, causal=causal, mask=mask, scale=scale).output


def attention_with_log_sum_exp(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> AttentionResult:
    """Return attention and the log-sum-exp of each row of scores. Parameters as :func:`attention`."""
    scores = apply_masks(compute_scores(q, k, scale), causal=causal, mask=mask)
    log_sum_exp = torch.logsumexp(scores, dim=-1)
    output = probabilities(scores, log_sum_exp) @ repeat_heads(promote_to_fp32(v), q.shape[1])
    return AttentionResult(output.to(q.dtype), log_sum_exp)


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_output: torch.Tensor,
    *,
    causal: bool = False,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> AttentionGradients:
    """Return the gradients of q, k and v, with the formulas that the faster versions apply to each tile.

    With ``dX`` for the derivative of the loss by ``X``::

        dV = P.T @ dO
        dP = dO @ V.T
        dS = P * (dP - delta),   delta = sum(dO * O) of each row
        dQ = scale * dS @ K
        dK = scale * dS.T @ Q

    ``delta`` is the contribution of the softmax's normalisation, the sum of ``P * dP`` over a row. As ``O`` is
    ``P @ V``, it equals the sum of ``dO * O``, for which no row of ``P`` is needed.

    Parameters
    ----------
    d_output : torch.Tensor
        ``(batch, heads, queries, head_dim)``, the derivative of the loss by the output.
    q, k, v, causal, mask, scale
        As in :func:`attention`.

    References
    ----------
    T. Dao et al., "FlashAttention", 2022, appendix B.2. https://arxiv.org/abs/2205.14135
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    factor = scale_or_default(scale, q.shape[-1])
    wide_q, d_out = promote_to_fp32(q), promote_to_fp32(d_output)
    wide_k, wide_v = repeat_heads(promote_to_fp32(k), heads), repeat_heads(promote_to_fp32(v), heads)

    scores = apply_masks(compute_scores(q, k, scale), causal=causal, mask=mask)
    p = probabilities(scores, torch.logsumexp(scores, dim=-1))
    delta = (d_out * (p @ wide_v)).sum(dim=-1, keepdim=True)

    dv = p.mT @ d_out
    dp = d_out @ wide_v.mT
    ds = p * (dp - delta)
    dq = factor * ds @ wide_k
    dk = factor * ds.mT @ wide_q
    return AttentionGradients(
        dq.to(q.dtype), sum_shared_heads(dk, kv_heads).to(k.dtype), sum_shared_heads(dv, kv_heads).to(v.dtype)
    )


# --- the steps -------------------------------------------------------------------------------------------


def compute_scores(q: torch.Tensor, k: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """Return ``scale * Q @ K.T``, shape ``(batch, heads, queries, keys)``, in fp32 or wider."""
    wide_k = repeat_heads(promote_to_fp32(k), q.shape[1])
    return scale_or_default(scale, q.shape[-1]) * (promote_to_fp32(q) @ wide_k.mT)


def causal_mask(queries: int, keys: int, device: torch.device | str | None = None) -> torch.Tensor:
    """Return a boolean mask, ``(queries, keys)``, true where a query sees a key. The last query sees all keys."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def apply_masks(scores: torch.Tensor, *, causal: bool = False, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return the scores with ``-inf`` where a query must not see a key, which makes its probability zero."""
    if causal:
        queries, keys = scores.shape[-2:]
        scores = scores.masked_fill(~causal_mask(queries, keys, scores.device), -torch.inf)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def probabilities(scores: torch.Tensor, log_sum_exp: torch.Tensor) -> torch.Tensor:
    """Return the softmax of scores from their log-sum-exp: ``exp(scores - log_sum_exp)``.

    It needs no sum, so any part of a row can be computed alone. A row of ``-inf`` alone becomes zeros: zero is
    subtracted from it, because ``-inf - -inf`` would be NaN.
    """
    return torch.exp(scores - replace_minus_infinity(log_sum_exp).unsqueeze(-1))


def replace_minus_infinity(values: torch.Tensor) -> torch.Tensor:
    """Return the values with zero instead of ``-inf``."""
    return values.masked_fill(values == -torch.inf, 0.0)


def repeat_heads(shared: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeat the heads of keys or values, ``(batch, kv_heads, …)``, so that every query head has its own."""
    return shared if shared.shape[1] == heads else shared.repeat_interleave(heads // shared.shape[1], dim=1)


def sum_shared_heads(gradient: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Sum the gradients of heads that share keys and values: ``(batch, heads, …)`` to ``(batch, kv_heads, …)``."""
    return gradient.unflatten(1, (kv_heads, -1)).sum(dim=2)


def scale_or_default(scale: float | None, head_dim: int) -> float:
    """Return the scale, or ``1 / sqrt(head_dim)``, which keeps the variance of a score at that of a query's numbers."""
    return 1 / math.sqrt(head_dim) if scale is None else scale

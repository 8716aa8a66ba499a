"""FlashAttention in plain PyTorch, one tile of scores at a time, with a count of the bytes that move.

Two ideas are in it. The first is the online softmax: keep of each row the maximum score so far (``m_i``) and the sum of
``exp(score - m_i)`` (``l_i``). When a block of keys raises the maximum, multiply the sum by ``exp(old - new)``.
The output is a sum with the same factors, so the same correction holds for it, and when all keys have been seen both
are exact. A tile of scores is computed on the chip, used, and discarded.

The second is to keep no probabilities for the backward pass, but one number a row, the log-sum-exp. From it
``exp(score - log_sum_exp)`` recomputes any tile of them.

On a GPU a block of threads does this for a block of queries of one head. Here all heads go through the loop together,
which changes neither results nor counts. The counts are of requested bytes; on a GPU, its L2 cache serves a part of
the reads. The conventions are those of :mod:`gpuguide.attention.reference`.

Sources: T. Dao et al., "FlashAttention", 2022, algorithms 1 and 4, https://arxiv.org/abs/2205.14135; the order of the
loops is that of T. Dao, "FlashAttention-2", 2023, section 3.1, https://arxiv.org/abs/2307.08691.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from gpuguide.attention.reference import (
    AttentionGradients,
    AttentionResult,
    probabilities,
    repeat_heads,
    replace_minus_infinity,
    scale_or_default,
    sum_shared_heads,
)
from gpuguide.logits import promote_to_fp32

BLOCK = 64
"""Default number of queries, and of keys, in a tile"""


@dataclass
class TileTraffic:
    """Bytes moved so far, at two levels: between memory and chip, and within the chip."""

    read: int = 0
    """Bytes read from memory"""
    written: int = 0
    """Bytes written to memory"""
    on_chip: int = 0
    """Bytes that matmuls read and write: operands in the dtype of the inputs, results in fp32 or wider"""

    @property
    def memory(self) -> int:
        """Bytes between memory and chip, both ways."""
        return self.read + self.written

    def load(self, stored: torch.Tensor) -> torch.Tensor:
        """Load a tile onto the chip, where the arithmetic is in fp32 or wider."""
        self.read += stored.nbytes
        return promote_to_fp32(stored)

    def store(self, destination: torch.Tensor, tile: torch.Tensor) -> None:
        """Store a tile to memory, rounded to the dtype there."""
        self.written += destination.nbytes
        destination.copy_(tile)

    def matmul(self, left: torch.Tensor, right: torch.Tensor, element_size: int) -> torch.Tensor:
        """Multiply two tiles on the chip, whose numbers take ``element_size`` bytes there."""
        result = left @ right
        self.on_chip += (left.numel() + right.numel()) * element_size + result.nbytes
        return result


@dataclass(frozen=True)
class AttentionTiling:
    """Tiles of the matrix of scores, and which of them a causal mask skips."""

    queries: int
    keys: int
    causal: bool
    block_q: int
    block_k: int

    @property
    def rows(self) -> Iterator[slice]:
        """The blocks of queries."""
        return blocks(self.queries, self.block_q)

    @property
    def columns(self) -> Iterator[slice]:
        """The blocks of keys."""
        return blocks(self.keys, self.block_k)

    @property
    def causal_offset(self) -> int:
        """Number of keys before the position of the first query; negative if the first queries see none."""
        return self.keys - self.queries

    def is_visible(self, rows: slice, columns: slice) -> bool:
        """Return whether any query of a tile sees any key of it: whether its last query sees its first key."""
        return not self.causal or columns.start <= rows.stop - 1 + self.causal_offset

    def apply_causal_mask(self, scores: torch.Tensor, rows: slice, columns: slice) -> torch.Tensor:
        """Return the scores of a tile with ``-inf`` where a query must not see a key. Most tiles stay unchanged."""
        if not self.causal or columns.stop - 1 <= rows.start + self.causal_offset:
            return scores
        key = torch.arange(columns.start, columns.stop, device=scores.device)
        last_seen = torch.arange(rows.start, rows.stop, device=scores.device) + self.causal_offset
        return scores.masked_fill(key > last_seen.unsqueeze(-1), -torch.inf)


def blocks(length: int, size: int) -> Iterator[slice]:
    """Cut ``length`` rows into blocks of ``size``, the last of which may be shorter."""
    if size < 1:
        raise ValueError(f"A block has {size} rows; it needs 1 or more.")
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


# --- forward ---------------------------------------------------------------------------------------------


class SoftmaxState(NamedTuple):
    """Running state of the online softmax for a block of queries, after some of the keys."""

    m_i: torch.Tensor
    """Maximum score of each row, ``(…, rows, 1)``; ``-inf`` before the first key"""
    l_i: torch.Tensor
    """Sum of ``exp(score - m_i)``, same shape"""
    acc: torch.Tensor
    """Sum of ``exp(score - m_i)`` times values, ``(…, rows, head_dim)``"""


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    block_q: int = BLOCK,
    block_k: int = BLOCK,
    traffic: TileTraffic | None = None,
) -> AttentionResult:
    """Return attention and the log-sum-exp of each row, a tile at a time.

    Parameters
    ----------
    q, k, v, causal, scale
        As in :func:`gpuguide.attention.reference.attention`.
    block_q, block_k : int
        Queries and keys of a tile, 1 or more.
    traffic : TileTraffic, optional
        Counter of the bytes that move.

    Raises
    ------
    ValueError
        If a block has no rows.
    """
    traffic = traffic or TileTraffic()
    tiling = AttentionTiling(q.shape[-2], k.shape[-2], causal, block_q, block_k)
    heads, size, factor = q.shape[1], q.element_size(), scale_or_default(scale, q.shape[-1])
    output = torch.empty_like(q)
    log_sum_exp = empty_row_statistics(q)
    for rows in tiling.rows:
        q_tile = traffic.load(q[:, :, rows])
        state = initial_state(q_tile)
        for columns in tiling.columns:
            if tiling.is_visible(rows, columns):
                k_tile = traffic.load(repeat_heads(k[:, :, columns], heads))
                v_tile = traffic.load(repeat_heads(v[:, :, columns], heads))
                scores = factor * traffic.matmul(q_tile, k_tile.mT, size)
                state = update_state(state, tiling.apply_causal_mask(scores, rows, columns), v_tile, traffic, size)
        traffic.store(output[:, :, rows], state.acc / state.l_i.clamp_min(1))  # below one only if it is zero
        traffic.store(log_sum_exp[:, :, rows], (state.m_i + state.l_i.log()).squeeze(-1))
    return AttentionResult(output, log_sum_exp)


def initial_state(q_tile: torch.Tensor) -> SoftmaxState:
    """Return the state of a block of queries before the first key."""
    zeros = torch.zeros_like(q_tile[..., :1])
    return SoftmaxState(torch.full_like(zeros, -torch.inf), zeros, torch.zeros_like(q_tile))


def update_state(
    state: SoftmaxState,
    scores: torch.Tensor,
    v_tile: torch.Tensor,
    traffic: TileTraffic | None = None,
    element_size: int = 4,
) -> SoftmaxState:
    """Return the state after one more block of keys: the online softmax.

    Parameters
    ----------
    state : SoftmaxState
        State of these queries so far.
    scores : torch.Tensor
        ``(…, rows, columns)``, of these queries with the new keys; ``-inf`` where one must not be seen.
    v_tile : torch.Tensor
        ``(…, columns, head_dim)``, the values of the new keys.
    traffic, element_size
        Counter of the matmul's bytes, and bytes per element of its operands.

    References
    ----------
    M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018. https://arxiv.org/abs/1805.02867
    """
    m_i = torch.maximum(state.m_i, scores.amax(dim=-1, keepdim=True))
    finite_m_i = replace_minus_infinity(m_i)  # before the first key exp(-inf - 0) is zero; exp(-inf - -inf) is not
    alpha = torch.exp(state.m_i - finite_m_i)
    p = torch.exp(scores - finite_m_i)
    pv = (traffic or TileTraffic()).matmul(p, v_tile, element_size)
    l_i = alpha * state.l_i + p.sum(dim=-1, keepdim=True)
    return SoftmaxState(m_i, l_i, alpha * state.acc + pv)


def empty_row_statistics(q: torch.Tensor) -> torch.Tensor:
    """Return an uninitialised tensor for one number a query, in fp32 or wider."""
    return torch.empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)


# --- backward --------------------------------------------------------------------------------------------


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    result: AttentionResult,
    d_output: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    block_q: int = BLOCK,
    block_k: int = BLOCK,
    traffic: TileTraffic | None = None,
) -> AttentionGradients:
    """Return the gradients of q, k and v, from the inputs and the result of :func:`forward`.

    The formulas are those of :func:`gpuguide.attention.reference.gradients`. A gradient is a sum over the other side:
    that of a key over all queries, that of a query over all keys. So there are two loops, each of which finishes one
    block of its gradients before the next and stores it once. Both recompute the tiles of scores, seven matmuls
    instead of five; one loop for both would have to add to one of the gradients in memory, in any order.

    Parameters
    ----------
    result : AttentionResult
        Result of :func:`forward`.
    d_output : torch.Tensor
        ``(batch, heads, queries, head_dim)``, the derivative of the loss by the output.
    q, k, v, causal, scale, block_q, block_k, traffic
        As in :func:`forward`.
    """
    traffic = traffic or TileTraffic()
    tiling = AttentionTiling(q.shape[-2], k.shape[-2], causal, block_q, block_k)
    factor = scale_or_default(scale, q.shape[-1])
    delta = compute_delta(d_output, result.output, tiling, traffic)
    inputs = (q, k, v, d_output, result.log_sum_exp, delta)
    dk, dv = compute_dkdv(*inputs, factor, tiling, traffic)
    return AttentionGradients(compute_dq(*inputs, factor, tiling, traffic), dk, dv)


def compute_delta(
    d_output: torch.Tensor, output: torch.Tensor, tiling: AttentionTiling, traffic: TileTraffic
) -> torch.Tensor:
    """Return ``delta``, the sum of ``dO * O`` of each row, ``(batch, heads, queries)``."""
    delta = empty_row_statistics(output)
    for rows in tiling.rows:
        products = traffic.load(d_output[:, :, rows]) * traffic.load(output[:, :, rows])
        traffic.store(delta[:, :, rows], products.sum(dim=-1))
    return delta


def compute_dkdv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_output: torch.Tensor,
    log_sum_exp: torch.Tensor,
    delta: torch.Tensor,
    scale: float,
    tiling: AttentionTiling,
    traffic: TileTraffic,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of keys and values: one block of keys at a time, with a loop over the queries that see it.

    Heads that share keys and values are done together, so those are read once, and the sum over the heads is taken
    before it is stored.
    """
    heads, kv_heads, size = q.shape[1], k.shape[1], q.element_size()
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for columns in tiling.columns:
        k_tile = repeat_heads(traffic.load(k[:, :, columns]), heads)
        v_tile = repeat_heads(traffic.load(v[:, :, columns]), heads)
        dk_tile, dv_tile = torch.zeros_like(k_tile), torch.zeros_like(v_tile)
        for rows in tiling.rows:
            if tiling.is_visible(rows, columns):
                q_tile, d_out = traffic.load(q[:, :, rows]), traffic.load(d_output[:, :, rows])
                lse, row_delta = traffic.load(log_sum_exp[:, :, rows]), traffic.load(delta[:, :, rows])
                scores = scale * traffic.matmul(q_tile, k_tile.mT, size)
                p = probabilities(tiling.apply_causal_mask(scores, rows, columns), lse)
                dp = traffic.matmul(d_out, v_tile.mT, size)
                ds = p * (dp - row_delta.unsqueeze(-1))
                dv_tile += traffic.matmul(p.mT, d_out, size)
                dk_tile += scale * traffic.matmul(ds.mT, q_tile, size)
        traffic.store(dk[:, :, columns], sum_shared_heads(dk_tile, kv_heads))
        traffic.store(dv[:, :, columns], sum_shared_heads(dv_tile, kv_heads))
    return dk, dv


def compute_dq(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_output: torch.Tensor,
    log_sum_exp: torch.Tensor,
    delta: torch.Tensor,
    scale: float,
    tiling: AttentionTiling,
    traffic: TileTraffic,
) -> torch.Tensor:
    """Return the gradients of the queries: one block of queries at a time, with a loop over the keys that it sees."""
    heads, size = q.shape[1], q.element_size()
    dq = torch.empty_like(q)
    for rows in tiling.rows:
        q_tile, d_out = traffic.load(q[:, :, rows]), traffic.load(d_output[:, :, rows])
        lse, row_delta = traffic.load(log_sum_exp[:, :, rows]), traffic.load(delta[:, :, rows])
        dq_tile = torch.zeros_like(q_tile)
        for columns in tiling.columns:
            if tiling.is_visible(rows, columns):
                k_tile = traffic.load(repeat_heads(k[:, :, columns], heads))
                v_tile = traffic.load(repeat_heads(v[:, :, columns], heads))
                scores = scale * traffic.matmul(q_tile, k_tile.mT, size)
                p = probabilities(tiling.apply_causal_mask(scores, rows, columns), lse)
                dp = traffic.matmul(d_out, v_tile.mT, size)
                ds = p * (dp - row_delta.unsqueeze(-1))
                dq_tile += scale * traffic.matmul(ds, k_tile, size)
        traffic.store(dq[:, :, rows], dq_tile)
    return dq

"""FlashAttention in plain PyTorch: attention one tile of scores at a time, and every byte counted.

Two ideas are in it. The first is a softmax that can be corrected: keep of each row the largest score so far and the sum
of ``exp(score - largest)``. When a block of keys brings a larger one, multiply what was summed by ``exp(old - new)``.
The output is a sum with the same factors, so the same correction holds for it, and when all keys have been seen both
are exact. A tile of scores is made on the chip, used, and forgotten.

The second is to keep no probabilities for the backward pass, but one number a row, the log-sum-exp. From it
``exp(score - log_sum_exp)`` makes any tile of them again.

On a GPU a block of threads does this for a block of queries of one head. Here all heads go through the loop together,
which changes neither results nor counts. The counts are of what is asked for; on a GPU its L2 cache answers a part of
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
    Gradients,
    Result,
    finite,
    for_each_head,
    of_shared_heads,
    probabilities,
    scale_or_default,
)
from gpuguide.logits import at_least_fp32

BLOCK = 64
"""Queries, and keys, of a tile if nothing else is asked for"""


@dataclass
class Traffic:
    """The bytes moved so far, at two levels: between memory and chip, and within the chip."""

    read: int = 0
    """From memory"""
    written: int = 0
    """To memory"""
    on_chip: int = 0
    """What products read and write: operands in the format of the inputs, results in fp32 or wider"""

    @property
    def memory(self) -> int:
        """Bytes between memory and chip, both ways."""
        return self.read + self.written

    def load(self, stored: torch.Tensor) -> torch.Tensor:
        """Bring a tile onto the chip, where it is computed with in fp32 or wider."""
        self.read += stored.nbytes
        return at_least_fp32(stored)

    def store(self, place: torch.Tensor, tile: torch.Tensor) -> None:
        """Write a tile to its place in memory, rounded to the format there."""
        self.written += place.nbytes
        place.copy_(tile)

    def product(self, left: torch.Tensor, right: torch.Tensor, element_size: int) -> torch.Tensor:
        """Multiply two tiles on the chip, whose numbers take ``element_size`` bytes there."""
        result = left @ right
        self.on_chip += (left.numel() + right.numel()) * element_size + result.nbytes
        return result


@dataclass(frozen=True)
class Tiling:
    """How the matrix of scores is cut, and which of its tiles a causal mask leaves out."""

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
    def ahead(self) -> int:
        """How many keys lie before the position of the first query; negative if the first queries see none."""
        return self.keys - self.queries

    def needed(self, rows: slice, columns: slice) -> bool:
        """Return whether some query of a tile sees some key of it: if its last sees the first, for that is nearest."""
        return not self.causal or columns.start <= rows.stop - 1 + self.ahead

    def hide(self, scores: torch.Tensor, rows: slice, columns: slice) -> torch.Tensor:
        """Return the scores of a tile with ``-inf`` where a query must not see a key. Most tiles stay as they are."""
        if not self.causal or columns.stop - 1 <= rows.start + self.ahead:
            return scores
        key = torch.arange(columns.start, columns.stop, device=scores.device)
        last_seen = torch.arange(rows.start, rows.stop, device=scores.device) + self.ahead
        return scores.masked_fill(key > last_seen.unsqueeze(-1), -torch.inf)


def blocks(length: int, size: int) -> Iterator[slice]:
    """Cut ``length`` rows into blocks of ``size``, the last of which may be shorter."""
    if size < 1:
        raise ValueError(f"A block has {size} rows; it needs 1 or more.")
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


# --- forward ---------------------------------------------------------------------------------------------


class Running(NamedTuple):
    """What is known of a block of queries when some of the keys have been seen."""

    largest: torch.Tensor
    """The largest score of each row, ``(…, rows, 1)``; ``-inf`` before the first"""
    total: torch.Tensor
    """The sum of ``exp(score - largest)``, same shape"""
    output: torch.Tensor
    """The sum of ``exp(score - largest)`` times values, ``(…, rows, head_dim)``"""


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    block_q: int = BLOCK,
    block_k: int = BLOCK,
    traffic: Traffic | None = None,
) -> Result:
    """Return attention and the log-sum-exp of each row, a tile at a time.

    Parameters
    ----------
    q, k, v, causal, scale
        As in :func:`gpuguide.attention.reference.attention`.
    block_q, block_k : int
        Queries and keys of a tile, 1 or more.
    traffic : Traffic, optional
        Where the bytes are counted.

    Raises
    ------
    ValueError
        If a block has no rows.
    """
    traffic = traffic or Traffic()
    tiling = Tiling(q.shape[-2], k.shape[-2], causal, block_q, block_k)
    heads, size, factor = q.shape[1], q.element_size(), scale_or_default(scale, q.shape[-1])
    output = torch.empty_like(q)
    log_sum_exp = row_statistics(q)
    for rows in tiling.rows:
        q_tile = traffic.load(q[:, :, rows])
        state = nothing_seen(q_tile)
        for columns in tiling.columns:
            if tiling.needed(rows, columns):
                k_tile = traffic.load(for_each_head(k[:, :, columns], heads))
                v_tile = traffic.load(for_each_head(v[:, :, columns], heads))
                scores = factor * traffic.product(q_tile, k_tile.mT, size)
                state = absorb(state, tiling.hide(scores, rows, columns), v_tile, traffic, size)
        traffic.store(output[:, :, rows], state.output / state.total.clamp_min(1))  # below one only if it is zero
        traffic.store(log_sum_exp[:, :, rows], (state.largest + state.total.log()).squeeze(-1))
    return Result(output, log_sum_exp)


def nothing_seen(q_tile: torch.Tensor) -> Running:
    """Return the state of a block of queries before the first key."""
    zeros = torch.zeros_like(q_tile[..., :1])
    return Running(torch.full_like(zeros, -torch.inf), zeros, torch.zeros_like(q_tile))


def absorb(
    state: Running, scores: torch.Tensor, v_tile: torch.Tensor, traffic: Traffic | None = None, element_size: int = 4
) -> Running:
    """Return the state after one more block of keys: the online softmax.

    Parameters
    ----------
    state : Running
        What is known of the queries so far.
    scores : torch.Tensor
        ``(…, rows, columns)``, of these queries with the new keys; ``-inf`` where one must not be seen.
    v_tile : torch.Tensor
        ``(…, columns, head_dim)``, the values of the new keys.
    traffic, element_size
        Where the product's bytes are counted, and the bytes a number of its operands.

    References
    ----------
    M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018. https://arxiv.org/abs/1805.02867
    """
    largest = torch.maximum(state.largest, scores.amax(dim=-1, keepdim=True))
    reference = finite(largest)  # a row that has seen nothing: exp(-inf - 0) is zero, exp(-inf - -inf) is not
    correction = torch.exp(state.largest - reference)
    powers = torch.exp(scores - reference)
    added = (traffic or Traffic()).product(powers, v_tile, element_size)
    total = correction * state.total + powers.sum(dim=-1, keepdim=True)
    return Running(largest, total, correction * state.output + added)


def row_statistics(q: torch.Tensor) -> torch.Tensor:
    """Return room for one number a query, in fp32 or wider."""
    return torch.empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)


# --- backward --------------------------------------------------------------------------------------------


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    result: Result,
    d_output: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    block_q: int = BLOCK,
    block_k: int = BLOCK,
    traffic: Traffic | None = None,
) -> Gradients:
    """Return the gradients, from the inputs and what :func:`forward` left.

    The formulas are those of :func:`gpuguide.attention.reference.gradients`. A gradient is a sum over the other side:
    that of a key over all queries, that of a query over all keys. So there are two loops, each of which finishes one
    block of its gradients before the next and stores it once. Both make the tiles of scores again, seven products
    instead of five; one loop for both would have to add to one of the gradients in memory, in any order.

    Parameters
    ----------
    result : Result
        Of :func:`forward`.
    d_output : torch.Tensor
        ``(batch, heads, queries, head_dim)``, the derivative of the loss by the output.
    q, k, v, causal, scale, block_q, block_k, traffic
        As in :func:`forward`.
    """
    traffic = traffic or Traffic()
    tiling = Tiling(q.shape[-2], k.shape[-2], causal, block_q, block_k)
    factor = scale_or_default(scale, q.shape[-1])
    delta = row_sums(d_output, result.output, tiling, traffic)
    given = (q, k, v, d_output, result.log_sum_exp, delta)
    d_k, d_v = key_gradients(*given, factor, tiling, traffic)
    return Gradients(query_gradients(*given, factor, tiling, traffic), d_k, d_v)


def row_sums(d_output: torch.Tensor, output: torch.Tensor, tiling: Tiling, traffic: Traffic) -> torch.Tensor:
    """Return ``delta``, the sum of ``dO * O`` of each row, ``(batch, heads, queries)``."""
    delta = row_statistics(output)
    for rows in tiling.rows:
        products = traffic.load(d_output[:, :, rows]) * traffic.load(output[:, :, rows])
        traffic.store(delta[:, :, rows], products.sum(dim=-1))
    return delta


def key_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_output: torch.Tensor,
    log_sum_exp: torch.Tensor,
    delta: torch.Tensor,
    scale: float,
    tiling: Tiling,
    traffic: Traffic,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of keys and values: each block of keys goes through all queries that see it.

    Heads that share keys and values are done together, so those are read once, and the sum over the heads is taken
    before it is stored.
    """
    heads, kv_heads, size = q.shape[1], k.shape[1], q.element_size()
    d_k, d_v = torch.empty_like(k), torch.empty_like(v)
    for columns in tiling.columns:
        k_tile = for_each_head(traffic.load(k[:, :, columns]), heads)
        v_tile = for_each_head(traffic.load(v[:, :, columns]), heads)
        d_k_tile, d_v_tile = torch.zeros_like(k_tile), torch.zeros_like(v_tile)
        for rows in tiling.rows:
            if tiling.needed(rows, columns):
                q_tile, d_out = traffic.load(q[:, :, rows]), traffic.load(d_output[:, :, rows])
                lse, row_delta = traffic.load(log_sum_exp[:, :, rows]), traffic.load(delta[:, :, rows])
                scores = scale * traffic.product(q_tile, k_tile.mT, size)
                p = probabilities(tiling.hide(scores, rows, columns), lse)
                d_p = traffic.product(d_out, v_tile.mT, size)
                d_s = p * (d_p - row_delta.unsqueeze(-1))
                d_v_tile += traffic.product(p.mT, d_out, size)
                d_k_tile += scale * traffic.product(d_s.mT, q_tile, size)
        traffic.store(d_k[:, :, columns], of_shared_heads(d_k_tile, kv_heads))
        traffic.store(d_v[:, :, columns], of_shared_heads(d_v_tile, kv_heads))
    return d_k, d_v


def query_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_output: torch.Tensor,
    log_sum_exp: torch.Tensor,
    delta: torch.Tensor,
    scale: float,
    tiling: Tiling,
    traffic: Traffic,
) -> torch.Tensor:
    """Return the gradients of the queries: each block of queries goes through all keys that it sees."""
    heads, size = q.shape[1], q.element_size()
    d_q = torch.empty_like(q)
    for rows in tiling.rows:
        q_tile, d_out = traffic.load(q[:, :, rows]), traffic.load(d_output[:, :, rows])
        lse, row_delta = traffic.load(log_sum_exp[:, :, rows]), traffic.load(delta[:, :, rows])
        d_q_tile = torch.zeros_like(q_tile)
        for columns in tiling.columns:
            if tiling.needed(rows, columns):
                k_tile = traffic.load(for_each_head(k[:, :, columns], heads))
                v_tile = traffic.load(for_each_head(v[:, :, columns], heads))
                scores = scale * traffic.product(q_tile, k_tile.mT, size)
                p = probabilities(tiling.hide(scores, rows, columns), lse)
                d_p = traffic.product(d_out, v_tile.mT, size)
                d_s = p * (d_p - row_delta.unsqueeze(-1))
                d_q_tile += scale * traffic.product(d_s, k_tile, size)
        traffic.store(d_q[:, :, rows], d_q_tile)
    return d_q

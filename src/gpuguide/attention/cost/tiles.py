"""Bytes that attention in tiles moves, and saves for its backward pass.

Source of the bound on bytes: T. Dao et al., "FlashAttention", 2022, theorem 2, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuguide.attention.cost.sizes import AttentionProblem
from gpuguide.attention.tiled import TileTraffic


@dataclass(frozen=True)
class _Tiles:
    """The tiles of one head that have something to see, added up."""

    area: int
    """Scores in them"""
    rows: int
    """Queries, counted once for each tile"""
    columns: int
    """Keys, counted once for each tile"""


def _tiles(p: AttentionProblem, block_q: int, block_k: int) -> _Tiles:
    area = rows = columns = 0
    for start in range(0, p.queries, block_q):
        stop = min(start + block_q, p.queries)
        seen = min(max(stop + p.keys - p.queries, 0), p.keys) if p.causal else p.keys
        count = math.ceil(seen / block_k)
        computed = min(count * block_k, p.keys)
        area += (stop - start) * computed
        rows += (stop - start) * count
        columns += computed
    return _Tiles(area, rows, columns)


def compulsory_bytes(p: AttentionProblem) -> int:
    """Return the bytes that any forward pass must move: inputs read once, output and log-sum-exp written once."""
    return 2 * p.query_bytes + 2 * p.key_bytes + p.statistic_bytes


def compulsory_backward_bytes(p: AttentionProblem) -> int:
    """Return the bytes that any backward pass must move: inputs, output, its gradient, log-sum-exp; three gradients."""
    return 4 * p.query_bytes + 4 * p.key_bytes + p.statistic_bytes


def tiled_forward(p: AttentionProblem, block_q: int, block_k: int) -> TileTraffic:
    """Return the bytes that :func:`gpuguide.attention.tiled.forward` moves.

    Queries are read and the output is written once. Keys and values are read once for each block of queries, so
    these bytes fall with ``block_q``. How many keys a tile has matters only at a causal mask's edge.
    """
    t, e, w, heads = _tiles(p, block_q, block_k), p.element_size, p.statistic_size, p.batch * p.heads
    row, column = p.head_dim * t.rows, p.head_dim * t.columns
    scores = (row + column) * e + t.area * w
    output = (t.area + column) * e + row * w
    return TileTraffic(
        read=p.query_bytes + heads * 2 * column * e,
        written=p.query_bytes + p.statistic_bytes,
        on_chip=heads * (scores + output),
    )


def tiled_backward(p: AttentionProblem, block_q: int, block_k: int) -> TileTraffic:
    """Return the bytes that :func:`gpuguide.attention.tiled.backward` moves, in its three loops."""
    t, e, w, heads = _tiles(p, block_q, block_k), p.element_size, p.statistic_size, p.batch * p.heads
    row, column = p.head_dim * t.rows, p.head_dim * t.columns
    delta = 2 * p.query_bytes
    for_keys = 2 * p.key_bytes + heads * (2 * row * e + 2 * t.rows * w)
    for_queries = 2 * p.query_bytes + 2 * p.statistic_bytes + heads * 2 * column * e
    scores = (row + column) * e + t.area * w
    to_keys, to_queries = (t.area + row) * e + column * w, (t.area + column) * e + row * w
    return TileTraffic(
        read=delta + for_keys + for_queries,
        written=p.statistic_bytes + 2 * p.key_bytes + p.query_bytes,
        on_chip=heads * (4 * scores + 2 * to_keys + to_queries),
    )


def tile_bytes(block_q: int, block_k: int, head_dim: int, element_size: int = 2) -> int:
    """Return the bytes that a tile of the forward pass takes on the chip.

    Queries, keys and values in the format of the inputs; scores and output in fp32 or wider.
    """
    inputs = (block_q + 2 * block_k) * head_dim * element_size
    return inputs + (block_q * block_k + block_q * head_dim) * max(4, element_size)


def largest_block(sram: int, head_dim: int, element_size: int = 2) -> int:
    """Return the largest square tile, in rows, that fits ``sram`` bytes of the chip.

    Raises
    ------
    ValueError
        If not even one row fits.
    """
    wide = max(4, element_size)
    half = head_dim * (3 * element_size + wide)
    block = (math.isqrt(half * half + 4 * wide * sram) - half) // (2 * wide)
    if block < 1:
        needed = tile_bytes(1, 1, head_dim, element_size)
        raise ValueError(f"A tile of one row with head_dim {head_dim} takes {needed} bytes; the chip has {sram}.")
    return block


def tiled_forward_for_sram(p: AttentionProblem, sram: int) -> TileTraffic:
    """Return the bytes that move when tiles are as large as ``sram`` bytes of the chip allow."""
    block = largest_block(sram, p.head_dim, p.element_size)
    return tiled_forward(p, block, block)


def io_bound(p: AttentionProblem, sram: int) -> float:
    """Return the paper's ``N² d² / M`` in bytes, for ``sram`` bytes of the chip, without its constant.

    It holds while ``M``, which counts numbers, lies between ``d`` and ``N d``. Numbers of this formula can
    only be compared with one another: how bytes grow with the length and fall with the size of the chip.
    """
    numbers = sram / p.element_size
    return p.pairs * p.head_dim**2 / numbers * p.element_size


def tiled_kept_bytes(p: AttentionProblem) -> int:
    """Return the bytes that FlashAttention saves for its backward pass in addition to its inputs: output and lse."""
    return p.query_bytes + p.statistic_bytes

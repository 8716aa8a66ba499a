"""What attention costs: arithmetic, exponentials, bytes and memory, stored whole and a tile at a time.

The time of attention on a GPU has three floors: the products at the rate of the tensor cores, the exponentials at the
rate of the units for special functions, and the bytes at the bandwidth of the memory. Which is highest depends on the
size of a head and on whether the scores are stored.

Source of the bound on bytes: T. Dao et al., "FlashAttention", 2022, theorem 2, https://arxiv.org/abs/2205.14135.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpuguide.attention.tiled import Traffic
from gpuguide.costs import roofline

EXPONENTIALS_PER_CLOCK = 16
"""That a multiprocessor of an H100 begins in one clock.

J. Shah et al., "FlashAttention-3", 2024, section 3.1, in a footnote that quotes the CUDA programming guide.
https://arxiv.org/abs/2407.08608
"""


@dataclass(frozen=True)
class Problem:
    """The sizes of an attention, whatever computes it."""

    batch: int
    heads: int
    queries: int
    head_dim: int
    keys: int
    kv_heads: int
    causal: bool = False
    element_size: int = 2
    """Bytes a number of inputs and output"""

    @property
    def rows(self) -> int:
        """Queries of all heads and sequences."""
        return self.batch * self.heads * self.queries

    @property
    def scores(self) -> int:
        """Numbers of the matrices of scores, of all heads and sequences, the hidden ones among them."""
        return self.rows * self.keys

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of all heads and sequences."""
        return self.batch * self.heads * pairs(self.queries, self.keys, self.causal)

    @property
    def query_bytes(self) -> int:
        """Bytes of the queries, and of the output."""
        return self.rows * self.head_dim * self.element_size

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys, and of the values."""
        return self.batch * self.kv_heads * self.keys * self.head_dim * self.element_size

    @property
    def statistic_bytes(self) -> int:
        """Bytes of one number a query, such as the log-sum-exp, in fp32 or wider."""
        return self.rows * self.statistic_size

    @property
    def statistic_size(self) -> int:
        """Bytes a number that is computed with on the chip."""
        return max(4, self.element_size)


def problem(
    batch: int,
    heads: int,
    seq_len: int,
    head_dim: int,
    *,
    keys: int | None = None,
    kv_heads: int | None = None,
    causal: bool = False,
    element_size: int = 2,
) -> Problem:
    """Return the sizes of an attention.

    Parameters
    ----------
    batch, heads, seq_len, head_dim : int
        Of the queries.
    keys, kv_heads : int, optional
        Of keys and values; as many as there are of the queries by default.
    causal : bool
        Whether a query sees no key after its own position; the last one stands at the last key.
    element_size : int
        Bytes a number of inputs and output.

    Raises
    ------
    ValueError
        If a size is below 1, or the heads are no multiple of ``kv_heads``.
    """
    found = Problem(
        batch,
        heads,
        seq_len,
        head_dim,
        seq_len if keys is None else keys,
        heads if kv_heads is None else kv_heads,
        causal,
        element_size,
    )
    for name, size in vars(found).items():
        if name != "causal" and size < 1:
            raise ValueError(f"{'seq_len' if name == 'queries' else name} is {size}; it must be at least 1.")
    if found.heads % found.kv_heads:
        raise ValueError(f"There are {found.heads} heads, which is no multiple of the {found.kv_heads} kv_heads.")
    return found


def problem_of(q: torch.Tensor, k: torch.Tensor, *, causal: bool = False) -> Problem:
    """Return the sizes of the attention of two tensors, ``(batch, heads, length, head_dim)``."""
    batch, heads, queries, head_dim = q.shape
    sizes = {"keys": k.shape[2], "kv_heads": k.shape[1], "element_size": q.element_size()}
    return problem(batch, heads, queries, head_dim, causal=causal, **sizes)


# --- arithmetic ------------------------------------------------------------------------------------------


def pairs(queries: int, keys: int, causal: bool = False) -> int:
    """Return how many pairs of a query and a key that it sees there are in one head."""
    if not causal:
        return queries * keys
    seeing = min(queries, keys)  # the queries before these see nothing
    return seeing * (keys - seeing) + seeing * (seeing + 1) // 2


def forward_flops(p: Problem) -> int:
    """Return the operations of the forward pass: two products, each of ``2 * head_dim`` for a pair.

    Hidden pairs are not counted, even where a kernel computes them for the sake of whole tiles. The softmax is left
    out: per pair it does a handful of operations, where the products do ``4 * head_dim``.
    """
    return 4 * p.head_dim * p.pairs


def backward_flops(p: Problem, products: int = 5) -> int:
    """Return the operations of the backward pass: five products, one of which makes the scores again.

    A version with a second loop for the gradient of the queries, as :func:`gpuguide.attention.tiled.backward`, does
    seven. Rates are usually given for five, so that a product done twice does not count as speed.
    """
    return products * 2 * p.head_dim * p.pairs


def exponentials(p: Problem) -> int:
    """Return the exponentials of the forward pass, one a pair, and of the backward pass, which makes them again.

    Those that correct the sums are left out: one a row and block of keys.
    """
    return p.pairs


def intensity(p: Problem, moved: float) -> float:
    """Return the arithmetic intensity of the forward pass in FLOP/B, if it moves so many bytes."""
    return roofline.arithmetic_intensity(forward_flops(p), moved)


# --- bytes: scores stored --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """One operation of the naive form: it reads its operands from memory and writes its result there."""

    name: str
    score_reads: int
    """How often the whole matrix of scores, or one of its shape, is read"""
    score_writes: int
    read: int
    """Bytes of everything that is read"""
    written: int
    flops: int = 0
    """Of a product"""


def naive_forward(p: Problem) -> list[Pass]:
    """Return what :func:`gpuguide.attention.reference.naive_attention` moves, operation by operation.

    Each matrix of scores and probabilities is as large as ``queries * keys`` a head, hidden pairs or not.
    """
    scores, product = p.scores * p.element_size, 2 * p.head_dim * p.scores
    mask = [Pass("mask", 1, 1, scores + p.queries * p.keys, scores)] if p.causal else []
    return [
        Pass("queries times keys", 0, 1, p.query_bytes + p.key_bytes, scores, product),
        Pass("scale", 1, 1, scores, scores),
        *mask,
        Pass("softmax", 1, 1, scores, scores),
        Pass("probabilities times values", 1, 0, scores + p.key_bytes, p.query_bytes, product),
    ]


def naive_backward(p: Problem) -> list[Pass]:
    """Return what the backward pass of the naive form moves, operation by operation."""
    scores, product = p.scores * p.element_size, 2 * p.head_dim * p.scores
    mask = [Pass("mask", 1, 1, scores + p.queries * p.keys, scores)] if p.causal else []
    return [
        Pass("gradient of the probabilities", 0, 1, p.query_bytes + p.key_bytes, scores, product),
        Pass("gradient of the values", 1, 0, scores + p.query_bytes, p.key_bytes, product),
        Pass("softmax", 2, 1, 2 * scores, scores),
        *mask,
        Pass("scale", 1, 1, scores, scores),
        Pass("gradient of the queries", 1, 0, scores + p.key_bytes, p.query_bytes, product),
        Pass("gradient of the keys", 1, 0, scores + p.query_bytes, p.key_bytes, product),
    ]


def score_passes(passes: Sequence[Pass]) -> int:
    """Return how often a matrix of scores goes through the memory, in one direction or the other."""
    return sum(each.score_reads + each.score_writes for each in passes)


def moved(passes: Sequence[Pass]) -> int:
    """Return the bytes that operations read and write together."""
    return sum(each.read + each.written for each in passes)


# --- bytes: a tile at a time -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tiles:
    """The tiles of one head that have something to see, added up."""

    area: int
    """Scores in them"""
    rows: int
    """Queries, counted once for each tile"""
    columns: int
    """Keys, counted once for each tile"""


def _tiles(p: Problem, block_q: int, block_k: int) -> _Tiles:
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


def compulsory_bytes(p: Problem) -> int:
    """Return the bytes that any forward pass must move: inputs read once, output and log-sum-exp written once."""
    return 2 * p.query_bytes + 2 * p.key_bytes + p.statistic_bytes


def compulsory_backward_bytes(p: Problem) -> int:
    """Return the bytes that any backward pass must move: inputs, output, its gradient, log-sum-exp; three gradients."""
    return 4 * p.query_bytes + 4 * p.key_bytes + p.statistic_bytes


def tiled_forward(p: Problem, block_q: int, block_k: int) -> Traffic:
    """Return the bytes that :func:`gpuguide.attention.tiled.forward` moves.

    Queries are read and the output is written once. Keys and values are read once for each block of queries, so
    these bytes fall with ``block_q``. How many keys a tile has matters only at a causal mask's edge.
    """
    t, e, w, heads = _tiles(p, block_q, block_k), p.element_size, p.statistic_size, p.batch * p.heads
    row, column = p.head_dim * t.rows, p.head_dim * t.columns
    scores = (row + column) * e + t.area * w
    output = (t.area + column) * e + row * w
    return Traffic(
        read=p.query_bytes + heads * 2 * column * e,
        written=p.query_bytes + p.statistic_bytes,
        on_chip=heads * (scores + output),
    )


def tiled_backward(p: Problem, block_q: int, block_k: int) -> Traffic:
    """Return the bytes that :func:`gpuguide.attention.tiled.backward` moves, in its three loops."""
    t, e, w, heads = _tiles(p, block_q, block_k), p.element_size, p.statistic_size, p.batch * p.heads
    row, column = p.head_dim * t.rows, p.head_dim * t.columns
    delta = 2 * p.query_bytes
    for_keys = 2 * p.key_bytes + heads * (2 * row * e + 2 * t.rows * w)
    for_queries = 2 * p.query_bytes + 2 * p.statistic_bytes + heads * 2 * column * e
    scores = (row + column) * e + t.area * w
    to_keys, to_queries = (t.area + row) * e + column * w, (t.area + column) * e + row * w
    return Traffic(
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


def tiled_forward_for_sram(p: Problem, sram: int) -> Traffic:
    """Return the bytes that move when tiles are as large as ``sram`` bytes of the chip allow."""
    block = largest_block(sram, p.head_dim, p.element_size)
    return tiled_forward(p, block, block)


def io_bound(p: Problem, sram: int) -> float:
    """Return the paper's ``N² d² / M`` in bytes, for ``sram`` bytes of the chip, without its constant.

    It holds while ``M``, which counts numbers, lies between ``d`` and ``N d``. Numbers of this formula mean
    something only beside one another: how bytes grow with the length and fall with the size of the chip.
    """
    numbers = sram / p.element_size
    return p.pairs * p.head_dim**2 / numbers * p.element_size


# --- memory ----------------------------------------------------------------------------------------------


def naive_kept_bytes(p: Problem) -> int:
    """Return what the naive form keeps for its backward pass, beside its inputs: the probabilities, and the mask."""
    return p.scores * p.element_size + (p.queries * p.keys if p.causal else 0)


def tiled_kept_bytes(p: Problem) -> int:
    """Return what FlashAttention keeps for its backward pass, beside its inputs: output and log-sum-exp."""
    return p.query_bytes + p.statistic_bytes


# --- time ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Floor:
    """The shortest times that three parts of an attention can take. They can go on at once, so the longest counts."""

    products: float
    """Seconds"""
    exponentials: float
    memory: float

    @property
    def time(self) -> float:
        """Seconds at least."""
        return max(self.products, self.exponentials, self.memory)

    @property
    def bound(self) -> str:
        """What takes longest: ``products``, ``exponentials`` or ``memory``."""
        return max(vars(self), key=lambda name: vars(self)[name])


def exponential_rate(sms: int, clock: float, per_clock: int = EXPONENTIALS_PER_CLOCK) -> float:
    """Return the exponentials a second that a GPU of ``sms`` multiprocessors can do at a clock in Hz."""
    return sms * clock * per_clock


def forward_floor(p: Problem, peak: float, bandwidth: float, exponential_rate: float) -> Floor:
    """Return the floors of the forward pass when nothing moves but inputs and results.

    Parameters
    ----------
    p : Problem
        The sizes.
    peak, bandwidth : float
        FLOP/s of products and B/s of memory.
    exponential_rate : float
        Exponentials a second, :func:`exponential_rate`.
    """
    return Floor(
        forward_flops(p) / peak,
        exponentials(p) / exponential_rate,
        compulsory_bytes(p) / bandwidth,
    )


def backward_floor(p: Problem, peak: float, bandwidth: float, exponential_rate: float, products: int = 5) -> Floor:
    """Return the floors of the backward pass. Parameters as :func:`forward_floor` and :func:`backward_flops`."""
    return Floor(
        backward_flops(p, products) / peak,
        exponentials(p) / exponential_rate,
        compulsory_backward_bytes(p) / bandwidth,
    )


def naive_floor(passes: Sequence[Pass], peak: float, bandwidth: float) -> float:
    """Return the shortest time in seconds of the operations of a naive pass, one after the other.

    The softmax is taken to be limited by its bytes, as it is on GPUs with 16-bit scores. ``peak`` and ``bandwidth`` as
    in :func:`forward_floor`.
    """
    return sum(roofline.time_floor(each.flops, each.read + each.written, peak, bandwidth) for each in passes)


def balanced_head_dim(peak: float, exponential_rate: float) -> float:
    """Return the head size at which products and exponentials of the forward pass take the same time.

    A pair costs ``4 * head_dim`` operations and one exponential. Below this size exponentials take longer.
    """
    return peak / exponential_rate / 4

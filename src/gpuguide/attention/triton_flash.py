"""Attention by tiles, as Triton kernels: one for the forward pass, three for the backward pass.

A program of the forward pass owns a tile of queries. It goes along the keys, a tile at a time, and keeps three things
of each query in registers: the highest score so far, the sum of the powers below it, and the output that belongs to
them. When a tile has a higher score, sum and output shrink accordingly. Scores never leave the multiprocessor. What
the backward pass needs of them is one number for each query, the log-sum-exp.

The backward pass computes the scores anew. A program of :func:`backward_keys_kernel` owns a tile of keys and values
and goes along the queries; one of :func:`backward_queries_kernel` owns a tile of queries and goes along the keys. Every
gradient is thus written once, by one program, in a fixed order: the result is the same every time. The price are seven
products of tiles where five would do if programs added to gradients that they share.

With a causal mask, tiles are of three kinds. Those that no query sees are left out, those that all see need no mask,
and only the ones that the diagonal crosses are masked. The loop over the second kind therefore has no mask in it.

Tensors are ``(batch, heads, length, head_dim)``. Tiles come through tensor descriptors: on GPUs that have one, the
bulk copy engine (TMA) moves them, and what lies beyond the end of a sequence reads as zero and is not written.

Sources: T. Dao et al., "FlashAttention", 2022, https://arxiv.org/abs/2205.14135; T. Dao, "FlashAttention-2", 2023,
https://arxiv.org/abs/2307.08691.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

HEAD_SIZES = (32, 64, 128)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched."""

    rows: int
    """Queries in a tile"""
    columns: int
    """Keys in a tile"""
    warps: int
    stages: int
    """Tiles of keys and of values that have room at a time: the one that is computed with, and those under way"""
    split: bool = True
    """Whether tiles that need no mask have a loop of their own"""
    registers: int | None = None
    """Of a thread at most, where fewer than the compiler would take let one more program run at a time"""
    exp2: bool = True
    """Whether powers are taken of two, for which there is an instruction, or of e"""


SHORT = 2048
"""Keys up to which programs are so short that their beginnings count: more of them at a time hide one another's"""
HOPPER = {
    ("forward", 32): Launch(64, 128, 4, 2),
    ("forward", 64): Launch(64, 128, 4, 2),
    ("forward", 128): Launch(64, 64, 4, 3),
    ("forward-short", 32): Launch(64, 64, 4, 2, registers=96),
    ("forward-short", 64): Launch(64, 64, 4, 2, registers=96),
    ("forward-short", 128): Launch(64, 64, 4, 3),
    ("keys", 32): Launch(64, 64, 4, 2),
    ("keys", 64): Launch(64, 64, 4, 2),
    ("keys", 128): Launch(64, 64, 4, 2),
    ("queries", 32): Launch(64, 64, 4, 2),
    ("queries", 64): Launch(64, 64, 4, 2),
    ("queries", 128): Launch(64, 64, 4, 2),
}
"""The fastest on an H100 of what was tried, for each kernel and size of a head (32 was not)"""
OTHERS = {
    (kernel, head_dim): Launch(32 if kernel == "keys" else 64, 64 if kernel == "keys" else 32, 8, 2)
    for kernel in ("forward", "forward-short", "keys", "queries")
    for head_dim in HEAD_SIZES
}
"""Tiles small enough for the registers and the 99 KiB of shared memory of every GPU from compute capability 8.0 on"""


# --- forward -----------------------------------------------------------------------------------------------


@triton.jit
def own_tile(length, heads, ROWS: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Return batch, head and first row of the tile that is this program's."""
    blocks = tl.cdiv(length, ROWS)
    block, head = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    if LAST_FIRST:
        block = blocks - 1 - block  # the longest rows first, so that the short ones fill the gaps at the end
    return head // heads, head % heads, block * ROWS


@triton.jit
def tile(tensor, batch, head, first, ROWS: tl.constexpr, HEAD: tl.constexpr):
    """Return ``ROWS`` rows of one head, ``(ROWS, HEAD)``."""
    return tensor.load([batch, head, first, 0]).reshape(ROWS, HEAD)


@triton.jit
def store_tile(tensor, batch, head, first, values, ROWS: tl.constexpr, HEAD: tl.constexpr):
    """Write ``ROWS`` rows of one head."""
    tensor.store([batch, head, first, 0], values.to(tensor.dtype).reshape(1, 1, ROWS, HEAD))


@triton.jit
def power(x, EXP2: tl.constexpr):
    """Return two to the power of ``x``, or e."""
    return tl.exp2(x) if EXP2 else tl.exp(x)


@triton.jit
def visible_keys(first_row, rows, query_length, key_length, CAUSAL: tl.constexpr, COLUMNS: tl.constexpr):
    """Return where the keys end that all of some queries see, in whole tiles, and where those end that any sees."""
    end = key_length
    if CAUSAL:
        seen_by_first = first_row + 1 + key_length - query_length
        end = tl.minimum(end, tl.maximum(seen_by_first + rows - 1, 0))
        return tl.minimum(key_length, tl.maximum(seen_by_first, 0)) // COLUMNS * COLUMNS, end
    return key_length // COLUMNS * COLUMNS, end


@triton.jit
def sees(row, first, key_length, reach, COLUMNS: tl.constexpr):
    """Return which keys from the first on each row sees: those up to its number plus ``reach``."""
    column = first + tl.arange(0, COLUMNS)
    return (column[None, :] <= row[:, None] + reach) & (column[None, :] < key_length)


@triton.jit
def absorb(
    state, q, keys, values, batch, kv_head, row, start, end, key_length, reach, scale,
    MASKED: tl.constexpr, EXP2: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Take in the keys from ``start`` to ``end``."""
    highest, total, out = state
    for first in tl.range(start, end, COLUMNS):
        scores = tl.dot(q, tile(keys, batch, kv_head, first, COLUMNS, HEAD).T)
        if MASKED:
            scores = tl.where(sees(row, first, key_length, reach, COLUMNS), scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1) * scale)
        level = higher
        if MASKED:
            level = tl.where(higher == -float("inf"), 0.0, higher)  # a row that has seen nothing yet
        powers = power(scores * scale - level[:, None], EXP2)
        shrink = power(highest - level, EXP2)
        total = total * shrink + tl.sum(powers, 1)
        v = tile(values, batch, kv_head, first, COLUMNS, HEAD)
        out = tl.dot(powers.to(v.dtype), v, out * shrink[:, None])
        highest = higher
    return highest, total, out


@triton.jit
def forward_kernel(
    queries, keys, values, outputs,  # descriptors of (batch, heads, length, head_dim)
    lse,  # (batch, heads, query_length), fp32
    scale, heads, group, query_length, key_length,
    CAUSAL: tl.constexpr, SPLIT: tl.constexpr, EXP2: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of one tile of queries."""
    batch, head, first_row = own_tile(query_length, heads, ROWS, CAUSAL)
    row = first_row + tl.arange(0, ROWS)
    reach = key_length
    if CAUSAL:
        reach -= query_length
    unmasked, end = visible_keys(first_row, ROWS, query_length, key_length, CAUSAL, COLUMNS)
    in_units = scale
    if EXP2:
        in_units *= LOG2_E
    q = tile(queries, batch, head, first_row, ROWS, HEAD)
    kv_head = head // group
    state = tl.full([ROWS], -float("inf"), tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, HEAD], tl.float32)
    if SPLIT:
        state = absorb(
            state, q, keys, values, batch, kv_head, row, 0, unmasked, key_length, reach, in_units,
            False, EXP2, COLUMNS, HEAD,
        )  # fmt: skip
    else:
        unmasked = 0
    state = absorb(
        state, q, keys, values, batch, kv_head, row, unmasked, end, key_length, reach, in_units,
        True, EXP2, COLUMNS, HEAD,
    )  # fmt: skip
    highest, total, out = state
    store_tile(outputs, batch, head, first_row, out / tl.where(total == 0, 1.0, total)[:, None], ROWS, HEAD)
    if EXP2:
        highest *= LN_2
    of_head = (batch * heads + head).to(tl.int64) * query_length
    tl.store(lse + of_head + row, highest + tl.log(total), mask=row < query_length)


# --- backward ----------------------------------------------------------------------------------------------


@triton.jit
def delta_kernel(outputs, upstream, delta, heads, query_length, ROWS: tl.constexpr, HEAD: tl.constexpr):
    """Write the sum of output times its gradient, for each query: what softmax subtracts from the gradient of P."""
    batch, head, first_row = own_tile(query_length, heads, ROWS, False)
    out = tile(outputs, batch, head, first_row, ROWS, HEAD).to(tl.float32)
    d_out = tile(upstream, batch, head, first_row, ROWS, HEAD).to(tl.float32)
    row = first_row + tl.arange(0, ROWS)
    of_head = (batch * heads + head).to(tl.int64) * query_length
    tl.store(delta + of_head + row, tl.sum(out * d_out, 1), mask=row < query_length)


@triton.jit
def numbers_of_rows(lse, delta, of_head, row, query_length):
    """Return log-sum-exp, in powers of two, and delta of some queries. One beyond the end gets weights of zero."""
    inside = row < query_length
    level = tl.load(lse + of_head + row, mask=inside, other=float("inf")) * LOG2_E
    return level, tl.load(delta + of_head + row, mask=inside, other=0.0)


@triton.jit
def along_queries(
    d_k, d_v, k, v, queries, upstream, lse, delta, batch, head, of_head, column, start, end, query_length, reach, scale,
    MASKED: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Add to the gradients of a tile of keys and values what the queries from ``start`` to ``end`` give."""
    for first in tl.range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)
        q = tile(queries, batch, head, first, ROWS, HEAD)
        level, d_row = numbers_of_rows(lse, delta, of_head, row, query_length)
        weights = tl.exp2(tl.dot(k, q.T) * scale - level[None, :])  # transposed: (columns, rows)
        if MASKED:
            weights = tl.where(column[:, None] <= row[None, :] + reach, weights, 0.0)
        d_out = tile(upstream, batch, head, first, ROWS, HEAD)
        d_v = tl.dot(weights.to(d_out.dtype), d_out, d_v)
        d_scores = weights * (tl.dot(v, d_out.T) - d_row[None, :])
        d_k = tl.dot(d_scores.to(q.dtype), q, d_k)
    return d_k, d_v


@triton.jit
def backward_keys_kernel(
    queries, keys, values, upstream, d_keys, d_values,  # descriptors
    lse, delta,  # (batch, heads, query_length), fp32
    scale, heads, group, query_length, key_length,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of one tile of keys and values, from all heads of queries that share them."""
    batch, kv_head, first_column = own_tile(key_length, heads // group, COLUMNS, False)
    column = first_column + tl.arange(0, COLUMNS)
    k = tile(keys, batch, kv_head, first_column, COLUMNS, HEAD)
    v = tile(values, batch, kv_head, first_column, COLUMNS, HEAD)
    d_k, d_v = tl.zeros([COLUMNS, HEAD], tl.float32), tl.zeros([COLUMNS, HEAD], tl.float32)
    reach, first_seeing, all_seeing = 0, 0, 0
    if CAUSAL:
        reach = key_length - query_length
        first_seeing = tl.maximum(first_column - reach, 0) // ROWS * ROWS
        all_seeing = tl.cdiv(tl.maximum(first_column + COLUMNS - 1 - reach, 0), ROWS) * ROWS
        all_seeing = tl.minimum(all_seeing, tl.cdiv(query_length, ROWS) * ROWS)
    for head in range(kv_head * group, kv_head * group + group):
        of_head = (batch * heads + head).to(tl.int64) * query_length
        if CAUSAL:
            d_k, d_v = along_queries(
                d_k, d_v, k, v, queries, upstream, lse, delta, batch, head, of_head, column, first_seeing, all_seeing,
                query_length, reach, scale * LOG2_E, True, ROWS, HEAD,
            )  # fmt: skip
        d_k, d_v = along_queries(
            d_k, d_v, k, v, queries, upstream, lse, delta, batch, head, of_head, column, all_seeing, query_length,
            query_length, reach, scale * LOG2_E, False, ROWS, HEAD,
        )  # fmt: skip
    store_tile(d_keys, batch, kv_head, first_column, d_k * scale, COLUMNS, HEAD)
    store_tile(d_values, batch, kv_head, first_column, d_v, COLUMNS, HEAD)


@triton.jit
def along_keys(
    d_q, q, d_out, level, d_row, keys, values, batch, kv_head, row, start, end, key_length, reach, scale,
    MASKED: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Add to the gradient of a tile of queries what the keys from ``start`` to ``end`` give."""
    for first in tl.range(start, end, COLUMNS):
        k = tile(keys, batch, kv_head, first, COLUMNS, HEAD)
        weights = tl.exp2(tl.dot(q, k.T) * scale - level[:, None])
        if MASKED:
            weights = tl.where(sees(row, first, key_length, reach, COLUMNS), weights, 0.0)
        d_weights = tl.dot(d_out, tile(values, batch, kv_head, first, COLUMNS, HEAD).T)
        d_scores = weights * (d_weights - d_row[:, None])
        d_q = tl.dot(d_scores.to(k.dtype), k, d_q)
    return d_q


@triton.jit
def backward_queries_kernel(
    queries, keys, values, upstream, d_queries,  # descriptors
    lse, delta,  # (batch, heads, query_length), fp32
    scale, heads, group, query_length, key_length,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of one tile of queries."""
    batch, head, first_row = own_tile(query_length, heads, ROWS, CAUSAL)
    row = first_row + tl.arange(0, ROWS)
    of_head = (batch * heads + head).to(tl.int64) * query_length
    level, d_row = numbers_of_rows(lse, delta, of_head, row, query_length)
    q = tile(queries, batch, head, first_row, ROWS, HEAD)
    d_out = tile(upstream, batch, head, first_row, ROWS, HEAD)
    d_q = tl.zeros([ROWS, HEAD], tl.float32)
    reach = key_length
    if CAUSAL:
        reach -= query_length
    unmasked, end = visible_keys(first_row, ROWS, query_length, key_length, CAUSAL, COLUMNS)
    d_q = along_keys(
        d_q, q, d_out, level, d_row, keys, values, batch, head // group, row, 0, unmasked, key_length, reach,
        scale * LOG2_E, False, COLUMNS, HEAD,
    )  # fmt: skip
    d_q = along_keys(
        d_q, q, d_out, level, d_row, keys, values, batch, head // group, row, unmasked, end, key_length, reach,
        scale * LOG2_E, True, COLUMNS, HEAD,
    )  # fmt: skip
    store_tile(d_queries, batch, head, first_row, d_q * scale, ROWS, HEAD)


# --- launches ----------------------------------------------------------------------------------------------


Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], tuple[torch.Tensor, torch.Tensor]]
"""Takes q, k, v, whether the mask is causal and the scale, and returns the output and the log-sum-exp"""


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    forward_pass: Forward | None = None,
) -> torch.Tensor:
    """Return attention, with gradients. On a GPU; see :func:`gpuguide.attention.attention`, which checks.

    Parameters
    ----------
    q : torch.Tensor
        ``(batch, heads, queries, head_dim)``, bf16 or fp16.
    k, v : torch.Tensor
        ``(batch, kv_heads, keys, head_dim)``.
    causal : bool
        Whether query ``i`` sees only the keys ``j <= i + keys - queries``.
    scale : float, optional
        What scores are multiplied by; ``1 / sqrt(head_dim)`` by default.
    forward_pass : callable, optional
        :func:`forward` by default.

    Returns
    -------
    torch.Tensor
        As ``q``. Zeros for a query that sees no key.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if scale <= 0:  # the kernels take the highest score before they scale it, and hide keys by -inf
        q, scale = (-q, -scale) if scale else (q * 0, 1.0)
    out: torch.Tensor = _FlashAttention.apply(q, k, v, causal, scale, forward_pass or forward)
    return out


class _FlashAttention(torch.autograd.Function):
    """The forward pass keeps its inputs, the output and the log-sum-exp."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, forward_pass: Forward
    ) -> torch.Tensor:
        out, lse = forward_pass(q, k, v, causal, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "flash_attention has no second derivative: its backward pass is a kernel of its own. "
                "Use gpuguide.attention.reference.attention for one."
            )
        q, k, v, out, lse = ctx.saved_tensors
        return (*backward(q, k, v, out, lse, upstream[0], ctx.causal, ctx.scale), None, None, None)


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, launch: Launch | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output, and the log-sum-exp of each query's scores, ``(batch, heads, queries)`` in fp32."""
    launch = launch or launch_of("forward" if k.shape[2] > SHORT else "forward-short", q)
    out = room_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    forward_kernel[(programs(q, launch.rows),)](
        tiles(q, launch.rows), tiles(k, launch.columns), tiles(v, launch.columns), tiles(out, launch.rows), lse,
        SPLIT=launch.split, EXP2=launch.exp2, **problem(q, k, causal, scale), **shape(launch),
    )  # fmt: skip
    return out, lse


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    upstream: torch.Tensor,
    causal: bool,
    scale: float,
    for_keys: Launch | None = None,
    for_queries: Launch | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of q, k and v, from what the forward pass returned and the gradient of its output."""
    for_keys, for_queries = for_keys or launch_of("keys", q), for_queries or launch_of("queries", q)
    d_q, d_k, d_v = (room_like(tensor) for tensor in (q, k, v))
    delta = torch.empty_like(lse)
    rows, columns = for_keys.rows, for_keys.columns
    delta_kernel[(programs(q, rows),)](
        tiles(out, rows), tiles(upstream, rows), delta, q.shape[1], q.shape[2], ROWS=rows, HEAD=q.shape[3]
    )
    backward_keys_kernel[(programs(k, columns),)](
        tiles(q, rows), tiles(k, columns), tiles(v, columns), tiles(upstream, rows),
        tiles(d_k, columns), tiles(d_v, columns), lse, delta, **problem(q, k, causal, scale), **shape(for_keys),
    )  # fmt: skip
    rows, columns = for_queries.rows, for_queries.columns
    backward_queries_kernel[(programs(q, rows),)](
        tiles(q, rows), tiles(k, columns), tiles(v, columns), tiles(upstream, rows), tiles(d_q, rows),
        lse, delta, **problem(q, k, causal, scale), **shape(for_queries),
    )  # fmt: skip
    return d_q, d_k, d_v


def launch_of(kernel: str, q: torch.Tensor) -> Launch:
    """Return how a kernel (``forward``, ``forward-short``, ``keys`` or ``queries``) is launched for some queries."""
    return (HOPPER if q.is_cuda and is_hopper(q.device) else OTHERS)[kernel, q.shape[-1]]


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Return whether a GPU is one of those the launches were tried on."""
    return torch.cuda.get_device_capability(device)[0] == 9


def tiles(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """Return a descriptor that reads and writes ``rows`` rows of one head at a time.

    Heads and positions may lie in memory in any order. What the copy engine cannot address is copied.
    """
    if not is_addressable(tensor):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, rows, tensor.shape[-1]])


def is_addressable(tensor: torch.Tensor) -> bool:
    """Return whether the numbers of a row lie side by side, and rows begin at multiples of 16 bytes."""
    *strides, last = tensor.stride()
    aligned = all(stride > 0 and stride * tensor.element_size() % 16 == 0 for stride in strides)
    return last == 1 and aligned and tensor.data_ptr() % 16 == 0


def room_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor that a descriptor can write, in the same order in memory where that is possible."""
    room = torch.empty_like(tensor)
    return room if is_addressable(room) else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def programs(tensor: torch.Tensor, rows: int) -> int:
    """Return how many programs there are, one for each tile."""
    batch, heads, length, _ = tensor.shape
    return int(batch * heads * triton.cdiv(length, rows))


def problem(q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float) -> dict[str, Any]:
    """Return what kernels are told of the problem."""
    sizes = {"heads": q.shape[1], "group": q.shape[1] // k.shape[1], "query_length": q.shape[2]}
    return {**sizes, "key_length": k.shape[2], "scale": scale, "CAUSAL": causal, "HEAD": q.shape[3]}


def shape(launch: Launch) -> dict[str, int]:
    """Return what kernels are told of the tiles."""
    tiles_of = {"ROWS": launch.rows, "COLUMNS": launch.columns}
    limit = {} if launch.registers is None else {"maxnreg": launch.registers}
    return {**tiles_of, "num_warps": launch.warps, "num_stages": launch.stages, **limit}

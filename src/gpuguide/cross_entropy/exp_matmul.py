"""A chunk's losses and gradients from three matmuls, the first of which stores exponentials instead of logits.

Relative to the logit of the target, ``e = exp(logits - logits[target])``, a position has the loss ``log(sum(e))``, and
its logits the gradient ``(e - sum(e) * onehot) / sum(e)``. So the matmul that computes the logits can store ``e``, and
the sum of each row of a tile. What remains is one entry a position, at its target, and one factor a position, which
the two other matmuls take in: the rows of the hidden states are multiplied by it before one, and the rows of the result
after the other. No kernel between the matmuls reads or writes a tensor of the size of the logits.

No maximum is needed as long as ``e`` does not overflow. bf16 has the range of fp32, which ends 88 nats above the
target's logit. :func:`recenter_kernel` finds rows whose sum exceeds ``LARGEST_SUM``, half that range, and computes them
again, relative to their largest logit. It is launched for every chunk and returns at once where there is no such row,
so that the host never waits.

The sums, and later the hidden states times their factors, are kept where the gradient of the hidden states will be.

References
----------
QuACK, ``linear_cross_entropy.py`` (https://github.com/Dao-AILab/quack), stores exponentials too, relative to a power of
two of each tile.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from gpuguide.triton_support.tiles import (
    MatmulTiling,
    count_multiprocessors,
    describe_tiles,
    is_misaligned,
    row_stride,
    tile_position,
)

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LARGEST_SUM = tl.constexpr(2.0**64)
"""Largest sum of a row that is not computed again. Its inverse, times a small hidden state, is far from underflow."""
FEWEST_ROWS = 1024
"""Fewest positions in a chunk: with fewer, launching more kernels takes longer than a pass over the logits"""
SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory that the tiles of the matmul need"""


TILING = MatmulTiling(stages=4, halves=True)
RECENTER_TILING = MatmulTiling(rows=64, stages=3, warps=4, halves=True)
"""Tile sizes with which rows are computed again: fewer rows, so that more multiprocessors have work"""


@triton.jit
def target_logit_kernel(
    hidden,  # (rows, hidden_size)
    head,  # (vocab_size or more, hidden_size)
    targets,  # (rows,)
    target_logits,  # (rows,), fp32, written: times log2(e); infinity where the target does not count
    shifts,  # (rows,), fp32, written: the same, until a row is computed again
    hidden_stride,
    head_stride,
    rows,
    hidden_size,
    vocab_size,
    ignore_index,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the logit of each row's target."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    target = tl.load(targets + row, mask=row < rows, other=ignore_index)
    counts = (target != ignore_index) & (target >= 0) & (target < vocab_size)  # one outside is refused when noticed
    logit = tl.zeros((ROWS,), tl.float32)
    for start in range(0, hidden_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = counts[:, None] & (at < hidden_size)[None, :]
        x = tl.load(hidden + row[:, None] * hidden_stride + at[None, :], mask=inside, other=0.0).to(tl.float32)
        w = tl.load(head + target[:, None] * head_stride + at[None, :], mask=inside, other=0.0).to(tl.float32)
        logit += tl.sum(x * w, 1)
    logit = tl.where(counts, logit * LOG2_E, float("inf"))  # exponentials relative to infinity are zero
    tl.store(target_logits + row, logit, mask=row < rows)
    tl.store(shifts + row, logit, mask=row < rows)


@triton.jit
def logits_tile(hidden, head, row, column, hidden_size, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr):
    """Return a tile of the logits in fp32."""
    logits = tl.zeros((ROWS, COLUMNS), tl.float32)
    for at in range(0, hidden_size, INNER):  # beyond the ends of a matrix the copy engine brings zeros
        logits = tl.dot(hidden.load([row, at]), head.load([column, at]).T, logits)
    return logits


@triton.jit
def store_exponentials(logits, exponentials, row, column, shift, vocab_size, MASKED: tl.constexpr):
    """Store a tile of exponentials, and return the sum of each of its rows."""
    e = tl.exp2(logits * LOG2_E - shift[:, None])
    if MASKED and column + logits.shape[1] > vocab_size:
        is_token = column + tl.arange(0, logits.shape[1]) < vocab_size
        e = tl.where(is_token[None, :], e, 0.0)
    one, other = e.reshape(e.shape[0], 2, e.shape[1] // 2).permute(0, 2, 1).split()
    exponentials.store([row, column], one.to(exponentials.dtype))
    exponentials.store([row, column + e.shape[1] // 2], other.to(exponentials.dtype))
    return tl.sum(e, 1)


@triton.jit
def exp_matmul_kernel(
    hidden,  # descriptor of the hidden states of all chunks
    head,  # descriptor of (columns, hidden_size)
    exponentials,  # descriptor of (rows, columns), written
    sums,  # (rows, tiles across), fp32, written: the sum of each row of each tile
    shifts,  # (rows,): what the logits of a row are relative to, times log2(e)
    sums_stride,
    start,  # first hidden state of the chunk
    rows,
    columns,
    hidden_size,
    vocab_size,  # columns that stand for a token
    programs,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
    MASKED: tl.constexpr,  # whether a tile can have columns that stand for no token
):
    """Compute every ``programs``-th tile of the exponentials."""
    tiles_down, tiles_across = tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS)
    for tile in tl.range(tl.program_id(0), tiles_down * tiles_across, programs, flatten=True):
        down, across = tile_position(tile, tiles_down, tiles_across, GROUP)
        row, column = down * ROWS, across * COLUMNS
        logits = logits_tile(hidden, head, start + row, column, hidden_size, ROWS, COLUMNS, INNER)
        here = row + tl.arange(0, ROWS)
        shift = tl.load(shifts + here, mask=here < rows, other=float("inf"))
        total = store_exponentials(logits, exponentials, row, column, shift, vocab_size, MASKED)
        tl.store(sums + here.to(tl.int64) * sums_stride + across, total, mask=here < rows)


@triton.jit
def recenter_kernel(
    hidden,
    head,
    exponentials,
    sums,
    shifts,  # (rows,), overwritten
    sums_stride,
    start,
    rows,
    columns,
    hidden_size,
    vocab_size,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,  # sums of a row to add up at a time
):
    """Compute rows relative to their largest logits, if the sum of one is too large. Parameters as above."""
    row, tiles_across = tl.program_id(0) * ROWS, tl.cdiv(columns, COLUMNS)
    here = row + tl.arange(0, ROWS)
    sums += here.to(tl.int64) * sums_stride
    total = tl.zeros((ROWS,), tl.float32)
    for first in range(0, tiles_across, BLOCK):
        across = first + tl.arange(0, BLOCK)
        inside = (here < rows)[:, None] & (across < tiles_across)[None, :]
        total += tl.sum(tl.load(sums[:, None] + across[None, :], mask=inside, other=0.0), 1)
    if tl.min((total <= LARGEST_SUM).to(tl.int32), 0) == 0:  # NaN is not smaller either
        highest = tl.full((ROWS,), -float("inf"), tl.float32)
        for column in range(0, columns, COLUMNS):
            logits = logits_tile(hidden, head, start + row, column, hidden_size, ROWS, COLUMNS, INNER)
            is_token = column + tl.arange(0, COLUMNS) < vocab_size
            highest = tl.maximum(highest, tl.max(tl.where(is_token[None, :], logits, -float("inf")), 1))
        shift = tl.load(shifts + here, mask=here < rows, other=float("inf"))
        shift = tl.where(shift < float("inf"), highest * LOG2_E, shift)  # infinity stays where the target is ignored
        tl.store(shifts + here, shift, mask=here < rows)
        for column in range(0, columns, COLUMNS):
            logits = logits_tile(hidden, head, start + row, column, hidden_size, ROWS, COLUMNS, INNER)
            total = store_exponentials(logits, exponentials, row, column, shift, vocab_size, MASKED)
            tl.store(sums + column // COLUMNS, total, mask=here < rows)


@triton.jit
def finish_rows_kernel(
    exponentials,  # (rows, columns): the entry of each target is overwritten
    hidden,  # (rows, hidden_size)
    scaled,  # (rows, hidden_size), written: the hidden states times the factors
    sums,  # (rows, tiles), may be the same memory as ``scaled``: a row is read before it is written
    targets,
    target_logits,
    shifts,
    losses,  # (rows,), fp32, written
    factors,  # (rows,), fp32, written: what the gradients of a row have to be multiplied by
    scale,  # one number
    exponentials_stride,
    hidden_stride,
    scaled_stride,
    sums_stride,
    tiles,
    hidden_size,
    TILES: tl.constexpr,  # a power of two, ``tiles`` or more
    BLOCK: tl.constexpr,
):
    """Compute a row's loss, the entry of its target and its factor, and multiply its hidden state."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    total = tl.sum(tl.load(sums + row * sums_stride + tile, mask=tile < tiles, other=0.0), 0)
    target_logit, shift = tl.load(target_logits + row), tl.load(shifts + row)
    counts = target_logit != float("inf")
    loss = (shift - target_logit) * LN_2 + tl.log(total)
    tl.store(losses + row, tl.where(counts & ~(loss < 0.0), loss, 0.0))  # rounding can leave a sum just below one
    entry = tl.exp2(target_logit - shift) - total
    rounded = entry.to(exponentials.dtype.element_ty)
    # Half of the gradient is in this entry, so the factor makes up for its rounding.
    factor = tl.load(scale).to(tl.float32) / total * tl.where(entry < 0.0, entry / rounded.to(tl.float32), 1.0)
    factor = tl.where(counts, factor, 0.0)
    tl.store(factors + row, factor)
    tl.store(exponentials + row * exponentials_stride + tl.maximum(tl.load(targets + row), 0), rounded, mask=counts)
    for start in range(0, hidden_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(hidden + row * hidden_stride + at, mask=at < hidden_size, other=0.0).to(tl.float32)
        x = tl.where(counts, x * factor, 0.0)
        tl.store(scaled + row * scaled_stride + at, x.to(scaled.dtype.element_ty), mask=at < hidden_size)


@triton.jit
def multiply_rows_kernel(values, factors, row_stride, hidden_size, BLOCK: tl.constexpr):
    """Multiply each row by its factor in place. A factor of zero gives zero whatever the row holds."""
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(factors + row)
    for start in range(0, hidden_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(values + row * row_stride + at, mask=at < hidden_size, other=0.0).to(tl.float32)
        value = tl.where(factor == 0.0, 0.0, value * factor)
        tl.store(values + row * row_stride + at, value.to(values.dtype.element_ty), mask=at < hidden_size)


class ExpMatmul:
    """The kernels before and between the other two matmuls, with the buffers that all chunks share.

    Parameters
    ----------
    hidden, head, targets
        As in :func:`gpuguide.cross_entropy.linear_cross_entropy`; the hidden states are ``(tokens, hidden_size)``.
    d_hidden : torch.Tensor
        Output buffer for the gradient of the hidden states. Until a chunk's gradient is there, it holds other numbers.
    vocab_size, ignore_index, chunk
        As in :func:`gpuguide.cross_entropy.linear_cross_entropy`.
    tiling, recenter_tiling : MatmulTiling
        Tile sizes of the matmul, and those with which rows are computed again. Both have the same columns.
    """

    def __init__(
        self,
        hidden: torch.Tensor,
        head: torch.Tensor,
        targets: torch.Tensor,
        d_hidden: torch.Tensor,
        *,
        vocab_size: int,
        ignore_index: int,
        chunk: int,
        tiling: MatmulTiling = TILING,
        recenter_tiling: MatmulTiling = RECENTER_TILING,
    ) -> None:
        (tokens, hidden_size), columns = hidden.shape, len(head)
        self.hidden, self.head, self.targets, self.d_hidden = hidden, head, targets, d_hidden
        self.vocab_size, self.chunk, self.tiling, self.recenter_tiling = vocab_size, chunk, tiling, recenter_tiling
        self.exponentials = hidden.new_empty(min(chunk, tokens), row_stride(columns, hidden.dtype))[:, :columns]
        self.tiles = triton.cdiv(columns, tiling.columns)
        own = () if 4 * self.tiles <= d_hidden[:1].nbytes else (len(self.exponentials), self.tiles)
        self.own_sums = torch.empty(own, device=hidden.device) if own else None
        self.target_logits, self.shifts, self.factors = torch.empty(3, tokens, device=hidden.device)
        self.block = min(1024, triton.next_power_of_2(hidden_size))
        self.arguments, self.recenter_arguments = map(self._tile_arguments, (tiling, recenter_tiling))
        target_logit_kernel[(triton.cdiv(tokens, 4),)](
            hidden,
            head,
            targets,
            self.target_logits,
            self.shifts,
            hidden.stride(0),
            head.stride(0),
            tokens,
            hidden_size,
            vocab_size,
            ignore_index,
            ROWS=4,
            BLOCK=self.block,
        )

    def store_exponentials(self, start: int) -> None:
        """Compute the exponentials of the chunk that begins at ``start``."""
        sums, rows = self._sums(start), len(self.targets[start : start + self.chunk])
        chunk = {
            "sums": sums,
            "shifts": self.shifts[start:],
            "sums_stride": sums.stride(0),
            "start": start,
            "rows": rows,
        }
        programs = min(triton.cdiv(rows, self.tiling.rows) * self.tiles, count_multiprocessors(self.hidden))
        exp_matmul_kernel[(programs,)](**chunk, **self.arguments, programs=programs, GROUP=self.tiling.group)
        recenter_kernel[(triton.cdiv(rows, self.recenter_tiling.rows),)](**chunk, **self.recenter_arguments, BLOCK=64)

    def finish_rows(self, start: int, losses: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the losses of a chunk; return its exponentials with the targets' entries, and its scaled states."""
        chunk = slice(start, start + self.chunk)
        hidden, sums = self.hidden[chunk], self._sums(start)
        rows, hidden_size = hidden.shape
        exponentials, scaled = self.exponentials[:rows], self.d_hidden[chunk].view(hidden.dtype)[:, :hidden_size]
        finish_rows_kernel[(rows,)](
            exponentials,
            hidden,
            scaled,
            sums,
            self.targets[chunk],
            self.target_logits[chunk],
            self.shifts[chunk],
            losses[chunk],
            self.factors[chunk],
            scale,
            exponentials.stride(0),
            hidden.stride(0),
            scaled.stride(0),
            sums.stride(0),
            self.tiles,
            hidden_size,
            TILES=triton.next_power_of_2(self.tiles),
            BLOCK=self.block,
        )
        return exponentials, scaled

    def multiply_rows(self, start: int) -> None:
        """Multiply the rows of a chunk's ``d_hidden`` by their factors."""
        rows = self.d_hidden[start : start + self.chunk]
        multiply_rows_kernel[(len(rows),)](rows, self.factors[start:], rows.stride(0), rows.shape[1], BLOCK=self.block)

    def _sums(self, start: int) -> torch.Tensor:
        """Return the memory for the sums of a chunk: its rows of ``d_hidden``, where they are long enough."""
        return self.d_hidden[start:].view(torch.float32) if self.own_sums is None else self.own_sums

    def _tile_arguments(self, tiling: MatmulTiling) -> dict[str, Any]:
        """Return the kernel arguments that are the same for all chunks."""
        columns, inner = len(self.head), tiling.inner // self.hidden.element_size()
        return {
            "hidden": describe_tiles(self.hidden, tiling.rows, inner),
            "head": describe_tiles(self.head, tiling.columns, inner),
            "exponentials": describe_tiles(self.exponentials, tiling.rows, tiling.columns // 2),
            "columns": columns,
            "hidden_size": self.hidden.shape[1],
            "vocab_size": self.vocab_size,
            "ROWS": tiling.rows,
            "COLUMNS": tiling.columns,
            "INNER": inner,
            "MASKED": self.vocab_size != columns or columns % tiling.columns != 0,
            "num_warps": tiling.warps,
            "num_stages": tiling.stages,
        }


def supports(hidden: torch.Tensor, head: torch.Tensor, chunk: int) -> bool:
    """Return whether the kernels support hidden states and a head: bf16 on Hopper or newer, in enough rows."""
    is_addressable = not (is_misaligned(hidden) or is_misaligned(head))
    is_large = min(len(hidden), chunk) >= FEWEST_ROWS
    return hidden.dtype == torch.bfloat16 and is_addressable and is_large and _has_copy_engine(hidden.device)


@functools.cache
def _has_copy_engine(device: torch.device) -> bool:
    """Return whether a GPU copies tiles between memories by itself, and has shared memory for those of the matmul."""
    properties = torch.cuda.get_device_properties(device)
    shared_memory = getattr(properties, "shared_memory_per_block_optin", 0)
    return properties.major >= 9 and shared_memory >= SHARED_MEMORY

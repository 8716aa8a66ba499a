"""Triton kernels between the products: a chunk's logits become losses and gradients, and targets are checked.

Plain PyTorch turns logits into gradients in some ten passes over fp32 copies. The least is one read and one write of
the logits as they are: :func:`gpuguide.cross_entropy.cost.loss_pass_bytes`. A row is cut into pieces, a program takes
one of them into its registers, learns the sum of the whole row from the programs that have the other pieces, and
writes the gradient over the logits. How programs share their sums is explained in :mod:`gpuguide.softmax.fused`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpuguide.softmax.fused import (
    Cut,
    at_most,
    converted_anew,
    exchanged,
    highest_and_sum,
    in_one_word,
    next_piece,
    out_of_words,
    power,
    shared_with_row,
)

PIECE_BYTES = 16384
"""Of a row that one program takes: less than a softmax's, since a program does more with it and needs registers"""
WARP_BYTES = 4096
"""Of a piece for each warp, for the same reason"""
REGISTERS = 64
"""Of a thread, so that a multiprocessor has room for eight programs. Smoothing and a cap of logits need more."""
LARGEST_INT64 = tl.constexpr(2**63 - 1)


@triton.jit
def capped(x, softcap):
    """Return ``softcap * tanh(x / softcap)`` in fp32."""
    return softcap * (2 * tl.sigmoid(2 * x.to(tl.float32) / softcap) - 1)


@triton.jit
def derivative_of_capped(x, softcap):
    """Return the derivative of :func:`capped` from what it returned."""
    return 1 - (x / softcap) * (x / softcap)


@triton.jit
def loss_then_gradient_kernel(
    logits,  # (rows, padded), overwritten
    targets,  # (rows,)
    losses,  # (rows,), fp32, zeros: written where the target counts
    scale,  # one number: what gradients are multiplied by
    words,  # (1 + rows * pieces,), int64, zero: programs so far, then highest and sum of each piece
    sums,  # (rows, pieces), int64, zero: a word of each piece with the sum of the logits themselves, for smoothing
    row_stride,
    vocab_size,  # columns that stand for a token
    padded_size,  # all columns
    ignore_index,
    label_smoothing,
    z_loss,
    softcap,
    length,  # of a piece
    pieces,
    PADDED: tl.constexpr,  # whether there are columns that stand for no token
    SMOOTHED: tl.constexpr,
    CAPPED: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two, ``pieces`` or more
    BLOCK: tl.constexpr,  # a power of two, ``length`` or more
):
    """Take one piece of one row: its share of the loss, and its gradient in the place of its logits."""
    row, piece = next_piece(words, pieces, SLOTS)
    first = piece * length
    logits += row * row_stride + first
    lane = tl.arange(0, BLOCK)
    stored = (lane < length) & (first + lane < padded_size)
    inside = stored
    if PADDED:
        inside = stored & (first + lane < vocab_size)
    x = tl.load(logits + lane, mask=inside, other=-float("inf"))
    factor = tl.load(scale).to(tl.float32)
    target = tl.load(targets + row)
    counts = (target != ignore_index) & (target >= 0) & (target < vocab_size)  # one outside is refused when noticed
    target -= first
    has_target = counts & (target >= 0) & (target < length)
    of_target = tl.load(logits + target, mask=has_target, other=0.0).to(tl.float32)  # before it is overwritten
    if CAPPED:
        x = tl.where(inside, capped(x, softcap), -float("inf"))
        of_target = capped(of_target, softcap)
    highest, total = highest_and_sum(x)
    if SMOOTHED:
        of_row = tl.sum(tl.where(inside, x.to(tl.float32), 0.0), 0)
        if SLOTS > 1:
            found = exchanged(in_one_word(1.0, of_row), sums + row * pieces, piece, pieces, SLOTS)
            _, parts = out_of_words(found)
            of_row = tl.sum(tl.where(tl.arange(0, SLOTS) < pieces, parts, 0.0), 0)
    highest, total = shared_with_row(highest, total, words, row, piece, pieces, SLOTS)
    lse = highest + tl.log(total)
    of_powers = factor * (1 + 2 * z_loss * lse) / total
    gradient = power(converted_anew(x), highest) * of_powers
    if SMOOTHED:
        gradient -= factor * label_smoothing / vocab_size
    if CAPPED:
        gradient *= derivative_of_capped(x, softcap)
    if SMOOTHED or CAPPED:
        gradient = tl.where(inside, gradient, 0.0)
    tl.store(logits + lane, tl.where(counts, gradient, 0.0), mask=stored)

    if has_target:
        tl.debug_barrier()  # the gradient of the target comes last
        loss = highest - of_target + tl.log(total)  # lse - of_target has few digits where logits are far from zero
        at_target = power(of_target, highest) * of_powers - factor
        if SMOOTHED:
            at_target += factor * label_smoothing * (1 - 1 / vocab_size)
        if CAPPED:
            at_target *= derivative_of_capped(of_target, softcap)
        tl.store(logits + target, at_target)
        if SMOOTHED:
            loss = (1 - label_smoothing) * loss + label_smoothing * (lse - of_row / vocab_size)
        tl.store(losses + row, loss + z_loss * lse * lse)


@triton.jit
def check_targets_kernel(
    targets,  # (tokens,)
    scale,  # one fp32, written: one over the targets that count
    first_outside,  # one int64, written: where the first target outside the vocabulary stands
    tokens,
    vocab_size,
    ignore_index,
    BLOCK: tl.constexpr,
):
    """Look at all targets. One program does it, right after the first product."""
    counted = tl.zeros([BLOCK], tl.int64)
    outside = tl.full([BLOCK], LARGEST_INT64, tl.int64)
    for start in range(0, tokens, BLOCK):
        here = start + tl.arange(0, BLOCK)
        target = tl.load(targets + here, mask=here < tokens, other=ignore_index)
        counts = target != ignore_index
        counted += counts.to(tl.int64)
        is_outside = counts & ((target < 0) | (target >= vocab_size))
        outside = tl.minimum(outside, tl.where(is_outside, here.to(tl.int64), LARGEST_INT64))
    tl.store(scale, 1 / tl.maximum(tl.sum(counted, 0), 1).to(tl.float32))
    tl.store(first_outside, tl.min(outside, 0))


@triton.jit
def multiply_kernel(values, factor, count, BLOCK: tl.constexpr):
    """Multiply in place. A factor of one, the usual case, is noticed on the device and costs no pass over memory."""
    by = tl.load(factor).to(tl.float32)
    if by != 1.0:
        start = tl.program_id(0).to(tl.int64) * BLOCK
        while start < count:
            here = start + tl.arange(0, BLOCK)
            tl.store(values + here, tl.load(values + here, mask=here < count).to(tl.float32) * by, mask=here < count)
            start += tl.num_programs(0) * BLOCK


def loss_then_gradient_(
    logits: torch.Tensor,
    targets: torch.Tensor,
    losses: torch.Tensor,
    scale: torch.Tensor,
    *,
    vocab_size: int,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float = 0.0,
    piece_bytes: int = PIECE_BYTES,
) -> None:
    """Write the losses of a chunk, and put their gradients times ``scale`` in the place of its logits.

    Parameters
    ----------
    logits : torch.Tensor
        ``(rows, padded)``, the logits of a row side by side, on a GPU.
    targets : torch.Tensor
        ``(rows,)``, int64. One outside the vocabulary is treated as ignored.
    losses : torch.Tensor
        ``(rows,)``, fp32 zeros, for the result.
    scale : torch.Tensor
        One number.
    vocab_size, ignore_index, label_smoothing, z_loss, softcap
        As in :func:`gpuguide.cross_entropy.linear_cross_entropy`.
    piece_bytes : int
        Of a row that a program takes.
    """
    rows, padded = logits.shape
    cut = Cut.of(padded, logits.element_size(), piece_bytes, WARP_BYTES)
    cut.check_room(logits.device)
    smoothed = label_smoothing > 0
    plain = not (smoothed or softcap)
    if plain:  # no power and no gradient, so the kernel can do without a mask, with which it reads number by number
        logits[:, vocab_size:] = -float("inf")
    words = cut.words(rows, logits.device)
    loss_then_gradient_kernel[(rows * cut.pieces,)](
        logits,
        targets,
        losses,
        scale,
        words,
        torch.zeros_like(words) if smoothed else words,
        logits.stride(0),
        vocab_size,
        padded,
        ignore_index,
        label_smoothing,
        z_loss,
        softcap,
        PADDED=padded != vocab_size and not plain,
        SMOOTHED=smoothed,
        CAPPED=softcap > 0,
        **cut.arguments(),
        **(at_most(REGISTERS) if plain else {}),
    )


def look_at_targets(targets: torch.Tensor, vocab_size: int, ignore_index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one over the targets that count (fp32), and where the first one outside the vocabulary stands (int64).

    The second is larger than any position if there is none. Nothing waits.
    """
    scale = torch.empty((), dtype=torch.float32, device=targets.device)
    first_outside = torch.empty((), dtype=torch.int64, device=targets.device)
    check_targets_kernel[(1,)](
        targets, scale, first_outside, len(targets), vocab_size, ignore_index, BLOCK=16384, num_warps=32
    )
    return scale, first_outside


def multiply_(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply a contiguous tensor by one number in place, and return it."""
    block = 4096
    programs = min(triton.cdiv(values.numel(), block), 1024)
    multiply_kernel[(programs,)](values, factor, values.numel(), BLOCK=block)
    return values

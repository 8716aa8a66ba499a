"""Triton kernels between the products: a chunk's logits become losses and gradients, and targets are checked.

Plain PyTorch turns logits into gradients in some ten passes over fp32 copies. The least is one read and one write of
the logits as they are: :func:`gpuguide.cross_entropy.cost.loss_pass_bytes`. A row is cut into pieces, a program takes
one of them into its registers, learns the sum of the whole row from the programs that have the other pieces, and
writes the gradient over the logits. How programs share their sums is explained in :mod:`gpuguide.logits.fused`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpuguide.logits.fused import (
    RowSplit,
    exchange_words,
    exp_shifted,
    max_and_sum,
    next_piece,
    pack_word,
    reconvert_to_fp32,
    reduce_over_row,
    register_limit,
    unpack_words,
)

PIECE_BYTES = 16384
"""Bytes of a row that one program processes: fewer than in a softmax, because a program needs more registers"""
WARP_BYTES = 4096
"""Bytes of a piece for each warp, for the same reason"""
REGISTERS = 64
"""Registers of a thread, so that eight programs fit a multiprocessor. Smoothing and a softcap need more."""
LARGEST_INT64 = tl.constexpr(2**63 - 1)


@triton.jit
def apply_softcap(x, softcap):
    """Return ``softcap * tanh(x / softcap)`` in fp32."""
    return softcap * (2 * tl.sigmoid(2 * x.to(tl.float32) / softcap) - 1)


@triton.jit
def softcap_derivative(x, softcap):
    """Return the derivative of :func:`apply_softcap` from its result."""
    return 1 - (x / softcap) * (x / softcap)


@triton.jit
def loss_then_gradient_kernel(
    logits,  # (rows, padded), overwritten
    targets,  # (rows,)
    losses,  # (rows,), fp32, zeros: written where the target counts
    scale,  # one number: factor of the gradients
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
    """Process one piece of one row: compute its part of the loss, and overwrite its logits with their gradient."""
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
    target_logit = tl.load(logits + target, mask=has_target, other=0.0).to(tl.float32)  # before it is overwritten
    if CAPPED:
        x = tl.where(inside, apply_softcap(x, softcap), -float("inf"))
        target_logit = apply_softcap(target_logit, softcap)
    highest, total = max_and_sum(x)
    if SMOOTHED:
        row_total = tl.sum(tl.where(inside, x.to(tl.float32), 0.0), 0)
        if SLOTS > 1:
            gathered = exchange_words(pack_word(1.0, row_total), sums + row * pieces, piece, pieces, SLOTS)
            _, parts = unpack_words(gathered)
            row_total = tl.sum(tl.where(tl.arange(0, SLOTS) < pieces, parts, 0.0), 0)
    highest, total = reduce_over_row(highest, total, words, row, piece, pieces, SLOTS)
    lse = highest + tl.log(total)
    p_factor = factor * (1 + 2 * z_loss * lse) / total
    gradient = exp_shifted(reconvert_to_fp32(x), highest) * p_factor
    if SMOOTHED:
        gradient -= factor * label_smoothing / vocab_size
    if CAPPED:
        gradient *= softcap_derivative(x, softcap)
    if SMOOTHED or CAPPED:
        gradient = tl.where(inside, gradient, 0.0)
    tl.store(logits + lane, tl.where(counts, gradient, 0.0), mask=stored)

    if has_target:
        tl.debug_barrier()  # the gradient of the target comes last
        loss = (
            highest - target_logit + tl.log(total)
        )  # lse - target_logit has few digits where logits are far from zero
        target_gradient = exp_shifted(target_logit, highest) * p_factor - factor
        if SMOOTHED:
            target_gradient += factor * label_smoothing * (1 - 1 / vocab_size)
        if CAPPED:
            target_gradient *= softcap_derivative(target_logit, softcap)
        tl.store(logits + target, target_gradient)
        if SMOOTHED:
            loss = (1 - label_smoothing) * loss + label_smoothing * (lse - row_total / vocab_size)
        tl.store(losses + row, loss + z_loss * lse * lse)


@triton.jit
def check_targets_kernel(
    targets,  # (tokens,)
    scale,  # one fp32, written: one over the targets that count
    first_outside,  # one int64, written: where the first target outside the vocabulary is
    tokens,
    vocab_size,
    ignore_index,
    BLOCK: tl.constexpr,
):
    """Count the targets and find the first out of range. One program does it, right after the first matmul."""
    total_count = tl.zeros([BLOCK], tl.int64)
    outside = tl.full([BLOCK], LARGEST_INT64, tl.int64)
    for start in range(0, tokens, BLOCK):
        here = start + tl.arange(0, BLOCK)
        target = tl.load(targets + here, mask=here < tokens, other=ignore_index)
        counts = target != ignore_index
        total_count += counts.to(tl.int64)
        is_outside = counts & ((target < 0) | (target >= vocab_size))
        outside = tl.minimum(outside, tl.where(is_outside, here.to(tl.int64), LARGEST_INT64))
    tl.store(scale, 1 / tl.maximum(tl.sum(total_count, 0), 1).to(tl.float32))
    tl.store(first_outside, tl.min(outside, 0))


@triton.jit
def multiply_kernel(values, factor, count, BLOCK: tl.constexpr):
    """Multiply in place. A factor of one, the usual case, is detected on the device and takes no pass over memory."""
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
    """Write the losses of a chunk, and overwrite its logits with their gradients times ``scale``.

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
        Bytes of a row that a program processes.
    """
    rows, padded = logits.shape
    split = RowSplit.from_size(padded, logits.element_size(), piece_bytes, WARP_BYTES)
    split.check_occupancy(logits.device)
    smoothed = label_smoothing > 0
    plain = not (smoothed or softcap)
    if plain:  # exp and gradient are zero, so the kernel needs no mask, which would make its loads narrow
        logits[:, vocab_size:] = -float("inf")
    words = split.allocate_words(rows, logits.device)
    loss_then_gradient_kernel[(rows * split.pieces,)](
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
        **split.kernel_arguments(),
        **(register_limit(REGISTERS) if plain else {}),
    )


def scan_targets(targets: torch.Tensor, vocab_size: int, ignore_index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one over the number of counted targets (fp32), and the position of the first out of range (int64).

    The position is larger than any other if no target is out of range. Nothing waits.
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

"""One Triton kernel between two products: it reads a chunk's logits, adds up the loss, and leaves their gradients.

Plain PyTorch does this in some ten passes over fp32 copies. The least is one read and one write of the logits as they
are: :func:`gpuguide.cross_entropy.cost.loss_pass_bytes`. One program takes one row. It reads the row once for
``lse``, with a running maximum so that one read is enough, and once more for the gradient. The second read finds the
row in the L2 cache, as long as the rows that are worked on at a time fit there.

Source of the running maximum: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018,
https://arxiv.org/abs/1805.02867.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LARGEST_BLOCK = 32768
"""Logits that a program holds at a time"""
LOG2_E = tl.constexpr(1.4426950408889634)
"""Powers of two are an instruction, powers of e are not"""


@triton.jit
def loss_then_gradient_kernel(
    logits,  # (rows, padded), overwritten
    targets,  # (rows,)
    losses,  # (rows,), fp32
    scale,  # one number: what gradients are multiplied by
    row_stride,
    vocab_size,  # columns that stand for a token
    padded_size,  # all columns
    ignore_index,
    label_smoothing,
    z_loss,
    SMOOTHED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Take one row: its loss, and its gradient in the place of its logits."""
    row = tl.program_id(0).to(tl.int64)  # an offset may exceed 32 bits
    logits += row * row_stride
    target = tl.load(targets + row)
    columns = tl.arange(0, BLOCK)
    if target == ignore_index:
        tl.store(losses + row, 0.0)
        for start in range(0, padded_size, BLOCK):
            tl.store(logits + start + columns, 0.0, mask=start + columns < padded_size)
        return

    of_target = tl.load(logits + target).to(tl.float32)  # before it is overwritten
    highest = -float("inf")
    total = 0.0
    summed = 0.0
    for start in range(0, vocab_size, BLOCK):
        inside = start + columns < vocab_size
        x = tl.load(logits + start + columns, mask=inside, other=-float("inf"), eviction_policy="evict_last")
        x = x.to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, 0))
        total = total * tl.exp2((highest - higher) * LOG2_E) + tl.sum(tl.exp2((x - higher) * LOG2_E), 0)
        highest = higher
        if SMOOTHED:
            summed += tl.sum(tl.where(inside, x, 0.0), 0)
    lse = highest + tl.log(total)
    loss = lse - of_target
    if SMOOTHED:
        loss = (1 - label_smoothing) * loss + label_smoothing * (lse - summed / vocab_size)
    tl.store(losses + row, loss + z_loss * lse * lse)

    factor = tl.load(scale).to(tl.float32)
    of_softmax = factor * (1 + 2 * z_loss * lse)
    everywhere = factor * label_smoothing / vocab_size
    at_target = factor * (1 - label_smoothing)
    for start in range(0, padded_size, BLOCK):
        here = start + columns
        x = tl.load(logits + here, mask=here < vocab_size, other=0.0, eviction_policy="evict_first").to(tl.float32)
        gradient = tl.exp2((x - lse) * LOG2_E) * of_softmax - everywhere
        gradient = tl.where(here == target, gradient - at_target, gradient)
        gradient = tl.where(here < vocab_size, gradient, 0.0)
        tl.store(logits + here, gradient, mask=here < padded_size)


@triton.jit
def multiply_kernel(values, factor, count, BLOCK: tl.constexpr):
    """Multiply in place. A factor of one, the usual case, is noticed on the device and costs no pass over memory."""
    by = tl.load(factor).to(tl.float32)
    if by != 1.0:
        here = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = here < count
        tl.store(values + here, tl.load(values + here, mask=inside).to(tl.float32) * by, mask=inside)


def block_of(columns: int) -> int:
    """Return how many logits of a row are taken at a time.

    Longer rows are worked on by more threads each, so that fewer of them are under way and their second read still
    finds them in the L2 cache.
    """
    return min(triton.next_power_of_2(columns), LARGEST_BLOCK if columns > 65536 else LARGEST_BLOCK // 2)


def loss_then_gradient_(
    logits: torch.Tensor,
    targets: torch.Tensor,
    scale: torch.Tensor,
    *,
    vocab_size: int,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> torch.Tensor:
    """Return the sum of the losses of a chunk, and put their gradients times ``scale`` in the place of its logits.

    Parameters
    ----------
    logits : torch.Tensor
        ``(rows, padded)``, rows contiguous, on a GPU.
    targets : torch.Tensor
        ``(rows,)``, int64, inside the vocabulary.
    scale : torch.Tensor
        One number.
    vocab_size, ignore_index, label_smoothing, z_loss
        As in :func:`gpuguide.cross_entropy.linear_cross_entropy`.
    """
    rows, padded = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block = block_of(padded)
    loss_then_gradient_kernel[(rows,)](
        logits,
        targets,
        losses,
        scale,
        logits.stride(0),
        vocab_size,
        padded,
        ignore_index,
        label_smoothing,
        z_loss,
        SMOOTHED=label_smoothing > 0,
        BLOCK=block,
        num_warps=max(4, min(32, block // 1024)),
    )
    return losses.sum()


def multiply_(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply a contiguous tensor by one number in place, and return it."""
    block = 4096
    multiply_kernel[(triton.cdiv(values.numel(), block),)](values, factor, values.numel(), BLOCK=block)
    return values

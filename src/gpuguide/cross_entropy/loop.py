"""The loop over chunks: losses, and on the way the gradients of both operands.

:mod:`gpuguide.cross_entropy.chunked` says why. Here nothing is known of autograd:
:mod:`gpuguide.cross_entropy.operators` makes an operator with a gradient of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gpuguide import kernels
from gpuguide.cross_entropy.reference import (
    check_targets,
    divisor,
    logits_gradient,
    outside_the_vocabulary,
    token_losses,
)

FP16_FACTOR = 256.0
"""What the gradient of the logits is multiplied by in fp16, whose smallest normal number is 6e-5 and largest 65504"""
ROWS_AT_ONCE = 64
"""Rows of logits that are turned into gradients together. They are computed with in fp32, so few rows save memory."""


@dataclass(frozen=True)
class Settings:
    """What decides the loss, apart from the tensors."""

    vocab_size: int
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float
    chunk: int


def losses_alone(
    hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, scale: torch.Tensor | None, settings: Settings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the losses times the scale, and the scale, a chunk at a time and without gradients."""
    check_targets(targets, targets.shape, settings.vocab_size, settings.ignore_index)
    scale = one_over_count(targets, settings.ignore_index, hidden) if scale is None else scale.clone()
    hidden, targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    total = torch.zeros((), dtype=wide(hidden.dtype), device=hidden.device)
    for part, wanted in zip(hidden.split(settings.chunk), targets.split(settings.chunk), strict=True):
        logits = (part @ head.t())[:, : settings.vocab_size]
        for rows, some in zip(logits.split(ROWS_AT_ONCE), wanted.split(ROWS_AT_ONCE), strict=True):
            total += token_losses(rows, some, **_of_the_loss(settings)).sum()
    return total * scale, scale


def losses_and_gradients(
    hidden: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    scale: torch.Tensor | None,
    settings: Settings,
    d_hidden: torch.Tensor | None,
    d_head: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the losses times the scale, and the scale; write the gradients that are wanted.

    Parameters
    ----------
    hidden, head, targets
        As in :func:`gpuguide.cross_entropy.linear_cross_entropy`.
    scale : torch.Tensor, optional
        What the sum of the losses is multiplied by: one over the positions that count, if not given.
    settings : Settings
        Everything else.
    d_hidden, d_head : torch.Tensor, optional
        Room for the gradients, of the shape of their operands. In fp16 they lack a factor of
        ``scale / FP16_FACTOR``.
    """
    d_hidden = None if d_hidden is None else d_hidden.view(-1, hidden.shape[-1])
    hidden = hidden.reshape(-1, hidden.shape[-1])
    logits = hidden.new_empty(min(settings.chunk, len(hidden)), len(head))
    torch.mm(hidden[: len(logits)], head.t(), out=logits)  # a GPU has this to do while the host prepares the rest
    of_mean, refuse_targets_outside = look_at_targets(targets, settings, hidden)
    scale = of_mean if scale is None else scale.clone()
    early = torch.full_like(scale, FP16_FACTOR) if hidden.dtype == torch.float16 else scale
    targets = targets.reshape(-1)
    losses = torch.zeros(len(hidden), dtype=wide(hidden.dtype), device=hidden.device)
    for start in range(0, len(hidden), settings.chunk):
        here = slice(start, start + settings.chunk)
        logits = logits[: len(hidden[here])]
        if start:
            torch.mm(hidden[here], head.t(), out=logits)
        loss_then_gradient_(logits, targets[here], losses[here], early, settings)
        if d_hidden is not None:
            _store_product(d_hidden[here], logits, head)
        if d_head is not None:
            (_add_product if start else _store_product)(d_head, logits.t(), hidden[here])
    if d_head is not None and not len(hidden):
        d_head.zero_()
    refuse_targets_outside()
    return losses.sum() * scale, scale


def look_at_targets(
    targets: torch.Tensor, settings: Settings, hidden: torch.Tensor
) -> tuple[torch.Tensor, Callable[[], None]]:
    """Return one over the positions that count, and a function that refuses targets outside the vocabulary.

    On a GPU that function is called when all work has been launched. It waits only until the targets were looked at,
    which the GPU does right after the first product. Asked before, the host would wait, and the GPU then have nothing
    to do.
    """
    if not kernels.take(hidden):
        check_targets(targets, targets.shape, settings.vocab_size, settings.ignore_index)
        return one_over_count(targets, settings.ignore_index, hidden), lambda: None
    from gpuguide.cross_entropy import fused

    flat = targets.reshape(-1)
    scale, first_outside = fused.look_at_targets(flat, settings.vocab_size, settings.ignore_index)
    if torch.cuda.is_current_stream_capturing():
        return scale, lambda: None
    found = torch.empty((), dtype=torch.int64, pin_memory=True)
    found.copy_(first_outside, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def refuse_targets_outside() -> None:
        arrived.synchronize()
        if int(found) < len(flat):
            raise outside_the_vocabulary(targets, int(found), settings.vocab_size, settings.ignore_index)

    return scale, refuse_targets_outside


def one_over_count(
    targets: torch.Tensor,
    ignore_index: int,
    hidden: torch.Tensor,
    reduction: str = "mean",
    count: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what the sum of the losses is multiplied by."""
    counted = divisor(targets, ignore_index, reduction, count)
    return torch.as_tensor(counted, device=hidden.device).to(wide(hidden.dtype)).reciprocal()


def loss_then_gradient_(
    logits: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor, scale: torch.Tensor, settings: Settings
) -> None:
    """Write the losses of a chunk, and put their gradients times ``scale`` in the place of its logits.

    On a GPU that is one kernel, :mod:`gpuguide.cross_entropy.fused`.
    """
    if kernels.take(logits):
        from gpuguide.cross_entropy import fused

        fused.loss_then_gradient_(
            logits, targets, losses, scale, vocab_size=settings.vocab_size, **_of_the_loss(settings)
        )
        return
    logits[:, settings.vocab_size :] = 0  # what stands for no token has no gradient
    real = logits[:, : settings.vocab_size]
    parts = (part.split(ROWS_AT_ONCE) for part in (real, targets, losses))
    for rows, some, of_rows in zip(*parts, strict=True):
        of_rows.copy_(token_losses(rows, some, **_of_the_loss(settings)))
        rows.copy_(logits_gradient(rows, some, **_of_the_loss(settings)).mul_(scale))


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which losses are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _of_the_loss(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("ignore_index", "label_smoothing", "z_loss", "softcap")}


def _store_product(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Set ``out`` to a product, in its own type."""
    if out.dtype == left.dtype:
        torch.mm(left, right, out=out)
    elif out.is_cuda:
        torch.mm(left, right, out_dtype=out.dtype, out=out)
    else:
        torch.mm(left.to(out.dtype), right.to(out.dtype), out=out)


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add a product to ``total``, in the type of ``total``."""
    if total.dtype == left.dtype:
        torch.addmm(total, left, right, out=total)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        torch.addmm(total, left.to(total.dtype), right.to(total.dtype), out=total)

"""Loop over chunks of positions: losses and, in the same pass, the gradients of both operands.

:mod:`gpuguide.cross_entropy.chunked` gives the reason. The loop is independent of autograd, for which
:mod:`gpuguide.cross_entropy.operators` makes it an operator with a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gpuguide import triton_support
from gpuguide.cross_entropy.reference import (
    check_targets,
    divisor,
    logits_gradient,
    target_error,
    token_losses,
)

FP16_FACTOR = 256.0
"""Factor of the gradient of the logits in fp16, whose smallest normal number is 6e-5 and largest 65504"""
ROWS_AT_ONCE = 64
"""Rows of logits whose gradients are computed at a time. The arithmetic is in fp32, so few rows save memory."""


@dataclass(frozen=True)
class LossSettings:
    """Settings of the loss."""

    vocab_size: int
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float
    chunk: int


def compute_losses(
    hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, scale: torch.Tensor | None, settings: LossSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the losses times the scale, and the scale, a chunk at a time and without gradients."""
    check_targets(targets, targets.shape, settings.vocab_size, settings.ignore_index)
    scale = inverse_count(targets, settings.ignore_index, hidden) if scale is None else scale.clone()
    hidden, targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    total = torch.zeros((), dtype=accumulation_dtype(hidden.dtype), device=hidden.device)
    for part, chunk_targets in zip(hidden.split(settings.chunk), targets.split(settings.chunk), strict=True):
        logits = (part @ head.t())[:, : settings.vocab_size]
        for rows, row_targets in zip(logits.split(ROWS_AT_ONCE), chunk_targets.split(ROWS_AT_ONCE), strict=True):
            total += token_losses(rows, row_targets, **_loss_arguments(settings)).sum()
    return total * scale, scale


def compute_losses_and_gradients(
    hidden: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    scale: torch.Tensor | None,
    settings: LossSettings,
    d_hidden: torch.Tensor | None,
    d_head: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the losses times the scale, and the scale; write the needed gradients.

    Parameters
    ----------
    hidden, head, targets
        As in :func:`gpuguide.cross_entropy.linear_cross_entropy`.
    scale : torch.Tensor, optional
        Factor of the sum of the losses; one over the number of counted positions by default.
    settings : LossSettings
        Settings of the loss.
    d_hidden, d_head : torch.Tensor, optional
        Output buffers for the gradients, of the shape of their operands. In fp16 the results lack a factor of
        ``scale / FP16_FACTOR``.
    """
    d_hidden = None if d_hidden is None else d_hidden.view(-1, hidden.shape[-1])
    hidden = hidden.reshape(-1, hidden.shape[-1])
    # A loss with one gradient, as with the frozen head of LoRA, keeps the pass over the logits.
    if d_hidden is not None and d_head is not None and _can_store_exponentials(hidden, head, settings):
        return _compute_from_exponentials(hidden, head, targets, scale, settings, d_hidden, d_head)
    logits = hidden.new_empty(min(settings.chunk, len(hidden)), len(head))
    torch.mm(hidden[: len(logits)], head.t(), out=logits)  # the GPU computes this while the host prepares the rest
    mean_scale, raise_if_outside = start_target_check(targets, settings, hidden)
    scale = mean_scale if scale is None else scale.clone()
    early_scale = torch.full_like(scale, FP16_FACTOR) if hidden.dtype == torch.float16 else scale
    targets = targets.reshape(-1).contiguous()
    losses = torch.zeros(len(hidden), dtype=accumulation_dtype(hidden.dtype), device=hidden.device)
    for start in range(0, len(hidden), settings.chunk):
        chunk = slice(start, start + settings.chunk)
        logits = logits[: len(hidden[chunk])]
        if start:
            torch.mm(hidden[chunk], head.t(), out=logits)
        loss_then_gradient_(logits, targets[chunk], losses[chunk], early_scale, settings)
        if d_hidden is not None:
            _store_matmul(d_hidden[chunk], logits, head)
        if d_head is not None:
            (_add_matmul if start else _store_matmul)(d_head, logits.t(), hidden[chunk])
    if d_head is not None and not len(hidden):
        d_head.zero_()
    raise_if_outside()
    return losses.sum() * scale, scale


def _can_store_exponentials(hidden: torch.Tensor, head: torch.Tensor, settings: LossSettings) -> bool:
    """Return whether :mod:`gpuguide.cross_entropy.exp_matmul` can compute a loss."""
    is_plain = not (settings.label_smoothing or settings.z_loss or settings.softcap)
    if not (is_plain and triton_support.supports_triton(hidden)):
        return False
    from gpuguide.cross_entropy import exp_matmul

    return exp_matmul.supports(hidden, head, settings.chunk)


def _compute_from_exponentials(
    hidden: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    scale: torch.Tensor | None,
    settings: LossSettings,
    d_hidden: torch.Tensor,
    d_head: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same without a pass over the logits, for both gradients. Parameters as above."""
    from gpuguide.cross_entropy.exp_matmul import ExpMatmul

    sizes = {name: getattr(settings, name) for name in ("vocab_size", "ignore_index", "chunk")}
    matmul = ExpMatmul(hidden, head, targets.reshape(-1).contiguous(), d_hidden, **sizes)
    matmul.store_exponentials(0)
    mean_scale, raise_if_outside = start_target_check(targets, settings, hidden)
    scale = mean_scale if scale is None else scale.clone()
    losses = torch.empty(len(hidden), device=hidden.device)
    for start in range(0, len(hidden), settings.chunk):
        if start:
            matmul.store_exponentials(start)
        exponentials, scaled = matmul.finish_rows(start, losses, scale)
        (_add_matmul if start else _store_matmul)(d_head, exponentials.t(), scaled)
        _store_matmul(d_hidden[start : start + settings.chunk], exponentials, head)
        matmul.multiply_rows(start)
    raise_if_outside()
    return losses.sum() * scale, scale


def start_target_check(
    targets: torch.Tensor, settings: LossSettings, hidden: torch.Tensor
) -> tuple[torch.Tensor, Callable[[], None]]:
    """Return one over the number of counted positions, and a function that raises if a target is out of range.

    On a GPU the function should be called when all work has been launched. It waits only for the check of the targets,
    which runs right after the first matmul. An earlier call would leave the GPU idle while the host waits.
    """
    if not triton_support.supports_triton(hidden):
        check_targets(targets, targets.shape, settings.vocab_size, settings.ignore_index)
        return inverse_count(targets, settings.ignore_index, hidden), lambda: None
    from gpuguide.cross_entropy import fused

    flat = targets.reshape(-1).contiguous()
    scale, first_outside = fused.scan_targets(flat, settings.vocab_size, settings.ignore_index)
    if torch.cuda.is_current_stream_capturing():
        return scale, lambda: None
    position = torch.empty((), dtype=torch.int64, pin_memory=True)
    position.copy_(first_outside, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def raise_if_outside() -> None:
        copied.synchronize()
        if int(position) < len(flat):
            raise target_error(targets, int(position), settings.vocab_size, settings.ignore_index)

    return scale, raise_if_outside


def inverse_count(
    targets: torch.Tensor,
    ignore_index: int,
    hidden: torch.Tensor,
    reduction: str = "mean",
    count: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the factor of the sum of the losses: one over the count, or one."""
    denominator = divisor(targets, ignore_index, reduction, count)
    return torch.as_tensor(denominator, device=hidden.device).to(accumulation_dtype(hidden.dtype)).reciprocal()


def loss_then_gradient_(
    logits: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor, scale: torch.Tensor, settings: LossSettings
) -> None:
    """Write the losses of a chunk, and overwrite its logits with their gradients times ``scale``.

    On a GPU that is one kernel, :mod:`gpuguide.cross_entropy.fused`.
    """
    if triton_support.supports_triton(logits):
        from gpuguide.cross_entropy import fused

        fused.loss_then_gradient_(
            logits, targets, losses, scale, vocab_size=settings.vocab_size, **_loss_arguments(settings)
        )
        return
    logits[:, settings.vocab_size :] = 0  # padded columns have no gradient
    vocab_logits = logits[:, : settings.vocab_size]
    parts = (part.split(ROWS_AT_ONCE) for part in (vocab_logits, targets, losses))
    for rows, row_targets, row_losses in zip(*parts, strict=True):
        row_losses.copy_(token_losses(rows, row_targets, **_loss_arguments(settings)))
        rows.copy_(logits_gradient(rows, row_targets, **_loss_arguments(settings)).mul_(scale))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which losses are computed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _loss_arguments(settings: LossSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("ignore_index", "label_smoothing", "z_loss", "softcap")}


def _store_matmul(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Store a matmul in ``out``, in the dtype of ``out``."""
    if out.dtype == left.dtype:
        torch.mm(left, right, out=out)
    elif out.is_cuda:
        torch.mm(left, right, out_dtype=out.dtype, out=out)
    else:
        torch.mm(left.to(out.dtype), right.to(out.dtype), out=out)


def _add_matmul(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add a matmul to ``total``, in the dtype of ``total``."""
    if total.dtype == left.dtype:
        torch.addmm(total, left, right, out=total)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        torch.addmm(total, left.to(total.dtype), right.to(total.dtype), out=total)

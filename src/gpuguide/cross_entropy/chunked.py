"""The loss from hidden states, without ever holding all logits.

The head of a language model turns each position's hidden state into a logit for every token. In training the logits of
all positions are often the largest tensor there is, and it is needed twice: for the loss, and for its gradient. But a
position's loss depends on its own logits alone, and once they are there, so is their gradient, ``softmax - onehot``.
So positions are taken a chunk at a time, and the forward pass does for each chunk all that will be needed of it::

    logits   = hidden @ head.T           # (chunk, vocab)
    loss     += sum(lse - logits[target])
    logits   = softmax - onehot          # the gradient, in the place of the logits
    d_hidden = logits @ head
    d_head  += logits.T @ hidden

The backward pass only multiplies the two results by the gradient that arrives from above. Nothing is computed twice:
the arithmetic is that of the ordinary way, and of the logits one chunk exists at a time.

A mean divides by the count of positions. The gradient of the logits takes this in, but for fp16: it would round most
of it to zero before a loss scale from above can reach it. There the count waits for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gpuguide import kernels
from gpuguide.cross_entropy.reference import (
    IGNORED,
    check_settings,
    check_shape_of_targets,
    check_targets,
    divisor,
    logits_gradient,
    outside_the_vocabulary,
    token_losses,
)

CHUNK_BYTES = 832 * 2**20
"""The logits of a chunk take about as much, unless that would leave it fewer than ``FEWEST_TOKENS``"""
FEWEST_TOKENS = 2048
"""With fewer at a time, reading the head and adding to its gradient again and again costs more than the arithmetic"""
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
    reduction: str
    count: int | torch.Tensor | None
    chunk: int
    gradient_dtype: torch.dtype


def linear_cross_entropy(
    hidden: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    *,
    vocab_size: int | None = None,
    ignore_index: int = IGNORED,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    count: int | torch.Tensor | None = None,
    chunk: int | None = None,
    gradient_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return the loss of ``hidden @ head.T`` against targets, and compute its gradient on the way.

    It stands in the place of ``cross_entropy(linear(hidden, head), targets)``.

    Parameters
    ----------
    hidden : torch.Tensor
        ``(..., hidden_size)``, after the final norm.
    head : torch.Tensor
        ``(rows, hidden_size)``, of the same type as the hidden states. Under autocast both are cast.
    targets : torch.Tensor
        ``(...)``, int64: the token after each position.
    vocab_size : int, optional
        Tokens that exist, if the head has been padded with rows that stand for none. Those take no part in the loss,
        and their gradient is zero.
    ignore_index, label_smoothing, z_loss, count
        As in :func:`gpuguide.cross_entropy.cross_entropy`.
    reduction : str
        ``mean`` or ``sum``. One loss a position cannot be had: the gradients of all positions are added up before it
        is known what each will be multiplied by.
    chunk : int, optional
        Positions at a time. More take more memory and, up to a point, less time.
    gradient_dtype : torch.dtype, optional
        The type in which gradients are added up: that of the inputs (the default), or fp32 if that is bf16. For fp16
        it is fp32 always, because fp16 cannot hold the sums of large batches.

    Returns
    -------
    torch.Tensor
        A scalar in fp32 or wider. Zero if no position counts.

    Raises
    ------
    ValueError
        If shapes or types do not fit, a target is outside the vocabulary, or a setting is out of its range.
    RuntimeError
        From the backward pass, if a second derivative is asked for, or it is run a second time.
    """
    hidden, head = _in_autocast_type(hidden), _in_autocast_type(head)
    check_settings(label_smoothing, z_loss, reduction, "mean, sum")
    _check_operands(hidden, head)
    vocab_size = _checked_vocab_size(vocab_size, head)
    check_shape_of_targets(targets, hidden.shape[:-1])
    if chunk is not None and chunk < 1:
        raise ValueError(f"The chunk is {chunk} positions; it must be at least 1.")
    settings = Settings(
        vocab_size,
        ignore_index,
        label_smoothing,
        z_loss,
        reduction,
        count,
        chunk or default_chunk(head.shape[0], hidden.element_size()),
        _checked_gradient_dtype(gradient_dtype, hidden.dtype),
    )
    flat = hidden.reshape(-1, hidden.shape[-1])
    if torch.is_grad_enabled() and (hidden.requires_grad or head.requires_grad):
        with torch.cuda.device_of(flat):
            return _LinearCrossEntropy.apply(flat, head, targets, settings)
    check_targets(targets, hidden.shape[:-1], vocab_size, ignore_index)
    return loss_of_chunks(flat, head, targets.reshape(-1), settings) * one_over_count(targets, settings, flat)


def default_chunk(rows: int, element_size: int) -> int:
    """Return how many positions are taken at a time: a power of two, for a head of ``rows`` rows."""
    fitting = CHUNK_BYTES // (rows * element_size)
    return max(FEWEST_TOKENS, 1 << max(fitting.bit_length() - 1, 0))


def loss_of_chunks(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Return the sum of the losses, a chunk at a time and without gradients."""
    total = torch.zeros((), dtype=_wide(hidden.dtype), device=hidden.device)
    for part, wanted in zip(hidden.split(settings.chunk), targets.split(settings.chunk), strict=True):
        logits = (part @ head.t())[:, : settings.vocab_size]
        for rows, some in zip(logits.split(ROWS_AT_ONCE), wanted.split(ROWS_AT_ONCE), strict=True):
            total += token_losses(rows, some, **_of_the_loss(settings)).sum()
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    """The loss, whose forward pass computes the gradients too."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, settings: Settings
    ) -> torch.Tensor:
        logits = hidden.new_empty(min(settings.chunk, len(hidden)), len(head))
        torch.mm(hidden[: len(logits)], head.t(), out=logits)  # a GPU has this to do while the host prepares the rest
        scale, refuse_targets_outside = look_at_targets(targets, settings, hidden)
        early, ctx.late = scale, None
        if hidden.dtype == torch.float16:
            early, ctx.late = torch.full_like(scale, FP16_FACTOR), scale / FP16_FACTOR
        targets = targets.reshape(-1)
        losses = torch.zeros(len(hidden), dtype=_wide(hidden.dtype), device=hidden.device)
        wants_hidden, wants_head = ctx.needs_input_grad[:2]
        d_hidden = torch.empty_like(hidden, dtype=settings.gradient_dtype) if wants_hidden else None
        d_head = torch.empty_like(head, dtype=settings.gradient_dtype) if wants_head else None
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
        ctx.gradients = d_hidden, d_head
        ctx.types = hidden.dtype, head.dtype
        return losses.sum() * scale

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "linear_cross_entropy has no second derivative: its gradient was computed with the loss. "
                "Use torch.nn.functional.cross_entropy on the logits for one."
            )
        if ctx.gradients is None:
            raise RuntimeError(
                "The gradient of this linear_cross_entropy was handed out already. Compute the loss again before a "
                "second backward pass."
            )
        gradients, ctx.gradients = ctx.gradients, None
        factor = upstream[0] if ctx.late is None else upstream[0] * ctx.late
        done = [
            None if gradient is None else multiply_(gradient, factor).to(dtype)
            for gradient, dtype in zip(gradients, ctx.types, strict=True)
        ]
        return (*done, None, None)


def look_at_targets(
    targets: torch.Tensor, settings: Settings, hidden: torch.Tensor
) -> tuple[torch.Tensor, Callable[[], None]]:
    """Return what the sum of the losses is multiplied by, and a function that refuses targets outside the vocabulary.

    On a GPU that function is called when all work has been launched. It waits only until the targets were looked at,
    which the GPU does right after the first product. Asked before, the host would wait, and the GPU then have nothing
    to do.
    """
    if not kernels.take(hidden):
        check_targets(targets, targets.shape, settings.vocab_size, settings.ignore_index)
        return one_over_count(targets, settings, hidden), lambda: None
    from gpuguide.cross_entropy import fused

    flat = targets.reshape(-1)
    scale, first_outside = fused.look_at_targets(flat, settings.vocab_size, settings.ignore_index)
    if settings.reduction == "sum" or settings.count is not None:
        scale = one_over_count(targets, settings, hidden)
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


def one_over_count(targets: torch.Tensor, settings: Settings, hidden: torch.Tensor) -> torch.Tensor:
    """Return what the sum of the losses is multiplied by."""
    counted = divisor(targets, settings.ignore_index, settings.reduction, settings.count)
    return torch.as_tensor(counted, device=hidden.device).to(_wide(hidden.dtype)).reciprocal()


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


def multiply_(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply in place by one number, and return the result. On a GPU a factor of one costs nothing."""
    if kernels.take(values):
        from gpuguide.cross_entropy import fused

        return fused.multiply_(values, factor)
    return values.mul_(factor)


def _of_the_loss(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("ignore_index", "label_smoothing", "z_loss")}


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


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


# --- checks ----------------------------------------------------------------------------------------------


def _in_autocast_type(tensor: torch.Tensor) -> torch.Tensor:
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind) and tensor.is_floating_point():
        return tensor.to(torch.get_autocast_dtype(kind))
    return tensor


def _check_operands(hidden: torch.Tensor, head: torch.Tensor) -> None:
    if head.ndim != 2 or hidden.ndim < 1 or hidden.shape[-1] != head.shape[-1]:
        raise ValueError(
            f"The head must be (rows, hidden_size) and the hidden states (..., hidden_size); "
            f"given {tuple(head.shape)} and {tuple(hidden.shape)}."
        )
    if hidden.dtype != head.dtype or not hidden.is_floating_point():
        raise ValueError(
            f"Hidden states and head must be floating-point numbers of one type; given {hidden.dtype} and {head.dtype}."
        )
    if hidden.device != head.device:
        raise ValueError(f"Hidden states and head must be on one device; given {hidden.device} and {head.device}.")


def _checked_gradient_dtype(wanted: torch.dtype | None, given: torch.dtype) -> torch.dtype:
    """Return the type in which gradients of inputs of a type are added up."""
    fitting = {torch.float16: [torch.float32], torch.bfloat16: [torch.bfloat16, torch.float32]}.get(given, [given])
    if wanted is not None and wanted not in fitting:
        raise ValueError(
            f"gradient_dtype is {wanted}; gradients of {given} can be added up in {' or '.join(map(str, fitting))}."
        )
    return wanted or fitting[0]


def _checked_vocab_size(vocab_size: int | None, head: torch.Tensor) -> int:
    if vocab_size is None:
        return head.shape[0]
    if not 1 <= vocab_size <= head.shape[0]:
        raise ValueError(
            f"vocab_size is {vocab_size}; the head has {head.shape[0]} rows, so it lies between 1 and that."
        )
    return vocab_size

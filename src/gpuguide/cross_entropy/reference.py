"""Reference implementation of the loss from logits, with all options of the faster versions.

A target's loss is its *surprise*, the negative logarithm of its probability. With logits ``x``, the target ``t`` and
``lse = log(sum(exp(x)))`` that is ``lse - x[t]``: the probability itself is never computed, so none can underflow.
"""

from __future__ import annotations

import math

import torch

from gpuguide import logits as distributions

IGNORE_INDEX = -100
"""Target of a position that does not count, as in PyTorch"""


def cross_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: str = "mean",
    count: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the loss of logits against targets.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.
    targets : torch.Tensor
        ``(...)``, int64: for each position the number of the token that follows it.
    ignore_index : int
        Positions with this target do not count.
    label_smoothing : float
        In [0, 1): the share of the target's weight that is spread evenly over the whole vocabulary.
    z_loss : float
        Weight of the squared ``lse``, which keeps logits from drifting. Zero or above.
    softcap : float
        Bound that logits come near and never exceed: ``softcap * tanh(logits / softcap)`` takes their place. Zero for
        none, 30 in Gemma 2.
    reduction : str
        ``mean`` over the positions that count, ``sum``, or ``none``: one loss a position, zero where it does not count.
    count : int or torch.Tensor, optional
        Divisor of ``mean`` instead of the number of counted positions here: with gradient accumulation, the number of
        counted positions in all micro-batches. A tensor must hold this one number.

    Returns
    -------
    torch.Tensor
        In fp32 or wider: a scalar, or the shape of ``targets``. If no position counts the sum and the mean are zero,
        where PyTorch's mean is NaN. A row of logits with NaN, or with nothing but ``-inf``, gives NaN.

    Raises
    ------
    ValueError
        If shapes or types do not fit, a target is outside the vocabulary, or a setting is out of its range.

    References
    ----------
    C. Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015, section 7 (smoothing).
    A. Chowdhery et al., "PaLM", 2022, section 5 (z-loss).
    Gemma Team, "Gemma 2", 2024, section 2 (logit soft-capping).
    """
    check_settings(label_smoothing, z_loss, softcap, reduction)
    check_targets(targets, logits.shape[:-1], logits.shape[-1], ignore_index)
    settings = {"label_smoothing": label_smoothing, "z_loss": z_loss, "softcap": softcap}
    losses = token_losses(logits, targets, ignore_index=ignore_index, **settings)
    if reduction == "none":
        return losses
    return losses.sum() / divisor(targets, ignore_index, reduction, count)


def token_losses(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Return the loss at each position, zero where the target is ignored. Parameters as :func:`cross_entropy`."""
    wide = apply_softcap(distributions.promote_to_fp32(logits), softcap)
    lse = distributions.log_sum_exp(wide)
    is_counted = targets != ignore_index
    target_logit = wide.gather(-1, targets.where(is_counted, 0).unsqueeze(-1)).squeeze(-1)
    losses = lse - target_logit
    if label_smoothing:
        losses = (1 - label_smoothing) * losses + label_smoothing * (lse - wide.mean(dim=-1))
    if z_loss:
        losses = losses + z_loss * lse.square()
    return losses.where(is_counted, 0.0)


def logits_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Return the derivative of each position's loss by its logits: ``softmax - onehot``, shape ``(..., vocab_size)``.

    Smoothing spreads the one over the vocabulary. The z-loss adds ``2 * z_loss * lse`` times the softmax. A softcap
    multiplies by its own derivative, ``1 - tanh²``.
    Parameters as :func:`cross_entropy`.
    """
    wide = apply_softcap(distributions.promote_to_fp32(logits), softcap)
    is_counted = targets != ignore_index
    gradient = distributions.softmax(wide)
    if z_loss:
        gradient = gradient * (1 + 2 * z_loss * distributions.log_sum_exp(wide)).unsqueeze(-1)
    if label_smoothing:
        gradient = gradient - label_smoothing / logits.shape[-1]
    weight = torch.full_like(gradient[..., :1], 1 - label_smoothing)
    gradient = gradient.scatter_add(-1, targets.where(is_counted, 0).unsqueeze(-1), -weight)
    if softcap:
        gradient = gradient * (1 - (wide / softcap).square())
    return gradient.where(is_counted.unsqueeze(-1), 0.0)


def apply_softcap(logits: torch.Tensor, softcap: float) -> torch.Tensor:
    """Return soft-capped logits, none of which exceeds the cap, or the logits unchanged if the cap is zero."""
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def perplexity(loss: float) -> float:
    """Return the number of equally likely tokens that would surprise as much as a loss in nats."""
    return math.exp(loss)


def bits_per_byte(loss: float, tokens: int, size: int) -> float:
    """Return a mean loss a token as bits for each byte of the text, which no tokenizer changes.

    Parameters
    ----------
    loss : float
        Mean loss a token, in nats.
    tokens, size : int
        Tokens and bytes of the text.
    """
    return loss / math.log(2) * tokens / size


# --- checks ----------------------------------------------------------------------------------------------


def divisor(
    targets: torch.Tensor, ignore_index: int, reduction: str, count: int | torch.Tensor | None
) -> torch.Tensor | int:
    """Return the divisor of the sum of the losses, at least one.

    Raises a :class:`ValueError` if the count is a tensor of any but one number.
    """
    if reduction == "sum":
        return 1
    if count is None:
        return (targets != ignore_index).sum().clamp_min(1)
    if not isinstance(count, torch.Tensor):
        return max(count, 1)
    if count.numel() != 1:
        raise ValueError(
            f"The count must be one number; given {count.numel()}, in a tensor of shape {tuple(count.shape)}."
        )
    return count.reshape(()).clamp_min(1)


def check_settings(
    label_smoothing: float, z_loss: float, softcap: float, reduction: str, reductions: str = "mean, sum, none"
) -> None:
    """Raise a :class:`ValueError` if a setting is out of its range."""
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must be at least 0 and below 1.")
    if not (math.isfinite(z_loss) and z_loss >= 0):
        raise ValueError(f"z_loss is {z_loss}; it must be a finite number, zero or above.")
    if not (math.isfinite(softcap) and softcap >= 0):
        raise ValueError(f"softcap is {softcap}; it must be a finite number, zero (none) or above.")
    if reduction not in reductions.split(", "):
        raise ValueError(f"The reduction is {reduction!r}; it must be one of {reductions}.")


def check_shape_of_targets(targets: torch.Tensor, shape: torch.Size) -> None:
    """Raise a :class:`ValueError` unless targets are int64 of a shape."""
    if targets.shape != shape:
        raise ValueError(
            f"Targets must have the shape {tuple(shape)}, one for each position; given {tuple(targets.shape)}."
        )
    if targets.dtype != torch.int64:
        raise ValueError(f"Targets must be int64, not {targets.dtype}.")


def check_targets(targets: torch.Tensor, shape: torch.Size, vocab_size: int, ignore_index: int) -> None:
    """Raise a :class:`ValueError` unless targets are int64 of a shape and inside the vocabulary.

    To know, it waits for the device that holds them; while a CUDA graph is captured it looks at shape and type only.
    """
    check_shape_of_targets(targets, shape)
    if targets.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    outside = (targets != ignore_index) & ((targets < 0) | (targets >= vocab_size))
    if bool(outside.any()):
        raise target_error(targets, int(outside.flatten().nonzero()[0]), vocab_size, ignore_index)


def target_error(targets: torch.Tensor, position: int, vocab_size: int, ignore_index: int) -> ValueError:
    """Return the error that a target is outside the vocabulary. The position counts through all targets."""
    where = tuple(int(index) for index in torch.unravel_index(torch.tensor(position), targets.shape))
    return ValueError(
        f"The target at {where} is {int(targets[where])}; it must lie between 0 and {vocab_size - 1}, "
        f"or be {ignore_index} for a position that does not count."
    )

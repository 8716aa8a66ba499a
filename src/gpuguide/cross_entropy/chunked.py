"""The loss from hidden states, without ever holding all logits.

The head of a language model turns each position's hidden state into a logit for every token. In training the logits of
all positions are often the largest tensor there is, and it is needed twice: for the loss, and for its gradient. But a
position's loss depends on its own logits alone, and once they are there, so is their gradient, ``softmax - onehot``.
So positions are taken a chunk at a time, and the forward pass does for each chunk all that will be needed of it::

    logits   = hidden @ head.T           # (chunk, vocab)
    loss     += sum(lse - logits[target])
    logits   = softmax - onehot          # the gradient, which overwrites the logits
    d_hidden = logits @ head
    d_head  += logits.T @ hidden

The backward pass only multiplies the two results by the gradient that arrives from above. Nothing is computed twice:
the arithmetic is that of the ordinary way, and of the logits one chunk exists at a time.

On a GPU, :mod:`gpuguide.cross_entropy.fused` does the lines between the matmuls in one kernel. For bf16 on Hopper or
newer there is none: the first matmul stores exponentials, see :mod:`gpuguide.cross_entropy.exp_matmul`.

A mean divides by the count of positions. The gradient of the logits takes this in, but for fp16: it would round most
of it to zero before a loss scale from above can reach it. There the count waits for the backward pass.
"""

from __future__ import annotations

from dataclasses import astuple

import torch

from gpuguide.cross_entropy import loop, operators
from gpuguide.cross_entropy.reference import IGNORE_INDEX, check_settings, check_shape_of_targets

CHUNK_BYTES = 832 * 2**20
"""Approximate size of the logits of a chunk, unless it would have fewer positions than ``FEWEST_TOKENS``"""
FEWEST_TOKENS = 2048
"""Fewest positions in a chunk: with fewer, reading the head and its gradient takes longer than the arithmetic"""


def linear_cross_entropy(
    hidden: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    *,
    vocab_size: int | None = None,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: str = "mean",
    count: int | torch.Tensor | None = None,
    chunk: int | None = None,
    gradient_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return the loss of ``hidden @ head.T`` against targets, and compute its gradient in the same pass.

    It replaces ``cross_entropy(linear(hidden, head), targets)``.

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
    ignore_index, label_smoothing, z_loss, softcap, count
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
    hidden, head = _cast_for_autocast(hidden), _cast_for_autocast(head)
    check_settings(label_smoothing, z_loss, softcap, reduction, "mean, sum")
    _check_operands(hidden, head)
    vocab_size = _check_vocab_size(vocab_size, head)
    check_shape_of_targets(targets, hidden.shape[:-1])
    if chunk is not None and chunk < 1:
        raise ValueError(f"The chunk is {chunk} positions; it must be at least 1.")
    chunk = chunk or default_chunk(head.shape[0], hidden.element_size())
    scale = None
    if reduction == "sum" or count is not None:
        scale = loop.inverse_count(targets, ignore_index, hidden, reduction, count)
    gradient_dtype = _check_gradient_dtype(gradient_dtype, hidden.dtype)
    wanted = [operand.requires_grad and torch.is_grad_enabled() for operand in (hidden, head)]
    settings = loop.LossSettings(vocab_size, ignore_index, label_smoothing, z_loss, softcap, chunk)
    return operators.linear_cross_entropy_with_gradient(
        hidden, head, targets, scale, *astuple(settings), gradient_dtype, *wanted
    )


def default_chunk(rows: int, element_size: int) -> int:
    """Return the positions in a chunk, a power of two, for a head of ``rows`` rows."""
    fitting = CHUNK_BYTES // (rows * element_size)
    return max(FEWEST_TOKENS, 1 << max(fitting.bit_length() - 1, 0))


# --- checks ----------------------------------------------------------------------------------------------


def _cast_for_autocast(tensor: torch.Tensor) -> torch.Tensor:
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


def _check_gradient_dtype(wanted: torch.dtype | None, given: torch.dtype) -> torch.dtype:
    """Return the type in which gradients of inputs of a type are added up."""
    fitting = {torch.float16: [torch.float32], torch.bfloat16: [torch.bfloat16, torch.float32]}.get(given, [given])
    if wanted is not None and wanted not in fitting:
        raise ValueError(
            f"gradient_dtype is {wanted}; gradients of {given} can be added up in {' or '.join(map(str, fitting))}."
        )
    return wanted or fitting[0]


def _check_vocab_size(vocab_size: int | None, head: torch.Tensor) -> int:
    if vocab_size is None:
        return head.shape[0]
    if not 1 <= vocab_size <= head.shape[0]:
        raise ValueError(
            f"vocab_size is {vocab_size}; the head has {head.shape[0]} rows, so it lies between 1 and that."
        )
    return vocab_size

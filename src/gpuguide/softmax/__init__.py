"""Softmax and log-sum-exp of long rows at the speed of a copy.

:mod:`gpuguide.logits` has the plain versions, which explain. These two are for use: on a GPU each is one kernel
(:mod:`gpuguide.softmax.fused`) that reads every logit once, elsewhere they are the plain versions. They have no
gradient; where one is needed, use :func:`torch.softmax` and :func:`torch.logsumexp`.
"""

from __future__ import annotations

import torch

from gpuguide import kernels
from gpuguide import logits as plain

__all__ = ["log_sum_exp", "log_sum_exp_bytes", "softmax"]


def softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of each row.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.

    Returns
    -------
    torch.Tensor
        Same shape and format. A row that is no distribution gives NaN.

    Raises
    ------
    ValueError
        If there is no last axis or it is empty, the format is not floating point, or a gradient is asked for.
    """
    _check(logits)
    if not kernels.take(logits):
        return plain.softmax(logits)
    from gpuguide.softmax import fused

    with torch.cuda.device_of(logits):
        return fused.softmax(logits)


def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the sum of ``exp`` of each row, shape ``(...)``, in fp32 or wider.

    Parameters, and errors, as :func:`softmax`. A row of nothing but ``-inf`` gives ``-inf``, and one with
    ``+inf`` gives that.
    """
    _check(logits)
    if not kernels.take(logits):
        return torch.logsumexp(plain.at_least_fp32(logits), dim=-1)
    from gpuguide.softmax import fused

    with torch.cuda.device_of(logits):
        return fused.log_sum_exp(logits)


def log_sum_exp_bytes(rows: int, vocab: int, element_size: float) -> float:
    """Return the fewest bytes a log-sum-exp must move: each logit is read once, and one number a row is written."""
    return rows * (vocab * element_size + 4)


def _check(logits: torch.Tensor) -> None:
    plain.check_shape(logits)
    if logits.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "These logits want a gradient, and this function has none: call it under torch.no_grad(), or use "
            "torch.softmax or torch.logsumexp."
        )

"""Softmax and log-sum-exp of long rows at the speed of a copy.

:mod:`gpuguide.logits` has the plain versions, which explain. These two are fast: on a GPU each is one kernel
(:mod:`gpuguide.softmax.fused`) that reads every logit once, elsewhere they are the plain versions. They are operators
of PyTorch (:mod:`gpuguide.softmax.operators`), with gradients, and work with ``torch.compile`` and ``torch.func``.
"""

from __future__ import annotations

import torch

from gpuguide import logits as plain
from gpuguide.softmax import operators

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
        Same shape and dtype, contiguous. A row that is no distribution gives NaN.

    Raises
    ------
    ValueError
        If there is no last axis or it is empty, the format is not floating point, or a row is too long for the kernel
        on this GPU.
    """
    plain.check_shape(logits)
    return operators.softmax(logits)


def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the sum of ``exp`` of each row, shape ``(...)``, in fp32 or wider.

    Parameters, and errors, as :func:`softmax`. A row of nothing but ``-inf`` gives ``-inf``, and one with
    ``+inf`` gives that.
    """
    plain.check_shape(logits)
    return operators.log_sum_exp(logits)


def log_sum_exp_bytes(rows: int, vocab: int, element_size: float) -> float:
    """Return the fewest bytes that a log-sum-exp must move: one read of each logit, and one write of a number a row."""
    return rows * (vocab * element_size + 4)

"""Support for kernels in Triton and CUDA C, which the topics share.

A topic has a reference implementation and may have faster kernels. Its public functions ask :func:`supports_triton`
which of the two to use for a tensor.
"""

from __future__ import annotations

import functools
import importlib.util

import torch

__all__ = ["supports_triton"]


def supports_triton(tensor: torch.Tensor) -> bool:
    """Return whether the Triton kernels support this tensor: on a GPU, non-empty, not float64.

    Triton must be installed. The kernels compute in fp32, so PyTorch computes float64.
    """
    return tensor.is_cuda and tensor.dtype != torch.float64 and tensor.numel() > 0 and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None

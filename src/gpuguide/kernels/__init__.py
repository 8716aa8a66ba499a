"""Where kernels written in Triton stand in for plain PyTorch.

A topic has a plain version that explains, and may have kernels that are faster. Its public functions ask here which of
the two a tensor is for.
"""

from __future__ import annotations

import functools
import importlib.util

import torch

__all__ = ["take"]


def take(tensor: torch.Tensor) -> bool:
    """Return whether our kernels take a tensor.

    It must be on a GPU and hold something, and Triton must be installed. The kernels compute in fp32, so float64 stays
    with PyTorch.
    """
    return tensor.is_cuda and tensor.dtype != torch.float64 and tensor.numel() > 0 and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None

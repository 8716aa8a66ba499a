"""Memory layouts that the attention kernels support: those that a GPU's copy engine (TMA) can address."""

from __future__ import annotations

import torch

HEAD_SIZES = (32, 64, 128)
ALIGNMENT = 16
"""Bytes that the address and the strides must be multiples of"""


def is_addressable(tensor: torch.Tensor) -> bool:
    """Return whether a descriptor can address the tiles of a tensor without a copy."""
    return has_addressable_strides(tensor) and tensor.data_ptr() % ALIGNMENT == 0


def has_addressable_strides(tensor: torch.Tensor) -> bool:
    """Return whether the last dimension is contiguous and all other strides are multiples of 16 bytes.

    Heads and positions may lie in any order. Strides of zero, as :meth:`torch.Tensor.expand` makes them, are allowed.
    """
    *strides, last = tensor.stride()
    return last == 1 and all(stride * tensor.element_size() % ALIGNMENT == 0 for stride in strides)


def make_addressable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor unchanged, or a copy of it that a descriptor can address.

    Expanded dimensions stay expanded: of a gradient of ones, as ``output.sum()`` sends it back, one row is copied.
    """
    if is_addressable(tensor):
        return tensor
    *strides, _ = tensor.stride()
    once = tensor[tuple(slice(1) if stride == 0 else slice(None) for stride in strides)]
    return once.clone(memory_format=torch.contiguous_format).expand(tensor.shape)


def empty_addressable_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return an uninitialised tensor that a descriptor can write, with the same order of dimensions where possible."""
    output = torch.empty_like(tensor)
    if has_addressable_strides(output):
        return output
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)

"""What tensors our kernels take: how they lie in memory, and whether a GPU's copy engine (TMA) can address them."""

from __future__ import annotations

import torch

HEAD_SIZES = (32, 64, 128)
ALIGNMENT = 16
"""Bytes of which an address and the distances between rows must be multiples"""


def is_addressable(tensor: torch.Tensor) -> bool:
    """Return whether a descriptor can name the tiles of a tensor where it lies."""
    return has_addressable_strides(tensor) and tensor.data_ptr() % ALIGNMENT == 0


def has_addressable_strides(tensor: torch.Tensor) -> bool:
    """Return whether the numbers of a row lie side by side, and rows at multiples of 16 bytes from each other.

    Heads and positions may lie in any order. A distance of zero, as :meth:`torch.Tensor.expand` makes it, is one too.
    """
    *strides, last = tensor.stride()
    return last == 1 and all(stride * tensor.element_size() % ALIGNMENT == 0 for stride in strides)


def addressable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as it is, or a copy that a descriptor can address.

    What was expanded stays so: of a gradient of ones, as ``output.sum()`` sends it back, one row is copied.
    """
    if is_addressable(tensor):
        return tensor
    *strides, _ = tensor.stride()
    once = tensor[tuple(slice(1) if stride == 0 else slice(None) for stride in strides)]
    return once.clone(memory_format=torch.contiguous_format).expand(tensor.shape)


def room_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor that a descriptor can write, in the same order in memory where that is possible."""
    room = torch.empty_like(tensor)
    if has_addressable_strides(room):
        return room
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)

"""What a forward pass keeps for the backward pass.

Source: PyTorch's saved-tensor hooks (``torch.autograd.graph.saved_tensors_hooks``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def kept_bytes(model: nn.Module, run: Callable[[], object]) -> int:
    """Return the bytes that a forward pass keeps, without the parameters, which are there anyway.

    Parameters
    ----------
    model : nn.Module
        Its parameters and buffers are not counted.
    run : callable
        Runs the forward pass.
    """
    owned = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    kept = dict[int, int]()
    alive = []  # an address is used again once its tensor is gone

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()  # a view shares the memory of what it is a view of
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(kept.values())

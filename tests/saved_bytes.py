"""Bytes that autograd saves for a backward pass, counted as PyTorch saves them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


def measure_saved_bytes(call: Callable[[], object], others: Iterable[torch.Tensor] = ()) -> int:
    """Return the bytes that autograd keeps while it computes something; memory that is shared counts once.

    Parameters
    ----------
    call : callable
        Computes a result that a gradient can start from.
    others : iterable of torch.Tensor
        Tensors that exist anyway and are not counted, such as the parameters.
    """
    excluded = {tensor.untyped_storage().data_ptr() for tensor in others}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in excluded:
            found[storage.data_ptr()] = storage  # held, so that its address is given to nothing else meanwhile
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = call()
    del result
    return sum(storage.nbytes() for storage in found.values())

"""What a forward pass keeps for the backward pass.

Source: PyTorch's saved-tensor hooks (``torch.autograd.graph.saved_tensors_hooks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


def kept_bytes(run: Callable[[], object], besides: Iterable[torch.Tensor] = ()) -> int:
    """Return the bytes that autograd keeps while it computes something; memory that is shared counts once.

    Parameters
    ----------
    run : callable
        Runs the forward pass.
    besides : iterable of torch.Tensor
        Tensors that exist anyway and are not counted, such as the parameters.
    """
    owned = {tensor.untyped_storage().data_ptr() for tensor in besides}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage  # held, so that its address is given to nothing else meanwhile
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    del result
    return sum(storage.nbytes() for storage in kept.values())

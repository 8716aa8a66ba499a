"""What autograd keeps for the backward pass, layer by layer and to the byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

OUTSIDE = "outside of the layers"


class SavedBytes:
    """Counts the bytes that autograd saves, by the module that was running, each piece of memory once."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = {each.untyped_storage().data_ptr() for each in model.parameters()}
        self.by_module: dict[str, int] = {}
        self.running: list[str] = []
        self._held: dict[int, torch.UntypedStorage] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor that is saved."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in self.parameters and key not in self._held:
            self._held[key] = storage  # so that its address is given to nothing else meanwhile
            name = self.running[-1] if self.running else OUTSIDE
            self.by_module[name] = self.by_module.get(name, 0) + storage.nbytes()
        return tensor


def saved_by_module(model: nn.Module, call: Callable[[], torch.Tensor], depth: int = 2) -> dict[str, int]:
    """Return the bytes that autograd keeps while it computes something, by module, in the order of the call.

    Parameters
    ----------
    model : nn.Module
        The model that is called. Its parameters exist anyway and are not counted.
    call : callable
        Computes the loss.
    depth : int
        How many names deep modules are told apart: with 2, ``blocks.0`` is one row.
    """
    counted = SavedBytes(model)
    with ExitStack() as stack:
        for handle in _follow(model, counted, depth):
            stack.callback(handle.remove)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(counted.pack, lambda tensor: tensor))
        loss = call()
    del loss
    return counted.by_module


def _follow(model: nn.Module, counted: SavedBytes, depth: int) -> Iterator[Any]:
    """Register hooks that keep the names of the modules that are running, and yield their handles."""
    for name, module in model.named_modules():
        if name and name.count(".") < depth:

            def enter(_: Any, inputs: Any, name: str = name) -> None:
                counted.running.append(name)

            def leave(_: Any, inputs: Any, outputs: Any) -> None:
                counted.running.pop()

            yield module.register_forward_pre_hook(enter)
            yield module.register_forward_hook(leave)

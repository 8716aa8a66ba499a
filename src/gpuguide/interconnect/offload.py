"""A model whose layers lie in the host's memory, and cross the link while the layer before computes.

The device holds two buffers, each as large as the largest layer. While layer ``k`` computes in one of them, layer
``k + 1`` arrives in the other::

    link      copy 0   copy 1    copy 2    copy 3
    compute            layer 0   layer 1   layer 2   layer 3

A layer's place never changes: even ones are always in the first buffer, odd ones in the second. So the parameters of a
layer are views of its buffer once and for all, and the layer's own code does not know that its weights come and go.
A forward pass takes as long as all bytes take over the link, or all layers to compute, whichever is longer, and the
first copy or the last layer on top.

On a CPU both ends are host memory and nothing runs beside anything else; results are the same.

Sources: CUDA C++ Best Practices Guide, "Asynchronous and overlapping transfers with computation"; Y. Sheng et al.,
FlexGen, 2023, section 4 (offloading by layers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["ALIGNMENT", "OffloadedLayers"]

ALIGNMENT = 256
"""Bytes at whose multiples the tensors of a layer begin in its buffer, as in memory that CUDA gives"""
BUFFERS = 2


class OffloadedLayers(nn.Module):
    """Layers that are called one after the other, with their weights in pinned memory of the host.

    The layers are taken over: their parameters and buffers become views of the device's two buffers, and hold their
    values only while the layer runs. They are read and never written, so this is for inference. Save a ``state_dict``
    of the layers before.

    Parameters
    ----------
    layers : sequence of torch.nn.Module
        On the CPU, called in this order. Each takes what the one before returned, and whatever else :meth:`forward`
        was given.
    device : str or torch.device
        Where they compute.
    overlap : bool
        Whether a layer may be copied while the one before computes. Without, each waits for the other.

    Raises
    ------
    ValueError
        If there is no layer, or two layers share a tensor.
    """

    def __init__(self, layers: Sequence[nn.Module], device: str | torch.device, *, overlap: bool = True) -> None:
        super().__init__()
        if not layers:
            raise ValueError("expected one layer or more, got none")
        self.layers = nn.ModuleList(layers)
        self.device, self.overlap = torch.device(device), overlap
        places = [_places(layer) for layer in layers]
        _check_unshared(places)
        on_gpu = self.device.type == "cuda"
        self.host = [_pack(each, pinned=on_gpu) for each in places]
        largest = max(len(each) for each in self.host)
        self.buffers_on_device = [torch.empty(largest, dtype=torch.uint8, device=self.device) for _ in range(BUFFERS)]
        for index, each in enumerate(places):
            _move_into(each, self.buffers_on_device[index % BUFFERS])
        self.stream = torch.cuda.Stream(self.device) if on_gpu else None
        self.arrived = [torch.cuda.Event() for _ in range(BUFFERS)] if on_gpu else []
        self.free = [torch.cuda.Event() for _ in range(BUFFERS)] if on_gpu else []
        self.waiting: dict[int, Callable[[], object]] = {}

    @property
    def bytes(self) -> int:
        """Return the bytes that cross the link in one forward pass."""
        return sum(len(each) for each in self.host)

    def forward(self, values: Any, *further: Any) -> Any:
        """Return what the layers make of ``values``, one after the other.

        Parameters
        ----------
        values
            The first layer's input, on the device.
        *further
            Further arguments, passed to every layer after the values.
        """
        self._begin()
        self._fetch(0)
        for index, layer in enumerate(self.layers):
            comes_another = index + 1 < len(self.layers)
            if self.overlap and comes_another:
                self._fetch(index + 1)
            self._wait(index)
            values = layer(values, *further)
            self._done(index)
            if not self.overlap and comes_another:
                self._synchronize()
                self._fetch(index + 1)
                self._synchronize()
        return values

    def copy_only(self) -> None:
        """Copy every layer and compute nothing: what the link alone takes, as the bound of :meth:`forward`."""
        self._begin()
        for index in range(len(self.layers)):
            self._fetch(index)
            self._wait(index)
            self._done(index)

    def _begin(self) -> None:
        """Let the first copies wait for whatever still uses the buffers."""
        self.waiting.clear()
        for place in range(len(self.free)):
            self._done(place)

    def _fetch(self, index: int) -> None:
        """Have a layer's weights copied into its buffer, as soon as the layer that uses it now is done."""
        place, source = index % BUFFERS, self.host[index]
        destination = self.buffers_on_device[place][: len(source)]
        if self.stream is None:
            self.waiting[place] = lambda: destination.copy_(source)
            return
        self.stream.wait_event(self.free[place])
        with torch.cuda.stream(self.stream):
            destination.copy_(source, non_blocking=True)
        self.arrived[place].record(self.stream)

    def _wait(self, index: int) -> None:
        """Let a layer begin once its weights are there."""
        if self.stream is None:
            self.waiting.pop(index % BUFFERS)()
        else:
            torch.cuda.current_stream(self.device).wait_event(self.arrived[index % BUFFERS])

    def _done(self, index: int) -> None:
        """Say that a layer's buffer may be overwritten once what was begun so far is finished."""
        if self.stream is not None:
            self.free[index % BUFFERS].record(torch.cuda.current_stream(self.device))

    def _synchronize(self) -> None:
        if self.stream is not None:
            torch.cuda.synchronize(self.device)


Places = list[tuple[torch.Tensor, int]]
"""The tensors of a layer, and where each begins in its buffer"""


def _places(layer: nn.Module) -> Places:
    """Return a layer's parameters and buffers, each once, one behind the other."""
    found: Places = []
    end = 0
    tensors = {id(each): each for each in (*layer.parameters(), *layer.buffers())}
    for tensor in tensors.values():
        found.append((tensor, end))
        end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return found


def _check_unshared(places: Sequence[Places]) -> None:
    """Check that no tensor is in two layers, which would have to be in two buffers at once."""
    everything = [id(tensor) for each in places for tensor, _ in each]
    if len(set(everything)) < len(everything):
        raise ValueError("two layers share a tensor, which cannot be in two buffers; give each layer its own copy")


def _pack(places: Places, *, pinned: bool) -> torch.Tensor:
    """Return a copy of a layer's tensors in one piece of host memory, ``uint8``."""
    size = max((begin + tensor.nbytes for tensor, begin in places), default=0)
    packed = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
    for tensor, begin in places:
        _view(packed, tensor, begin).copy_(tensor.detach())
    return packed


def _move_into(places: Places, buffer: torch.Tensor) -> None:
    """Make a layer's tensors views of a buffer."""
    for tensor, begin in places:
        tensor.requires_grad_(False)
        tensor.data = _view(buffer, tensor, begin)


def _view(memory: torch.Tensor, like: torch.Tensor, begin: int) -> torch.Tensor:
    """Return part of a piece of memory as a contiguous tensor of another's shape and type."""
    return memory[begin : begin + like.nbytes].view(like.dtype).view(like.shape)

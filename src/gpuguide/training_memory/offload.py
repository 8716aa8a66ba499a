"""Activation offloading: copy activations to pinned host memory in the forward pass, and back in the backward pass.

``torch.autograd.graph.save_on_cpu(pin_memory=True)`` copies each saved tensor on the stream that computes, which waits
for every copy. Here a second stream copies the activations of a layer while the next layer is computed, and copies them
back while the layer after it is differentiated. At most two layers' activations are on the GPU, so the compute stream
waits where the link is slower than the arithmetic.

Source: PyTorch's saved-tensor hooks (``torch.autograd.graph.saved_tensors_hooks``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

SMALL = 2**16
"""Bytes below which a tensor stays on the device, since its copy would take longer to start than to run"""


def numbered(device: torch.device | str) -> torch.device:
    """Return a device as tensors name theirs: ``cuda`` is the current GPU, and there is one ``cpu``."""
    device = torch.device(device)
    if str(device) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if device.type == "cpu" else device


class _Storage:
    """Storage of saved tensors on the device, on the host, or on both while it is copied."""

    def __init__(self, on_device: torch.Tensor) -> None:
        self.on_device: torch.Tensor | None = on_device
        self.on_host: torch.Tensor | None = None

    def copy_to_host(self) -> None:
        """Start the copy to pinned memory."""
        assert self.on_device is not None
        self.on_host = torch.empty(len(self.on_device), dtype=torch.uint8, pin_memory=self.on_device.is_cuda)
        self.on_host.copy_(self.on_device, non_blocking=True)


class _Layer:
    """Saved tensors of one layer."""

    def __init__(self, parameters: set[int], shapes: set[torch.Size]) -> None:
        self.parameters, self.shapes = parameters, shapes
        self.storages: dict[int, _Storage] = {}
        self.copied: torch.cuda.Event | None = None
        self.fetched = False


class ActivationOffload:
    """Calls layers and keeps their saved tensors on the host. Make one for each forward pass.

    Parameters
    ----------
    device : torch.device or str
        Device on which the layers compute; ``cuda`` is the current GPU. Only CUDA has streams, and elsewhere each copy
        is finished at once.
    stream : torch.cuda.Stream, optional
        Stream that copies, so that many forward passes share one.
    last : int, optional
        Index of the layer whose activations stay on the device, since its backward pass comes first.

    Notes
    -----
    Weights and their copies by autocast stay on the device. A tensor is taken for such a copy if it has the shape of a
    matrix of the layer, or of its transpose.
    """

    def __init__(
        self, device: torch.device | str, stream: torch.cuda.Stream | None = None, last: int | None = None
    ) -> None:
        self.device = numbered(device)
        self.stream = stream or (torch.cuda.Stream(self.device) if self.device.type == "cuda" else None)
        self.last = last
        self.layers: list[_Layer] = []

    def __call__(self, layer: nn.Module, *inputs: Any) -> Any:
        """Return ``layer(*inputs)``."""
        parameters = list(layer.parameters())
        matrices = [each.shape for each in parameters if each.ndim == 2]
        saved = _Layer(
            {each.untyped_storage().data_ptr() for each in parameters},
            {*matrices, *(torch.Size(reversed(shape)) for shape in matrices)},
        )
        self.layers.append(saved)
        number = len(self.layers) - 1
        with torch.autograd.graph.saved_tensors_hooks(self._pack(saved), self._unpack(number)):
            result = layer(*inputs)
        self._finish_copies(number - 1)
        if number != self.last:
            self._start_copies(saved)
        return result

    # -- forward: a layer's activations are copied while the next layer is computed, and then freed

    def _pack(self, saved: _Layer) -> Callable[[torch.Tensor], Any]:
        def pack(tensor: torch.Tensor) -> Any:
            if tensor.device != self.device or tensor.layout != torch.strided:
                return tensor
            storage = tensor.untyped_storage()
            key = storage.data_ptr()
            if storage.nbytes() < SMALL or key in saved.parameters or tensor.shape in saved.shapes:
                return tensor
            if key not in saved.storages:
                flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                saved.storages[key] = _Storage(flat)
            return saved.storages[key], tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()

        return pack

    def _start_copies(self, saved: _Layer) -> None:
        with self._copying():
            for storage in saved.storages.values():
                storage.copy_to_host()
        if self.stream is not None:
            saved.copied = self.stream.record_event()

    def _finish_copies(self, number: int) -> None:
        """Make the compute stream wait for the copies of a layer, so that the layer's memory can be freed."""
        if number < 0 or number == self.last:
            return
        saved = self.layers[number]
        if saved.copied is not None:
            torch.cuda.current_stream(self.device).wait_event(saved.copied)
        for storage in saved.storages.values():
            storage.on_device = None

    # -- backward: a layer's activations are fetched while the layer after it is differentiated

    def _unpack(self, number: int) -> Callable[[Any], torch.Tensor]:
        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, torch.Tensor):
                return packed
            self._fetch(number)
            if number > 0 and not self.layers[number - 1].fetched:
                self._prefetch(number - 1)
            storage, dtype, shape, stride, offset = packed
            flat: torch.Tensor = storage.on_device
            return flat.view(dtype).as_strided(shape, stride, offset)

        return unpack

    def _prefetch(self, number: int) -> None:
        """Start to copy a layer's activations back, into memory of the compute stream, which uses and frees it."""
        saved = self.layers[number]
        saved.fetched = True
        copies = []
        for each in saved.storages.values():
            if each.on_device is None and each.on_host is not None:
                each.on_device = torch.empty(len(each.on_host), dtype=torch.uint8, device=self.device)
                copies.append((each.on_device, each.on_host))
        with self._copying():
            for on_device, on_host in copies:
                on_device.copy_(on_host, non_blocking=True)
        if self.stream is not None:
            saved.copied = self.stream.record_event()

    def _fetch(self, number: int) -> None:
        """Wait for a layer's activations; from now on the backward pass frees each of them after its use."""
        saved = self.layers[number]
        if not saved.fetched:
            self._prefetch(number)
        if saved.copied is not None:
            torch.cuda.current_stream(self.device).wait_event(saved.copied)
        saved.copied = None
        saved.storages.clear()

    def _copying(self) -> AbstractContextManager[object]:
        """Return the context of the stream that copies, which first waits for the work of the compute stream."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self.stream)

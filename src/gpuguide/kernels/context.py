"""The CUDA context of a thread, which descriptors of tensors need before a kernel is launched.

A new thread has no context until its first call of CUDA's runtime. PyTorch's guards make none where the device is the
current one already, its allocator makes none for memory that it holds, and Triton encodes descriptors before its
launcher looks for a context. So where one of our kernels is the first that a thread does, be it autograd's thread for
a device or one of a server, encoding fails with "invalid device context".

Source: https://github.com/pytorch/pytorch/issues/195256.
"""

from __future__ import annotations

import threading

import torch

__all__ = ["device_of"]


class _Thread(threading.local):
    """What is known of the thread that asks."""

    def __init__(self) -> None:
        self.devices: set[int] = set()
        """Those whose context it has had"""


_THREAD = _Thread()


def device_of(tensor: torch.Tensor) -> torch.cuda.device_of:
    """Return :class:`torch.cuda.device_of` a tensor, with a context in this thread. A CPU's needs none."""
    if tensor.is_cuda and tensor.device.index not in _THREAD.devices:
        bind(tensor.device.index)
        _THREAD.devices.add(tensor.device.index)
    return torch.cuda.device_of(tensor)


def bind(device: int) -> None:
    """Give this thread the context of a device, by the cheapest calls of the runtime that need one.

    While a graph is captured that is the question whether one is, which is always allowed. Otherwise a further call
    names the device.
    """
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.mem_get_info(device)

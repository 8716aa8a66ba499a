"""CUDA context of a thread, which tensor descriptors need before a kernel is launched.

A new thread has no context until its first call of CUDA's runtime. PyTorch's guards make none where the device is the
current one already, its allocator makes none for memory that it holds, and Triton encodes descriptors before its
launcher looks for a context. So where one of our kernels is a thread's first work on a GPU, be it autograd's thread for
a device or one of a server, encoding fails with "invalid device context".

Source: https://github.com/pytorch/pytorch/issues/195256.
"""

from __future__ import annotations

import threading

import torch

__all__ = ["device_of"]


class _Thread(threading.local):
    """State of the current thread."""

    def __init__(self) -> None:
        self.devices: set[int] = set()
        """Devices whose context the thread has had"""


_THREAD = _Thread()


def device_of(tensor: torch.Tensor) -> torch.cuda.device_of:
    """Return :class:`torch.cuda.device_of` a tensor, with a context in this thread. A CPU's needs none."""
    if tensor.is_cuda and tensor.device.index not in _THREAD.devices:
        bind(tensor.device.index)
        _THREAD.devices.add(tensor.device.index)
    return torch.cuda.device_of(tensor)


def bind(device: int) -> None:
    """Create the context of a device in this thread, by the cheapest runtime calls that need one.

    While a graph is captured, that is the query of the capture status, which is always allowed. Otherwise a further
    call names the device.
    """
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.mem_get_info(device)

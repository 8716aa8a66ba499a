"""Layout of 8-bit states, which the optimizer and its kernel share, and the questions that both ask of CUDA."""

from __future__ import annotations

import torch

GROUP = 256
"""Numbers that share a scale"""
FORMATS = (torch.bfloat16, torch.float32)
"""Formats of the parameters"""


def is_capturing(tensor: torch.Tensor) -> bool:
    """Return whether a CUDA graph is being captured on the device of a tensor."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def is_on(value: object, device: torch.device) -> bool:
    """Return whether a value is a tensor on a device."""
    return isinstance(value, torch.Tensor) and value.device == device

"""Kernels written in CUDA C, compiled by PyTorch when they are first used.

PyTorch calls NVIDIA's compiler library, which it brings with it, so no toolkit and no further package is needed. The
function is private, ``torch.cuda._compile_kernel``, from 2.9 on; its signature is checked before it is called.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from gpuguide.errors import GpuguideError

__all__ = ["compile_kernel"]


def compile_kernel(source: str, name: str, without_toolkit: str) -> Any:
    """Compile a kernel.

    Parameters
    ----------
    source : str
        Source in CUDA C.
    name : str
        Name of the kernel in the source.
    without_toolkit : str
        Error message for a PyTorch that finds no CUDA toolkit: what is impossible, and the remedy.

    Raises
    ------
    GpuguideError
        If this PyTorch cannot compile CUDA C, or finds no CUDA toolkit.
    """
    torch_compile = getattr(torch.cuda, "_compile_kernel", None)
    if torch_compile is None or not accepts_source_and_name(torch_compile):
        raise GpuguideError(
            f"PyTorch {torch.__version__} has no torch.cuda._compile_kernel(kernel_source, kernel_name), which would "
            f"compile this kernel; install one from 2.9 to 2.13."
        )
    try:
        return torch_compile(source, name)
    except OSError as error:
        raise GpuguideError(without_toolkit) from error


def accepts_source_and_name(function: Any) -> bool:
    """Return whether a function can be called with a source and a name, in this order, and nothing else."""
    signature = inspect.signature(function)
    try:
        signature.bind("source", "name")
    except TypeError:
        return False
    return list(signature.parameters)[:2] == ["kernel_source", "kernel_name"]

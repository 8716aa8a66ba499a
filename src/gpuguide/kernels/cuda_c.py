"""Kernels written in CUDA C, compiled by PyTorch when they are first used.

PyTorch calls NVIDIA's compiler library, which it brings with it, so no toolkit and no further package is needed. The
function is private, ``torch.cuda._compile_kernel``, from 2.9 on; what it must take is checked before it is called.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from gpuguide.errors import GpuguideError

__all__ = ["compiled"]


def compiled(source: str, name: str, without_toolkit: str) -> Any:
    """Compile a kernel.

    Parameters
    ----------
    source : str
        CUDA C.
    name : str
        The kernel's, in the source.
    without_toolkit : str
        What to say where PyTorch finds no CUDA toolkit: what cannot be done, and the remedy.

    Raises
    ------
    GpuguideError
        If this PyTorch cannot compile CUDA C, or finds no CUDA toolkit.
    """
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is None or not takes_source_and_name(compile_kernel):
        raise GpuguideError(
            f"PyTorch {torch.__version__} has no torch.cuda._compile_kernel(kernel_source, kernel_name), which would "
            f"compile this kernel; install one from 2.9 to 2.13."
        )
    try:
        return compile_kernel(source, name)
    except OSError as error:
        raise GpuguideError(without_toolkit) from error


def takes_source_and_name(function: Any) -> bool:
    """Return whether a function can be called with a source and a name, in this order, and nothing else."""
    signature = inspect.signature(function)
    try:
        signature.bind("source", "name")
    except TypeError:
        return False
    return list(signature.parameters)[:2] == ["kernel_source", "kernel_name"]

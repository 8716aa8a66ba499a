"""Kernels written in CUDA C, compiled by PyTorch when they are first used."""

from __future__ import annotations

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
    if compile_kernel is None:
        raise GpuguideError(f"PyTorch {torch.__version__} cannot compile CUDA C; install 2.9 or newer.")
    try:
        return compile_kernel(source, name)
    except OSError as error:
        raise GpuguideError(without_toolkit) from error

"""Executable tutorials on how language models and GPUs really behave, and the library they run on.

``import gpuguide`` imports nothing heavy; import the submodule you need::

    from gpuguide.costs import roofline
    from gpuguide.measure import store
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__version__ = "0.1.0"


def device() -> torch.device:
    """Return the device that the tutorials compute on: the first CUDA GPU, else the CPU.

    Returns
    -------
    torch.device
        ``cuda:0`` where PyTorch sees a CUDA GPU, ``cpu`` elsewhere.
    """
    import torch

    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

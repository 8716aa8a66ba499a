"""Whether a training step gives the same bits twice, and the settings that make it.

Floating-point addition is not associative, so a sum whose order changes from run to run changes in its last bits.
Kernels that add with atomics do that: the backward pass of an embedding and of some attention kernels. Such a
difference of one bit grows with the steps, and a flag that promises determinism may not cover every kernel. The bits
themselves say it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from gpuguide.errors import GpuguideError

SETTINGS = {
    "torch.manual_seed": "initial weights, dropout and sampling, on the host and on every GPU",
    "torch.use_deterministic_algorithms(True)": "kernels of PyTorch with atomics: another kernel, or an error where "
    "there is none",
    "torch.backends.cudnn.benchmark = False": "the choice of convolution kernels, which timing decides otherwise",
    "CUBLAS_WORKSPACE_CONFIG=:4096:8": "matmuls of cuBLAS on several streams; set before the first of them",
}
"""What each setting covers"""
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True)
class ChangedTensor:
    """A tensor whose bits differ between two runs."""

    name: str
    count: int
    """Values that differ"""
    values: int
    largest: float
    """Largest difference, relative to the largest magnitude; NaN where a value is not finite"""

    def __str__(self) -> str:
        """Say it in a sentence."""
        return (
            f"{self.name} differs in {self.count} of {self.values} values, by at most {self.largest:.1e} of its "
            "largest magnitude."
        )


def compare_bits(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> list[ChangedTensor]:
    """Return the tensors whose bits differ, by name; NaN equals NaN of the same bits, and 0 is not −0.

    Raises
    ------
    GpuguideError
        If names, shapes or formats differ.
    """
    if first.keys() != second.keys():
        wrong = sorted(first.keys() ^ second.keys())
        raise GpuguideError(f"Only one of the runs has {', '.join(wrong[:3])}; both must return the same tensors.")
    found = []
    for name, one in first.items():
        other = second[name]
        if one.shape != other.shape or one.dtype != other.dtype:
            raise GpuguideError(
                f"{name} is {tuple(one.shape)} in {one.dtype}, and {tuple(other.shape)} in {other.dtype} in the second "
                "run; both must return the same tensors."
            )
        changed = _bits(one) != _bits(other)
        if bool(changed.any()):
            scale = float(one.double().abs().max()) or 1.0
            largest = float((one.double() - other.double()).abs().max()) / scale
            count = int(changed.view(one.numel(), -1).any(-1).sum())  # of a value's bytes
            found.append(ChangedTensor(name, count, one.numel(), largest))
    return found


def repeat(run: Callable[[], Mapping[str, torch.Tensor]], times: int = 2) -> list[ChangedTensor]:
    """Run something several times, and return the tensors whose bits are not those of the first run.

    Parameters
    ----------
    run : callable
        Starts from the same state and seed each time, and returns tensors by name: the gradients of a step, or the
        weights after it.
    times : int
        Runs, 2 or more; an atomic addition may come in the same order by chance.

    Returns
    -------
    list of ChangedTensor
        The first change of each tensor; empty if all runs gave the same bits.

    Raises
    ------
    GpuguideError
        If ``times`` is below 2; otherwise as :func:`compare_bits`.
    """
    if times < 2:
        raise GpuguideError(f"times is {times}; to compare runs takes 2 or more.")
    first = {name: each.detach().clone() for name, each in run().items()}
    changed: dict[str, ChangedTensor] = {}
    for _ in range(times - 1):
        for each in compare_bits(first, {name: value.detach() for name, value in run().items()}):
            changed.setdefault(each.name, each)
    return list(changed.values())


@contextmanager
def deterministic(seed: int = 0, *, warn_only: bool = False) -> Iterator[None]:
    """Seed all generators, and let PyTorch take deterministic kernels only; settings are as they were afterwards.

    Parameters
    ----------
    seed : int
        Seed of Python's, NumPy's and PyTorch's generators.
    warn_only : bool
        Whether an operation without a deterministic kernel warns, where it would raise ``RuntimeError``.

    Raises
    ------
    GpuguideError
        If there is a GPU, and cuBLAS was not told to keep its workspaces apart.
    """
    if torch.cuda.is_available() and WORKSPACE not in os.environ and not warn_only:
        raise GpuguideError(f"Set {WORKSPACE}=:4096:8 in the environment before Python starts; cuBLAS reads it once.")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - that of libraries that use the global generator
    torch.manual_seed(seed)
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = before[2]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)

"""Inputs in turn: so many sets of them that none is still in the L2 cache when it is used again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gpuguide.hardware.device import Device

OfRows = Callable[[torch.Tensor], torch.Tensor]
"""A function of the rows of a tensor"""


def count_input_sets(footprint: float, device: Device) -> int:
    """Return how many sets of inputs are needed so that none is still in the L2 cache when its turn comes again."""
    return 1 + int(2 * device.l2 // footprint)


def random_logits(
    rows: int, vocab: int, dtype: torch.dtype, device: Device, deviation: float = 1.0
) -> list[torch.Tensor]:
    """Return sets of rows of normally distributed logits."""
    count = count_input_sets(rows * vocab * dtype.itemsize, device)
    return [torch.randn(rows, vocab, dtype=dtype, device=device.torch_device).mul_(deviation) for _ in range(count)]


def calls_on(function: OfRows, values: Sequence[torch.Tensor]) -> list[Callable[[], torch.Tensor]]:
    """Return a call for each set of inputs, after a first one, which compiles."""

    def call_on(some: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: function(some)

    calls = [call_on(some) for some in values]
    calls[0]()
    return calls

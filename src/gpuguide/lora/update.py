"""Update of a matrix by a training, and the few dimensions that hold most of it.

The difference of a matrix after and before is taken apart into singular values. Its best approximation of a rank keeps
the largest of them (C. Eckart and G. Young, "The Approximation of One Matrix by Another of Lower Rank", 1936).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from gpuguide.errors import GpuguideError

Weights = Mapping[str, torch.Tensor]
"""Matrices by name"""


def updates(before: Weights, after: Weights) -> dict[str, torch.Tensor]:
    """Return what was added to each matrix, in fp64; what is no matrix, or was not changed, is left out.

    Parameters
    ----------
    before, after : mapping of str to torch.Tensor
        Weights by name, for example of ``state_dict()``.

    Raises
    ------
    GpuguideError
        If they are not those of one model.
    """
    if before.keys() != after.keys() or any(before[name].shape != after[name].shape for name in before):
        raise GpuguideError("The weights before and after are not those of one model: names or shapes differ.")
    changes = {name: after[name].double() - before[name].double() for name in before if before[name].ndim == 2}
    return {name: change for name, change in changes.items() if bool(change.any())}


def singular_values(update: torch.Tensor) -> torch.Tensor:
    """Return the singular values of a matrix, ``(min(out, in),)`` in fp64, the largest first."""
    return torch.linalg.svdvals(update.double())


def rank_for(values: torch.Tensor, share: float) -> int:
    """Return how many singular values hold a share of their squares' sum, which is the update's squared norm.

    >>> rank_for(torch.tensor([3.0, 1.0, 0.5]), 0.87)
    1

    Raises
    ------
    GpuguideError
        If the share is not above 0 and at most 1, or all values are zero.
    """
    if not 0 < share <= 1 or not bool(values.any()):
        raise GpuguideError(f"A share between 0 and 1 is asked for, of values that are not all zero; given {share}.")
    reached = values.double().square().cumsum(0) / values.double().square().sum()
    return min(int((reached < share * (1 - 1e-12)).sum()) + 1, len(values))


def cut(update: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the matrix of at most a rank that is nearest to an update, in fp64.

    Raises
    ------
    GpuguideError
        If the rank is below 1.
    """
    if rank < 1:
        raise GpuguideError(f"The rank is {rank}; it must be at least 1.")
    return strongest(torch.linalg.svd(update.double(), full_matrices=False), rank)


def strongest(parts: Sequence[torch.Tensor], rank: int) -> torch.Tensor:
    """Return the matrix that the largest singular values make up; the parts are those of ``torch.linalg.svd``."""
    left, values, right = parts
    return left[:, :rank] * values[:rank] @ right[:rank]

"""The sequences of a fine-tuning: which a step takes, as a batch, and which of their tokens count.

A sequence is a tensor of token numbers, ``(seq,)``, each of which but the first is to be predicted. Or it is of the
shape ``(2, seq)``: token numbers, and below each a 1 if it counts for the loss and a 0 if it does not.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.training.config import Plan

IGNORED = -100


def tokens_of(sequence: torch.Tensor) -> torch.Tensor:
    """Return the token numbers, ``(seq,)``."""
    return sequence if sequence.ndim == 1 else sequence[0]


def targets_of(sequence: torch.Tensor) -> torch.Tensor:
    """Return what is to be predicted, ``(seq - 1,)``: all tokens but the first; -100 where one does not count."""
    targets = tokens_of(sequence)[1:]
    return targets if sequence.ndim == 1 else targets.masked_fill(sequence[1, 1:] == 0, IGNORED)


def counted(sequences: Sequence[torch.Tensor]) -> int:
    """Return how many tokens of sequences count for the loss."""
    return sum(int((targets_of(each) != IGNORED).sum()) for each in sequences)


def drawn(sequences: Sequence[torch.Tensor], plan: Plan, step: int) -> list[torch.Tensor]:
    """Return a step's sequences. Each epoch has an order of its own, and leaves none out."""
    chosen = []
    for place in range(step * plan.batch, (step + 1) * plan.batch):
        epoch, position = divmod(place, len(sequences))
        chosen.append(sequences[_order(len(sequences), plan.seed * 1_000_003 + epoch)[position]])
    return chosen


@functools.lru_cache(maxsize=2)
def _order(count: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def batch_of(sequences: Sequence[torch.Tensor], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, ``(batch, longest - 1)``; padding on the right does not count."""
    inputs = nn.utils.rnn.pad_sequence([tokens_of(each)[:-1] for each in sequences], batch_first=True)
    targets = nn.utils.rnn.pad_sequence([targets_of(each) for each in sequences], True, IGNORED)
    return inputs.to(device), targets.to(device)


def identity(*sets: Sequence[torch.Tensor]) -> str:
    """Return a digest of the data."""
    digest = hashlib.sha256()
    for sequences in sets:
        digest.update(f"{[tuple(each.shape) for each in sequences]}".encode())
        for each in sequences:
            digest.update(each.cpu().long().numpy().tobytes())
    return digest.hexdigest()


def check_data(training: Sequence[torch.Tensor], held_out: Sequence[torch.Tensor]) -> None:
    """Raise a :class:`~gpuguide.errors.GpuguideError` unless there is data that can be trained on and measured with."""
    for name, sequences in (("training", training), ("held-out", held_out)):
        if not sequences:
            raise GpuguideError(f"There are no {name} sequences.")
        for place, each in enumerate(sequences):
            if not (each.ndim == 1 or (each.ndim == 2 and len(each) == 2)) or each.shape[-1] < 2:
                raise GpuguideError(
                    f"{name} sequence {place} has the shape {tuple(each.shape)}; it needs (seq,), or (2, seq) with "
                    "which tokens count, and 2 tokens or more."
                )
            if not counted([each]):
                raise GpuguideError(f"No token of {name} sequence {place} counts for the loss; leave it out.")
    seen = {tuple(tokens_of(each).tolist()) for each in training}
    leaking = sum(tuple(tokens_of(each).tolist()) in seen for each in held_out)
    if leaking:
        raise GpuguideError(f"{leaking} of {len(held_out)} held-out sequences are in the training data; remove them.")

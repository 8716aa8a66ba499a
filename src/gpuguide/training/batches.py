"""Batches: the sequences of a step, padded to one length, and the mask of tokens that count for the loss.

A sequence is a tensor of token ids, ``(seq,)``; every token except the first is a target. Or its shape is
``(2, seq)``: token ids, and below them the loss mask, 1 for a token that counts and 0 for one that does not.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import torch
from torch import nn

from gpuguide.cross_entropy.reference import IGNORE_INDEX
from gpuguide.errors import GpuguideError
from gpuguide.training.config import TrainingConfig

SEED_STRIDE = 1_000_003
"""Factor of the seed of a run, so that its steps draw other numbers than those of a run with a neighbouring seed"""


def step_seed(seed: int, step: int) -> int:
    """Return the seed of a step (or an epoch) of a run, so that a resumed run draws the same numbers."""
    return seed * SEED_STRIDE + step


def token_ids(sequence: torch.Tensor) -> torch.Tensor:
    """Return the token ids of a sequence, ``(seq,)``."""
    return sequence if sequence.ndim == 1 else sequence[0]


def loss_targets(sequence: torch.Tensor) -> torch.Tensor:
    """Return the targets of a sequence, ``(seq - 1,)``: all tokens but the first, -100 where the mask is 0."""
    targets = token_ids(sequence)[1:]
    return targets if sequence.ndim == 1 else targets.masked_fill(sequence[1, 1:] == 0, IGNORE_INDEX)


def num_loss_tokens(sequences: Sequence[torch.Tensor]) -> int:
    """Return the number of tokens that count for the loss."""
    return sum(int((loss_targets(sequence) != IGNORE_INDEX).sum()) for sequence in sequences)


def global_batch(sequences: Sequence[torch.Tensor], config: TrainingConfig, step: int) -> list[torch.Tensor]:
    """Return the sequences of a step, of all processes. Each epoch visits every sequence once, in an order of its own.

    Parameters
    ----------
    sequences : sequence of torch.Tensor
        Training data.
    config : TrainingConfig
        Batch size and seed.
    step : int
        Number of steps done before.
    """
    return [sequences[place] for place in places_of_step(len(sequences), config.batch, config.seed, step)[1]]


def places_of_step(count: int, batch: int, seed: int, step: int) -> tuple[list[int], list[int]]:
    """Return the epochs and the places of what a step reads out of ``count`` things, each ``batch`` long.

    Each epoch visits every place once, in an order of its own; a step may begin in one and end in the next.
    """
    epochs, places = list[int](), list[int]()
    for index in range(step * batch, (step + 1) * batch):
        epoch, position = divmod(index, count)
        epochs.append(epoch)
        places.append(int(_shuffle(count, step_seed(seed, epoch))[position]))
    return epochs, places


@functools.lru_cache(maxsize=2)
def _shuffle(count: int, seed: int) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def collate(sequences: Sequence[torch.Tensor], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, ``(batch, longest - 1)``, padded on the right; padding does not count."""
    inputs = nn.utils.rnn.pad_sequence([token_ids(sequence)[:-1] for sequence in sequences], batch_first=True)
    targets = nn.utils.rnn.pad_sequence([loss_targets(sequence) for sequence in sequences], True, IGNORE_INDEX)
    return inputs.to(device), targets.to(device)


def data_digest(*sets: Sequence[torch.Tensor]) -> str:
    """Return a digest of sets of sequences, by which a resumed run recognises its data."""
    digest = hashlib.sha256()
    for sequences in sets:
        digest.update(f"{[tuple(sequence.shape) for sequence in sequences]}".encode())
        for sequence in sequences:
            digest.update(sequence.cpu().long().numpy().tobytes())
    return digest.hexdigest()


def check_data(training: Sequence[torch.Tensor], held_out: Sequence[torch.Tensor]) -> None:
    """Raise a :class:`~gpuguide.errors.GpuguideError` if a set is empty, a sequence unusable, or the sets overlap."""
    for name, sequences in (("training", training), ("held-out", held_out)):
        if not sequences:
            raise GpuguideError(f"There are no {name} sequences.")
        for index, sequence in enumerate(sequences):
            is_masked = sequence.ndim == 2 and len(sequence) == 2
            if not (sequence.ndim == 1 or is_masked) or sequence.shape[-1] < 2:
                raise GpuguideError(
                    f"{name} sequence {index} has the shape {tuple(sequence.shape)}; it must be (seq,), or (2, seq) "
                    "with a loss mask, and have 2 tokens or more."
                )
            if not num_loss_tokens([sequence]):
                raise GpuguideError(f"No token of {name} sequence {index} counts for the loss; leave it out.")
    seen = {tuple(token_ids(sequence).tolist()) for sequence in training}
    leaking = sum(tuple(token_ids(sequence).tolist()) in seen for sequence in held_out)
    if leaking:
        raise GpuguideError(f"{leaking} of {len(held_out)} held-out sequences are in the training data; remove them.")

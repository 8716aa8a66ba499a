"""Gradient accumulation: which micro-batches make up an optimizer step, and how many steps there are.

:func:`gpuguide.precision.training_step.train_step` takes such a group and divides by the tokens of the whole group, so
that its gradient is that of one large batch, also for a shorter group at the end of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from gpuguide.errors import GpuguideError

Batch = TypeVar("Batch")


def optimizer_steps(micro_batches: int, accumulation: int = 1) -> int:
    """Return the optimizer steps of so many micro-batches; a shorter group at the end is a step too.

    >>> optimizer_steps(10, accumulation=4)
    3

    Raises
    ------
    GpuguideError
        If there is no micro-batch, or accumulation is below 1.
    """
    _check(accumulation)
    if micro_batches < 1:
        raise GpuguideError(f"There are {micro_batches} micro-batches; a run has at least 1.")
    return -(-micro_batches // accumulation)


def group_micro_batches(batches: Iterable[Batch], accumulation: int) -> Iterator[list[Batch]]:
    """Give the micro-batches of one optimizer step after another; the last group may be shorter.

    Raises
    ------
    GpuguideError
        If accumulation is below 1.
    """
    _check(accumulation)
    group: list[Batch] = []
    for batch in batches:
        group.append(batch)
        if len(group) == accumulation:
            yield group
            group = []
    if group:
        yield group


def _check(accumulation: int) -> None:
    if accumulation < 1:
        raise GpuguideError(f"accumulation is {accumulation}; an optimizer step takes 1 micro-batch or more.")

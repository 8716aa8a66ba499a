"""Does it fit? And what to change when it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuguide.costs.memory.model import CHANGES, SETUP_FIELDS, TABLES
from gpuguide.costs.memory.prediction import predict, values
from gpuguide.costs.memory.setup import Setup, setup_faults
from gpuguide.costs.memory.shape import Shape

SAFE_SHARE: float = TABLES["constants"]["safe_share"]
"""Share of a GPU's memory that a run may take: the driver, other libraries and gaps between tensors need the rest"""


@dataclass(frozen=True)
class Remedy:
    """One change to a setup that lowers its memory."""

    change: str
    setup: Setup
    total: float
    """Bytes that the changed setup needs"""
    fields: Mapping[str, Any]
    """What the change sets, by name"""


def judge(total: float, capacity: float) -> str:
    """Return ``fits``, ``tight`` (more than :data:`SAFE_SHARE` of a GPU's memory) or ``too large``."""
    if total <= SAFE_SHARE * capacity:
        return "fits"
    return "tight" if total <= capacity else "too large"


def remedies(shape: Shape, setup: Setup) -> list[Remedy]:
    """Return single changes that lower the memory of a setup, each with what it leads to.

    Parameters
    ----------
    shape : Shape
        The model.
    setup : Setup
        A setup that makes sense for it.
    """
    now, known = predict(shape, setup).total, values(shape, setup)
    found = []
    for change in CHANGES:
        if not known.evaluate(change.when):
            continue
        fields = {name: known.evaluate(tree) for name, tree in change.fields.items()}
        changed = replace(setup, **fields)
        if not setup_faults(shape, changed):
            total = predict(shape, changed).total
            if total < 0.995 * now:
                found.append(Remedy(change.says.format_map(known), changed, total, fields))
    return found


def largest_batch(shape: Shape, setup: Setup, available: float) -> int:
    """Return how many sequences at a time fit into ``available`` bytes: 0 if not even one does."""
    if predict(shape, replace(setup, batch=1)).total > available:
        return 0
    most = SETUP_FIELDS["batch"].whole[1]  # type: ignore[index]
    low, high = 1, 2
    while high <= most and predict(shape, replace(setup, batch=high)).total <= available:
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if predict(shape, replace(setup, batch=middle)).total <= available else (low, middle)
    return low


def combine_remedies(shape: Shape, setup: Setup, available: float) -> list[Remedy]:
    """Return the changes with which a setup fits into ``available`` bytes, one after another, the cheapest first.

    Sequences keep their length. A smaller batch is taken only with the gradients of several accumulated, which gives
    the same training, or where a step inside the backward pass rules that out. The list is empty if the setup fits as
    it is, or if nothing makes it fit.
    """
    taken: list[Remedy] = []
    changed = setup
    while predict(shape, changed).total > available:
        usable = (each for each in remedies(shape, changed) if _keeps_the_training(changed, each.setup))
        remedy = next(usable, None)
        if remedy is None:
            return []
        taken.append(remedy)
        changed = remedy.setup
    return _without_superfluous(shape, setup, taken, available)


def _without_superfluous(shape: Shape, setup: Setup, taken: list[Remedy], available: float) -> list[Remedy]:
    """Return the changes without those that it fits without, such as LoRA where QLoRA follows."""

    def applied(changes: list[Remedy]) -> list[Remedy]:
        found, current = [], setup
        for each in changes:
            current = replace(current, **each.fields)
            if setup_faults(shape, current):
                return []
            found.append(replace(each, setup=current, total=predict(shape, current).total))
        return found

    changes = list(taken)
    for step in taken:
        fewer = applied([each for each in changes if each is not step])
        if fewer and fewer[-1].total <= available:
            changes.remove(step)
    return applied(changes)


def _keeps_the_training(before: Setup, after: Setup) -> bool:
    if after.seq_len != before.seq_len:
        return False
    return after.batch == before.batch or after.accumulation > before.accumulation or before.optimizer_in_backward

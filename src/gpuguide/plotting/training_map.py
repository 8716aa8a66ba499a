"""The settings of the record ``training-runs``: losses of their seeds, and the best rate of each batch size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuguide.measure.records import Record

IsChance = Callable[[Sequence[float], Sequence[float]], bool]
"""Whether two settings' losses, by seed, differ by no more than chance"""


@dataclass(frozen=True)
class Setting:
    """Runs of one batch size and learning rate."""

    batch: int
    """Sequences"""
    rate: float
    losses: tuple[float, ...]
    """Held-out losses of the seeds that did not diverge"""
    diverged: int
    """Number of seeds whose loss became infinite or NaN"""
    curve: tuple[float, ...]
    """Training loss of the first seed, in at most 60 parts of the run"""

    @property
    def loss(self) -> float:
        """Mean held-out loss; infinite if any seed diverged."""
        return math.inf if self.diverged else statistics.fmean(self.losses)


def settings(record: Record, contender: str = "fixed-beta2", model: str = "small") -> list[Setting]:
    """Return the settings that a contender was measured with, by batch size and learning rate."""
    runs: dict[tuple[int, float], list[tuple[int, float, tuple[float, ...]]]] = {}
    for case in record.cases_of(contender):
        if case.keys["model"] == model:
            loss = case.metrics["loss"].summary.median if "loss" in case.metrics else math.inf
            curve = case.metrics["training_loss"].samples
            key = (int(case.keys["batch"]), float(case.keys["learning_rate"]))
            runs.setdefault(key, []).append((int(case.keys["seed"]), loss, tuple(curve)))
    return [
        Setting(
            *key,
            losses=tuple(loss for _, loss, _ in sorted(found) if math.isfinite(loss)),
            diverged=sum(not math.isfinite(loss) for _, loss, _ in found),
            curve=min(found)[2],
        )
        for key, found in sorted(runs.items())
    ]


def best_by_batch(found: Sequence[Setting]) -> dict[int, Setting]:
    """Return the setting with the lowest loss of each batch size."""
    batches = sorted({setting.batch for setting in found})
    return {batch: min((one for one in found if one.batch == batch), key=lambda one: one.loss) for batch in batches}


def good_by_batch(found: Sequence[Setting], is_chance: IsChance) -> dict[int, frozenset[float]]:
    """Return the best rate of each batch size, and those whose losses differ from its own by no more than chance.

    A rate with one seed is never among them, unless it is the best.
    """

    def is_good(one: Setting, best: Setting) -> bool:
        has_seeds = not one.diverged and min(len(one.losses), len(best.losses)) > 1
        return one == best or (one.batch == best.batch and has_seeds and is_chance(one.losses, best.losses))

    return {
        batch: frozenset(one.rate for one in found if is_good(one, best))
        for batch, best in best_by_batch(found).items()
    }


def name_rate(rate: float) -> str:
    """Return a learning rate as it is written in code, with up to three digits."""
    digits, power = f"{rate:.2e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"

"""Calibration of a model's probabilities: its measure, and the temperature that mends much of it afterwards.

A model is *calibrated* if, of all predictions that it gives a probability of 0.8, four in five are right. Nothing here
is needed to train; import it by its own name.

References
----------
C. Guo et al., "On Calibration of Modern Neural Networks", 2017, sections 2 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpuguide.cross_entropy.reference import IGNORE_INDEX, check_targets

COLDEST, HOTTEST = 0.01, 100.0
"""Between these a temperature is sought"""
MOST_STEPS = 100
"""Most steps of the search, which needs about six"""


@dataclass(frozen=True)
class Reliability:
    """Predictions in groups of like confidence, from unsure to sure. Groups without any are left out."""

    confidence: torch.Tensor
    """``(groups,)``: the mean probability of the tokens that were held most likely"""
    accuracy: torch.Tensor
    """``(groups,)``: the share of them that were right"""
    count: torch.Tensor
    """``(groups,)``: how many predictions"""

    @property
    def expected_calibration_error(self) -> float:
        """The distance of confidence and accuracy, averaged over all predictions. It depends on the groups."""
        weight = self.count.double() / self.count.sum()
        return float((weight * (self.confidence - self.accuracy).abs()).sum())


def reliability(
    probabilities: torch.Tensor, targets: torch.Tensor, *, groups: int = 10, ignore_index: int = IGNORE_INDEX
) -> Reliability:
    """Return how often predictions are right, by how sure they are.

    Parameters
    ----------
    probabilities : torch.Tensor
        ``(..., vocab_size)``, each row a distribution.
    targets : torch.Tensor
        ``(...)``, int64: the token that came.
    groups : int
        Groups of equal width between 0 and 1. A confidence on a border belongs to the lower one.
    ignore_index : int
        Positions with this target do not count.

    Raises
    ------
    ValueError
        If shapes or types do not fit, a row holds no probabilities, no position counts, or there is no group.
    """
    if groups < 1:
        raise ValueError(f"There are {groups} groups; at least 1 is needed.")
    is_counted = _select_counted(probabilities, targets, ignore_index)
    confidence, predicted = probabilities[is_counted].double().max(dim=-1)
    if not bool(((confidence >= 0) & (confidence <= 1 + 1e-3)).all()):
        raise ValueError("The largest value of a row is no probability; give probabilities, not logits.")
    right = (predicted == targets[is_counted]).double()
    group = (confidence * groups).ceil().long().clamp(1, groups) - 1
    count = torch.bincount(group, minlength=groups)
    filled = count > 0
    sums = [torch.bincount(group, values, minlength=groups)[filled] for values in (confidence, right)]
    confidences, rights = (total / count[filled] for total in sums)
    return Reliability(confidences, rights, count[filled])


def fit_temperature(logits: torch.Tensor, targets: torch.Tensor, *, ignore_index: int = IGNORE_INDEX) -> float:
    """Return the temperature at which logits have the lowest loss. It changes no token's rank.

    The loss is convex in the inverse of the temperature: its slope there is what the model expects of a logit, less the
    logit of the token that came. Newton's method finds where the slope is zero, between bounds that close in.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, finite. Take other texts than those on which the result is judged.
    targets : torch.Tensor
        ``(...)``, int64.
    ignore_index : int
        Positions with this target do not count.

    Raises
    ------
    ValueError
        If shapes or types do not fit, no position counts, or the loss has no minimum between the temperatures 0.01
        and 100, for example because every target is the most likely token.
    """
    is_counted = _select_counted(logits, targets, ignore_index)
    rows = logits[is_counted].float()
    target_mean = rows.gather(-1, targets[is_counted].unsqueeze(-1)).mean(dtype=torch.float64)

    def slope(inverse: float) -> tuple[float, float]:
        """Return the first and the second derivative of the mean loss by the inverse temperature."""
        chances = torch.softmax(rows * inverse, dim=-1)
        expected = (chances * rows).sum(dim=-1)
        variance = (chances * rows.square()).sum(dim=-1) - expected.square()
        return float(expected.mean(dtype=torch.float64) - target_mean), float(variance.mean(dtype=torch.float64))

    low, high = 1 / HOTTEST, 1 / COLDEST
    if not slope(low)[0] < 0 < slope(high)[0]:
        raise ValueError(
            f"The loss has no minimum between the temperatures {COLDEST} and {HOTTEST}: the targets are all the most "
            "likely tokens, or unrelated to the logits, or a logit is not finite."
        )
    inverse = 1.0
    for _ in range(MOST_STEPS):
        first, second = slope(inverse)
        low, high = (inverse, high) if first < 0 else (low, inverse)
        step = inverse - first / second if second > 0 else low
        following = step if low < step < high else (low + high) / 2
        if abs(following - inverse) < 1e-6 * inverse:
            break
        inverse = following
    return 1 / inverse


def _select_counted(rows: torch.Tensor, targets: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Return which positions count, after a look at shapes, types and range."""
    check_targets(targets, rows.shape[:-1], rows.shape[-1], ignore_index)
    is_counted = targets != ignore_index
    if not bool(is_counted.any()):
        raise ValueError("No position counts: every target is ignored, or there is none.")
    return is_counted

"""Pearson's chi-square test, for whoever draws tokens."""

from __future__ import annotations

import torch


def chance(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the p-value of Pearson's chi-square test, of what can come at all; nothing else may have come."""
    assert not counts[expected == 0].any()
    counts, expected = counts[expected > 0], expected[expected > 0]
    rare = expected < 5
    if rare.any():
        counts = torch.cat([counts[~rare], counts[rare].sum().view(1)])
        expected = torch.cat([expected[~rare], expected[rare].sum().view(1)])
    statistic = ((counts - expected).square() / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2).double(), statistic / 2))

"""Noise of gradients and of runs, against what is known of drawn numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.training.noise import (
    Spread,
    compare,
    gradient_noise_scale,
    seeds_needed,
    sequence_gradients,
    spread,
    t_quantile,
    t_tail,
)


def test_the_noise_scale_finds_what_gradients_were_drawn_with() -> None:
    """The signal has a squared norm of 4, and each of 1,000 weights a variance of 0.25: noise 250, scale 62.5."""
    generator = torch.Generator().manual_seed(0)
    true = torch.zeros(1000, dtype=torch.float64)
    true[0] = 2.0
    drawn = [true + 0.5 * torch.randn(1000, generator=generator, dtype=torch.float64) for _ in range(400)]
    found = gradient_noise_scale([each[:300], each[300:]] for each in drawn)
    assert found.count == 400
    assert found.noise == pytest.approx(250, rel=0.02)
    assert found.signal == pytest.approx(4, rel=0.1)
    assert found.batch == pytest.approx(62.5, rel=0.12)
    assert found.signal_to_noise(round(found.batch)) == pytest.approx(1, rel=0.02)


def test_the_estimate_is_that_of_the_paper_with_batches_of_one_and_all() -> None:
    gradients = torch.randn(12, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = gradient_noise_scale([each] for each in gradients)
    small, large = float(gradients.square().sum(1).mean()), float(gradients.mean(0).square().sum())
    assert found.signal == pytest.approx((12 * large - 1 * small) / (12 - 1))
    assert found.noise == pytest.approx((small - large) / (1 / 1 - 1 / 12))


def test_gradients_without_a_common_part_have_no_signal() -> None:
    found = gradient_noise_scale([torch.tensor([sign])] for sign in (1.0, -1.0, 1.0, -1.0))
    assert found.batch == math.inf
    assert found.signal_to_noise(64) == 0


def test_sequence_gradients_average_to_that_of_the_batch() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    sequences = torch.randn(6, 3, dtype=torch.float64)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    found = list(sequence_gradients(loss, model.parameters(), sequences))
    whole = torch.autograd.grad(loss(sequences), list(model.parameters()))
    for place, expected in enumerate(whole):
        torch.testing.assert_close(torch.stack([each[place] for each in found]).mean(0), expected)
    assert model.weight.grad is None
    with pytest.raises(GpuguideError, match="There are 1 gradients"):
        gradient_noise_scale(found[:1])


# --- runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062047), (2, 4.3026527), (4, 2.7764451), (10, 2.2281389), (120, 1.9799304)]
)
def test_quantiles_are_those_of_the_tables(freedom: float, quantile: float) -> None:
    assert t_quantile(0.05, freedom) == pytest.approx(quantile, rel=1e-5)
    assert t_tail(quantile, freedom) == pytest.approx(0.05, rel=1e-5)
    assert t_tail(0.0, freedom) == pytest.approx(1.0)


def test_welchs_test_on_a_worked_example() -> None:
    """Means 3 and 5, variances 2.5 and 1 over 5 and 3 runs: t = -2.19, 5.88 degrees of freedom."""
    found = compare([1, 2, 3, 4, 5], [4, 5, 6])
    error = math.sqrt(2.5 / 5 + 1 / 3)
    freedom = (2.5 / 5 + 1 / 3) ** 2 / ((2.5 / 5) ** 2 / 4 + (1 / 3) ** 2 / 2)
    assert found.mean == -2
    assert found.p == pytest.approx(t_tail(2 / error, freedom))
    assert 0.05 < found.p < 0.1
    assert not found.beyond_chance
    assert found.low == pytest.approx(-2 - t_quantile(0.05, freedom) * error)
    assert found.low < found.mean < found.high


def test_a_difference_beyond_chance_is_told_from_one_within() -> None:
    runs = [2.50, 2.51, 2.49]
    assert compare(runs, [loss + 0.1 for loss in runs]).beyond_chance
    assert not compare(runs, [loss + 0.005 for loss in runs]).beyond_chance
    assert compare([1.0, 1.0], [1.0, 1.0]).p == 1
    assert compare([1.0, 1.0], [2.0, 2.0]).beyond_chance


def test_chance_alone_is_called_a_difference_one_time_in_twenty() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(300, 2, 3, generator=generator, dtype=torch.float64).tolist()
    found = sum(compare(first, second).beyond_chance for first, second in drawn)
    assert 0.01 < found / 300 < 0.07  # Welch's test is careful with three runs


def test_spread_and_seeds() -> None:
    assert spread([1.0, 2.0, 3.0]) == Spread(2.0, 1.0, 3)
    assert seeds_needed(0.01, 0.01) == 16
    assert seeds_needed(0.0, 0.01) == 2
    assert seeds_needed(0.02, 0.01) == pytest.approx(4 * seeds_needed(0.01, 0.01), abs=3)


def test_what_shows_no_spread_says_so() -> None:
    with pytest.raises(GpuguideError, match="1 runs show no spread"):
        spread([1.0])
    with pytest.raises(GpuguideError, match="that run diverged"):
        spread([1.0, math.nan])
    with pytest.raises(GpuguideError, match="cannot be shown"):
        seeds_needed(0.01, 0.0)

"""Calibration: against counting by hand, distributions that are right by construction, and another optimiser."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.cross_entropy.calibration import fit_temperature, reliability


def drawn(rows: int, vocab: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits, and a target for each row that was drawn from its softmax."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, vocab, generator=generator)
    return logits, torch.multinomial(torch.softmax(logits, -1), 1, generator=generator).squeeze(-1)


def counted_by_hand(probabilities: np.ndarray, targets: np.ndarray, groups: int) -> float:
    """Return the expected calibration error by a loop over the groups."""
    confidence, right = probabilities.max(-1), probabilities.argmax(-1) == targets
    error = 0.0
    for group in range(groups):
        inside = (confidence > group / groups) & (confidence <= (group + 1) / groups)
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return error


@given(rows=st.integers(1, 60), vocab=st.integers(1, 9), groups=st.integers(1, 20), seed=st.integers(0, 2**20))
def test_the_error_is_that_of_counting(rows: int, vocab: int, groups: int, seed: int) -> None:
    logits, targets = drawn(rows, vocab, seed)
    probabilities = torch.softmax(1.5 * logits.double(), -1)
    found = reliability(probabilities, targets, groups=groups)
    wanted = counted_by_hand(probabilities.numpy(), targets.numpy(), groups)
    assert found.expected_calibration_error == pytest.approx(wanted, abs=1e-12)
    assert int(found.count.sum()) == rows
    assert bool((found.count > 0).all())
    assert bool((found.confidence.diff() > 0).all())


def test_what_was_drawn_from_the_probabilities_is_calibrated_and_sharper_is_not() -> None:
    logits, targets = drawn(200_000, 5)
    assert reliability(torch.softmax(logits, -1), targets).expected_calibration_error < 0.01
    sharper = reliability(torch.softmax(2 * logits, -1), targets)
    assert sharper.expected_calibration_error > 0.05
    assert bool((sharper.confidence > sharper.accuracy).all())


def test_leading_dimensions_and_ignored_positions() -> None:
    logits, targets = drawn(600, 7)
    probabilities = torch.softmax(logits, -1)
    ignored = targets.clone()
    ignored[::3] = -100
    kept = ignored != -100
    wanted = reliability(probabilities[kept], targets[kept])
    found = reliability(probabilities.view(20, 30, 7), ignored.view(20, 30))
    assert torch.equal(found.accuracy, wanted.accuracy)
    assert torch.equal(found.count, wanted.count)
    assert fit_temperature(logits.view(20, 30, 7), ignored.view(20, 30)) == fit_temperature(logits[kept], targets[kept])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7, 20.0])
def test_the_temperature_that_was_drawn_with_is_found(temperature: float) -> None:
    logits, targets = drawn(100_000, 6)
    assert fit_temperature(logits * temperature, targets) == pytest.approx(temperature, rel=0.02)


def test_no_other_temperature_has_a_lower_loss() -> None:
    logits, targets = drawn(3000, 11)
    inverse = torch.ones((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([inverse], max_iter=100, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(0.4 * logits.double() * inverse, targets)
        value.backward()
        return value

    optimizer.step(loss)
    assert fit_temperature(0.4 * logits, targets) == pytest.approx(1 / inverse.item(), rel=1e-4)


def test_bad_input_gets_a_sentence() -> None:
    logits, targets = drawn(50, 4)
    probabilities = torch.softmax(logits, -1)
    with pytest.raises(ValueError, match="give probabilities, not logits"):
        reliability(10 * logits, targets)
    with pytest.raises(ValueError, match="0 groups; at least 1"):
        reliability(probabilities, targets, groups=0)
    with pytest.raises(ValueError, match="No position counts"):
        reliability(probabilities, torch.full_like(targets, -100))
    with pytest.raises(ValueError, match="No position counts"):
        fit_temperature(logits[:0], targets[:0])
    with pytest.raises(ValueError, match="it must lie between 0 and 3"):
        fit_temperature(logits, targets + 4)
    with pytest.raises(ValueError, match="no minimum between the temperatures"):
        fit_temperature(logits, logits.argmax(-1))
    with pytest.raises(ValueError, match="no minimum between the temperatures"):
        fit_temperature(logits, logits.argmin(-1))
    with pytest.raises(ValueError, match="a logit is not finite"):
        fit_temperature(logits.masked_fill(logits == logits[0, 0], torch.nan), targets)

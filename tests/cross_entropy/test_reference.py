"""The plain losses against PyTorch in float64, and their edge cases."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from gpuguide import cross_entropy as package
from gpuguide.cross_entropy import reference

SETTINGS = [
    {},
    {"label_smoothing": 0.1},
    {"z_loss": 1e-2},
    {"label_smoothing": 0.2, "z_loss": 1e-3},
    {"softcap": 3.0},
    {"softcap": 3.0, "label_smoothing": 0.2, "z_loss": 1e-3},
]


def problem(*shape: int, vocab: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits in float64 and targets, one in four of which does not count."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, vocab, generator=generator, dtype=torch.float64) * 4
    targets = torch.randint(vocab, shape, generator=generator)
    return logits, targets.where(torch.rand(shape, generator=generator) > 0.25, reference.IGNORE_INDEX)


def pytorch(logits: torch.Tensor, targets: torch.Tensor, reduction: str, **given: float) -> torch.Tensor:
    z_loss = given.pop("z_loss", 0.0)
    if cap := given.pop("softcap", 0.0):
        logits = cap * torch.tanh(logits / cap)
    flat, wanted = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    losses = functional.cross_entropy(flat, wanted, reduction="none", **given)
    losses = losses + z_loss * flat.logsumexp(-1).square() * (wanted != reference.IGNORE_INDEX)
    if reduction == "none":
        return losses.reshape(targets.shape)
    return losses.sum() / ((wanted != reference.IGNORE_INDEX).sum() if reduction == "mean" else 1)


@pytest.mark.parametrize("given", SETTINGS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_equals_pytorch_in_float64(reduction: str, given: dict[str, float]) -> None:
    logits, targets = problem(3, 7, vocab=11)
    found = package.cross_entropy(logits, targets, reduction=reduction, **given)
    torch.testing.assert_close(found, pytorch(logits, targets, reduction, **given), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("given", SETTINGS)
def test_the_gradient_equals_autograd(given: dict[str, float]) -> None:
    logits, targets = problem(5, vocab=9)
    logits.requires_grad_()
    pytorch(logits, targets, "sum", **given).backward()
    found = reference.logits_gradient(logits.detach(), targets, **given)
    torch.testing.assert_close(found, logits.grad, rtol=1e-12, atol=1e-12)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 1000))
def test_fp32_is_exact_to_rounding(rows: int, vocab: int, seed: int) -> None:
    logits, targets = problem(rows, vocab=vocab, seed=seed)
    exact = float(package.cross_entropy(logits, targets, reduction="sum"))
    found = float(package.cross_entropy(logits.float(), targets, reduction="sum"))
    assert found == pytest.approx(exact, rel=1e-6, abs=1e-6)


def test_half_precision_is_computed_in_fp32() -> None:
    logits, targets = problem(6, vocab=50)
    half = logits.to(torch.bfloat16)
    found = package.cross_entropy(half, targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, package.cross_entropy(half.double(), targets).float(), rtol=1e-6, atol=0)


def test_the_mean_divides_by_what_counts_or_by_a_given_count() -> None:
    logits, targets = problem(8, vocab=5)
    total = package.cross_entropy(logits, targets, reduction="sum")
    counted = int((targets != reference.IGNORE_INDEX).sum())
    torch.testing.assert_close(package.cross_entropy(logits, targets), total / counted)
    torch.testing.assert_close(package.cross_entropy(logits, targets, count=40), total / 40)
    torch.testing.assert_close(package.cross_entropy(logits, targets, count=torch.tensor(40)), total / 40)


def test_a_tensor_that_counts_holds_one_number() -> None:
    logits, targets = problem(20, vocab=50)
    loss = package.cross_entropy(logits, targets, count=torch.tensor([40]))
    assert loss.shape == ()
    torch.testing.assert_close(loss, package.cross_entropy(logits, targets, count=40))
    with pytest.raises(ValueError, match=r"^The count must be one number; given 2, in a tensor of shape \(2,\)\.$"):
        package.cross_entropy(logits, targets, count=torch.tensor([20, 20]))


def test_nothing_that_counts_has_no_loss_and_no_gradient() -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    targets = torch.full((4,), reference.IGNORE_INDEX)
    loss = package.cross_entropy(logits, targets)
    loss.backward()
    assert loss == 0
    assert logits.grad is not None
    assert not logits.grad.any()
    assert package.cross_entropy(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)) == 0


@pytest.mark.parametrize("row", [[math.nan, 0.0], [-math.inf, -math.inf]])
def test_a_row_that_is_no_distribution_gives_nan(row: list[float]) -> None:
    assert package.cross_entropy(torch.tensor([row]), torch.tensor([0])).isnan()


@pytest.mark.parametrize(
    ("targets", "given", "message"),
    [
        ([0, 3], {}, r"The target at \(1,\) is 3; it must lie between 0 and 2, or be -100"),
        ([-1, 0], {}, r"The target at \(0,\) is -1"),
        ([0], {}, r"Targets must have the shape \(2,\), one for each position; given \(1,\)"),
        ([0.0, 1.0], {}, "Targets must be int64, not torch.float32"),
        ([0, 1], {"label_smoothing": 1.0}, "label_smoothing is 1.0; it must be at least 0 and below 1"),
        ([0, 1], {"label_smoothing": -0.1}, "label_smoothing is -0.1"),
        ([0, 1], {"z_loss": -1.0}, "z_loss is -1.0; it must be a finite number, zero or above"),
        ([0, 1], {"z_loss": math.nan}, "z_loss is nan"),
        ([0, 1], {"softcap": -30.0}, "softcap is -30.0; it must be a finite number, zero"),
        ([0, 1], {"reduction": "average"}, "The reduction is 'average'; it must be one of mean, sum, none"),
    ],
)
def test_bad_input_is_named(targets: list[float], given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        package.cross_entropy(torch.zeros(2, 3), torch.tensor(targets), **given)


def test_perplexity_and_bits_per_byte() -> None:
    assert reference.perplexity(math.log(10)) == pytest.approx(10)
    assert reference.bits_per_byte(math.log(2) * 3, tokens=100, size=300) == pytest.approx(1)

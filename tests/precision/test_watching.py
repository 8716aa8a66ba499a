"""What is watched in a run, against plain counts in NumPy, and the makers of infinities and NaN that were put there."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from gpuguide.precision import autocast, exponents, gradients, shares, trace_dtypes, trace_nonfinite, unmoved_share
from gpuguide.precision.watching import Shares


def spread(count: int = 5000) -> torch.Tensor:
    """Values over a range that is wider than fp16's."""
    generator = torch.Generator().manual_seed(0)
    powers = torch.randint(-32, 20, (count,), generator=generator)
    return torch.randn(count, generator=generator) * torch.ldexp(torch.ones(count), powers)


@pytest.mark.parametrize("scale", [1.0, 1024.0, 2.0**-10])
def test_shares_are_numpys_counts(scale: float) -> None:
    values = torch.cat([spread(), torch.tensor([0.0, math.inf, math.nan, 65519.0 / scale, 65520.0 / scale])])
    with np.errstate(over="ignore"):
        scaled = values.double().numpy() * scale
        half = scaled.astype(np.float32).astype(np.float16)
    finite, tiny = np.isfinite(scaled), np.finfo(np.float16).tiny
    found = shares([values[:3000], values[3000:]], "fp16", scale)
    n = len(values)
    assert found.count == n
    assert found.zero == 1 / n
    assert found.infinite == 2 / n
    assert found.underflow == pytest.approx(np.sum(finite & (half == 0) & (scaled != 0)) / n)
    assert found.subnormal == pytest.approx(np.sum((half != 0) & (np.abs(half) < tiny)) / n)
    assert found.overflow == pytest.approx(np.sum(finite & np.isinf(half)) / n)
    assert found.normal == pytest.approx(np.sum(np.isfinite(half) & (np.abs(half) >= tiny)) / n)


def test_scaling_lifts_what_would_underflow() -> None:
    values = torch.full((10,), 1e-8)
    assert shares(values, "fp16").underflow == 1
    assert shares(values, "fp16", 65536.0).normal == 1
    assert shares(values, "bf16") == Shares(10, 0, 0, 0, 1, 0, 0)
    assert shares(torch.tensor([464.0, 470.0]), "e4m3").overflow == 0.5
    with pytest.raises(ValueError, match=r"The scale is 0\.0"):
        shares(values, "fp16", 0.0)
    with pytest.raises(ValueError, match="There are no values"):
        shares([], "fp16")


def test_updates_below_half_a_spacing_move_nothing() -> None:
    one = torch.ones(4, dtype=torch.bfloat16)
    updates = torch.tensor([0.75 * 2.0**-8, -0.75 * 2.0**-8, 2.0**-7, 0.0])
    assert unmoved_share(one, updates) == pytest.approx(1 / 3)  # below a power of two the neighbour is nearer
    assert unmoved_share(one, updates, share_of_zero=True) == 0.5
    assert unmoved_share(one, updates, "fp32") == 0
    weights, steps = torch.randn(4000), torch.randn(4000) * 1e-3
    stored = weights.bfloat16()
    still = (stored.float() + steps).bfloat16() == stored
    assert unmoved_share([stored], [steps]) == pytest.approx(float(still.float().mean()), abs=1e-3)
    with pytest.raises(ValueError, match="No update is other than zero"):
        unmoved_share(one, torch.zeros(4))
    with pytest.raises(ValueError, match="is no update of"):
        unmoved_share(one, torch.zeros(3))


def test_exponents_are_those_of_frexp() -> None:
    found = exponents([torch.tensor([0.3, -0.3, 1.0, 2.0**-20]), torch.tensor([0.0, math.inf, math.nan])])
    counts = dict(zip(found.exponents, found.counts, strict=True))
    assert found.exponents == list(range(-20, 1))
    assert {power: count for power, count in counts.items() if count} == {-20: 1, -2: 2, 0: 1}
    assert (found.zeros, found.infinite) == (1, 2)
    assert found.shares[-1] == pytest.approx(1 / 7)
    assert exponents(torch.zeros(3)).exponents == []


def test_parameters_without_a_gradient_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0](torch.ones(1, 2)).sum().backward()
    assert list(gradients(model)) == ["0.weight", "0.bias"]


# --- what made it --------------------------------------------------------------------------------------


class Exp(nn.Module):
    """Overflows above 88."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Exponentiate."""
        return x.exp()


class Root(nn.Module):
    """Has an infinite slope at zero, times zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the root of what is zero."""
        return (x * 0).sqrt()


class Net(nn.Module):
    """A part that goes wrong between two that do not."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.Sequential(nn.Identity(), part)
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        return self.last(self.inner(self.first(x)))


def test_the_operation_that_overflowed_is_named_before_the_nan_that_follows() -> None:
    model = Net(Exp())
    nn.init.constant_(model.first.bias, 300.0)
    found = trace_nonfinite(model, lambda: (model(torch.randn(2, 4)) - math.inf).sum())
    assert (found[0].kind, found[0].operation, found[0].module) == ("infinity", "aten.exp.default", "inner.1")
    assert not found[0].backward
    assert (found[0].count, round(found[0].largest_input, -1)) == (8, 300)
    assert found[1].kind == "NaN"
    assert "aten.exp.default in inner.1 (forward pass, torch.float32) made infinity in 8 of 8 values" in str(found[0])


def test_what_is_made_in_the_backward_pass_is_named() -> None:
    model = Net(Root())
    found = trace_nonfinite(model, lambda: model(torch.randn(2, 4)).sum().backward())
    assert found[0].backward
    assert found[0].kind == "infinity"
    assert found[0].module == "inner.1"
    assert any(each.kind == "NaN" for each in found)


def test_a_loss_that_is_nan_from_the_start_leads_to_the_weight() -> None:
    model = Net(nn.Identity())
    with torch.no_grad():
        model.last.weight[1, 2] = math.nan
    found = trace_nonfinite(model, lambda: model(torch.randn(2, 4)).sum().backward())
    assert (found[0].operation, found[0].module, found[0].count) == ("given", "last.weight", 1)
    assert str(found[0]) == "last.weight held NaN in 1 of 16 values before anything ran."


def test_fp16_overflow_under_autocast_is_named_with_its_format() -> None:
    model = Net(nn.Identity())
    nn.init.constant_(model.last.weight, 3e4)
    nn.init.constant_(model.first.bias, 100.0)

    def run() -> None:
        with autocast("fp16", "cpu"):
            model(torch.randn(2, 4))

    found = trace_nonfinite(model, run)
    assert (found[0].module, found[0].dtype) == ("last", torch.float16)


def test_masks_of_infinities_and_unfilled_memory_are_no_fault() -> None:
    """PyTorch fills empty memory with NaN where everything is to be deterministic."""
    model = nn.Linear(3, 3)

    def run() -> None:
        torch.use_deterministic_algorithms(True)
        assert bool(torch.empty(10).isnan().all())
        torch.use_deterministic_algorithms(False)
        scores = model(torch.randn(2, 3)).masked_fill(torch.tensor([True, False, False]), -math.inf)
        nn.functional.cross_entropy(scores, torch.tensor([1, 2])).backward()

    try:
        assert trace_nonfinite(model, run) == []
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_run_that_is_finite_finds_nothing() -> None:
    model = Net(nn.Tanh())
    assert trace_nonfinite(model, lambda: model(torch.randn(2, 4)).sum().backward()) == []


# --- what ran in which format --------------------------------------------------------------------------


def test_autocast_runs_products_in_16_bits_and_keeps_the_copy_of_a_weight() -> None:
    model = Net(nn.Identity())

    def run() -> None:
        with autocast("bf16", "cpu"):
            model(model(torch.randn(2, 4))).float().sum().backward()

    ran = trace_dtypes(model, run)
    products = [each for each in ran if each.operation.startswith("aten.addmm") and each.module == "first"]
    assert {(each.inputs, each.outputs) for each in products} == {((torch.bfloat16,) * 3, (torch.bfloat16,))}
    assert sum(each.times for each in products) == 2
    casts = [each for each in ran if each.operation == "aten._to_copy.default" and not each.backward]
    of_weights = [each for each in casts if each.module == "last" and each.inputs == (torch.float32,)]
    assert sum(each.times for each in of_weights) == 2  # weight and bias, once, though the layer ran twice
    assert any(each.backward and each.module == "last" for each in ran)


def test_without_autocast_all_is_fp32() -> None:
    model = Net(nn.Tanh())
    ran = trace_dtypes(model, lambda: model(torch.randn(2, 4)).sum().backward())
    assert {dtype for each in ran for dtype in (*each.inputs, *each.outputs)} == {torch.float32}
    assert not any(each.operation.startswith("aten.t.") for each in ran)

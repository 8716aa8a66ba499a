"""Learning rates by step against closed forms, PyTorch's and transformers'; and micro-batches of a step."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.models.pretraining import RECIPES
from gpuguide.precision import LossScaler, TrainingSetup, train_step
from gpuguide.training.accumulation import group_micro_batches, optimizer_steps
from gpuguide.training.schedules import SHAPES, Schedule

PEAK, STEPS, WARM_UP = 3e-4, 200, 20


def optimizer(rate: float = PEAK) -> torch.optim.SGD:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)


def rates_of(scheduler: torch.optim.lr_scheduler.LRScheduler, count: int) -> list[float]:
    """Return the rates that a scheduler of PyTorch gives, one for each optimizer step."""
    found = []
    for _ in range(count):
        found.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return found


def closed_form(shape: str, step: int, final: float) -> float:
    """Return the rate, written without shares: each piece from one point to the next."""
    if step < WARM_UP:
        return PEAK / WARM_UP * (step + 1)
    low = final * PEAK
    if shape == "cosine":
        return low + (PEAK - low) * math.cos(math.pi / 2 * (step - WARM_UP) / (STEPS - WARM_UP)) ** 2
    if shape == "linear":
        return PEAK - (PEAK - low) / (STEPS - WARM_UP) * (step - WARM_UP)
    return PEAK if shape == "constant" or step <= 160 else PEAK - (PEAK - low) / 40 * (step - 160)


@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_rate_is_that_of_the_closed_form(shape: str, final: float) -> None:
    schedule = Schedule(shape, PEAK, STEPS, WARM_UP, final, decay=0.2)
    for step in range(STEPS + 1):
        assert schedule(step) == pytest.approx(closed_form(shape, step, final), abs=1e-12 * PEAK)


def test_the_rates_are_those_of_pytorch() -> None:
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer(), STEPS, eta_min=0.1 * PEAK)
    ours = Schedule("cosine", PEAK, STEPS)
    assert [ours(step) for step in range(STEPS)] == pytest.approx(rates_of(cosine, STEPS), rel=1e-12)
    linear = torch.optim.lr_scheduler.LinearLR(optimizer(), 1.0, 0.1, STEPS)
    ours = Schedule("linear", PEAK, STEPS)
    assert [ours(step) for step in range(STEPS)] == pytest.approx(rates_of(linear, STEPS), rel=1e-12)


@pytest.mark.needs("transformers")
def test_the_rates_are_those_of_transformers() -> None:
    """Their warm-up begins with a rate of 0, and ours with what is their second."""
    from transformers import get_scheduler

    def theirs(name: str, **more: Any) -> list[float]:
        return rates_of(get_scheduler(name, optimizer(), WARM_UP, STEPS, more), STEPS)

    peers = {
        "cosine": theirs("cosine"),
        "linear": theirs("linear"),
        "constant": theirs("constant_with_warmup"),
        "stable-decay": theirs("warmup_stable_decay", num_decay_steps=40, decay_type="linear"),
    }
    for shape, expected in peers.items():
        ours = Schedule(shape, PEAK, STEPS, WARM_UP, final=0.0)
        assert [ours(step) for step in range(WARM_UP - 1)] == pytest.approx(expected[1:WARM_UP], rel=1e-12)
        assert [ours(step) for step in range(WARM_UP, STEPS)] == pytest.approx(expected[WARM_UP:], rel=1e-12)


def test_the_rates_are_those_of_the_models_of_the_site() -> None:
    recipe = RECIPES["main"]
    ours = Schedule("cosine", recipe.learning_rate, recipe.steps, recipe.warm_up)
    for step in range(0, recipe.steps, 7):
        assert ours(step) == pytest.approx(recipe.learning_rate_at(step), rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_after_the_end_the_rate_stays_and_one_call_warns(shape: str) -> None:
    schedule = Schedule(shape, PEAK, STEPS)
    last = schedule(STEPS)
    with pytest.warns(UserWarning, match="Step 201 is beyond the 200 steps"):
        assert schedule(STEPS + 1) == last
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert schedule(10 * STEPS) == last


def test_the_scheduler_of_pytorch_counts_optimizer_steps() -> None:
    schedule = Schedule("cosine", PEAK, 12, 3)
    assert rates_of(schedule.scheduler(optimizer(0.5)), 12) == pytest.approx([schedule(step) for step in range(12)])
    rate = torch.tensor(0.5, dtype=torch.float64)
    scheduler = schedule.scheduler(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate))
    assert scheduler.optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(schedule(0))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shape": "cosin"}, "Did you mean cosine"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"learning_rate": -1e-3}, "learning_rate is -0.001"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"steps": 0, "warm_up": 0}, "steps is 0"),
        ({"warm_up": 201}, "warm-up takes 201 steps and the whole run 200"),
        ({"warm_up": -1}, "warm-up takes -1"),
        ({"final": 1.5}, "final is 1.5"),
        ({"decay": 0.0}, "decay is 0.0"),
    ],
)
def test_a_wrong_setting_says_so(change: dict[str, Any], says: str) -> None:
    with pytest.raises(GpuguideError, match=says):
        Schedule(**{"shape": "cosine", "learning_rate": PEAK, "steps": STEPS, "warm_up": 0, **change})


def test_a_negative_step_says_so() -> None:
    with pytest.raises(GpuguideError, match="step is -1"):
        Schedule("cosine", PEAK, STEPS)(-1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("steps", "warm_up"), [(1, 0), (1, 1), (5, 5)])
def test_the_shortest_runs_have_rates(shape: str, steps: int, warm_up: int) -> None:
    schedule = Schedule(shape, PEAK, steps, warm_up)
    assert all(0 < schedule(step) <= PEAK for step in range(steps + 1))


# --- accumulation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "accumulation", "steps"), [(8, 4, 2), (10, 4, 3), (3, 4, 1), (5, 1, 5)])
def test_groups_take_every_micro_batch_once(count: int, accumulation: int, steps: int) -> None:
    groups = list(group_micro_batches(range(count), accumulation))
    assert len(groups) == optimizer_steps(count, accumulation) == steps
    assert [each for group in groups for each in group] == list(range(count))
    assert all(len(group) == accumulation for group in groups[:-1])


def test_an_accumulated_step_is_that_of_the_whole_batch() -> None:
    """Also in the shorter group at the end, and where micro-batches have different numbers of targets."""
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(7, (2, 1 + length), generator=generator) for length in (3, 8, 5)]

    def gradients(groups: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7)).double()
        setup = TrainingSetup(
            model, torch.optim.SGD(model.parameters(), lr=0.0), LossScaler(enabled=False), None, "fp32", math.inf
        )
        for group in groups:
            train_step(setup, [(each[:, :-1], each[:, 1:]) for each in group])
        return [each.grad for each in model.parameters() if each.grad is not None]

    padded = torch.full((6, 9), -100)
    for number, each in enumerate(batches):
        padded[2 * number : 2 * number + 2, : each.shape[1]] = each

    def whole(chosen: torch.Tensor) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7)).double()
        logits = model(chosen[:, :-1].clamp(min=0))
        nn.functional.cross_entropy(logits.flatten(0, 1), chosen[:, 1:].flatten()).backward()
        return [each.grad for each in model.parameters() if each.grad is not None]

    torch.testing.assert_close(gradients([batches]), whole(padded), rtol=1e-6, atol=1e-9)
    groups = list(group_micro_batches(batches, 2))
    torch.testing.assert_close(gradients(groups), whole(padded[4:]), rtol=1e-6, atol=1e-9)


def test_wrong_counts_say_so() -> None:
    with pytest.raises(GpuguideError, match="accumulation is 0"):
        optimizer_steps(4, 0)
    with pytest.raises(GpuguideError, match="accumulation is 0"):
        next(group_micro_batches([1], 0))
    with pytest.raises(GpuguideError, match="There are 0 micro-batches"):
        optimizer_steps(0)
    none, setup = torch.full((1, 2), -100), TrainingSetup(nn.Linear(1, 1), optimizer(), LossScaler(enabled=False))
    with pytest.raises(ValueError, match="no target that counts"):
        train_step(setup, [(none, none)])

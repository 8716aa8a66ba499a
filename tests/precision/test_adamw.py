"""AdamW on bf16 weights against torch.optim.AdamW in fp32, and stochastic rounding by its mean."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from gpuguide.precision import AdamW, round_stochastically, to_bf16_stochastically
from gpuguide.precision.adamw import Storing

WAYS = get_args(Storing)


def run(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, steps: int = 20) -> None:
    """Take steps with gradients that are the same for everybody."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        optimizer.step()


@pytest.mark.parametrize("storing", WAYS)
def test_fp32_weights_move_as_in_torch(storing: Storing) -> None:
    start = torch.randn(50, generator=torch.Generator().manual_seed(0))
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    run(AdamW([ours], lr=0.01, weight_decay=0.1, storing=storing), ours)
    run(torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1, foreach=False), theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_master_weights_move_as_fp32_weights_do() -> None:
    start = torch.randn(50, generator=torch.Generator().manual_seed(0)).bfloat16()
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.float())
    optimizer, reference = AdamW([ours], lr=1e-4), torch.optim.AdamW([theirs], lr=1e-4)
    generator = torch.Generator().manual_seed(3)
    for _ in range(30):
        ours.grad = torch.randn(50, generator=generator).bfloat16()
        theirs.grad = ours.grad.float()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(optimizer.state[ours]["master"], theirs.detach(), rtol=1e-6, atol=1e-7)
    assert torch.equal(ours.detach(), optimizer.state[ours]["master"].bfloat16())


def moved(storing: Storing, steps: int = 200) -> float:
    """How far weights of 1 come on average in steps of 2^-10, an eighth of their spacing, towards zero or not at all.

    Below 1 the spacing is 2^-8, so weights begin at 1.5.
    """
    weight = torch.nn.Parameter(torch.full((2000,), 1.5, dtype=torch.bfloat16))
    optimizer = AdamW([weight], lr=2.0**-10, weight_decay=0.0, storing=storing)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return 1.5 - float(weight.detach().float().mean())


def test_small_updates_are_lost_or_kept() -> None:
    right = 200 * 2.0**-10
    assert moved("nearest") == 0
    assert moved("master") == pytest.approx(right, abs=2.0**-8)
    assert moved("stochastic") == pytest.approx(right, abs=0.005)


def test_stochastic_rounding_to_bf16_is_right_on_average() -> None:
    generator = torch.Generator().manual_seed(5)
    for value in (1.001, -1.001, 3.3e-5, 1e-39, 250.3, 0.0):
        x = torch.full((60_000,), value)
        drawn = to_bf16_stochastically(x, generator)
        assert drawn.dtype == torch.bfloat16
        step = float(drawn.double().max() - drawn.double().min())
        assert drawn.unique().numel() <= 2
        assert abs(float(drawn.double().mean() - x[0].double())) <= 4 * step / math.sqrt(60_000)
        plain = round_stochastically(x, "bf16", torch.Generator().manual_seed(6))
        assert set(plain.unique().tolist()) == set(drawn.float().unique().tolist())


def test_what_bf16_holds_stays_and_what_it_does_not_hold_ends_at_the_largest() -> None:
    held = torch.randn(1000).bfloat16().float()
    assert torch.equal(to_bf16_stochastically(held).float(), held)
    largest = torch.finfo(torch.bfloat16).max
    special = torch.tensor([math.inf, -math.inf, math.nan, 3.4e38, -3.4e38, -0.0])
    rounded = to_bf16_stochastically(special).float()
    assert rounded[:2].tolist() == [math.inf, -math.inf]
    assert bool(rounded[2].isnan())
    assert rounded[3:5].tolist() == [largest, -largest]
    with pytest.raises(TypeError, match=r"begins from torch\.float32, not torch\.float64"):
        to_bf16_stochastically(torch.ones(1, dtype=torch.float64))


def test_random_bits_follow_the_seed_and_disturb_no_others() -> None:
    results = []
    for seed in (1, 1, 2):
        weight = torch.nn.Parameter(torch.ones(500, dtype=torch.bfloat16))
        torch.manual_seed(0)
        run(AdamW([weight], lr=1e-3, storing="stochastic", seed=seed), weight)
        assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(0))
        results.append(weight.detach())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_a_state_comes_back_in_fp32() -> None:
    one = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    first = AdamW([one], lr=1e-4)
    run(first, one, 3)
    other = torch.nn.Parameter(one.detach().clone())
    second = AdamW([other], lr=1e-4)
    second.load_state_dict(first.state_dict())
    run(first, one, 5)
    run(second, other, 5)
    assert torch.equal(first.state[one]["master"], second.state[other]["master"])
    assert second.state[other]["exp_avg"].dtype == torch.float32


def test_bad_input_is_named() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="storing is 'random'"):
        AdamW([parameter], storing="random")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"lr -1\.0"):
        AdamW([parameter], lr=-1.0)
    with pytest.raises(ValueError, match="takes no closure"):
        AdamW([parameter]).step(lambda: 1.0)


@pytest.mark.gpu
def test_random_bits_of_a_gpu_are_right_on_average_and_follow_the_seed() -> None:
    generators = [torch.Generator("cuda").manual_seed(seed) for seed in (5, 5, 6)]
    x = torch.full((60_000,), 1.001, device="cuda")
    first, second, third = (to_bf16_stochastically(x, generator) for generator in generators)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert set(first.float().unique().tolist()) == {1.0, 1.0 + 2.0**-7}
    assert abs(float(first.double().mean()) - 1.001) < 4 * 2.0**-7 / math.sqrt(60_000)
    with pytest.raises(RuntimeError, match="device"):  # a processor's bits are none for a GPU
        to_bf16_stochastically(x, torch.Generator())


@pytest.mark.gpu
@pytest.mark.parametrize("storing", WAYS)
def test_weights_on_a_gpu_move_as_on_the_processor(storing: Storing) -> None:
    start = torch.randn(500, generator=torch.Generator().manual_seed(0)).bfloat16()
    here, there = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.cuda())
    optimizers = [AdamW([weight], lr=1e-3, storing=storing) for weight in (here, there)]
    generator = torch.Generator().manual_seed(3)
    for _ in range(30):
        here.grad = torch.randn(500, generator=generator).bfloat16()
        there.grad = here.grad.cuda()
        for optimizer in optimizers:
            optimizer.step()
    step = 2.0**-7 * start.float().abs().clamp(min=2.0**-6)
    difference = here.detach().float() - there.detach().float().cpu()
    apart = difference.abs()
    if storing == "stochastic":  # other bits, and the same mean
        assert 0 < float((apart / step).max()) < 16
        assert abs(float(difference.mean())) < 5 * float(difference.std()) / math.sqrt(500)
    else:
        assert float((apart > step).float().mean()) < 0.01
    if storing == "master":
        ours, theirs = (
            optimizer.state[weight]["master"] for optimizer, weight in zip(optimizers, (here, there), strict=True)
        )
        torch.testing.assert_close(ours, theirs.cpu(), rtol=1e-5, atol=1e-6)

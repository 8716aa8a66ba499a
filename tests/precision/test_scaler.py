"""The loss scaler against torch.amp.GradScaler, step for step."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch

from gpuguide.precision import LossScaler

SEQUENCES = 1_000
KINDS = (math.inf, -math.inf, math.nan)


class Side:
    """Two parameters, one of which may lack a gradient, and their optimizer."""

    def __init__(self, gradients_dtype: torch.dtype = torch.float32) -> None:
        self.first = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=gradients_dtype))
        self.second = torch.nn.Parameter(torch.tensor([0.5], dtype=gradients_dtype))
        self.optimizer = torch.optim.SGD([self.first, self.second], lr=0.1, foreach=False)

    def set(self, gradients: Sequence[float | None]) -> None:
        """Give both parameters gradients; the last is that of the second."""
        self.first.grad = torch.tensor(gradients[:2], dtype=self.first.dtype)
        last = gradients[2]
        self.second.grad = None if last is None else torch.tensor([last], dtype=self.first.dtype)

    def bits(self) -> list[str]:
        """All parameters and gradients, so exactly that zeros keep their signs."""
        tensors = [self.first, self.second, self.first.grad, self.second.grad]
        return ["" if each is None else repr(each.tolist()) for each in tensors]


def draw(chance: random.Random) -> list[float | None]:
    """Gradients of one step: now and then infinite or NaN, or none for the second parameter."""
    gradients: list[float | None] = [chance.gauss(0, 1) * 10.0 ** chance.randint(-6, 8) for _ in range(3)]
    if chance.random() < 0.35:
        gradients[chance.randrange(3)] = chance.choice(KINDS)
    if chance.random() < 0.2:
        gradients[2] = None
    return gradients


@pytest.mark.parametrize("part", range(10))
def test_equals_torch_over_random_sequences(part: int) -> None:
    """Scale, clean steps, parameters and gradients are equal after every one of the steps."""
    chance = random.Random(part)
    mine, other = Side(), Side()
    skipped = 0
    for _ in range(SEQUENCES // 10):
        scale, grow, back = 2.0 ** chance.randint(-3, 127), chance.choice([2.0, 1.5]), chance.choice([0.5, 0.3])
        interval = chance.randint(1, 3)
        ours = LossScaler(scale, growth_factor=grow, backoff_factor=back, growth_interval=interval)
        theirs = torch.amp.GradScaler("cpu", scale, grow, back, interval)
        theirs.scale(torch.ones(()))  # PyTorch makes its scale at the first loss
        for _ in range(chance.randint(1, 3)):
            gradients, early = draw(chance), chance.random() < 0.5
            for side, scaler in ((mine, ours), (other, theirs)):
                side.set(gradients)
                if early:
                    scaler.unscale_(side.optimizer)
            before = mine.bits()[:2]
            stepped = ours.step(mine.optimizer)
            theirs.step(other.optimizer)
            ours.update()
            theirs.update()
            assert mine.bits() == other.bits()
            assert ours.state_dict() == theirs.state_dict()
            if not stepped:
                assert mine.bits()[:2] == before
            skipped += not stepped
    assert skipped > SEQUENCES // 30


def test_losses_and_gradients_are_scaled_as_by_torch() -> None:
    ours, theirs = LossScaler(3.7e4), torch.amp.GradScaler("cpu", 3.7e4)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        loss = torch.tensor(0.3, dtype=dtype, requires_grad=True)
        one, other = ours.scale(loss), theirs.scale(loss)
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
        assert torch.equal(torch.autograd.grad(one, loss)[0], torch.autograd.grad(other, loss)[0])


def test_gradients_in_bf16_are_unscaled_as_by_torch() -> None:
    ours, theirs = LossScaler(777.0), torch.amp.GradScaler("cpu", 777.0)
    mine, other = Side(torch.bfloat16), Side(torch.bfloat16)
    theirs.scale(torch.ones(()))
    for side, scaler in ((mine, ours), (other, theirs)):
        side.set([1.37, -5e-4, 2e5])
        scaler.unscale_(side.optimizer)
    assert mine.bits() == other.bits()


def test_an_infinity_of_one_optimizer_shrinks_the_scale_and_skips_its_step_only() -> None:
    scaler, good, bad = LossScaler(1024.0), Side(), Side()
    good.set([1.0, 1.0, None])
    bad.set([1.0, math.inf, 1.0])
    before = bad.bits()[:2]
    assert scaler.step(good.optimizer)
    assert not scaler.step(bad.optimizer)
    scaler.update()
    assert bad.bits()[:2] == before
    assert scaler.current == 512


def test_a_gradient_without_values_disturbs_nobody() -> None:
    scaler, full, empty = LossScaler(8.0), torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(0))
    optimizer = torch.optim.SGD([full, empty], lr=1.0)
    full.grad, empty.grad = torch.full((2,), 4.0), torch.ones(0)
    scaler.unscale_(optimizer)
    assert full.grad.tolist() == [0.5, 0.5]
    assert scaler.step(optimizer)


@pytest.mark.gpu
@pytest.mark.parametrize("value", [1.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # PyTorch's has no kernel for bf16
def test_equals_torch_on_a_gpu(dtype: torch.dtype, value: float) -> None:
    results = []
    for scaler in (LossScaler(777.0), torch.amp.GradScaler("cuda", 777.0)):
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(size, device="cuda", dtype=dtype)) for size in (3, 40_000)]
        optimizer = torch.optim.SGD(weights, lr=0.1)
        scaler.scale(torch.ones((), device="cuda"))
        for weight in weights:
            weight.grad = torch.randn_like(weight) * 100
        assert weights[1].grad is not None
        weights[1].grad[39_999] = value
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        results.append([*(weight.detach() for weight in weights), weights[0].grad])
        current = scaler.current if isinstance(scaler, LossScaler) else scaler.get_scale()
        assert current == (777.0 if math.isfinite(value) else 388.5)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_sparse_gradients_are_unscaled() -> None:
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    scaler, optimizer = LossScaler(8.0), torch.optim.SGD(embedding.parameters(), lr=1.0)
    scaler.scale(embedding(torch.tensor([1, 3])).sum()).backward()
    scaler.unscale_(optimizer)
    gradient = embedding.weight.grad
    assert gradient is not None
    assert torch.equal(gradient.to_dense().sum(dim=1), torch.tensor([0.0, 2.0, 0.0, 2.0, 0.0]))


def test_states_go_from_one_to_the_other_and_back() -> None:
    ours, theirs = LossScaler(64.0, growth_interval=7), torch.amp.GradScaler("cpu")
    side = Side()
    for _ in range(3):
        side.set([1.0, 1.0, 1.0])
        ours.step(side.optimizer)
        ours.update()
    theirs.load_state_dict(ours.state_dict())
    again = LossScaler()
    again.load_state_dict(theirs.state_dict())
    assert again.state_dict() == ours.state_dict() == theirs.state_dict()
    assert (again.current, again.clean_steps) == (64, 3)
    with pytest.raises(ValueError, match="The state is empty"):
        again.load_state_dict({})


def test_switched_off_it_only_steps() -> None:
    scaler, side = LossScaler(enabled=False), Side()
    loss = torch.tensor(3.0)
    assert scaler.scale(loss) is loss
    side.set([1.0, math.inf, 1.0])
    scaler.unscale_(side.optimizer)
    assert scaler.step(side.optimizer)
    scaler.update()
    scaler.load_state_dict({})
    assert (scaler.state_dict(), scaler.current) == ({}, 1.0)
    assert float(side.second.detach()) == pytest.approx(0.4)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, 1e39, 1e-46])
def test_a_scale_that_is_not_positive_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"The scale is .*; it must be a positive, finite number in fp32"):
        LossScaler(scale)
    scaler = LossScaler()
    with pytest.raises(ValueError, match="must be a positive"):
        scaler.current = scale
    with pytest.raises(ValueError, match="must be a positive"):
        scaler.load_state_dict({**scaler.state_dict(), "scale": scale})


def test_a_scale_that_falls_to_zero_is_an_error() -> None:
    scaler, side = LossScaler(1e-45), Side()
    side.set([math.nan, 0.0, 0.0])
    scaler.step(side.optimizer)
    with pytest.raises(RuntimeError, match="The scale fell to zero"):
        scaler.update()


def test_calls_in_the_wrong_order_are_refused() -> None:
    scaler, side = LossScaler(), Side()
    with pytest.raises(RuntimeError, match="No parameter of the optimizer has a gradient"):
        scaler.unscale_(side.optimizer)
    with pytest.raises(RuntimeError, match="no checked gradients"):
        scaler.update()
    side.set([1.0, 1.0, 1.0])
    scaler.unscale_(side.optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) follows unscale_\(\)"):
        scaler.unscale_(side.optimizer)
    scaler.step(side.optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) follows step\(\)"):
        scaler.unscale_(side.optimizer)
    with pytest.raises(RuntimeError, match="called twice"):
        scaler.step(side.optimizer)
    half = Side(torch.float16)
    half.set([1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="stored in fp16"):
        scaler.unscale_(half.optimizer)


def test_factors_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"growth_factor is 1\.0"):
        LossScaler(growth_factor=1.0)
    with pytest.raises(ValueError, match=r"backoff_factor is 1\.0"):
        LossScaler(backoff_factor=1.0)
    with pytest.raises(ValueError, match="growth_interval is 0"):
        LossScaler(growth_interval=0)

"""Backward passes by hand against autograd and central differences, in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpuguide.gradients import by_hand, central_difference, check_gradients
from gpuguide.gradients.differences import best_step, loss_slice
from gpuguide.models.gpt2 import GPT2Block, GPT2Config

CONFIG = GPT2Config(vocab_size=11, context=16, layers=1, heads=3, hidden=24)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return made.requires_grad_()


def same(found: Any, expected: Any) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert float(((ours - theirs).norm() / theirs.norm()).detach()) < 1e-12


def test_linear() -> None:
    x, W, b, dy = draw(2, 5, 4), draw(3, 4), draw(3), draw(2, 5, 3)
    y = by_hand.linear(x, W, b)
    torch.testing.assert_close(y, functional.linear(x, W, b))
    same(by_hand.linear_backward(dy, x, W), torch.autograd.grad(y, [x, W, b], dy))


def test_layer_norm() -> None:
    x, gamma, beta, dy = draw(2, 5, 8), draw(8), draw(8, seed=1), draw(2, 5, 8, seed=2)
    y, x_hat, inverse_sigma = by_hand.layer_norm(x, gamma, beta)
    expected = functional.layer_norm(x, (8,), gamma, beta)
    torch.testing.assert_close(y, expected)
    found = by_hand.layer_norm_backward(dy, x_hat, inverse_sigma, gamma)
    same(found, torch.autograd.grad(expected, [x, gamma, beta], dy))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    Q, K, V, dO = (draw(2, 3, 7, 4, seed=seed) for seed in range(4))
    out, P = by_hand.attention(Q, K, V, causal)
    expected = functional.scaled_dot_product_attention(Q, K, V, is_causal=causal)
    torch.testing.assert_close(out, expected)
    same(by_hand.attention_backward(dO, Q, K, V, P), torch.autograd.grad(expected, [Q, K, V], dO))


def test_gelu() -> None:
    x, dy = draw(50), draw(50, seed=1)
    expected = functional.gelu(x, approximate="tanh")
    torch.testing.assert_close(by_hand.gelu(x), expected)
    same([by_hand.gelu_backward(dy, x)], torch.autograd.grad(expected, [x], dy))


def test_a_whole_block() -> None:
    torch.manual_seed(0)
    module = GPT2Block(CONFIG).double()
    for each in module.parameters():
        nn.init.normal_(each, std=0.3)
    weights = dict(module.named_parameters())
    x, dy = draw(2, 7, 24), draw(2, 7, 24, seed=1)
    y, kept = by_hand.block(x, weights, CONFIG.heads)
    expected = module(x)
    torch.testing.assert_close(y, expected)
    dx, grads = by_hand.block_backward(dy, kept, weights)
    assert set(grads) == set(weights)
    theirs = torch.autograd.grad(expected, [x, *weights.values()], dy)
    parts = [dx, *(grads[name] for name in weights)]
    keys = slice(24, 48)  # a bias of keys changes no softmax, so that its gradient is rounding alone
    bias = 1 + list(weights).index("attention.query_key_value.bias")
    for each in (parts[bias], theirs[bias]):
        assert float(each[keys].detach().abs().max()) < 1e-12
    same(parts, theirs)


# --- central differences -----------------------------------------------------------------------------------


def test_differences_agree_with_autograd_in_float64() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2)).double()
    x = draw(5, 4).detach()
    checks = check_gradients(lambda: model(x).square().mean(), model.named_parameters(), count=4)
    assert {check.name for check in checks} == {name for name, _ in model.named_parameters()}
    assert checks[0].error < 1e-8


def test_a_wrong_gradient_is_found() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
            return dy * 2 * ctx.saved_tensors[0] ** 2

    weight = nn.Parameter(draw(5).detach())
    checks = check_gradients(lambda: Wrong.apply(weight).sum(), [("weight", weight)])
    assert checks[0].error == pytest.approx(1 / 3, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_best_step_is_better_than_a_smaller_and_a_larger_one(dtype: torch.dtype) -> None:
    weight = torch.linspace(0.3, 1.1, 9, dtype=dtype)

    def error(factor: float) -> float:
        step = factor * best_step(1.0, dtype)
        found = [central_difference(lambda: weight.exp().sum(), weight, (place,), step) for place in range(9)]
        return math.dist(found, weight.exp().tolist())

    assert error(1.0) < error(1e-2)
    assert error(1.0) < error(30.0)


def test_a_weight_is_as_it_was_afterwards() -> None:
    weight = draw(3).detach()
    before = weight.clone()
    central_difference(lambda: weight.exp().sum(), weight, (1,))
    losses = loss_slice(lambda: weight.exp().sum(), weight, (1,), [-1.0, 0.0, 2.0])
    assert torch.equal(weight, before)
    others = float(weight.exp().sum() - weight[1].exp())
    assert losses == pytest.approx([others + math.exp(float(weight[1]) + offset) for offset in (-1.0, 0.0, 2.0)])


def test_what_cannot_be_differentiated_says_so() -> None:
    weight = draw(3).detach()
    with pytest.raises(ValueError, match=r"torch\.int64 has no gradient"):
        central_difference(lambda: weight.sum(), torch.ones(3, dtype=torch.int64), (0,))
    with pytest.raises(ValueError, match="The step is 0"):
        central_difference(lambda: weight.sum(), weight, (0,), 0.0)
    with pytest.raises(ValueError, match="turns dropout off"):
        central_difference(lambda: functional.dropout(weight.exp(), 0.5).sum() + torch.rand(()), weight, (0,))
    with pytest.raises(ValueError, match="No parameter asks"):
        check_gradients(lambda: weight.sum(), [("weight", nn.Parameter(weight, requires_grad=False))])

"""Derivatives of the operators other than one backward pass: forward mode, :mod:`torch.func`, second derivatives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional

from gpuguide.fusion import add_layer_norm, linear_gelu

Function = Callable[[torch.Tensor], torch.Tensor]


def pair(name: str, device: str) -> tuple[Function, Function]:
    """Return an operator as a function of x alone, and the same in PyTorch."""
    generator = torch.Generator().manual_seed(1)
    weight, square, bias = (
        torch.randn(shape, generator=generator).to(device, torch.float64 if device == "cpu" else torch.float32)
        for shape in ((8,), (8, 8), (8,))
    )
    if name == "linear_gelu":
        return (
            lambda x: linear_gelu(x, square, bias),
            lambda x: functional.gelu(functional.linear(x, square, bias), approximate="tanh"),
        )
    return (
        lambda x: add_layer_norm(x, x, weight, bias)[0],
        lambda x: functional.layer_norm(x + x, (8,), weight, bias),
    )


def jvp(function: Function, x: torch.Tensor) -> torch.Tensor:
    return torch.func.jvp(function, (x,), (x.cos(),))[1]


def dual(function: Function, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, x.cos()))).tangent
    assert tangent is not None
    return tangent


def gradient(function: Function, x: torch.Tensor) -> torch.Tensor:
    return torch.func.grad(lambda x: function(x).square().sum())(x)


def hessian(function: Function, x: torch.Tensor) -> torch.Tensor:
    return torch.func.hessian(lambda x: function(x).square().sum())(x)


def of_each_row(function: Function, x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(torch.func.jacrev(function))(x)


DERIVATIVES = {each.__name__: each for each in (jvp, dual, gradient, hessian, of_each_row)}


def compare(name: str, derivative: str, device: str) -> None:
    operator, plain = pair(name, device)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(2)).to(device)
    x = x.double() if device == "cpu" else x
    found, right = (DERIVATIVES[derivative](function, x) for function in (operator, plain))
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("name", ["linear_gelu", "add_layer_norm"])
def test_transforms(name: str, derivative: str) -> None:
    compare(name, derivative, "cpu")


@pytest.mark.parametrize("name", ["linear_gelu", "add_layer_norm"])
def test_a_second_derivative_is_refused(name: str) -> None:
    """Part of it would be missing, since the operator's own backward pass has no derivative."""
    operator, _ = pair(name, "cpu")
    x = torch.rand(3, 8, dtype=torch.float64, requires_grad=True)
    with pytest.raises(NotImplementedError, match=f"reference.{name}"):
        torch.autograd.grad(operator(x).sum(), x, create_graph=True)


@pytest.mark.parametrize("name", ["linear_gelu", "add_layer_norm"])
def test_forward_mode_of_compiled_code_is_refused(name: str) -> None:
    operator, plain = pair(name, "cpu")
    x = torch.rand(3, 8, dtype=torch.float64)
    compiled = torch.compile(operator, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="forward-mode"):
        dual(compiled, x)
    torch._dynamo.reset()
    torch.testing.assert_close(dual(torch.compile(operator, backend="eager"), x), dual(plain, x))


@pytest.mark.gpu
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("name", ["linear_gelu", "add_layer_norm"])
def test_transforms_on_a_gpu(name: str, derivative: str) -> None:
    compare(name, derivative, "cuda")

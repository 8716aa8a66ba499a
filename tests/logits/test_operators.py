"""Softmax and log-sum-exp as operators: derivatives, compiled, with fake tensors, and mapped, against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses import FakeTensorMode

from gpuguide.logits import fused_log_sum_exp, fused_softmax

Function = Callable[[torch.Tensor], torch.Tensor]
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
each = pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (fused_softmax, lambda rows: torch.softmax(rows, -1)),
        (fused_log_sum_exp, lambda rows: torch.logsumexp(rows, -1)),
    ],
    ids=["softmax", "log_sum_exp"],
)


def rows_on(device: str, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device, dtype)


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["softmax", "log_sum_exp"])
def test_the_operators_keep_pytorchs_rules(name: str, dtype: torch.dtype, device: str) -> None:
    """Schema, autograd, fake tensors, and ahead-of-time compilation with shapes that change."""
    operator = getattr(torch.ops.gpuguide, name).default
    for rows in (rows_on(device, 2, 3, 50, dtype=dtype), rows_on(device, 50, 4, dtype=dtype).t()):
        torch.library.opcheck(operator, (rows,))
        torch.library.opcheck(operator, (rows.clone().requires_grad_(),))


@on_each_device
@each
def test_first_and_second_derivatives(ours: Function, theirs: Function, device: str) -> None:
    rows = rows_on(device, 3, 6).requires_grad_()
    assert torch.autograd.gradcheck(ours, rows)
    assert torch.autograd.gradgradcheck(ours, rows)


@on_each_device
@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_narrow_formats(ours: Function, theirs: Function, dtype: torch.dtype, device: str) -> None:
    rows = rows_on(device, 4, 300, dtype=dtype)
    exact = rows.double().requires_grad_()
    rows.requires_grad_()
    weights = torch.linspace(-1, 1, 300, device=device)
    for function, given in ((ours, rows), (theirs, exact)):
        result = function(given)
        (result * (weights if result.ndim == 2 else weights[:4])).sum().backward()
    assert rows.grad is not None
    assert exact.grad is not None
    assert rows.grad.dtype == dtype
    norm = torch.linalg.matrix_norm
    assert norm(rows.grad.double() - exact.grad) <= 2 * torch.finfo(dtype).eps * norm(exact.grad) + 1e-6


@on_each_device
@each
def test_under_torch_func(ours: Function, theirs: Function, device: str) -> None:
    rows = rows_on(device, 4, 7)

    def results(function: Function) -> list[torch.Tensor]:
        def total(rows: torch.Tensor) -> torch.Tensor:
            return function(rows).square().sum()

        return [
            torch.func.grad(total)(rows),
            torch.vmap(torch.func.grad(total))(rows),
            torch.func.jacrev(function)(rows),
            torch.func.jacfwd(function)(rows),
            torch.func.hessian(total)(rows),
            torch.func.jvp(function, (rows,), (rows.sin(),))[1],
            torch.vmap(lambda row, by: torch.func.jvp(function, (row,), (by,))[1])(rows, rows.sin()),
            torch.vmap(function, in_dims=1)(rows),
            torch.vmap(torch.vmap(function, in_dims=1), in_dims=2)(rows_on(device, 2, 3, 4)),
        ]

    for found, expected in zip(results(ours), results(theirs), strict=True):
        torch.testing.assert_close(found, expected)


@on_each_device
@each
def test_compiled_without_a_break(ours: Function, theirs: Function, device: str) -> None:
    rows = rows_on(device, 4, 50, dtype=torch.float32)

    def gradient(function: Function) -> torch.Tensor:
        given = rows.clone().requires_grad_()
        function(given).square().sum().backward()
        assert given.grad is not None
        return given.grad

    torch.compiler.reset()
    compiled = torch.compile(lambda rows: ours(rows * 2) + 1, fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(lambda rows: theirs(rows * 2) + 1))
    with torch.no_grad():
        torch.testing.assert_close(compiled(rows), theirs(rows * 2) + 1)


@each
def test_a_forward_mode_is_right_or_refused_under_the_compiler(ours: Function, theirs: Function) -> None:
    rows = rows_on("cpu", 3, 5)

    def derivative(function: Function) -> torch.Tensor:
        return torch.func.jvp(function, (rows,), (rows.sin(),))[1]

    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(lambda: derivative(ours))(), derivative(theirs))
    with pytest.raises(Exception, match=r"Observed exception|no forward mode"):
        torch.compile(lambda: derivative(ours), fullgraph=True)()


@each
def test_fake_tensors_on_a_gpu_need_none(ours: Function, theirs: Function) -> None:
    with FakeTensorMode():
        rows = torch.empty(3, 4, 50, dtype=torch.bfloat16, device="cuda")
        found, expected = ours(rows), theirs(rows)
    assert (found.shape, found.device) == (expected.shape, expected.device)
    assert found.dtype == (torch.bfloat16 if ours is fused_softmax else torch.float32)


@on_each_device
@each
def test_a_result_without_gradients_asks_for_none(ours: Function, theirs: Function, device: str) -> None:
    rows = rows_on(device, 2, 9).requires_grad_()
    assert ours(rows).requires_grad
    with torch.no_grad():
        assert not ours(rows).requires_grad
    assert not ours(rows.detach()).requires_grad

"""The loss as an operator, compiled, with fake tensors, mapped and under ``torch.func``, against PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from gpuguide.cross_entropy import linear_cross_entropy, operators, reference

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
HIDDEN, VOCAB = 16, 37

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def problem(
    device: str = "cpu", dtype: torch.dtype = torch.float64, shape: tuple[int, ...] = (11,)
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(*shape, HIDDEN, generator=generator, dtype=torch.float64)
    head = torch.randn(VOCAB, HIDDEN, generator=generator, dtype=torch.float64)
    targets = torch.randint(VOCAB, shape, generator=generator)
    targets[..., -1] = reference.IGNORE_INDEX
    return hidden.to(device, dtype), head.to(device, dtype), targets.to(device)


def ours(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return linear_cross_entropy(hidden, head, targets, chunk=4)


def whole(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(functional.linear(hidden, head).flatten(0, -2), targets.flatten())


def gradients(loss: Loss, *given: torch.Tensor) -> list[torch.Tensor]:
    """Return a loss times three, and both its gradients."""
    hidden, head, targets = given
    operands = hidden.detach().requires_grad_(), head.detach().requires_grad_()
    found = loss(*operands, targets) * 3
    return [found.detach(), *torch.autograd.grad(found, operands)]


def assert_all_close(found: Any, expected: Any, rtol: float = 1e-9) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)


@on_each_device
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
def test_the_operator_keeps_pytorchs_rules(device: str, wanted: tuple[bool, bool]) -> None:
    """Schema, autograd, fake tensors, and ahead-of-time compilation with shapes that change."""
    hidden, head, targets = problem(device)
    hidden.requires_grad_(wanted[0])
    head.requires_grad_(wanted[1])
    for scale in (None, torch.tensor(0.5, device=device, dtype=torch.float64)):
        settings = (VOCAB, reference.IGNORE_INDEX, 0.1, 1e-3, 5.0, 4, torch.float64)
        torch.library.opcheck(operators.linear_cross_entropy, (hidden, head, targets, scale, *settings, *wanted))


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fake_tensors_get_the_shapes_and_types_of_real_ones(device: str, dtype: torch.dtype) -> None:
    real = gradients(ours, *problem(device, dtype, (2, 5)))
    mode = FakeTensorMode()
    fake = gradients(ours, *(mode.from_tensor(each) for each in problem(device, dtype, (2, 5))))
    for one, other in zip(real, fake, strict=True):
        assert (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def test_fake_tensors_on_a_gpu_need_none() -> None:
    with FakeTensorMode():
        given = (torch.empty_like(each, device="cuda") for each in problem())
        assert ours(*given).is_cuda


@on_each_device
@pytest.mark.parametrize("given", [{}, {"reduction": "sum"}, {"count": 40}, {"vocab_size": VOCAB - 1, "z_loss": 1e-3}])
def test_compiled_without_a_break(device: str, given: dict[str, Any]) -> None:
    hidden, head, targets = problem(device, shape=(3, 5))
    targets = targets.where(targets != VOCAB - 1, 0)

    def loss(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return linear_cross_entropy(torch.tanh(hidden), head, targets, chunk=4, **given)

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True)
    assert_all_close(gradients(compiled, hidden, head, targets), gradients(loss, hidden, head, targets))


@on_each_device
def test_compiled_under_autocast(device: str) -> None:
    hidden, head, targets = problem(device, torch.float32)

    def loss(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return ours(hidden, head, targets)

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True)
    assert_all_close(gradients(compiled, hidden, head, targets), gradients(loss, hidden, head, targets), rtol=2e-2)


@on_each_device
def test_gradients_as_functions(device: str) -> None:
    hidden, head, targets = problem(device)
    for argument in (0, 1, (0, 1)):
        found, expected = (torch.func.grad(loss, argnums=argument)(hidden, head, targets) for loss in (ours, whole))
        assert_all_close(
            [found] if isinstance(argument, int) else found, [expected] if isinstance(argument, int) else expected
        )


@on_each_device
def test_mapped_over_sequences(device: str) -> None:
    """The head belongs to all sequences, or each has its own."""
    hidden, head, targets = problem(device, shape=(3, 5))
    heads = torch.stack([head, head * 2, -head])
    for dims, of_head in (((0, None, 0), head), ((0, 0, 0), heads)):
        found, expected = (torch.vmap(loss, dims)(hidden, of_head, targets) for loss in (ours, whole))
        torch.testing.assert_close(found, expected)
        found, expected = (
            torch.vmap(torch.func.grad(loss, argnums=(0, 1)), dims)(hidden, of_head, targets) for loss in (ours, whole)
        )
        assert_all_close(found, expected)


@on_each_device
def test_gradients_for_several_gradients_from_above_at_once(device: str) -> None:
    """What is mapped here is the backward pass alone."""
    hidden, head, targets = problem(device)
    above = torch.tensor([1.0, -2.0], device=device, dtype=torch.float64)

    def mapped(loss: Loss) -> Any:
        return torch.vmap(torch.func.vjp(lambda *operands: loss(*operands, targets), hidden, head)[1])(above)

    assert_all_close(mapped(ours), mapped(whole))


def test_a_forward_mode_is_refused() -> None:
    hidden, head, targets = problem()

    def derivative() -> torch.Tensor:
        return torch.func.jvp(lambda hidden: ours(hidden, head, targets), (hidden,), (hidden,))[1]

    with pytest.raises(NotImplementedError, match="jvp"):
        derivative()
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"jvp|Observed exception"):
        torch.compile(derivative)()


@on_each_device
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_gradient_that_nobody_asks_for_is_not_computed(device: str, frozen: int) -> None:
    """Its product would be one of three of the same size."""
    from torch.utils.flop_counter import FlopCounterMode

    operands, targets = [*problem(device)[:2]], problem(device)[2]
    operands[1 - frozen].requires_grad_()
    with FlopCounterMode(display=False) as counter:
        ours(operands[0], operands[1], targets).backward()
    with FlopCounterMode(display=False) as both:
        ours(*(operand.detach().requires_grad_() for operand in operands), targets).backward()
    assert (both.get_total_flops(), counter.get_total_flops()) == (6 * 11 * HIDDEN * VOCAB, 4 * 11 * HIDDEN * VOCAB)


@on_each_device
def test_gradients_are_handed_out_and_not_copied(device: str) -> None:
    """A second gradient of the head would take as much memory as the first."""
    hidden, head, targets = problem(device, torch.float32)
    operands = hidden.requires_grad_(), head.requires_grad_()
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = ours(*operands, targets)
    loss.backward()
    assert all(operand.grad is not None and operand.grad.data_ptr() in kept for operand in operands)


def test_what_is_held_for_the_backward_pass_are_the_gradients() -> None:
    hidden, head, targets = problem()
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        ours(hidden.requires_grad_(), head.requires_grad_(), targets)
    assert sum(tensor.nbytes for tensor in kept) == hidden.nbytes + head.nbytes + 2 * 8

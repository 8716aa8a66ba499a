"""AdamW in one pass against PyTorch's, on the processor and as the kernel."""

from __future__ import annotations

from typing import Any

import interpreted
import pytest
import torch
from interpreted import needs_triton
from torch import nn

from gpuguide.training.adamw import EPSILON, OnePassAdamW

SHAPES = ((5, 300), (7,), (33, 64))


def steps(device: str, count: int = 5) -> tuple[list[Any], list[Any], list[Any]]:
    """Copies and parameters after steps of ours, and copies after those of PyTorch on the same gradients."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]
    narrow = [nn.Parameter(each.bfloat16()) for each in values]
    ours, theirs = ([nn.Parameter(each.clone()) for each in values] for _ in range(2))

    def groups(copies: list[Any]) -> list[dict[str, Any]]:
        return [{"params": [copies[0], copies[2]]}, {"params": [copies[1]], "weight_decay": 0.0}]

    rate = torch.tensor(1e-2, device=device)
    one_pass = OnePassAdamW(
        groups(ours), {id(wide): each for wide, each in zip(ours, narrow, strict=True)}, rate, (0.9, 0.95), 0.1
    )
    plain = torch.optim.AdamW(groups(theirs), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, eps=EPSILON)
    one_pass.factor.fill_(0.5)
    for _ in range(count):
        for parameter, copy in zip(narrow, theirs, strict=True):
            parameter.grad = torch.randn(copy.shape, generator=generator).to(device).bfloat16()
            copy.grad = 0.5 * parameter.grad.float()
        one_pass.step()
        plain.step()
    return ours, narrow, theirs


def assert_steps_are_those_of_pytorch(device: str, *, rounds: bool = True) -> None:
    """Compare copies, and parameters with the copies that they are rounded from; Triton's interpreter cuts off."""
    ours, narrow, theirs = steps(device)
    for one, parameter, other in zip(ours, narrow, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(parameter.float(), one, rtol=2**-8 if rounds else 2**-7, atol=0)
        assert not rounds or torch.equal(parameter, one.bfloat16())


def test_steps_are_those_of_pytorch() -> None:
    assert_steps_are_those_of_pytorch("cpu")


def check_kernel() -> None:
    """Run the kernel, interpreted."""
    from gpuguide import triton_support

    triton_support.supports_triton = lambda tensor: True
    assert_steps_are_those_of_pytorch("cpu", rounds=False)


@needs_triton
def test_the_kernel_takes_the_steps_of_pytorch() -> None:
    interpreted.run(__file__, "check_kernel()")


@pytest.mark.gpu
def test_the_kernel_takes_the_steps_of_pytorch_on_a_gpu() -> None:
    assert_steps_are_those_of_pytorch("cuda")

"""AdamW with states in 8 bits against fp32, by PyTorch and by the kernel."""

from __future__ import annotations

from typing import Any

import interpreted
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interpreted import needs_triton
from torch import nn

from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.training_memory.eight_bit import (
    GROUP,
    AdamW8bit,
    pack_first,
    pack_second,
    unpack_first,
    unpack_second,
)

SHAPES = ((5, 300), (7,), (33, 64), (1024,))
BETAS = (0.9, 0.95)


@given(st.integers(0, 1000), st.floats(1e-12, 1e6), st.floats(0, 8))
def test_a_second_moment_is_never_stored_too_small(seed: int, scale: float, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    v = scale * torch.exp(-spread * torch.rand(3, GROUP, generator=generator) * 2)
    back = unpack_second(*pack_second(v))
    assert (back >= v * (1 - 1e-6)).all()
    largest = v.amax(1, keepdim=True)
    assert ((back / largest) ** 0.25 <= (v / largest) ** 0.25 + 1 / 255 + 1e-6).all()


def test_packing_keeps_zero_and_the_largest() -> None:
    values = torch.zeros(2, GROUP)
    values[1, 3], values[1, 4] = 2.0, 1.0
    m = unpack_first(*pack_first(-values))
    torch.testing.assert_close(m, -values, rtol=0.02, atol=0)
    v = unpack_second(*pack_second(values))
    torch.testing.assert_close(v, values, rtol=0.02, atol=0)
    small = torch.full((1, GROUP), 1e-6)
    small[0, 0] = 1.0
    assert unpack_second(*pack_second(small, "square-root-nearest"), "square-root-nearest")[0, 1] == 0
    assert unpack_second(*pack_second(small))[0, 1] >= 1e-6


def steps(device: str, dtype: torch.dtype, count: int = 4) -> tuple[AdamW8bit, list[Any], list[Any]]:
    """Return an optimizer after some steps, its parameters, and those of fp32 states on the same gradients."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in SHAPES]
    ours = [nn.Parameter(each.to(device, dtype)) for each in values]
    theirs = [nn.Parameter(each.to(device)) for each in values]

    def groups(given: list[Any]) -> list[dict[str, Any]]:
        return [{"params": given[::2]}, {"params": given[1::2], "weight_decay": 0.0}]

    settings: dict[str, Any] = {"lr": 1e-2, "betas": BETAS, "weight_decay": 0.1}
    packed = AdamW8bit(groups(ours), **settings)
    plain = torch.optim.AdamW(groups(theirs), **settings)
    for _ in range(count):
        for one, other in zip(ours, theirs, strict=True):
            gradient = torch.randn(other.shape, generator=generator).to(device, dtype)
            one.grad, other.grad = gradient, gradient.float()
        packed.step()
        plain.step()
    return packed, ours, theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_are_near_those_of_fp32(dtype: torch.dtype) -> None:
    start = torch.randn(SHAPES[0], generator=torch.Generator().manual_seed(0))
    _, ours, theirs = steps("cpu", dtype)
    for one, other in zip(ours, theirs, strict=True):
        spacing = 2**-7 * other.abs() if dtype == torch.bfloat16 else 0.0
        assert ((one.float() - other).abs() <= 0.012 + 4 * spacing).all()
    moved = theirs[0].detach().cpu() - start
    off = ours[0].detach().float() - theirs[0].detach()
    if dtype == torch.float32:
        assert torch.linalg.vector_norm(off) < 0.1 * torch.linalg.vector_norm(moved)


def train(rounding: Any, count: int = 150) -> float:
    """Return the loss of a small network after some steps, whose inputs differ in size as those of words do."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
    sizes = 10 ** torch.linspace(0, -3, 64)
    optimizer = AdamW8bit(network.parameters(), lr=1e-2, betas=BETAS, weight_decay=0.0, rounding=rounding)
    for _ in range(count):
        x = torch.randn(64, 64) * sizes
        loss = (network(x) - x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_the_fourth_root_rounded_up_trains_and_the_square_root_rounded_to_the_nearest_diverges() -> None:
    assert train("square-root-nearest") > 3 * train("fourth-root-up")


def test_a_saved_state_goes_on_and_a_missing_gradient_changes_nothing() -> None:
    optimizer, ours, _ = steps("cpu", torch.float32)
    other = AdamW8bit([nn.Parameter(each.detach().clone()) for each in optimizer.parameters], lr=1.0)
    state = {**optimizer.state_dict(), "param_groups": other.state_dict()["param_groups"]}
    other.load_state_dict(state)
    assert torch.equal(other.m, optimizer.m)
    before = [each.detach().clone() for each in ours]
    for each in ours[1:]:
        each.grad = None
    optimizer.step()
    assert not torch.equal(ours[0], before[0])
    assert all(map(torch.equal, ours[1:], before[1:]))


def test_what_it_cannot_train_is_refused() -> None:
    with pytest.raises(GpuguideError, match="float16"):
        AdamW8bit([nn.Parameter(torch.zeros(3, dtype=torch.float16))])
    with pytest.raises(UnknownName, match="fourth-root-up"):
        AdamW8bit([nn.Parameter(torch.zeros(3))], rounding="fourth-root")  # type: ignore[arg-type]


def test_it_takes_two_bytes_and_a_thirty_second_a_number() -> None:
    optimizer = AdamW8bit([nn.Parameter(torch.zeros(512, 512, dtype=torch.bfloat16))])
    tensors = (optimizer.m, optimizer.v, optimizer.m_scale, optimizer.v_scale)
    assert sum(each.nbytes for each in tensors) == 2.03125 * 512 * 512


# --- the kernel --------------------------------------------------------------------------------------------------


def assert_the_kernel_does_what_pytorch_does(device: str) -> None:
    """Compare states and weights after some steps with those of the plain version on the same gradients."""
    from gpuguide import triton_support

    supported = triton_support.supports_triton
    for dtype in (torch.float32, torch.bfloat16):
        triton_support.supports_triton = (lambda tensor: True) if device == "cpu" else supported
        kernel, ours, theirs = steps(device, dtype)
        assert kernel._kernel is not None
        triton_support.supports_triton = lambda tensor: False
        plain, others, _ = steps(device, dtype)
        triton_support.supports_triton = supported
        torch.testing.assert_close(kernel.m_scale, plain.m_scale, rtol=1e-3, atol=1e-7)
        torch.testing.assert_close(kernel.v_scale, plain.v_scale, rtol=1e-3, atol=1e-7)
        for name in ("m", "v"):  # a number at the edge between two codes may fall to either, and the next steps follow
            off = (getattr(kernel, name).int() - getattr(plain, name).int()).abs()
            assert off.max() <= 3
            assert (off > 0).float().mean() < 0.05
        for one, other, exact in zip(ours, others, theirs, strict=True):
            spacing = 4 * 2**-7 * exact.abs() if dtype == torch.bfloat16 else 0.0
            assert ((one - other).abs() <= 2e-3 + spacing).all()
        if dtype == torch.bfloat16:  # rounded at random, the errors have no bias
            errors = torch.cat([(one.float() - exact).flatten() for one, exact in zip(ours, theirs, strict=True)])
            assert errors.mean().abs() < 5 * errors.std() / len(errors) ** 0.5


def check_kernel() -> None:
    """Run the kernel, interpreted."""
    assert_the_kernel_does_what_pytorch_does("cpu")


@needs_triton
def test_the_kernel_does_what_pytorch_does() -> None:
    interpreted.run(__file__, "check_kernel()")


@pytest.mark.gpu
def test_the_kernel_does_what_pytorch_does_on_a_gpu() -> None:
    assert_the_kernel_does_what_pytorch_does("cuda")

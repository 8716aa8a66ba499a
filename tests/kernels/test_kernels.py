"""Which tensors kernels are for, told without a GPU: PyTorch's fake tensors have a device and a type, and no memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuguide import kernels


@pytest.fixture(autouse=True)
def with_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Say that Triton is installed, as it is not on every system."""
    found = importlib.util.find_spec("torch")
    monkeypatch.setattr(kernels.importlib.util, "find_spec", {"triton": found}.get)
    kernels._has_triton.cache_clear()
    yield
    kernels._has_triton.cache_clear()


def fake(*shape: int, device: str = "cuda", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(shape, device=device, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_numbers_on_a_gpu_are_taken(dtype: torch.dtype) -> None:
    assert kernels.take(fake(2, 3, dtype=dtype))


@pytest.mark.parametrize(
    "tensor",
    [fake(2, 3, device="cpu"), fake(2, 3, dtype=torch.float64), fake(0, 3), fake(2, 0)],
    ids=["on the processor", "float64", "no rows", "no columns"],
)
def test_everything_else_is_for_pytorch(tensor: torch.Tensor) -> None:
    assert not kernels.take(tensor)


def test_nothing_is_taken_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    assert not kernels.take(fake(2, 3))

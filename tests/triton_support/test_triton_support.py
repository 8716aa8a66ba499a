"""Which tensors kernels are for, told without a GPU; and what compiles and interprets kernels is what we take it for.

PyTorch's fake tensors have a device and a type, and no memory.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuguide import triton_support
from gpuguide.errors import GpuguideError
from gpuguide.triton_support import cuda_c, interpreter


@pytest.fixture(autouse=True)
def with_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Say that Triton is installed, as it is not on every system."""
    found = importlib.util.find_spec("torch")
    monkeypatch.setattr(triton_support.importlib.util, "find_spec", {"triton": found}.get)
    triton_support._has_triton.cache_clear()
    yield
    triton_support._has_triton.cache_clear()


def fake(*shape: int, device: str = "cuda", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(shape, device=device, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_numbers_on_a_gpu_are_taken(dtype: torch.dtype) -> None:
    assert triton_support.supports_triton(fake(2, 3, dtype=dtype))


@pytest.mark.parametrize(
    "tensor",
    [fake(2, 3, device="cpu"), fake(2, 3, dtype=torch.float64), fake(0, 3), fake(2, 0)],
    ids=["on the processor", "float64", "no rows", "no columns"],
)
def test_everything_else_is_for_pytorch(tensor: torch.Tensor) -> None:
    assert not triton_support.supports_triton(tensor)


def test_nothing_is_taken_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support.importlib.util, "find_spec", lambda name: None)
    assert not triton_support.supports_triton(fake(2, 3))


# --- CUDA C ----------------------------------------------------------------------------------------------


def test_pytorch_compiles_cuda_c_as_we_ask() -> None:
    assert cuda_c.accepts_source_and_name(torch.cuda._compile_kernel)


@pytest.mark.parametrize("other", [None, lambda source, name: 0, lambda kernel_source, kernel_name, target: 0])
def test_another_way_to_compile_is_said(monkeypatch: pytest.MonkeyPatch, other: object) -> None:
    monkeypatch.setattr(torch.cuda, "_compile_kernel", other)
    with pytest.raises(GpuguideError, match=r"has no torch\.cuda\._compile_kernel\(kernel_source, kernel_name\)"):
        cuda_c.compile_kernel("", "kernel", "no toolkit")


def test_what_compiles_gets_source_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_compile_kernel", lambda kernel_source, kernel_name: (kernel_source, kernel_name))
    assert cuda_c.compile_kernel("source", "kernel", "no toolkit") == ("source", "kernel")


# --- Triton's interpreter --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "interprets", "patched"), [("3.6.0", "1", 1), ("3.6.0", "0", 0), ("3.7.1", "1", 0)]
)
def test_numbers_of_triton_3_6_are_made_integers_by_their_element(
    monkeypatch: pytest.MonkeyPatch, version: str, interprets: str, patched: int
) -> None:
    def as_triton_does(tensor: type, scope: Scope) -> None:
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data))

    class Scope:
        def set_attr(self, thing: type, name: str, value: object) -> None:
            setattr(thing, name, value)

    class Number:
        handle = SimpleNamespace(data=np.array([3]))

    modules = {name: ModuleType(name) for name in ("triton", "triton.runtime", "triton.runtime.interpreter")}
    modules["triton"].__version__ = version
    modules["triton.runtime"].interpreter = modules["triton.runtime.interpreter"]
    modules["triton.runtime.interpreter"]._patch_lang_tensor = as_triton_does
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("TRITON_INTERPRET", interprets)
    for _ in range(2):  # the second time changes nothing
        interpreter.accept_new_numpy()
    found = modules["triton.runtime.interpreter"]._patch_lang_tensor
    assert (found is not as_triton_does) == patched
    found(Number, Scope())
    if patched:
        assert list(range(Number())) == [0, 1, 2]

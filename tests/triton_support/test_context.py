"""A thread is given the context of a GPU once: here with PyTorch's calls replaced by notes, on no GPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuguide.triton_support import context

Notes = list[tuple[str, object]]


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    found: Notes = []
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: found.append(("entered", str(tensor.device))))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: found.append(("asked", device)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return found


def on(device: str) -> torch.Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(2, device=device)


def in_a_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_each_thread_asks_once_for_each_device(notes: Notes) -> None:
    first, second = on("cuda:0"), on("cuda:1")

    def twice_on_each() -> None:
        for tensor in (first, second, first, second):
            context.device_of(tensor)

    for _ in range(2):
        notes.clear()
        in_a_thread(twice_on_each)
        entered = [("entered", "cuda:0"), ("entered", "cuda:1")]
        assert notes == [("asked", 0), entered[0], ("asked", 1), entered[1], *entered]


def test_a_processor_has_no_context(notes: Notes) -> None:
    in_a_thread(lambda: context.device_of(torch.empty(2)))
    assert notes == [("entered", "cpu")]


def test_while_a_graph_is_captured_the_question_alone_is_asked(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: asked.append(True) or True)
    tensor = on("cuda:0")
    in_a_thread(lambda: [context.device_of(tensor), context.device_of(tensor)])
    assert notes == [("entered", "cuda:0")] * 2
    assert asked == [True]


def has_context() -> bool:
    """Return whether this thread has a context, by the driver's own word."""
    found = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(found)) == 0
    return found.value is not None


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True])
def test_a_new_thread_has_a_context_on_a_gpu(captured: bool) -> None:
    tensor, stream, found = torch.ones(2, device="cuda"), torch.cuda.Stream(), []

    def enter() -> None:
        found.append(has_context())
        with torch.cuda.stream(stream), context.device_of(tensor):
            found.append(has_context())

    def use() -> None:
        tensor.mul(2)  # so that a graph holds something
        in_a_thread(enter)

    if captured:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            use()
    else:
        use()
    assert found == [False, True]

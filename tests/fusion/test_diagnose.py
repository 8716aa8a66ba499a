"""Diagnoses: from the model alone, from measurements that are made up, and on a GPU."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest
import torch

from gpuguide.errors import GpuguideError
from gpuguide.fusion import counting, machine, reference
from gpuguide.fusion.cost import Machine, eager_kernels, fuse
from gpuguide.fusion.counting import KernelCount
from gpuguide.fusion.diagnose import CHANGES, diagnose, find_waits, fused_seconds, predict
from gpuguide.fusion.tracing import trace

MACHINE = Machine(launch=8e-6, graph_launch=1e-6, bandwidth=4e12, arithmetic=7e14)
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")


def chain(n: int, device: str = "cpu") -> object:
    """Return a step of 24 small operations."""
    values = [torch.empty(n, device=device) for _ in range(3)]
    return lambda: reference.tanh_chain(*values)


@needs_no_gpu
def test_small_operations_wait_for_launches() -> None:
    found = diagnose(chain(100), MACHINE)  # type: ignore[arg-type]
    assert found.limit == found.limits.name == "launches"
    assert (found.kernels, found.fused_kernels) == (24, 1)
    assert found.seconds == pytest.approx(24 * MACHINE.launch)
    assert found.gain("graph") == pytest.approx(MACHINE.launch / MACHINE.graph_launch)
    assert found.gain("compile + graph") == pytest.approx(24 * 8)
    assert 1 <= found.gain("compile") < found.gain("compile + graph")
    for words in ("launches", "24, fused 1", *CHANGES):
        assert words in str(found)


def test_large_ones_wait_for_memory() -> None:
    traced = trace(chain(2**24, "meta"))  # type: ignore[arg-type]
    found = predict(traced, MACHINE)
    assert found.limit == "bytes"
    assert found.gain("graph") == pytest.approx(1)
    assert found.gain("compile") == pytest.approx(64 / 4)


def test_a_matmul_waits_for_arithmetic_and_gains_nothing() -> None:
    left = torch.empty(512, 512)
    slow = Machine(launch=8e-6, graph_launch=1e-6, bandwidth=4e12, arithmetic=1e11)
    found = predict(trace(lambda: left @ left), slow)
    assert found.limit == "FLOPs"
    assert all(found.gain(change) == pytest.approx(1) for change in CHANGES)


def test_measurements_replace_the_model() -> None:
    """Half of the GPU's time is in a matmul, whose time fusion does not change."""
    x, weight = torch.empty(256, 256), torch.empty(256, 256)
    traced = trace(lambda: torch.relu(torch.tanh(torch.sigmoid(x @ weight))))
    count = KernelCount(
        (3e-3, 1e-3, 1e-3, 1e-3), {("mm",): 3e-3, ("clamp_min", "relu"): 1e-3, ("tanh",): 1e-3, ("sigmoid",): 1e-3}, 4
    )
    fast = Machine(launch=8e-6, graph_launch=1e-9, bandwidth=4e12, arithmetic=7e14)
    found = predict(traced, fast, seconds=6e-3, host_seconds=40e-6, count=count)
    assert found.measured
    assert found.predicted["graph"] == pytest.approx(6e-3, rel=1e-3)
    assert found.predicted["compile"] == found.predicted["compile + graph"] == pytest.approx(3e-3, rel=1e-3)
    idle = predict(traced, fast, seconds=60e-3, host_seconds=60e-3, count=count)
    assert idle.limit == "launches"
    assert idle.gain("graph") == pytest.approx(10, rel=1e-3)


def test_what_pytorch_says_about_its_debug_mode_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(
        torch.cuda,
        "set_sync_debug_mode",
        lambda mode: warnings.warn("a prototype that does not detect all synchronizing operations", stacklevel=1),
    )

    def step() -> None:
        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)

    (wait,) = find_waits(step)
    assert wait.line == f"test_diagnose.py:{step.__code__.co_firstlineno + 1}"


def test_a_step_that_only_copies() -> None:
    """The profiler counts copies apart from kernels."""
    x = torch.empty(8)
    found = predict(trace(x.clone), MACHINE, 1e-5, 8e-6, KernelCount((2e-6,), {("copy_", "clone"): 2e-6}, 0))
    assert found.kernels == 0
    assert found.gain("graph") == pytest.approx(10 / 2.4)


def test_a_conversion_is_found_under_the_name_of_its_kernel() -> None:
    x = torch.empty(8)
    traced = trace(lambda: x.double() * 2)
    count = KernelCount((1e-3, 1e-3), {("copy_", "_to_copy", "to"): 1e-3, ("mul",): 1e-3}, 2)
    before, after = eager_kernels(traced), fuse(traced)
    assert fused_seconds(before, after, MACHINE, 2e-3, count) == pytest.approx(after[0].seconds(MACHINE))


def test_where_the_host_is_ahead_the_step_says_what_kernels_take() -> None:
    """A profiled matmul runs at a higher clock than one that follows many others."""
    left = torch.empty(64, 64)
    traced = trace(lambda: left @ left)
    found = predict(traced, MACHINE, 1.6e-3, 2e-5, KernelCount((1.4e-3,), {("mm",): 1.4e-3}, 1))
    assert found.limit != "launches"
    assert all(found.gain(change) == pytest.approx(1) for change in CHANGES)


def test_compiled_training_launches_no_faster() -> None:
    weight = torch.zeros(8, requires_grad=True)

    def train() -> torch.Tensor:
        return torch.autograd.grad(torch.tanh(weight).sum(), weight)[0]

    traced, forward = trace(train), trace(lambda: torch.tanh(weight.detach()).sum())
    slow = Machine(launch=1e-3, graph_launch=1e-6, bandwidth=4e12, arithmetic=7e14)
    shares = []
    for step in (traced, forward):
        found = predict(step, slow)
        shares.append(found.predicted["compile"] / found.seconds * found.kernels / found.fused_kernels)
    assert shares[0] > 1.2 * shares[1]


def test_heads_that_share_a_key() -> None:
    query, key = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 8, 16)
    attention = torch.nn.functional.scaled_dot_product_attention
    grouped = trace(lambda: attention(query, key, key, enable_gqa=True))
    whole = trace(lambda: attention(query, key.repeat_interleave(2, 1), key.repeat_interleave(2, 1)))
    assert grouped.flops == whole.flops > 0


def test_calls_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first launch and the last wait take, 10 µs each here, is divided by the calls."""
    clock = Clock()
    monkeypatch.setattr(torch.cuda, "Event", clock.event)
    monkeypatch.setattr(torch.cuda, "synchronize", clock.wait)
    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock.now)
    for timer in (machine.gpu_seconds, machine.wall_seconds):
        assert timer(lambda: clock.go(1e-4)) == pytest.approx(1e-4, rel=0.02)


class Clock:
    """A clock that is told how much time goes by. Each event and each wait takes 10 µs."""

    def __init__(self) -> None:
        self.now = 0.0

    def go(self, seconds: float) -> None:
        self.now += seconds

    def wait(self) -> None:
        self.go(10e-6)

    def event(self, enable_timing: bool) -> Any:
        event = types.SimpleNamespace(synchronize=self.wait)

        def record() -> None:
            self.wait()
            event.at = self.now

        event.record = record
        event.elapsed_time = lambda end: (end.at - event.at) * 1e3
        return event


def test_a_step_that_waits() -> None:
    x = torch.rand(8)
    found = predict(trace(lambda: x.sum().item()), MACHINE)
    (wait,) = found.waits
    assert wait.line.startswith("test_diagnose.py:")
    assert wait.line in str(found)


@needs_no_gpu
def test_without_a_gpu() -> None:
    with pytest.raises(GpuguideError, match=r"Machine\("):
        diagnose(chain(4))  # type: ignore[arg-type]
    with pytest.raises(GpuguideError, match="tracing"):
        counting.count_kernels(lambda: None)
    with pytest.raises(GpuguideError, match="no kernel"):
        diagnose(lambda: 1, MACHINE)


@pytest.mark.gpu(alone=True)
def test_on_a_gpu() -> None:
    small = [torch.rand(2**12, device="cuda") for _ in range(3)]
    found = diagnose(lambda: reference.tanh_chain(*small))
    assert found.measured
    assert found.kernels == 24
    assert found.limit == "launches"
    assert found.gain("graph") > 2
    large = [torch.rand(2**26, device="cuda") for _ in range(4)]
    found = diagnose(lambda: reference.add_four(*large))
    assert found.limit == "bytes"
    assert 1.5 < found.gain("compile") < 2


@pytest.mark.gpu
def test_lines_that_wait_on_a_gpu() -> None:
    x = torch.rand(8, device="cuda")

    def step() -> None:
        x.sum().item()
        torch.repeat_interleave(x, torch.ones(8, dtype=torch.int64, device="cuda"))
        x.cpu()

    line = step.__code__.co_firstlineno
    found = {wait.line for wait in diagnose(step).waits}
    assert found == {f"test_diagnose.py:{line + number}" for number in (1, 2, 3)}


@pytest.mark.gpu
def test_masks_that_make_no_wait_on_a_gpu() -> None:
    x = torch.rand(8, device="cuda")

    def step() -> None:
        mask = x > 2
        x[mask] = 0.0
        mask[torch.arange(4, device="cuda")] = mask[4:].clone()
        x.masked_fill_(mask, 1.0)

    assert diagnose(step).waits == ()


@pytest.mark.gpu
def test_a_graph_launches_sooner_than_the_host() -> None:
    measured = machine.measure_machine()
    assert 0 < measured.graph_launch < measured.launch
    assert measured.arithmetic > measured.bandwidth > 0


@pytest.mark.gpu
def test_annotations_are_no_kernels() -> None:
    x = torch.rand(2**20, device="cuda")

    def step() -> None:
        with torch.profiler.record_function("annotated"):
            torch.tanh(x)

    count = counting.count_kernels(step)
    assert count.kernels == len(count.durations) == 1


@pytest.mark.gpu
def test_kernels_are_counted_on_a_gpu() -> None:
    x = torch.rand(2**20, device="cuda")
    count = counting.count_kernels(lambda: torch.tanh(x * 2) + 1)
    assert count.kernels == len(count.durations) == 3
    assert {("mul",), ("tanh",), ("add",)} <= count.by_operation.keys()
    assert sum(count.by_operation.values()) == pytest.approx(count.seconds, rel=0.01)

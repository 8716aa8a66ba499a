"""The four ceilings of a GPU that a diagnosis needs, measured in about half a second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from gpuguide.fusion.cost import Machine

CALLS = 400
"""Launches that are timed together"""
COPIED = 2**28
"""Bytes that are copied, more than any cache holds"""
SIZE = 4096
"""Rows and columns of the matrices"""
ROUNDS = 5


def measure_machine() -> Machine:
    """Return the ceilings of the current GPU and its host. Needs CUDA."""
    small = torch.zeros(256, device="cuda")
    source = torch.empty(COPIED, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    left, right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def launch_many() -> None:
        for _ in range(CALLS):
            small.add_(1)

    graph = capture(launch_many)
    return Machine(
        launch=wall_seconds(launch_many) / CALLS,
        graph_launch=gpu_seconds(graph.replay) / CALLS,
        bandwidth=2 * COPIED / gpu_seconds(lambda: target.copy_(source)),
        arithmetic=2 * SIZE**3 / gpu_seconds(lambda: torch.mm(left, right)),
    )


def capture(step: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return a step as a CUDA graph: three calls on a side stream for what is set up only once, then the capture.

    ``graph.replay()`` takes the step again, with what lies in the same tensors then. Nothing of Python is replayed.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def wall_seconds(step: Callable[[], object]) -> float:
    """Return the median time of a step by the host's clock, the GPU's work included."""
    times = []
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def host_seconds(step: Callable[[], object]) -> float:
    """Return the median time until a step returns, which is what it takes to launch its kernels."""
    times = []
    for _ in range(ROUNDS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(times[1:])


def gpu_seconds(step: Callable[[], object]) -> float:
    """Return the median time of a step between two events on the GPU."""
    times = []
    for _ in range(ROUNDS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times[1:])

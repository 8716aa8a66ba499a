"""The four ceilings of a GPU that a diagnosis needs, measured in about half a second, and timers of a step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from gpuguide.fusion.cost import Machine

LAUNCHES = 400
"""Operations of the step that measures launches"""
COPIED = 2**28
"""Bytes that are read and written, more than any cache holds"""
SIZE = 4096
"""Rows and columns of the matrices"""
SPAN = 4e-3
"""Seconds of calls that are timed together, so that the launch of the first and the wait for the last do not count"""
MOST_CALLS = 20
"""Calls that are timed together, at most"""
ROUNDS = 5
"""Times of which the median is returned"""


def measure_machine() -> Machine:
    """Return the ceilings of the current GPU and its host, for matmuls in bf16. Needs CUDA."""
    small = torch.zeros(256, device="cuda")
    source = torch.rand(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    left, right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def launch_many() -> None:
        for _ in range(LAUNCHES):
            small.add_(1)

    graph = capture(launch_many)
    return Machine(
        launch=wall_seconds(launch_many) / LAUNCHES,
        graph_launch=gpu_seconds(graph.replay) / LAUNCHES,
        bandwidth=2 * COPIED / gpu_seconds(lambda: torch.neg(source, out=target)),  # a copy on an H200 is slower
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
    """Return the median time of a step by the host's clock, the GPU's work included. Calls follow one another."""
    calls = _count_calls(step)

    def span() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return statistics.median(span() for _ in range(ROUNDS)) / calls


def host_seconds(step: Callable[[], object]) -> float:
    """Return the median time until a step returns, which is what it takes to launch its kernels.

    Each call finds the GPU idle: behind many calls, the host would wait for room in the queue of launches.
    """

    def call() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    median = statistics.median([call() for _ in range(ROUNDS + 1)][1:])
    torch.cuda.synchronize()
    return median


def gpu_seconds(step: Callable[[], object]) -> float:
    """Return the median time of a step between two events on the GPU. Calls follow one another."""
    calls = _count_calls(step)

    def span() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            step()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3

    return statistics.median(span() for _ in range(ROUNDS)) / calls


def _count_calls(step: Callable[[], object]) -> int:
    """Return how many calls are timed together, after two calls, of which the first sets up what is set up once."""
    step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return max(1, min(MOST_CALLS, round(SPAN / (time.perf_counter() - start))))

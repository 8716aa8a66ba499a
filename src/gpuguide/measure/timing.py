"""Timers. Each is a function that runs the work and returns the seconds of one call.

Work on a GPU is asynchronous, so the host's clock alone measures nothing. Three methods are used here:

* CUDA events around one call, after the L2 cache was overwritten, as often as it takes the host to launch the call
  twice. So the launches are already waiting when the GPU gets to them, and their cost on the host does not count.
* A CUDA graph of many calls, replayed. For calls under about 100 µs, where events are too coarse.
* The host's clock around synchronised work, where the host's part is what is measured: transfers, launches, CPUs.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]
Sampler = Callable[[], float]

SHORT = 100e-6
"""Seconds below which a call is timed by graph replay."""
FLUSH_BYTES = 256 * 2**20
MOST_FLUSHES = 16
"""Before one call. A call that waits for the GPU takes the host long, and no number of flushes would hide that."""
GRAPH_SECONDS = 2e-3
"""A graph holds enough calls to run about this long, so that starting it costs well under 1 %."""
MAX_GRAPH_CALLS = 2000
WARM_UP_SECONDS = 0.05
WARM_UP_CALLS = 3


def warm_up(call: Call, synchronize: Call) -> float:
    """Call until compilers, caches and clocks have settled; return the seconds of the last call."""
    begun = time.perf_counter()
    calls = 0
    while True:
        start = time.perf_counter()
        call()
        synchronize()
        now = time.perf_counter()
        calls += 1
        if calls >= WARM_UP_CALLS and now - begun >= WARM_UP_SECONDS:
            return now - start


def wall_clock(call: Call, synchronize: Call = lambda: None) -> Sampler:
    """Time by the host's clock: nothing is under way before, and everything is finished after."""

    def sample() -> float:
        synchronize()
        start = time.perf_counter_ns()
        call()
        synchronize()
        return (time.perf_counter_ns() - start) * 1e-9

    return sample


def cuda_events(call: Call, flush: Call = lambda: None) -> Sampler:
    """Time one call on the GPU by events, after ``flush`` (see :func:`flush_while_launching`)."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample() -> float:
        flush()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3

    return sample


def cuda_graph(calls: Sequence[Call], estimate: float) -> Sampler:
    """Time calls by replaying a graph of many of them, taken in turn from ``calls``.

    Parameters
    ----------
    calls : sequence of callables
        The same work on different inputs. With enough of them no input is still in the cache when its turn comes
        again; with a single one the cache stays as warm as the work leaves it.
    estimate : float
        Seconds of one call, to choose how many the graph holds.
    """
    import torch

    wanted = min(MAX_GRAPH_CALLS, max(1, round(GRAPH_SECONDS / estimate)))
    rounds = -(-wanted // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()
    replay = cuda_events(graph.replay)
    return lambda: replay() / (rounds * len(calls))


def on_side_stream(call: Call) -> None:
    """Call on another stream than the default one, as PyTorch asks before a graph is captured.

    What autograd and libraries set up on their first calls there must not fall into the capture.
    """
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()


def graph_estimate(call: Call) -> float:
    """Return roughly the seconds one call takes on the GPU, without what launching it costs the host."""
    return cuda_graph([call] * 20, GRAPH_SECONDS)()


@functools.cache
def cache_flusher(device: str) -> Call:
    """Return a function that overwrites a buffer larger than any L2 cache (the largest today holds 126 MB)."""
    import torch

    buffer: torch.Tensor = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
    return buffer.zero_


def flush_while_launching(call: Call, device: str) -> Call:
    """Return a function that overwrites the cache for at least twice as long as the host takes to launch ``call``."""
    import torch

    flush = cache_flusher(device)
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    launching = time.perf_counter() - start
    flushing = min(cuda_events(flush)() for _ in range(WARM_UP_CALLS))
    count = flushes(launching, flushing)

    def flush_often() -> None:
        for _ in range(count):
            flush()

    return flush_often


def flushes(launching: float, flushing: float) -> int:
    """Return how often the cache is overwritten, in ``flushing`` seconds, while a call is launched twice.

    >>> flushes(launching=20e-6, flushing=90e-6), flushes(launching=150e-6, flushing=90e-6)
    (1, 4)
    """
    return min(MOST_FLUSHES, max(1, math.ceil(2 * launching / flushing)))

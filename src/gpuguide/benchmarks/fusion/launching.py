"""Timers of whole steps: as the host launches them, and in a CUDA graph that owns its memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from gpuguide.measure import timing
from gpuguide.measure.timing import Sampler
from gpuguide.triton_support.graphs import workspace_of_its_own

Step = Callable[[], object]
AT_ONCE = 2e-3
"""Seconds of calls that are timed together, so that the one wait at their end does not count"""
MOST_CALLS = 100


def launched_by_host(step: Step) -> Sampler:
    """Return a timer of calls one after the other, as a program makes them: the host's time counts where it is longer.

    What the calls need to wait for, they wait for. The timer waits once, after the last call.
    """
    seconds = timing.warm_up(step, torch.cuda.synchronize)
    calls = max(1, min(MOST_CALLS, round(AT_ONCE / seconds)))

    def sample() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / calls

    return sample


def in_graph(step: Step) -> Sampler:
    """Return a timer of a step's replays."""
    seconds = timing.warm_up(step, torch.cuda.synchronize)
    timing.on_side_stream(step)
    with workspace_of_its_own():
        short = seconds < 100 * timing.SHORT  # the host's launches may be most of it
        return timing.cuda_graph([step], timing.graph_estimate(step) if short else seconds)


def mark_steps(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that tells the compiler's own graphs where a step begins, so that results may be written over.

    Source: PyTorch, "torch.compiler.cudagraph_mark_step_begin".
    """

    def marked(*arguments: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return function(*arguments)

    return marked

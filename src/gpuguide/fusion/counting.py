"""Kernels that a call starts on a GPU, and the time that each takes, by PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gpuguide.errors import GpuguideError

NOT_KERNELS = ("Memcpy", "Memset")
"""Beginnings of the names of copies and fills, which the profiler lists with kernels"""

NOT_OPERATIONS = ("Activity Buffer Request",)
"""Names of the profiler's own work, to which it credits a kernel a second time"""


@dataclass(frozen=True)
class KernelCount:
    """Kernels of a call."""

    durations: tuple[float, ...]
    """Seconds that each kernel runs, and each copy within the GPU, in the order of their starts"""
    by_operation: Mapping[tuple[str, ...], float]
    """Seconds of kernels by the operations that started them, the innermost first, each without its namespace.

    ``relu`` starts its kernel by another operation, so that the profiler has ``("clamp_min", "relu")``."""
    kernels: int
    """Kernels alone"""

    @property
    def seconds(self) -> float:
        """Seconds in which the GPU computes or copies, if nothing overlaps."""
        return sum(self.durations)


def names_of(event: Any) -> Iterator[str]:
    """Yield the name of an operation, and of those that it is a part of."""
    while event is not None:
        yield event.name.rpartition("::")[2]
        event = event.cpu_parent


def is_operation(event: Any) -> bool:
    """Tell whether an event is an operation on the host, which may have started kernels."""
    return event.device_type.name == "CPU" and event.name not in NOT_OPERATIONS


def count_kernels(call: Callable[[], object]) -> KernelCount:
    """Return the kernels that a call starts.

    Parameters
    ----------
    call : callable
        Takes no argument. It runs twice: the first call of a function may start further kernels.

    Raises
    ------
    GpuguideError
        If there is no CUDA GPU, or the profiler sees no kernel of a call.
    """
    if not torch.cuda.is_available():
        raise GpuguideError(
            "Counting kernels needs a CUDA GPU. On a CPU, gpuguide.fusion.tracing.trace lists the operations of a "
            "step, most of which are one kernel each."
        )
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiled:
        call()
        torch.cuda.synchronize()
    events = [event for event in profiled.events() if not event.is_user_annotation]  # such as Optimizer.step
    on_gpu = sorted(
        (event for event in events if event.device_type.name == "CUDA"),
        key=lambda event: event.time_range.start,
    )
    if not on_gpu:
        raise GpuguideError("The profiler saw no kernel: the step does no work on the GPU, or CUPTI is not available.")
    by_operation: dict[tuple[str, ...], float] = {}
    for event in events:
        for kernel in event.kernels if is_operation(event) else ():
            names = tuple(names_of(event))
            by_operation[names] = by_operation.get(names, 0.0) + kernel.duration * 1e-6
    return KernelCount(
        tuple(event.time_range.elapsed_us() * 1e-6 for event in on_gpu),
        by_operation,
        sum(not event.name.startswith(NOT_KERNELS) for event in on_gpu),
    )

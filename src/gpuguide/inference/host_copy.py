"""Asynchronous copies between host and device: tokens reach the host while the device computes the next step.

The host could read a step's tokens only by waiting for the step, and the device would then wait for the host. So tokens
are copied to pinned memory, which the device writes by itself, and an event is recorded after the copy. By the time the
host waits for the event, the next step is already running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Clock:
    """The host's clock; a test may replace it."""

    now: Callable[[], float] = time.perf_counter
    """Function that returns seconds since any moment"""
    wait: Callable[[float], None] = time.sleep
    """Function that sleeps for some seconds"""


class DeviceEvent:
    """A point in the device's work: a CUDA event on a GPU, elsewhere the clock's time."""

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self.event: torch.cuda.Event | None = None
        self.time = clock.now()
        if device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record()

    def wait(self) -> None:
        """Wait until the device has reached the event."""
        if self.event is not None:
            self.event.synchronize()

    def seconds_since(self, earlier: DeviceEvent) -> float:
        """Return the seconds from an earlier event to this one; the device has reached both."""
        if self.event is None or earlier.event is None:
            return self.time - earlier.time
        return earlier.event.elapsed_time(self.event) / 1000


class HostCopy:
    """An asynchronous copy of numbers from a device to the host.

    Parameters
    ----------
    numbers : torch.Tensor
        ``(count,)``, int64, on the device. They may be overwritten once this has returned.
    clock : Clock
        Clock for what does not run on a GPU.
    """

    def __init__(self, numbers: torch.Tensor, clock: Clock) -> None:
        self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=numbers.is_cuda)
        self._host.copy_(numbers, non_blocking=True)
        self.event = DeviceEvent(clock, numbers.device)
        """Event after the copy"""

    def wait(self) -> list[int]:
        """Wait for the copy and return the numbers."""
        self.event.wait()
        numbers: list[int] = self._host.tolist()
        return numbers


def copy_to_device(numbers: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Return rows of whole numbers as one tensor on a device, int64, without waiting for it."""
    pinned = torch.tensor(numbers, dtype=torch.int64, pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)

"""Between host and device without waiting: numbers go there in one copy, and tokens come back while the next step runs.

The host could read a step's tokens only by waiting for the step, and the device would then wait for the host. So they
are copied to pinned memory, which the device can write by itself, with an event behind the copy. By the time the host
looks at them, the next step is already running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gpuguide.inference.serving.requests import Text


@dataclass(frozen=True)
class Clock:
    """What the scheduler knows of time; a test may give another."""

    now: Callable[[], float] = time.perf_counter
    """Returns seconds since any moment"""
    wait: Callable[[float], None] = time.sleep
    """Takes seconds"""


class Mark:
    """A point in the device's work: on a GPU an event, elsewhere what the clock says."""

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self.event: torch.cuda.Event | None = None
        self.time = clock.now()
        if device.type == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record()

    def wait(self) -> None:
        """Wait until the device is there."""
        if self.event is not None:
            self.event.synchronize()

    def since(self, earlier: Mark) -> float:
        """Return the seconds from an earlier mark to this one, both of which the device has passed."""
        if self.event is None or earlier.event is None:
            return self.time - earlier.time
        return earlier.event.elapsed_time(self.event) / 1000


class Delivery:
    """Tokens on their way to the host.

    Parameters
    ----------
    tokens : torch.Tensor
        ``(count,)``, int64, on the device. They may be overwritten once this has returned.
    texts : sequence of Text
        Whose they are.
    places : sequence of int
        Where the token of each text stands among them.
    clock : Clock
        Times what runs on no GPU.
    """

    def __init__(self, tokens: torch.Tensor, texts: Sequence[Text], places: Sequence[int], clock: Clock) -> None:
        self.texts = texts
        self.places = places
        self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=tokens.is_cuda)
        self._host.copy_(tokens, non_blocking=True)
        self.mark = Mark(clock, tokens.device)

    def tokens(self) -> list[int]:
        """Wait for the tokens and return them, one for each text."""
        self.mark.wait()
        arrived: list[int] = self._host.tolist()
        return [arrived[place] for place in self.places]


def upload(numbers: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Return rows of whole numbers as one tensor on a device, int64, without waiting for it."""
    pinned = torch.tensor(numbers, dtype=torch.int64, pin_memory=device.type == "cuda")
    return pinned.to(device, non_blocking=True)

"""Simulated serving: the scheduler decides as always, and no model is computed.

A :class:`SimulatedEngine` takes the place of an engine. Its decode steps and prefills take times that are given to it,
for example measured ones, and the clock of a :class:`SimulatedScheduler` jumps to the end of each. So a queue of
hundreds of requests is served in a second on a CPU, with the latencies that the scheduler would give them on a device
with those times. The host's own work takes no time.

>>> from gpuguide.inference.serving import Request
>>> engine = SimulatedEngine(rows=2, capacity=64, step_time=lambda rows: 0.01, prefill_time=lambda tokens: 0.02)
>>> scheduler = SimulatedScheduler(engine)
>>> texts = scheduler.run([Request([0] * 8, new_tokens=4), Request([0] * 8, new_tokens=2, arrival=0.015)])
>>> [round(text.time_to_first_token, 3) for text in scheduler.texts.values()]
[0.02, 0.035]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import torch

from gpuguide.errors import GpuguideError
from gpuguide.inference.cache import NOBODY, Cache, pages_for
from gpuguide.inference.decoder import Decoder
from gpuguide.inference.engine import Engine
from gpuguide.inference.host_copy import Clock, DeviceEvent
from gpuguide.inference.serving.prefill_chunks import ChunkGroup
from gpuguide.inference.serving.scheduler import CHUNK, Scheduler, TokenCopy, UnderWay


class SimulatedTime:
    """Time of a host, and of a device that works off what it is given, one piece after another."""

    def __init__(self) -> None:
        self.host = 0.0
        self.device = 0.0

    def run_on_device(self, seconds: float) -> None:
        """Give the device work: it begins when all earlier work is done, at once if it is idle."""
        self.device = max(self.device, self.host) + seconds

    def wait(self, seconds: float) -> None:
        """Let time pass on the host."""
        self.host += max(seconds, 0.0)


class SimulatedEngine(Engine):
    """An engine without a model, for a :class:`SimulatedScheduler`. Every token that it generates is 0.

    Parameters
    ----------
    rows : int
        Requests at a time.
    capacity : int
        Tokens that a prompt and its text can have together.
    step_time : callable
        Returns the seconds of a decode step with so many rows.
    prefill_time : callable
        Returns the seconds of a prefill of so many tokens, padding included.
    pages : int, optional
        Pages of the KV cache; by default enough for all rows at full length.

    Raises
    ------
    GpuguideError
        If a number is below 1.
    """

    def __init__(
        self,
        rows: int,
        capacity: int,
        *,
        step_time: Callable[[int], float],
        prefill_time: Callable[[int], float],
        pages: int | None = None,
    ) -> None:
        for name, given in (("rows", rows), ("capacity", capacity), ("pages", 1 if pages is None else pages)):
            if given < 1:
                raise GpuguideError(f"An engine with {name} = {given} serves nobody; give at least 1.")
        width = pages_for(capacity)
        keys = torch.empty(0, 1 + (rows * width if pages is None else pages), 0, 0, 0)
        self.cache = Cache(keys, keys, torch.full((rows, width), NOBODY, dtype=torch.int32))
        shape = SimpleNamespace(vocab=sys.maxsize)  # any token may stand in a prompt
        self.decoder = cast(Decoder, SimpleNamespace(device=torch.device("cpu"), shape=shape))
        self.rows, self.capacity = rows, capacity
        self.tokens, self.lengths, self.seeds = torch.zeros(3, rows, dtype=torch.int64).unbind()
        self.writing = torch.zeros(rows, dtype=torch.bool)
        self.step_time, self.prefill_time = step_time, prefill_time
        self.time = SimulatedTime()
        self.begun: list[float] = []
        """When the device has the first tokens of each group of prompts"""

    def read(self, pieces: Sequence[Sequence[int]], rows: torch.Tensor, start: int) -> torch.Tensor:
        """Let the time of a prefill pass."""
        self.time.run_on_device(self.prefill_time(len(pieces) * max(map(len, pieces))))
        return torch.empty(len(pieces), 0)

    def choose(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return token 0 for each row."""
        return torch.zeros(len(rows), dtype=torch.int64)

    def begin(
        self,
        rows: torch.Tensor,
        lengths: Sequence[int] | torch.Tensor,
        logits: torch.Tensor,
        seeds: Sequence[int] | torch.Tensor,
    ) -> torch.Tensor:
        """Return the first token of each row."""
        self.begun.append(self.time.device)
        return self.choose(logits, rows)

    def step(self, rows: int | None = None) -> torch.Tensor:
        """Let the time of a decode step pass."""
        count = self.rows if rows is None else rows
        self.time.run_on_device(self.step_time(count))
        return self.tokens[:count]


class SimulatedScheduler(Scheduler):
    """A scheduler in simulated time. A token reaches the host when the device has computed it.

    Parameters
    ----------
    engine : SimulatedEngine
        Engine whose time it keeps.
    policy, chunk, latency_target, share
        As in :class:`~gpuguide.inference.serving.Scheduler`, and the errors too.
    """

    def __init__(
        self,
        engine: SimulatedEngine,
        *,
        policy: str = "continuous",
        chunk: int = CHUNK,
        latency_target: float | None = None,
        share: bool = True,
    ) -> None:
        self.time = engine.time
        self.begun = engine.begun
        clock = Clock(now=lambda: self.time.host, wait=self.time.wait)
        super().__init__(engine, policy=policy, chunk=chunk, latency_target=latency_target, share=share, clock=clock)

    def _read(self, groups: Sequence[ChunkGroup]) -> list[TokenCopy]:
        self.begun.clear()
        first = super()._read(groups)
        for copy, done in zip(first, self.begun, strict=True):
            copy.event.time = done
        return first

    def _write(self, began: DeviceEvent, read: int) -> UnderWay | None:
        under_way = super()._write(began, read)
        if under_way is not None:
            under_way.copy.event.time = self.time.device
        return under_way

    def _take(self, copy: TokenCopy) -> list[tuple[int, int]]:
        self.time.wait(copy.event.time - self.time.host)
        return super()._take(copy)

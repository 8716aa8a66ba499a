"""A driver that is made up, for benchmarks that watch a GPU: this machine's processor passes for one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_nvml import FakeNvml

from gpuguide.hardware.device import Device
from gpuguide.measure import runner


class Event:
    """A mark in the queue of a GPU that does everything at once: the moment at which it was made."""

    clock = staticmethod(time.perf_counter)

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = self.clock()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: Event) -> float:
        return 1e3 * (later.at - self.at)


class Clock:
    """A clock that goes on only when it is told to, so that nothing depends on how fast this machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """Return the time in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Go on."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let marks in the queue be made by a clock that goes on only when it is told to."""
    made = Clock()
    monkeypatch.setattr(Event, "clock", staticmethod(made.perf_counter))
    return made


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Pretend that this machine's processor is the second GPU of a driver."""
    driver = FakeNvml(2)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    pretended: dict[str, Callable[..., Any]] = {
        "Event": Event,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device: None,
        "max_memory_allocated": lambda device: 7.0,
        "max_memory_reserved": lambda device: 8.0,
        "_sleep": lambda cycles: None,
        "memory_allocated": lambda device: 3.0,
        "memory_reserved": lambda device: 5.0,
        "get_device_properties": lambda device: SimpleNamespace(uuid=driver.nvmlDeviceGetUUID(1).removeprefix("GPU-")),
    }
    for name, function in pretended.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(runner.case, "release_memory", lambda device: None)
    return driver


@pytest.fixture
def pretended_gpu() -> Device:
    """Return a GPU by name that is this machine's processor."""
    return Device("A processor", "cuda", "cpu", 2**40, 0, (9, 0), frozenset({"bf16"}))

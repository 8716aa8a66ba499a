"""A made-up NVML in place of the driver's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import FakeNvml

from gpuguide.hardware import monitor
from gpuguide.hardware.quantities import QUANTITIES

NVML_ONLY = set(QUANTITIES) - {"allocated", "reserved", "done"}
Install = Callable[..., FakeNvml]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a made-up NVML, and see that everything that was opened is closed."""
    monkeypatch.delenv(monitor.VISIBLE_VARIABLE, raising=False)
    idle = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", idle)  # type: ignore[arg-type]
    made: list[FakeNvml] = []

    def install(*arguments: Any, **named: Any) -> FakeNvml:
        made.append(FakeNvml(*arguments, **named))
        monkeypatch.setitem(sys.modules, "pynvml", made[-1])
        return made[-1]

    yield install
    assert [each.open for each in made] == [0] * len(made)
    assert [each.looks for each in made] == [[]] * len(made)
    assert not [thread for thread in threading.enumerate() if thread.name == "gpuguide-watch"]

"""Running benchmarks as the command line would, on a made-up processor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuguide.hardware.device import Device
from gpuguide.measure import runner
from gpuguide.measure.benchmark import Benchmark
from gpuguide.measure.runner import RunOutcome

COMMIT = "c0ffee"


@pytest.fixture
def measure(tmp_path: Path, processor: Device) -> Callable[..., RunOutcome]:
    """Run benchmarks on a made-up processor, as the command line would."""

    def run(*benchmarks: Benchmark, folder: Path | None = tmp_path, device: Device = processor, **options: Any) -> Any:
        return runner.run(benchmarks, device, folder, **{"commit": COMMIT, **options})

    return run


@pytest.fixture(autouse=True)
def fast_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the garbage collection after each case, which takes longer than everything else here."""
    monkeypatch.setattr(runner.case, "release_memory", lambda device: None)

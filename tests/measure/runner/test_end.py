"""A benchmark is told once that nothing more is asked of it, however that came about."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import fails, stored

from gpuguide.errors import GpuguideError
from gpuguide.measure.benchmark import Benchmark

pytestmark = pytest.mark.usefixtures("known_code")


def noting(
    steps: list[str], scripted: Any, name: str = "scripted", at: Callable[[str], None] = lambda step: None
) -> Benchmark:
    """Return a benchmark that notes its steps, its end among them, in a list that it may share with another."""
    bench = scripted(name, at=at)
    bench.steps = steps
    made: Benchmark = replace(bench.benchmark, end=lambda: steps.append(f"end {name}"))
    return made


def test_it_ends_before_the_next_benchmark_begins(measure: Any, scripted: Any) -> None:
    steps: list[str] = []
    measure(noting(steps, scripted, "first"), noting(steps, scripted, "second"))
    middle = steps.index("end first")
    assert steps[middle - 1].startswith("sample slow 3")
    assert steps[middle + 1] == "build fast 1"
    assert [step for step in steps if step.startswith("end")] == ["end first", "end second"]
    assert steps[-1] == "end second"


def test_its_last_case_is_stored_by_then(measure: Any, scripted: Any, tmp_path: Path) -> None:
    held: list[int] = []
    declared = replace(scripted().benchmark, end=lambda: held.append(len(stored(tmp_path).cases)))
    measure(declared)
    assert held == [6]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_stopped_at_any_point_it_ends_once_and_the_next_one_does_not_begin(
    measure: Any, scripted: Any, error: type[BaseException]
) -> None:
    whole: list[str] = []
    measure(noting(whole, scripted), folder=None, quick=True)
    assert whole.count("end scripted") == 1
    for last in range(len(whole) - 1):
        steps: list[str] = []

        def deadly(step: str, steps: list[str] = steps, last: int = last) -> None:
            if len(steps) == last:
                raise error

        both = (noting(steps, scripted, at=deadly), noting(steps, scripted, "second"))
        with pytest.raises(error):
            measure(*both, folder=None, quick=True)
        assert steps == [*whole[:last], "end scripted"]


def test_it_ends_when_the_progress_cannot_be_shown(measure: Any, scripted: Any) -> None:
    def broken_pipe(progress: object) -> None:
        raise BrokenPipeError

    steps: list[str] = []
    with pytest.raises(BrokenPipeError):
        measure(noting(steps, scripted), report=broken_pipe)
    assert steps.count("end scripted") == 1
    assert steps[-1] == "end scripted"


@pytest.mark.parametrize("step", ["build", "check", "sample"])
def test_it_ends_when_the_gpu_has_failed(measure: Any, scripted: Any, step: str) -> None:
    steps: list[str] = []
    lost = fails(f"{step} fast 2", RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(GpuguideError, match="left the GPU in an error state"):
        measure(noting(steps, scripted, at=lost))
    assert steps[-1] == "end scripted"
    assert steps.count("end scripted") == 1


@pytest.mark.parametrize("step", ["build", "check", "sample"])
def test_a_contender_that_fails_ends_nothing_before_the_last_case(measure: Any, scripted: Any, step: str) -> None:
    steps: list[str] = []
    outcome = measure(noting(steps, scripted, at=fails(f"{step} fast 2", ValueError("made up"))))
    assert outcome.measured == 3
    assert steps.index("end scripted") == len(steps) - 1


def test_it_ends_when_the_time_is_over(measure: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count()
    monkeypatch.setattr("gpuguide.measure.runner.session.time.monotonic", lambda: float(next(now)))
    steps: list[str] = []
    outcome = measure(noting(steps, scripted), time_limit=5)
    assert outcome.not_reached > 0
    assert steps[0] == "build fast 1"
    assert steps.index("end scripted") == len(steps) - 1


def test_a_second_run_that_measures_nothing_ends_nothing(measure: Any, scripted: Any) -> None:
    measure(noting([], scripted))
    steps: list[str] = []
    measure(noting(steps, scripted))
    assert steps == []


@pytest.fixture
def waiting() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that wait for ever, as those of a benchmark do between two cases."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_process_that_outlives_a_case_is_gone_after_ctrl_c(
    measure: Any, scripted: Any, waiting: list[subprocess.Popen[bytes]]
) -> None:
    def end() -> None:
        for process in waiting:
            process.terminate()
            process.wait()

    def at(step: str) -> None:
        if not waiting:
            waiting.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        if step == "sample slow 2":
            assert waiting[0].poll() is None  # one case is over, and it is still there
            raise KeyboardInterrupt

    declared: Benchmark = replace(scripted(at=at).benchmark, end=end)
    with pytest.raises(KeyboardInterrupt):
        measure(declared)
    assert [process.poll() is not None for process in waiting] == [True]

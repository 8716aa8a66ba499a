from __future__ import annotations

import contextlib
import errno
import getpass
import json
import math
import multiprocessing
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure import digest, records, runner, store, timing
from gpuguide.measure.benchmark import Benchmark, Contender, Work
from gpuguide.measure.records import DamagedRecord, Record
from gpuguide.measure.runner import Outcome, Progress

pytestmark = pytest.mark.usefixtures("known_code")
COMMIT = "c0ffee"


@pytest.fixture
def measure(tmp_path: Path, processor: Device) -> Callable[..., Outcome]:
    """Run benchmarks on a made-up processor, as the command line would."""

    def run(*benchmarks: Benchmark, folder: Path | None = tmp_path, device: Device = processor, **options: Any) -> Any:
        return runner.run(benchmarks, device, folder, **{"commit": COMMIT, **options})

    return run


def stored(folder: Path, name: str = "scripted", device: str = "cpu") -> Record:
    return records.read(folder / device / f"{name}.json")


def statuses(record: Record) -> dict[tuple[Any, str], tuple[str, str]]:
    return {(case.keys["size"], case.contender): (case.status, case.reason) for case in record.cases}


# --- what is measured, and in which order ----------------------------------------------------------------


def test_every_case_of_every_contender_is_stored_in_the_declared_order(
    measure: Any, scripted: Any, tmp_path: Path
) -> None:
    outcome = measure(scripted(sizes=(3, 1, 2)).benchmark)
    record = stored(tmp_path)
    assert [(c.keys["size"], c.contender) for c in record.cases] == [
        (size, contender) for size in (3, 1, 2) for contender in ("fast", "slow")
    ]
    assert {case.status for case in record.cases} == {"ok"}
    assert {case.correct for case in record.cases} == {"yes"}
    assert (outcome.measured, outcome.already_fresh, outcome.not_reached) == (3, 0, 0)
    assert outcome.records == (record,)
    assert not record.stale


def test_contenders_take_turns(measure: Any, scripted: Any) -> None:
    bench = scripted(sizes=(1,), contenders=("a", "b", "c"), samples=20)
    measure(bench.benchmark)
    sampled = [step.split()[1] for step in bench.steps if step.startswith("sample")]
    assert sampled == (["a"] * 5 + ["b"] * 5 + ["c"] * 5) * 4


def test_slow_contenders_take_turns_too(measure: Any, scripted: Any) -> None:
    bench = scripted(sizes=(1,), contenders=("a", "b"), samples=None, seconds=lambda contender, size: 2.0)
    measure(bench.benchmark)
    sampled = [step.split()[1] for step in bench.steps if step.startswith("sample")]
    assert sampled.count("a") == sampled.count("b") == 5
    assert "".join(sampled) == "ababab" + "aabb"


@pytest.mark.parametrize(
    ("seconds", "n"), [(2.0, 5), (1.0, 5), (0.97, 20), (0.05, 20), (0.002, 49), (1e-6, 100)], ids=str
)
def test_the_number_of_samples_follows_the_time_of_a_call(
    measure: Any, scripted: Any, tmp_path: Path, seconds: float, n: int
) -> None:
    """At least 20 below one second and at least 5 above; more where the budget of a tenth of a second allows."""
    bench = scripted(sizes=(1,), samples=None, budget=0.1, seconds=lambda contender, size: seconds)
    measure(replace(bench.benchmark))
    assert {case.measured["time"].summary.n for case in stored(tmp_path).cases} == {n}


def test_everything_is_checked_before_anything_is_timed(measure: Any, scripted: Any) -> None:
    bench = scripted(sizes=(1,))
    measure(bench.benchmark)
    kinds = [step.split()[0] for step in bench.steps]
    assert kinds[:4] == ["build", "check", "build", "check"]
    assert set(kinds[4:]) == {"sample"}


def test_samples_of_settling_are_not_stored(
    measure: Any, tmp_path: Path, processor: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of a plain call begins with calls that do not count."""
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.0)
    calls: list[float] = []
    benchmark = Benchmark(
        name="settling",
        title="",
        question="",
        contenders={"plain": Contender(lambda device, keys: Work([lambda: calls.append(0.0)]))},
        cases=lambda device: [{}],
        settle=0.002,
        samples=20,
    )
    measure(benchmark)
    n = stored(tmp_path, "settling").cases[0].measured["time"].summary.n
    assert n == 20
    assert len(calls) >= n + timing.WARM_UP_CALLS + runner.case.TURNS


def test_a_call_longer_than_the_settling_time_is_made_once() -> None:
    calls = []
    runner.case.settle(lambda: calls.append(time.sleep(0.002)) or 0.002, 0.001)
    assert len(calls) == 1


def test_every_contender_gets_the_same_random_numbers(measure: Any) -> None:
    drawn: list[float] = []

    def build(device: Device, keys: Any) -> Work:
        drawn.append(float(torch.rand(())))
        return Work([lambda: None], sample=lambda: 1e-3)

    contenders = {"one": Contender(build), "other": Contender(build)}
    measure(Benchmark("random", "", "", contenders, lambda device: [{"size": 1}, {"size": 2}], samples=5))
    assert len(drawn) == 4
    assert len(set(drawn)) == 1


def test_progress_counts_all_benchmarks(measure: Any, scripted: Any) -> None:
    seen: list[Progress] = []
    measure(scripted("one", sizes=(1, 2)).benchmark, scripted("two", sizes=(1,)).benchmark, report=seen.append)
    assert [(p.benchmark, p.case, p.done, p.total) for p in seen] == [
        ("one", "size=1", 1, 3),
        ("one", "size=2", 2, 3),
        ("two", "size=1", 3, 3),
    ]
    assert all(progress.seconds_left >= 0 for progress in seen)
    assert seen[-1].seconds_left == 0
    assert [case.contender for case in seen[0].results] == ["fast", "slow"]


def test_further_quantities_are_asked_for_after_the_last_sample(measure: Any, scripted: Any, tmp_path: Path) -> None:
    bench = scripted(sizes=(1,), further=lambda: {"peak_memory": records.metric("B", [4096])})
    measure(bench.benchmark)
    assert stored(tmp_path).case("fast").metrics["peak_memory"].summary.median == 4096


# --- interruptions ---------------------------------------------------------------------------------------

LEFT_OVER = ".*.tmp"


class Killer:
    """Raises at the ``at``-th step of anything; counts the steps."""

    def __init__(self, at: float, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.at, self.error, self.steps = at, error, 0

    def __call__(self, step: object) -> None:
        self.steps += 1
        if self.steps == self.at:
            raise self.error


@pytest.fixture(autouse=True)
def fast_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the garbage collection after each case, which takes longer than everything else here."""
    monkeypatch.setattr(runner.case, "release_memory", lambda device: None)


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Killer], None]]:
    """Let a killer also see every step of writing a record: before and after it has happened."""
    current: list[Killer] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            step(f"before {function.__name__}")
            result = function(*arguments, **options)
            step(f"after {function.__name__}")
            return result

        return call

    def step(name: str) -> None:
        for one in current:
            one(name)

    monkeypatch.setattr(os, "fsync", watched(os.fsync))
    monkeypatch.setattr(os, "replace", watched(os.replace))
    monkeypatch.setattr(records.writing, "to_json", watched(records.to_json))

    def use(one: Killer) -> None:
        current[:] = [one]

    yield use
    current.clear()


SIZES = (1, 2, 3)


def interruptible(scripted: Any, killer: Killer) -> list[Any]:
    return [
        scripted("scripted", SIZES, at=killer, samples=5),
        scripted("second", SIZES[:1], contenders=("only",), at=killer, samples=5),
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_killed_at_any_point_and_resumed_nothing_is_lost_or_doubled(
    measure: Any, scripted: Any, tmp_path: Path, killer: Any, facts_of: Any, error: type[BaseException]
) -> None:
    """Kill at every single point once, and go on; then kill again and again until a run comes through."""
    never = Killer(math.inf)
    killer(never)
    benches = interruptible(scripted, never)
    measure(*(bench.benchmark for bench in benches), folder=tmp_path / "whole", report=never)
    whole = {bench.benchmark.name: stored(tmp_path / "whole", bench.benchmark.name) for bench in benches}
    chance = random.Random(0)
    kills = 0
    for first in range(1, never.steps + 1):
        folder = tmp_path / str(first)
        at = first
        while True:
            deadly = Killer(at, error)
            killer(deadly)
            benches = interruptible(scripted, deadly)
            finished = finished_cases(folder)
            try:
                measure(*(bench.benchmark for bench in benches), folder=folder, report=deadly)
            except error:
                kills += 1
                at = chance.randint(1, 2 * never.steps)
            else:
                break
            finally:
                assert not list(folder.glob(f"**/{LEFT_OVER}"))
                assert finished <= finished_cases(folder)  # nothing is lost
                asked = {step.partition(" ")[2] for bench in benches for step in bench.steps}
                assert not {f"{c} {size}" for _, c, size in finished} & asked  # and nothing is measured twice
        for name, expected in whole.items():
            record = stored(folder, name)
            assert facts_of(record) == facts_of(expected)
            assert {case.run for case in record.cases} == set(range(len(record.runs)))
            assert not record.stale
    assert never.steps > 60
    assert kills >= 100


def finished_cases(folder: Path) -> set[tuple[str, str, Any]]:
    """Return what the files hold. Reading checks them: no reader ever sees half a file."""
    found = [records.read(path) for path in folder.glob("*/*.json")]
    return {(record.benchmark, case.contender, case.keys["size"]) for record in found for case in record.cases}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_killed_by_the_system_and_resumed(measure: Any, scripted: Any, tmp_path: Path, facts_of: Any) -> None:
    """SIGKILL runs no ``finally``: what counts then is that a record is renamed into place when it is whole."""
    sizes = range(1, 41)
    measure(scripted(sizes=sizes).benchmark, folder=tmp_path / "whole")
    processes = multiprocessing.get_context("fork")
    chance = random.Random(0)
    kills = 0
    for _ in range(200):
        process = processes.Process(target=measure, args=(scripted(sizes=sizes).benchmark,))
        process.start()
        process.join(chance.uniform(0.005, 0.03) if kills < 12 else None)
        if not process.is_alive():
            break
        before = finished_cases(tmp_path)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        kills += 1
        assert before <= finished_cases(tmp_path)
    assert process.exitcode == 0
    assert kills >= 3
    assert facts_of(stored(tmp_path)) == facts_of(stored(tmp_path / "whole"))


def test_a_run_that_is_resumed_keeps_what_was_measured_and_when(measure: Any, scripted: Any, tmp_path: Path) -> None:
    bench = scripted(at=Killer(25))
    with pytest.raises(KeyboardInterrupt):
        measure(bench.benchmark, commit="first")
    early = stored(tmp_path)
    assert [run.commit for run in early.runs] == ["first"]
    measure(scripted().benchmark, commit="second")
    record = stored(tmp_path)
    assert [run.commit for run in record.runs] == ["first", "second"]
    assert record.cases[: len(early.cases)] == early.cases
    assert {case.run for case in record.cases[len(early.cases) :]} == {1}


def test_a_finished_record_is_not_touched(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(scripted().benchmark)
    before = (tmp_path / "cpu" / "scripted.json").read_bytes()
    bench = scripted()
    outcome = measure(bench.benchmark)
    assert (outcome.measured, outcome.already_fresh, outcome.not_reached) == (0, 3, 0)
    assert bench.steps == []
    assert (tmp_path / "cpu" / "scripted.json").read_bytes() == before


def test_a_case_that_was_added_is_measured_and_takes_its_place(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(scripted(sizes=(1, 3)).benchmark)
    outcome = measure(scripted(sizes=(1, 2, 3)).benchmark)
    assert (outcome.measured, outcome.already_fresh) == (1, 2)
    assert [case.keys["size"] for case in stored(tmp_path).cases] == [1, 1, 2, 2, 3, 3]


def test_again_replaces_everything(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(scripted().benchmark, commit="first")
    outcome = measure(scripted(seconds=lambda contender, size: 5e-3).benchmark, commit="second", again=True)
    record = stored(tmp_path)
    assert outcome.measured == 3
    assert [run.commit for run in record.runs] == ["second"]
    assert len(record.cases) == 6
    assert {min(case.measured["time"].samples) for case in record.cases} == {5e-3}


def test_again_interrupted_keeps_the_old_values_of_what_was_not_reached(
    measure: Any, scripted: Any, tmp_path: Path
) -> None:
    measure(scripted().benchmark, commit="first")
    with pytest.raises(KeyboardInterrupt):
        measure(scripted(at=Killer(25)).benchmark, commit="second", again=True)
    record = stored(tmp_path)
    assert [record.runs[case.run].commit for case in record.cases] == ["second"] * 2 + ["first"] * 4
    measure(scripted().benchmark, commit="third")
    assert stored(tmp_path) == record


@pytest.mark.parametrize("why", ["code", "harness"])
def test_a_stale_record_is_measured_anew(
    measure: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    measure(scripted().benchmark, commit="first")
    if why == "code":
        monkeypatch.setattr(digest, "benchmark_digest", lambda name: "sha256:" + "2" * 64)
    else:
        newer = records.HARNESS_VERSION + 1
        for module in (records, records.record):
            monkeypatch.setattr(module, "HARNESS_VERSION", newer)
    assert stored(tmp_path).stale
    outcome = measure(scripted(sizes=(1, 2)).benchmark, commit="second")
    record = stored(tmp_path)
    assert outcome.measured == 2
    assert [run.commit for run in record.runs] == ["second"]
    assert len(record.cases) == 4
    assert not record.stale


def test_the_time_limit_stops_between_cases_and_the_next_run_goes_on(
    measure: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts_of: Any
) -> None:
    now = iter(range(10**6))
    monkeypatch.setattr(runner.session.time, "monotonic", lambda: float(next(now)))
    outcome = measure(scripted().benchmark, time_limit=5)
    assert 1 <= outcome.measured < 3
    assert outcome.measured + outcome.not_reached == 3
    monkeypatch.undo()
    monkeypatch.setattr(digest, "benchmark_digest", lambda name: outcome.records[0].code_digest)
    rest = measure(scripted().benchmark)
    assert (rest.measured, rest.already_fresh, rest.not_reached) == (outcome.not_reached, outcome.measured, 0)
    measure(scripted().benchmark, folder=tmp_path / "whole")
    assert facts_of(stored(tmp_path)) == facts_of(stored(tmp_path / "whole"))


def test_no_time_at_all_measures_nothing(measure: Any, scripted: Any, tmp_path: Path) -> None:
    outcome = measure(scripted().benchmark, scripted("second").benchmark, time_limit=0)
    assert (outcome.measured, outcome.not_reached, outcome.records) == (0, 6, ())
    assert not list(tmp_path.glob("*/*.json"))


def test_quick_stores_nothing(measure: Any, scripted: Any, tmp_path: Path) -> None:
    bench = scripted(sizes=(1, 2))
    outcome = measure(bench.benchmark, quick=True)
    assert list(tmp_path.iterdir()) == []
    (record,) = outcome.records
    assert [(case.keys["size"], case.measured["time"].summary.n) for case in record.cases] == [(1, 3), (1, 3)]


# --- what cannot be measured -----------------------------------------------------------------------------


def fails(where: str, error: Exception) -> Callable[[str], None]:
    """Return a hook that raises at the last such step before the end of the sampling."""
    seen: list[str] = []

    def at(step: str) -> None:
        seen.append(step)
        if step == where and seen.count(step) in (1 if "sample" not in where else 4,):
            raise error

    return at


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB."),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError(),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["GPU", "CUDA", "CPU", "Python"])
@pytest.mark.parametrize("step", ["build", "check", "sample"])
def test_out_of_memory_in_the_middle_marks_the_contender_and_goes_on(
    measure: Any, scripted: Any, tmp_path: Path, step: str, error: Exception
) -> None:
    measure(scripted(at=fails(f"{step} fast 2", error)).benchmark)
    found = statuses(stored(tmp_path))
    reason = found.pop((2, "fast"))
    assert reason[0] == "out-of-memory"
    assert reason[1]
    assert "\n" not in reason[1]
    assert {status for status, _ in found.values()} == {"ok"}
    assert store.rows(stored(tmp_path))
    assert not [row for row in store.rows(stored(tmp_path)) if row[2] == "fast" and '"size": 2' in row[3]]
    again = scripted()
    outcome = measure(again.benchmark)
    assert (outcome.measured, outcome.already_fresh) == (1, 2)
    assert {status for status, _ in statuses(stored(tmp_path)).values()} == {"ok"}


def test_memory_that_this_machine_lacks_is_recognised(measure: Any, tmp_path: Path) -> None:
    def build(device: Device, keys: Any) -> Work:
        return Work([torch.empty(2**60, dtype=torch.uint8).zero_])

    measure(Benchmark("large", "", "", {"all": Contender(build)}, lambda device: [{}]))
    assert stored(tmp_path, "large").cases[0].status == "out-of-memory"


def test_a_wrong_result_is_kept_with_its_reason_and_stays_out_of_the_csv(
    measure: Any, scripted: Any, tmp_path: Path
) -> None:
    wrong = AssertionError("the relative error is 3e-01, and at most 4e-03 is accepted\nassert 0.3 <= 0.004")
    bench = scripted(at=fails("check slow 1", wrong))
    measure(bench.benchmark)
    record = stored(tmp_path)
    reason = "wrong result: the relative error is 3e-01, and at most 4e-03 is accepted"
    assert statuses(record)[1, "slow"] == ("failed", reason)
    assert "sample slow 1" not in bench.steps
    assert "sample fast 1" in bench.steps
    assert len(store.rows(record)) == 2 * 5
    with pytest.raises(GpuguideError, match="wrong result"):
        record.case("slow", size=1)


@pytest.mark.parametrize("step", ["build", "check", "sample"])
def test_any_other_error_fails_that_contender_only(measure: Any, scripted: Any, tmp_path: Path, step: str) -> None:
    measure(scripted(at=fails(f"{step} slow 3", TypeError("unsupported format"))).benchmark)
    found = statuses(stored(tmp_path))
    assert found.pop((3, "slow")) == ("failed", "TypeError: unsupported format")
    assert {status for status, _ in found.values()} == {"ok"}


def test_an_error_after_the_last_sample_fails_that_contender_only(measure: Any, scripted: Any, tmp_path: Path) -> None:
    def further() -> Any:
        raise RuntimeError("the driver is gone")

    measure(scripted(sizes=(1,), further=further).benchmark, scripted("second").benchmark)
    assert statuses(stored(tmp_path))[1, "fast"] == ("failed", "RuntimeError: the driver is gone")
    assert {case.status for case in stored(tmp_path, "second").cases} == {"ok"}


@pytest.mark.parametrize("seconds", [0.0, -1e-3, math.nan, math.inf], ids=str)
@pytest.mark.parametrize("from_sample", [1, 7])
def test_a_timer_that_gives_no_time_fails_its_contender(
    measure: Any, scripted: Any, tmp_path: Path, seconds: float, from_sample: int
) -> None:
    taken = iter(range(10**6))
    bench = scripted(
        sizes=(1,),
        seconds=lambda contender, size: seconds if contender == "fast" and next(taken) >= from_sample else 1e-3,
    )
    measure(bench.benchmark)
    found = statuses(stored(tmp_path))  # and the file can be read
    assert found[1, "fast"][0] == "failed"
    assert found[1, "slow"] == ("ok", "")


def test_what_the_device_lacks_is_skipped_with_the_reason(measure: Any, scripted: Any, tmp_path: Path) -> None:
    needs = {"fast": frozenset({"gpu"}), "slow": frozenset({"fp8", "flash-attention"}), "any": frozenset({"bf16"})}
    bench = scripted(contenders=tuple(needs), needs=needs, sizes=(1,))
    measure(bench.benchmark)
    assert statuses(stored(tmp_path)) == {
        (1, "fast"): ("skipped", "needs a GPU"),
        (1, "slow"): ("skipped", "needs flash-attention and fp8, which A processor lacks"),
        (1, "any"): ("ok", ""),
    }
    assert measure(bench.benchmark).already_fresh == 1  # skipped for good: not tried again


def test_a_gpu_that_is_too_old_is_named_with_its_capability(measure: Any, scripted: Any, tmp_path: Path) -> None:
    device = devices.fake("t4")
    measure(scripted(sizes=(1,), needs={"fast": frozenset({"bf16"})}).benchmark, device=device)
    reason = "needs bf16, which compute capability 7.5 (NVIDIA T4) lacks"
    assert statuses(stored(tmp_path, device=device.slug))[1, "fast"] == ("skipped", reason)


def test_what_does_not_fit_is_skipped_with_the_sizes(measure: Any, scripted: Any, tmp_path: Path) -> None:
    bench = scripted(sizes=(1, 8), memory=lambda keys: keys["size"] * 2**30)
    measure(bench.benchmark)
    reason = "needs 8.0 GiB, and 90 % of this device's memory is 7.2 GiB"
    assert statuses(stored(tmp_path))[8, "slow"] == ("skipped", reason)
    assert statuses(stored(tmp_path))[1, "slow"] == ("ok", "")
    assert "build slow 8" not in bench.steps


def test_what_a_contender_leaves_out_is_skipped_with_its_reason_for_good(
    measure: Any, scripted: Any, tmp_path: Path
) -> None:
    bench = scripted(sizes=(1, 8))
    contenders = dict(bench.benchmark.contenders)

    def large_only(device: Device, keys: Any) -> str | None:
        return None if keys["size"] > 4 else f"{device.name} takes large ones only"

    contenders["slow"] = replace(contenders["slow"], leaves_out=large_only)
    benchmark = replace(bench.benchmark, contenders=contenders)
    measure(benchmark)
    found = statuses(stored(tmp_path))
    assert found.pop((1, "slow")) == ("skipped", "A processor takes large ones only")
    assert set(found.values()) == {("ok", "")}
    assert "build slow 1" not in bench.steps
    assert measure(benchmark).already_fresh == 2


@pytest.mark.parametrize(("seconds", "estimate"), [(0.002, 7e-5), (0.02, 0.02)])
def test_work_may_ask_for_graph_replay_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, seconds: float, estimate: float
) -> None:
    """The time of a call that the host launched is no estimate where launching may be most of it."""
    steps: list[object] = []
    monkeypatch.setattr(timing, "warm_up", lambda call, synchronize: seconds)
    monkeypatch.setattr(timing, "on_side_stream", lambda call: steps.append("side stream"))
    monkeypatch.setattr(timing, "graph_estimate", lambda call: 7e-5)
    monkeypatch.setattr(timing, "cuda_graph", lambda calls, estimate: steps.append(estimate) or (lambda: 1.0))
    device = replace(devices.fake("h100-sxm"), backend="cuda")
    assert runner.case.sampler(Work([lambda: None], timing="graph", footprint=2**30), device)() == 1.0
    assert steps == ["side stream", estimate]


class AcceleratorError(RuntimeError):
    """Has the name of what torch raises when a GPU has failed."""


@pytest.mark.parametrize(
    "error",
    [RuntimeError("CUDA error: an illegal memory access was encountered"), AcceleratorError("device-side assert")],
    ids=["message", "type"],
)
@pytest.mark.parametrize("step", ["build", "check", "sample"])
def test_a_gpu_that_fails_ends_the_run_and_finished_cases_are_kept(
    measure: Any, scripted: Any, tmp_path: Path, step: str, error: Exception
) -> None:
    with pytest.raises(GpuguideError, match=r"fast of scripted \(size=2\) left the GPU in an error state .*go on"):
        measure(scripted(at=fails(f"{step} fast 2", error)).benchmark)
    found = statuses(stored(tmp_path))
    assert found[1, "fast"] == found[1, "slow"] == ("ok", "")
    assert found[2, "fast"][0] == "failed"
    assert (3, "fast") not in found
    assert measure(scripted().benchmark).measured == 2
    assert {status for status, _ in statuses(stored(tmp_path)).values()} == {"ok"}


def test_a_gpu_that_fails_and_then_refuses_to_free_memory_is_still_reported(
    measure: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an illegal access every call of the driver fails, that which releases memory included."""

    def refuse(device: Device) -> None:
        raise AcceleratorError("CUDA error: an illegal memory access was encountered")

    broken = fails("sample fast 2", AcceleratorError("CUDA error: an illegal memory access was encountered"))

    def at(step: str) -> None:
        if step == "build fast 2":
            monkeypatch.setattr(runner.case, "release_memory", refuse)
        broken(step)

    with pytest.raises(GpuguideError, match="left the GPU in an error state"):
        measure(scripted(at=at).benchmark)
    assert statuses(stored(tmp_path))[2, "fast"][0] == "failed"


# --- folders and files -----------------------------------------------------------------------------------


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Be a user whom permissions bind."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX permissions")
def test_a_read_only_folder_is_named_before_anything_is_measured(measure: Any, scripted: Any) -> None:
    bench = scripted()
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        folder = Path(parent) / "records"
        folder.mkdir()
        folder.chmod(0o555)
        try:
            with without_privileges(), pytest.raises(GpuguideError, match=rf"{folder}.*--out or GPUGUIDE_RECORDS"):
                measure(bench.benchmark, folder=folder)
        finally:
            folder.chmod(0o755)
    assert bench.steps == []


def test_a_folder_that_cannot_be_made_is_named(measure: Any, scripted: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bench = scripted()
    with pytest.raises(GpuguideError, match="Cannot write to"):
        measure(bench.benchmark, folder=tmp_path / "file" / "records")
    assert bench.steps == []


def test_a_full_disk_keeps_the_cases_before(
    measure: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, written = os.fsync, []

    def full(file: int) -> None:
        written.append(file)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GpuguideError, match="No space left on device"):
        measure(scripted().benchmark)
    monkeypatch.setattr(os, "fsync", fsync)
    assert len(stored(tmp_path).cases) == 4
    assert not list(tmp_path.glob(f"**/{LEFT_OVER}"))
    assert measure(scripted().benchmark).measured == 1


def test_a_second_run_is_refused_while_one_is_going(measure: Any, scripted: Any, tmp_path: Path) -> None:
    refused: list[str] = []

    def second(step: str) -> None:
        if step == "build fast 1":
            with pytest.raises(GpuguideError, match="Another 'gpuguide bench run' is writing to") as caught:
                measure(scripted("second").benchmark)
            refused.append(str(caught.value))
            measure(scripted("second").benchmark, folder=tmp_path / "elsewhere")
            measure(scripted("second").benchmark, quick=True)

    measure(scripted(at=second).benchmark)
    assert len(refused) == 1
    assert "--out" in refused[0]
    assert len(stored(tmp_path).cases) == 6
    measure(scripted("second").benchmark)  # and afterwards it may


def test_the_folder_is_free_again_after_an_interruption(measure: Any, scripted: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(scripted(at=Killer(3)).benchmark)
    assert measure(scripted().benchmark).measured == 3


def test_a_damaged_record_in_the_way_is_named_and_not_overwritten(measure: Any, scripted: Any, tmp_path: Path) -> None:
    path = tmp_path / "cpu" / "second.json"
    path.parent.mkdir()
    path.write_text('{"schema_version": 1')
    bench = scripted()
    for again in (False, True):
        with pytest.raises(DamagedRecord, match=r"second\.json is damaged at line 1"):
            measure(bench.benchmark, scripted("second").benchmark, again=again)
    assert path.read_text() == '{"schema_version": 1'
    assert bench.steps == []
    assert measure(bench.benchmark, scripted("second").benchmark, quick=True).measured == 2


# --- a run's circumstances -------------------------------------------------------------------------------


def test_no_record_names_a_host_a_user_or_a_path(
    measure: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "alice-the-user")
    monkeypatch.setattr(platform, "node", lambda: "the-host-name")
    home = "/home/alice-the-user"
    monkeypatch.setattr(
        sys, "argv", [f"{home}/bin/gpuguide", "-f", f"{home}/kernel.json", "--out", "alice-the-user", f"--out={home}/r"]
    )
    lost = FileNotFoundError(2, "No such file or directory", f"{home}/.triton/cache/a.json")
    windows = RuntimeError(r"cannot open 'C:\Users\alice-the-user\a.cu' at 12 GB/s and/or 1/2 of it")
    measure(
        scripted(at=fails("build fast 1", lost)).benchmark,
        scripted("other", at=fails("build fast 1", windows)).benchmark,
    )
    text = (tmp_path / "cpu" / "scripted.json").read_text() + (tmp_path / "cpu" / "other.json").read_text()
    for word in ("alice", "the-host-name", "/home", "Users", str(tmp_path), getpass.getuser() + "@"):
        assert word not in text
    record = stored(tmp_path)
    assert record.runs[0].command == "gpuguide -f DIR --out DIR --out=DIR"
    reason = statuses(record)[1, "fast"][1]
    assert reason.startswith("FileNotFoundError: [Errno 2] No such file or directory")
    assert "12 GB/s and/or 1/2 of it" in statuses(stored(tmp_path, "other"))[1, "fast"][1]


def test_a_run_tells_its_circumstances(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(scripted().benchmark)
    (run,) = stored(tmp_path).runs
    assert run.device_name == "A processor"
    assert run.python == platform.python_version()
    assert run.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"gpuguide", "numpy"} <= set(run.versions)
    assert run.commit == COMMIT
    assert run.started_at < run.finished_at
    assert run.elapsed >= 0
    assert run.cuda is run.driver is run.before.power is None
    assert not run.simulated


def repository(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c"]):
        subprocess.run(["git", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let gpuguide seem to run from a checkout of its own."""
    package = tmp_path / "checkout" / "src" / "gpuguide"
    repository(
        tmp_path / "checkout", "src/gpuguide/measure/runner/session.py", "src/gpuguide/costs/roofline.py", "README.md"
    )
    monkeypatch.setattr(digest, "PACKAGE_FOLDER", package)
    return tmp_path / "checkout"


def test_the_commit_is_that_of_the_checkout(checkout: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    assert runner.environment.commit_of_checkout() == head.stdout.strip()
    (checkout / "README.md").write_text("What is measured does not depend on this.")
    (checkout / "src/gpuguide/records/cpu").mkdir(parents=True)
    (checkout / "src/gpuguide/records/cpu/ceilings.json").write_text("Nor on this.")
    assert runner.environment.commit_of_checkout() == head.stdout.strip()


@pytest.mark.parametrize("file", ["roofline.py", "measure/runner/session.py", "benchmarks/new.py"])
def test_a_checkout_with_changes_is_marked(checkout: Path, file: str) -> None:
    path = checkout / "src" / "gpuguide" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("changed = True\n")
    assert str(runner.environment.commit_of_checkout()).endswith("-modified")


def test_a_project_that_merely_has_gpuguide_installed_is_not_its_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(tmp_path, "project.py")
    package = tmp_path / ".venv" / "gpuguide"
    (package / "measure" / "runner").mkdir(parents=True)
    (package / "measure" / "runner" / "session.py").write_text("")
    monkeypatch.setattr(digest, "PACKAGE_FOLDER", package)
    assert runner.environment.commit_of_checkout() is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert runner.environment.commit_of_checkout() is None


# --- a fake device ---------------------------------------------------------------------------------------


def test_a_fake_device_gives_the_same_simulated_times_every_time(measure: Any, scripted: Any, tmp_path: Path) -> None:
    device = devices.fake("rtx-4090")
    bench = scripted(samples=None)
    measure(bench.benchmark, device=device)
    record = stored(tmp_path, device="nvidia-geforce-rtx-4090")
    assert record.simulated
    assert all(run.simulated for run in record.runs)
    assert "simulated, not measured" in record.runs[0].stamp()
    assert {case.correct for case in record.cases} == {"n/a"}
    assert not [step for step in bench.steps if step.startswith(("check", "sample"))]
    again = measure(scripted(samples=None).benchmark, device=device, folder=tmp_path / "again").records[0]
    assert [case.measured for case in again.cases] == [case.measured for case in record.cases]
    assert min(record.cases[0].measured["time"].samples) > 1000 / 1.008e12  # never faster than the datasheet


def test_records_of_several_devices_stand_beside_each_other(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(scripted().benchmark)
    for name in ("rtx-4090", "h200"):
        measure(scripted().benchmark, device=devices.fake(name))
    assert {json.loads(path.read_text())["device"] for path in tmp_path.glob("*/scripted.json")} == {
        "cpu",
        "nvidia-geforce-rtx-4090",
        "nvidia-h200-sxm",
    }

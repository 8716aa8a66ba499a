from __future__ import annotations

import itertools
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted_runs import fails, statuses, stored

from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure import export, records, runner, timing
from gpuguide.measure.benchmark import Benchmark, Contender, Work
from gpuguide.measure.runner import RunProgress

pytestmark = pytest.mark.usefixtures("known_code")
COMMIT = "c0ffee"


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


def test_samples_of_settling_are_not_stored(measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of a plain call begins with calls that do not count."""
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(runner.case, "SETTLE", 0.002)
    calls: list[float] = []
    measure(plain("settling", lambda: calls.append(0.0)))
    n = stored(tmp_path, "settling").cases[0].measured["time"].summary.n
    assert n == 20
    assert len(calls) >= n + timing.WARM_UP_CALLS + runner.case.TURNS


def plain(name: str, *calls: timing.Call) -> Benchmark:
    """Return a benchmark of plain calls, which the harness times."""
    contenders = {
        f"plain-{place}": Contender(lambda device, keys, c=call: Work([c])) for place, call in enumerate(calls)
    }
    return Benchmark(name, "", "", contenders, lambda device: [{}], samples=20)


def test_every_turn_of_every_contender_settles_for_the_same_time(measure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, a share of a ceiling would compare calls at two clocks. A benchmark's own sampler is left alone."""
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0.0)
    settled: list[float] = []
    monkeypatch.setattr(runner.case, "settle", lambda sample, seconds: settled.append(seconds))
    benchmark = plain("settling", lambda: None, lambda: None)
    own = Contender(lambda device, keys: Work([lambda: None], sample=lambda: 1e-3))
    measure(replace(benchmark, contenders={**benchmark.contenders, "own": own}))
    assert settled == [runner.case.SETTLE] * 2 * runner.case.TURNS


@pytest.mark.parametrize(
    ("seconds", "samples", "turns"),
    [
        (1e-6, None, (25, 25, 25, 25)),
        (0.002, None, (12, 12, 12, 13)),
        (2.0, None, (1, 1, 1, 2)),
        (1e-3, 8, (5, 1, 1, 1)),
        (1e-3, 5, (5,)),
        (2.0, 1, (1,)),
    ],
    ids=str,
)
def test_the_turn_of_every_sample_is_stored(
    measure: Any, scripted: Any, tmp_path: Path, seconds: float, samples: int | None, turns: tuple[int, ...]
) -> None:
    bench = scripted(sizes=(1,), samples=samples, budget=0.1, seconds=lambda contender, size: seconds)
    measure(bench.benchmark)
    steps = [step.split()[1] for step in bench.steps if step.startswith("sample")]
    taken = [len(list(run)) for contender, run in itertools.groupby(steps) if contender == "fast"]
    for case in stored(tmp_path).cases:
        assert {metric.turns for metric in case.metrics.values()} == {turns}
    assert tuple(taken) == turns


@pytest.mark.parametrize(("seconds", "samples"), [(1e-3, runner.case.QUICK_SAMPLES), (2.0, 1)])
def test_quick_has_one_turn(measure: Any, scripted: Any, seconds: float, samples: int) -> None:
    bench = scripted(sizes=(1,), seconds=lambda contender, size: seconds)
    (record,) = measure(bench.benchmark, quick=True).records
    assert {case.measured["time"].turns for case in record.cases} == {(samples,)}


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
    seen: list[RunProgress] = []
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
    assert export.rows(stored(tmp_path))
    assert not [row for row in export.rows(stored(tmp_path)) if row[2] == "fast" and '"size": 2' in row[3]]
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
    assert len(export.rows(record)) == 2 * 5
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

    contenders["slow"] = replace(contenders["slow"], skip_reason=large_only)
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


def test_a_fake_device_gives_the_same_simulated_times_every_time(measure: Any, scripted: Any, tmp_path: Path) -> None:
    device = devices.fake("rtx-4090")
    bench = scripted(samples=None)
    measure(bench.benchmark, device=device)
    record = stored(tmp_path, device="nvidia-geforce-rtx-4090")
    assert record.simulated
    assert all(run.simulated for run in record.runs)
    assert "simulated, not measured" in record.runs[0].stamp()
    assert {case.correct for case in record.cases} == {"n/a"}
    assert not [step for step in bench.steps if step.startswith(("build", "check", "sample"))]
    again = measure(scripted(samples=None).benchmark, device=device, folder=tmp_path / "again").records[0]
    assert [case.measured for case in again.cases] == [case.measured for case in record.cases]


def test_records_of_several_devices_stand_beside_each_other(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(scripted().benchmark)
    for name in ("rtx-4090", "h200"):
        measure(scripted().benchmark, device=devices.fake(name))
    assert {json.loads(path.read_text())["device"] for path in tmp_path.glob("*/scripted.json")} == {
        "cpu",
        "nvidia-geforce-rtx-4090",
        "nvidia-h200-sxm",
    }

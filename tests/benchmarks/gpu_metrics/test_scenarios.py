"""The scenarios under which a GPU is watched: on a fake device, and on this machine with a made-up driver."""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_devices import on
from fake_nvml import FakeNvml

from gpuguide.benchmarks.gpu_metrics import scenarios as gpu_metrics
from gpuguide.benchmarks.gpu_metrics.scenarios import GPU_METRICS, SCENARIOS, Progress
from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.hardware import monitor
from gpuguide.hardware.device import Device
from gpuguide.hardware.trace import Trace
from gpuguide.measure import records, runner, store, traces
from gpuguide.measure.benchmark import too_large
from gpuguide.systems import memory_hierarchy


@pytest.fixture
def driver(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Let every scenario be short, on a processor that passes for a GPU."""
    monkeypatch.setattr(gpu_metrics, "SECONDS", dict.fromkeys(gpu_metrics.SECONDS, 0.02))
    times = {"REST_SECONDS": 0.01, "SETTLE_SECONDS": 0.0, "HOLD_SECONDS": 0.001, "STRETCH_SECONDS": 0.02}
    times |= {"INTERVAL": 0.001, "FAST_INTERVAL": 0.001}
    for name, value in times.items():
        monkeypatch.setattr(gpu_metrics, name, value)
    for name, size in {"SIZE": 64, "COPIED": 1024, "PIECE": 1024, "SPIKE": 1024}.items():
        monkeypatch.setattr(gpu_metrics, name, size)
    monkeypatch.setattr(gpu_metrics, "NEIGHBOUR", "import sys; print('ready', flush=True); sys.stdin.read()")
    monkeypatch.setattr(memory_hierarchy.Chain, "draw", lambda *arguments, **named: lambda: None)
    monkeypatch.setattr(runner.case, "SLOW", 0.001)
    return nvml


@pytest.fixture
def contexts(driver: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of tensors made so far: a process gets a context, which takes memory, with its first tensor there."""
    made: list[str] = []
    memory = driver.nvmlDeviceGetMemoryInfo
    zeros = torch.zeros

    def making_a_context(*arguments: Any, **named: Any) -> torch.Tensor:
        made.append(str(named["device"]))
        return zeros(*arguments, **named)

    def of_the_board(gpu: int, version: int | None = None) -> SimpleNamespace:
        known = memory(gpu, version)
        known.used += len(made[:1]) * 2**29
        return known

    monkeypatch.setattr(torch, "zeros", making_a_context)
    monkeypatch.setattr(driver, "nvmlDeviceGetMemoryInfo", of_the_board)
    return made


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_leaves_its_trace(pretended_gpu: Device, contexts: list[str], scenario: str) -> None:
    """With what each look costs, and a context from before anybody watched: its memory is in every reading."""
    (case,) = runner.measure_case(GPU_METRICS, {"scenario": scenario}, pretended_gpu)
    assert (case.status, case.reason) == ("ok", "")
    metrics = case.measured
    assert contexts[0] == "cpu"
    (used,) = set(metrics["memory_used"].samples)
    assert used == pytest.approx(2 * 2**30 + 2**29)
    cost = metrics["reading_cost"]
    assert (cost.unit, cost.summary.n) == ("s", metrics["seconds"].summary.n)
    assert min(cost.samples) > 0
    assert metrics["time"].summary.n == 1
    assert metrics["work_began"].samples[0] >= 0.01
    worked = metrics["work_ended"].samples[0] - metrics["work_began"].samples[0]
    assert worked == pytest.approx(metrics["time"].samples[0], rel=1e-4)
    assert metrics["seconds"].samples[-1] >= metrics["work_ended"].samples[0] * (1 - 1e-6)
    assert set(metrics["allocated"].samples) == {3.0}
    assert set(metrics["reserved"].samples) == {5.0}
    assert ("sm_activity" in metrics) == (scenario != "stretches")
    assert metrics["power"].samples[0] == 101  # the second GPU, which the UUID names
    assert metrics["power_limit"].samples == (700.0,)
    multiplying = dict.fromkeys(gpu_metrics.MULTIPLYING, "throughput")
    counted = {"launches": "throughput", "copies": "bandwidth", "chase": "bandwidth", **multiplying}
    for name, unit in (("throughput", "FLOP"), ("bandwidth", "B")):
        assert (name in metrics) == (counted.get(scenario) == name)
        if name in metrics:
            done = metrics["done"]
            assert (done.unit, done.samples[0]) == (unit, 0.0)
            assert done.samples[-1] > 0
            assert metrics[name].samples[0] == pytest.approx(done.samples[-1] / worked, rel=1e-4)


@pytest.mark.parametrize("scenario", ["idle", "products"])
def test_the_chips_counters_are_read_at_their_own_pace(
    driver: FakeNvml, pretended_gpu: Device, monkeypatch: pytest.MonkeyPatch, scenario: str
) -> None:
    """However often all else is read: sooner the driver says zero. The first reading waits until there is one."""
    looks: list[float] = []
    look_at = driver.nvmlGpmSampleGet

    def noted(gpu: int, look: SimpleNamespace) -> SimpleNamespace:
        looks.append(time.perf_counter())
        return look_at(gpu, look)

    monkeypatch.setattr(driver, "nvmlGpmSampleGet", noted)
    monkeypatch.setattr(gpu_metrics, "SECONDS", dict.fromkeys(gpu_metrics.SECONDS, 1.0))
    (case,) = runner.measure_case(GPU_METRICS, {"scenario": scenario}, pretended_gpu)
    assert case.measured["seconds"].summary.n > 2 * len(looks)
    assert len(looks) >= 4
    assert all(after - before > 0.999 * monitor.chip_counters.RENEWAL for before, after in itertools.pairwise(looks))
    assert set(case.measured["sm_activity"].samples) == {0.2}


def published_trace(scenario: str) -> Trace:
    """Return a trace of the published record, where there is one and it is fresh."""
    try:
        record = store.load_published("gpu-metrics")
    except GpuguideError as error:
        pytest.skip(str(error))
    if record.stale:
        pytest.skip("the published record is of other code; `gpuguide bench run gpu-metrics` measures it again")
    return traces.find_case_trace(record, record.case("nvml", scenario=scenario))


def test_of_the_published_traces_rest_and_work_differ_and_the_context_was_there() -> None:
    """What sets a busy GPU apart is the work: from one thread that spins, an idle trace differs in utilisation only."""
    rest, work = published_trace("idle"), published_trace("spin")
    assert rest["memory_used"].max() - rest["memory_used"].min() < 2**26
    assert abs(float(np.median(rest["memory_used"])) - float(np.median(work["memory_used"]))) < 2**28
    assert float(np.median(rest["sm_clock"][:20])) == float(np.median(rest["sm_clock"][-20:]))
    assert float(np.median(rest["gpu_utilisation"])) == 0.0
    assert work["gpu_utilisation"].max() >= 0.95
    if "sm_activity" in work.units:
        assert float(np.median(rest["sm_activity"])) == 0.0
        assert 0 < work["sm_activity"].max() < 0.1


def test_of_the_published_traces_a_busy_gpu_is_never_told_to_be_idle() -> None:
    """Products without a pause: the chip's counters say zero where they were asked too soon."""
    trace = published_trace("products")
    if "tensor_activity" not in trace.units:
        pytest.skip("the published GPU has no such counters")
    lasted = float(trace.seconds[-1])
    middle = trace.select_interval(0.25 * lasted, 0.75 * lasted)
    assert middle["tensor_activity"].min() > 0.5


def test_moments_lie_within_the_trace_and_in_their_order(driver: FakeNvml, pretended_gpu: Device) -> None:
    expected = {
        "stretches": [("stretch_began", 4), ("stretch_ended", 4)],
        "memory": [("step", 8)],
        "spike": [("spike", 2), ("spike_over", 2)],
        "neighbour": [("neighbour_ready", 1), ("neighbour_ended", 1)],
    }
    for scenario, names in expected.items():
        (case,) = runner.measure_case(GPU_METRICS, {"scenario": scenario}, pretended_gpu)
        columns = [case.measured[name].samples for name, count in names if case.measured[name].summary.n == count]
        in_order = [moment for row in zip(*columns, strict=True) for moment in row]
        assert len(in_order) == sum(count for _, count in names)
        assert in_order == sorted(in_order)
        assert case.measured["work_began"].samples[0] <= in_order[0]
        assert in_order[-1] <= case.measured["work_ended"].samples[0]


def test_the_rate_of_work_is_told_part_by_part(
    driver: FakeNvml, pretended_gpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_metrics, "RATE_SECONDS", 0.05)
    monkeypatch.setattr(gpu_metrics, "SECONDS", dict.fromkeys(gpu_metrics.SECONDS, 0.22))
    (case,) = runner.measure_case(GPU_METRICS, {"scenario": "products"}, pretended_gpu)
    rate, whole = case.measured["rate"], case.measured["throughput"].samples[0]
    assert (rate.unit, rate.summary.n) == ("FLOP/s", 4)
    assert sum(rate.samples) / 4 == pytest.approx(whole, rel=0.5)


def test_a_spike_leaves_what_pytorch_counted(driver: FakeNvml, pretended_gpu: Device) -> None:
    (case,) = runner.measure_case(GPU_METRICS, {"scenario": "spike"}, pretended_gpu)
    assert case.measured["peak_allocated"].samples == (7.0,)
    assert case.measured["peak_reserved"].samples == (8.0,)


def test_a_neighbour_that_cannot_use_the_gpu_is_a_failure_with_its_reason(
    driver: FakeNvml, pretended_gpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_metrics, "NEIGHBOUR", "raise SystemExit(1)")
    (case,) = runner.measure_case(GPU_METRICS, {"scenario": "neighbour"}, pretended_gpu)
    assert case.status == "failed"
    assert "a second process cannot use this GPU" in case.reason


def test_the_neighbour_does_what_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program is run in this process, with a processor for the GPU."""
    said: list[str] = []
    monkeypatch.setattr(sys, "argv", ["-c", "cpu"])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(read=lambda: ""))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("synchronised"))
    exec(gpu_metrics.NEIGHBOUR, {"print": lambda text, flush: said.append(text)})
    assert said == ["synchronised", "ready"]


def test_a_whole_run_takes_as_long_as_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenarios and their rests, without preparing them, stay below 110 s."""
    rested = len(SCENARIOS) * (2 * gpu_metrics.REST_SECONDS + gpu_metrics.SETTLE_SECONDS)
    held = 8 + 3 + 2  # of memory, spike and neighbour
    worked = sum(gpu_metrics.SECONDS.values()) + 2 * gpu_metrics.STRETCHES * gpu_metrics.STRETCH_SECONDS
    assert worked + held * gpu_metrics.HOLD_SECONDS + rested < 110


def test_the_record_of_a_run_gives_its_traces_back(driver: FakeNvml, pretended_gpu: Device, tmp_path: Path) -> None:
    short = replace(GPU_METRICS, cases=lambda device: [{"scenario": "idle"}, {"scenario": "spin"}])
    runner.run([short], pretended_gpu, tmp_path, commit="c0ffee")
    record = records.read(tmp_path / "a-processor" / "gpu-metrics.json")
    assert not record.stale
    trace = traces.find_case_trace(record, record.case("nvml", scenario="spin"))
    assert trace["gpu_utilisation"].tolist() == [1.0] * len(trace.rows)
    assert trace.board["slowdown_temperature"] == 89
    assert driver.open == 0


def test_without_a_driver_a_case_fails_with_the_reason(driver: FakeNvml, pretended_gpu: Device) -> None:
    driver.refused.add("nvmlInit")
    (case,) = runner.measure_case(GPU_METRICS, {"scenario": "idle"}, pretended_gpu)
    assert case.status == "failed"
    assert "There is no NVIDIA driver to ask" in case.reason


def test_memory_is_taken_and_dropped_as_it_says(driver: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    pieces: list[Any] = []
    monkeypatch.setattr(
        gpu_metrics.time, "sleep", lambda seconds: held.append(sum(each() is not None for each in pieces))
    )
    import weakref

    empty = torch.empty

    def counted(*size: Any, **named: Any) -> torch.Tensor:
        tensor = empty(*size, **named)
        pieces.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(torch, "empty", counted)
    gpu_metrics.memory("cpu", Progress())()
    assert held == [1, 2, 3, 4, 2, 3, 0, 0]


def test_the_queue_of_a_busy_gpu_is_short(driver: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than two batches and the one that is being launched may be under way."""
    under_way, most = 0, 0

    class Event:
        def record(self) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)

        def synchronize(self) -> None:
            nonlocal under_way
            under_way -= 1

    monkeypatch.setattr(torch.cuda, "Event", Event)
    calls: list[None] = []
    progress = Progress()
    gpu_metrics.keep_busy(lambda: calls.append(None), 0.02, 7, progress, 2.0)
    assert len(calls) % 7 == 0
    assert progress.amount == 2.0 * len(calls) > 0
    assert most == 3


@pytest.mark.parametrize(("gpu", "lacks"), [("t4", set(gpu_metrics.MULTIPLYING)), ("h100-sxm", set())])
def test_everything_runs_on_a_fake_device(tmp_path: Path, gpu: str, lacks: set[str]) -> None:
    outcome = runner.run([GPU_METRICS], devices.fake(gpu), tmp_path, commit="c0ffee")
    (record,) = outcome.records
    assert {case.keys["scenario"] for case in record.cases if case.status == "skipped"} == lacks
    assert all("multiplies in bf16" in case.reason for case in record.cases if case.status == "skipped")
    assert {case.keys["scenario"] for case in record.cases} == set(SCENARIOS)


@pytest.mark.parametrize(
    ("gigabytes", "left_out"), [(4, {"memory", "spike"}), (8, {"spike"}), (16, set()), (80, set())]
)
def test_what_does_not_fit_is_left_out(gigabytes: int, left_out: set[str]) -> None:
    device = on(gigabytes)
    assert {keys["scenario"] for keys in GPU_METRICS.cases(device) if too_large(GPU_METRICS, keys, device)} == left_out


def test_a_processor_has_no_such_driver() -> None:
    assert GPU_METRICS.cases(devices.cpu()) == []


@pytest.mark.gpu(alone=True)
@pytest.mark.needs("pynvml")
@pytest.mark.parametrize("scenario", ["spin", "memory"])
def test_on_a_real_gpu(monkeypatch: pytest.MonkeyPatch, scenario: str) -> None:
    """One thread that spins reads as a full GPU, and PyTorch's reserve is seen to go up and down."""
    monkeypatch.setattr(gpu_metrics, "SECONDS", dict.fromkeys(gpu_metrics.SECONDS, 3.0))
    (case,) = runner.measure_case(GPU_METRICS, {"scenario": scenario}, devices.current())
    assert (case.status, case.reason) == ("ok", "")
    if scenario == "spin" and "gpu_utilisation" in case.measured:
        assert max(case.measured["gpu_utilisation"].samples) >= 0.95
        if "sm_activity" in case.measured:
            assert max(case.measured["sm_activity"].samples) < 0.1
    if scenario == "memory":
        for name in ("allocated", "reserved", "memory_used"):
            samples = case.measured[name].samples
            assert max(samples) - samples[-1] >= 3.9 * gpu_metrics.PIECE

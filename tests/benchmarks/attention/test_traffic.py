from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuguide.benchmarks.attention import traffic
from gpuguide.hardware import counters
from gpuguide.hardware import device as devices
from gpuguide.hardware.counters import DURATION, READ, WRITTEN
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner

TRAFFIC = declarations.get("attention-traffic")
KEYS = TRAFFIC.cases(devices.fake("h100-sxm"))[0]
KERNELS = [{READ: 100.0 * i, WRITTEN: 10.0 * i, DURATION: 1e-6 * i} for i in range(1, 11)]
"""Of five calls, two each"""


@pytest.fixture
def five_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "CALLS", 5)


def test_what_moves_no_scores_is_watched_at_one_length() -> None:
    device = devices.fake("h100-sxm")
    for name, contender in TRAFFIC.contenders.items():
        watched = [keys["seq_len"] for keys in TRAFFIC.cases(device) if not contender.skip_reason(device, keys)]
        assert watched == ([1024, 8192] if name == "naive" else [8192])


@pytest.mark.usefixtures("five_calls")
def test_calls_are_told_apart_and_their_times_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def count(program: list[str]) -> list[counters.Kernel]:
        asked.append(program)
        return KERNELS

    monkeypatch.setattr(counters, "count", count)
    device = replace(devices.fake("h100-sxm"), backend="cuda")
    work = traffic.work("naive", device, KEYS)
    assert work.sample is not None
    assert [work.sample() for _ in range(5)] == [pytest.approx(1e-6 * each) for each in (3, 7, 11, 15, 19)]
    found = work.further()
    assert found["read"].samples == (300, 700, 1100, 1500, 1900)
    assert found["written"].samples == (30, 70, 110, 150, 190)
    assert found["kernel_read"].samples == (900, 1000)
    assert {metric.unit for metric in found.values()} == {"B"}
    ((*_, contender, keys),) = asked
    assert (contender, json.loads(keys)) == ("naive", dict(KEYS))


@pytest.mark.usefixtures("five_calls")
def test_kernels_that_are_not_the_same_for_each_call_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "count", lambda program: KERNELS[:7])
    with pytest.raises(AssertionError, match="5 calls had 7 kernels"):
        traffic.count_kernels("naive", KEYS)


def test_without_the_profiler_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "profiler", lambda: None)
    assert "ncu" in (TRAFFIC.contenders["naive"].unavailable_reason() or "")


@pytest.mark.gpu
def test_the_formula_moves_its_scores_and_tiles_do_not() -> None:
    if counters.profiler() is None:
        pytest.skip("Nsight Compute is not installed")
    long = TRAFFIC.cases(devices.current())[-1]
    cases = {case.contender: case for case in runner.measure_case(TRAFFIC, long, devices.current())}
    assert not {name: case.reason for name, case in cases.items() if case.status == "failed"}
    scores, once = 2 * 2 * 16 * 8192**2, 4 * 2 * 16384 * 2048
    naive, tiles = (cases[name].metrics for name in ("naive", "gpuguide-triton"))
    assert naive["read"].summary.median > 2 * scores
    assert naive["written"].summary.median > 2 * scores
    assert tiles["read"].summary.median + tiles["written"].summary.median < 3 * once

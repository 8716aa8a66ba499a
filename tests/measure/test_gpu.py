"""The harness on a real GPU: its times against an independent timer, and every benchmark's correctness checks."""

from __future__ import annotations

import statistics
import time

import pytest

from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.measure.benchmark import Work

pytestmark = pytest.mark.gpu(alone=True)

ALONE = ("attention-traffic",)
"""Benchmarks whose quick run is not right beside other tests: counters of a GPU serve one program at a time"""
UNCHECKED = ("attention-traffic", "compile-start", "gpu-metrics")
"""Benchmarks that read counters or clocks and have no result to check"""


@pytest.mark.parametrize("contender", ["matmul-bf16", "copy"])
def test_times_agree_with_do_bench(contender: str) -> None:
    """The two timers take turns, so that both meet the same clocks; each median is over all its rounds."""
    from triton.testing import do_bench

    device = devices.current()
    work = declarations.get("ceilings").contenders[contender].build(device, {})
    sample = runner.case.sampler(work, device)
    runner.case.settle(sample, 1.0)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(10):
        ours.extend(sample() for _ in range(50))
        theirs.append(do_bench(work.calls[0], warmup=25, rep=100, return_mode="median") * 1e-3)
    ratio = statistics.median(ours) / statistics.median(theirs)
    medians = f"ours {statistics.median(ours) * 1e3:.4f} ms, do_bench {statistics.median(theirs) * 1e3:.4f} ms"
    print(f"{contender}: {medians}, ratio {ratio:.4f}")
    assert ratio == pytest.approx(1, abs=0.03)


def test_a_graph_counts_no_launches() -> None:
    """A hundred small kernels a call, which the host cannot launch as fast as the GPU runs them."""
    import torch

    device = devices.current()
    number = torch.zeros(1, device=device.torch_device)

    def add_many() -> None:
        for _ in range(100):
            number.add_(1)

    eager = runner.case.sampler(Work([add_many], timing="wall"), device)
    graph = runner.case.sampler(Work([add_many], timing="graph"), device)
    assert statistics.median(graph() for _ in range(20)) < 0.8 * statistics.median(eager() for _ in range(20))


def test_a_call_that_is_slow_to_launch_is_timed_on_the_gpu_alone() -> None:
    import torch

    device = devices.current()
    numbers = torch.zeros(2**26, device=device.torch_device)

    def add_slowly() -> None:
        time.sleep(3e-4)
        numbers.add_(1)

    slow = runner.case.sampler(Work([add_slowly], footprint=2 * numbers.nbytes), device)
    quick = runner.case.sampler(Work([lambda: numbers.add_(1)], footprint=2 * numbers.nbytes), device)
    medians = [statistics.median(sample() for _ in range(20)) for sample in (slow, quick)]
    assert medians[0] == pytest.approx(medians[1], rel=0.05)


@pytest.mark.apart
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.gpu(alone=name in ALONE)) for name in declarations.names()]
)
def test_a_quick_run_is_correct(name: str) -> None:
    outcome = runner.run([declarations.get(name)], devices.current(), None, quick=True)
    cases = [case for record in outcome.records for case in record.cases]
    assert {case.status for case in cases} <= {"ok", "skipped"}, [case for case in cases if case.status != "ok"]
    checked = "n/a" if name in UNCHECKED else "yes"
    assert all(case.correct == checked for case in cases if case.status == "ok")

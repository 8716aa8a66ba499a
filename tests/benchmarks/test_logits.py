from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from fake_devices import on

from gpuguide import logits
from gpuguide.benchmarks import logits as benchmarks
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import records, runner
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, too_large

GIB = 2**30
ONE_SOFTMAX: Keys = {"rows": 64, "vocab": 32768, "dtype": "fp32"}
SOFTMAX, LOG_SUM_EXP, HEAD = ALL = [declarations.get(name) for name in ("softmax", "log-sum-exp", "lm-head")]
each = pytest.mark.parametrize("benchmark", ALL, ids=lambda benchmark: benchmark.name)
of_rows = pytest.mark.parametrize("benchmark", [SOFTMAX, LOG_SUM_EXP], ids=lambda benchmark: benchmark.name)


def reduced(benchmark: Benchmark, cases: list[Keys]) -> Benchmark:
    return replace(benchmark, cases=lambda device: cases)


@pytest.fixture
def clean_compiler() -> Iterator[None]:
    yield
    torch.compiler.reset()


# --- declarations ----------------------------------------------------------------------------------------


def test_a_gpu_without_bf16_measures_fp16_and_a_processor_little_in_fp32() -> None:
    for benchmark in ALL:
        assert {keys["dtype"] for keys in benchmark.cases(devices.fake("t4"))} <= {"fp16", "fp32"}
        on_cpu = benchmark.cases(devices.cpu())
        assert {keys["dtype"] for keys in on_cpu} == {"fp32"}
        assert 1 < len(on_cpu) <= 8
        assert max(benchmark.memory(keys) for keys in on_cpu) < GIB


def test_the_run_on_a_gpu_is_declared_to_take_few_minutes() -> None:
    assert sum(runner.forecast(benchmark) * len(benchmark.cases(on(80))) for benchmark in ALL) < 180


@pytest.mark.parametrize(
    ("benchmark", "gigabytes", "skipped"),
    [
        (SOFTMAX, 8, [(131072, "fp32"), (262144, "bf16"), (262144, "fp32")]),
        (SOFTMAX, 16, [(262144, "fp32")]),
        (SOFTMAX, 24, []),
        (LOG_SUM_EXP, 8, [(131072, "bf16"), (131072, "fp32"), (262144, "bf16"), (262144, "fp32")]),
        (LOG_SUM_EXP, 16, [(262144, "bf16"), (262144, "fp32")]),
        (LOG_SUM_EXP, 24, [(262144, "bf16"), (262144, "fp32")]),
        (HEAD, 8, []),
    ],
)
def test_what_does_not_fit_a_small_gpu(
    benchmark: Benchmark, gigabytes: int, skipped: list[tuple[object, object]]
) -> None:
    """Of many rows only. PyTorch's log-sum-exp makes copies in fp32 of any format, so it needs more."""
    device = on(gigabytes)
    found = [keys for keys in benchmark.cases(device) if too_large(benchmark, keys, device)]
    assert all(keys["rows"] == 4096 for keys in found)
    assert sorted((keys["vocab"], keys["dtype"]) for keys in found) == skipped


@pytest.mark.parametrize("gigabytes", [48, 80, 141])
def test_everything_fits_a_larger_one(gigabytes: int) -> None:
    device = on(gigabytes)
    assert not any(too_large(benchmark, keys, device) for benchmark in ALL for keys in benchmark.cases(device))


def list_built_here(benchmark: Benchmark) -> list[Contender]:
    """Return the contenders that need no library of their own, which a machine without a GPU may lack."""
    return [contender for contender in benchmark.contenders.values() if not contender.libraries]


def test_declared_memory_covers_what_all_contenders_hold_and_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **settings: function)
    device = on(141)
    for benchmark in ALL:
        for keys in benchmark.cases(device):
            held = made = 0
            for contender in list_built_here(benchmark):
                calls = contender.build(device, keys).calls
                held += sum(
                    part.cell_contents.nbytes
                    for call in calls
                    for part in call.__closure__ or ()
                    if isinstance(part.cell_contents, torch.Tensor)
                )
                made = calls[0]().nbytes
            rotated = 4 * device.l2 * len(benchmark.contenders)
            assert held + made <= benchmark.memory(keys) + rotated, keys


# --- on a device that computes nothing -------------------------------------------------------------------


def test_the_work_is_counted_as_the_cost_model_does() -> None:
    device = on(80)
    for contender in list_built_here(SOFTMAX):
        work = contender.build(device, ONE_SOFTMAX)
        assert work.rates["bandwidth"].per_call == work.footprint == 2 * 64 * 32768 * 4
    for contender in list_built_here(LOG_SUM_EXP):
        work = contender.build(device, {**ONE_SOFTMAX, "dtype": "bf16"})
        assert work.rates["bandwidth"].per_call == work.footprint == 64 * (32768 * 2 + 4)
    keys = {"tokens": 16, "hidden": 768, "vocab": 50257, "dtype": "bf16"}
    head = HEAD.contenders["torch"].build(device, keys)
    assert head.rates["throughput"].per_call == 2 * 16 * 768 * 50257
    assert head.rates["bandwidth"].per_call == head.footprint == 2 * (16 * 768 + 768 * 50257 + 16 * 50257)


@each
def test_inputs_that_would_stay_in_the_cache_are_many(benchmark: Benchmark) -> None:
    device = on(80)
    for keys in benchmark.cases(device):
        for contender in list_built_here(benchmark):
            work = contender.build(device, keys)
            assert work.footprint * len(work.calls) >= 2 * device.l2
            assert len({id(call) for call in work.calls}) == len(work.calls)


# --- on this machine -------------------------------------------------------------------------------------


def run_here(benchmark: Benchmark, cases: list[Keys]) -> list[records.Case]:
    outcome = runner.run([reduced(benchmark, cases)], devices.cpu(), None, quick=True, commit="c0ffee")
    return [case for record in outcome.records for case in record.cases]


@of_rows
def test_every_contender_runs_here_eager_and_compiled(benchmark: Benchmark, clean_compiler: None) -> None:
    found = run_here(benchmark, [ONE_SOFTMAX])
    reasons = {case.contender: case.reason for case in found}
    if "compiler" in reasons["torch-compile"].lower():
        pytest.skip(f"torch.compile needs a C++ compiler: {reasons['torch-compile']}")
    assert reasons.pop("quack", "needs a GPU") == "needs a GPU"
    found = [case for case in found if case.contender in reasons]
    assert {(case.contender, case.status, case.correct) for case in found} == {
        (contender, "ok", "yes") for contender in reasons
    }, reasons
    assert all(case.metrics["bandwidth"].unit == "B/s" for case in found)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_head_runs_here(dtype: str) -> None:
    (case,) = run_here(HEAD, [{"tokens": 4, "hidden": 64, "vocab": 1003, "dtype": dtype}])
    assert (case.status, case.correct, case.reason) == ("ok", "yes", "")
    assert {case.metrics[name].unit for name in ("bandwidth", "throughput")} == {"B/s", "FLOP/s"}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("function", [benchmarks.eager_softmax, logits.fused_softmax])
def test_a_right_softmax_passes_in_every_format(function: benchmarks.OfRows, dtype: str) -> None:
    work = benchmarks.softmax_work(function, devices.cpu(), {"rows": 20, "vocab": 65536, "dtype": dtype})
    assert work.check is not None
    work.check()


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("function", [benchmarks.eager_log_sum_exp, logits.fused_log_sum_exp])
def test_a_right_log_sum_exp_passes_in_every_format(function: benchmarks.OfRows, dtype: str) -> None:
    work = benchmarks.log_sum_exp_work(function, devices.cpu(), {"rows": 20, "vocab": 65536, "dtype": dtype})
    assert work.check is not None
    work.check()


@pytest.mark.parametrize("row", [3, 19])
@pytest.mark.parametrize("fault", [float("nan"), 1e-3])
def test_a_wrong_log_sum_exp_is_found_in_any_row(row: int, fault: float) -> None:
    def wrong(values: torch.Tensor) -> torch.Tensor:
        result = torch.logsumexp(values, dim=-1)
        result[row] += fault
        return result

    work = benchmarks.log_sum_exp_work(wrong, devices.cpu(), {"rows": 20, "vocab": 1000, "dtype": "fp32"})
    assert work.check is not None
    with pytest.raises(AssertionError, match=r"the error is .*, and 1e-05 is accepted"):
        work.check()


@pytest.mark.parametrize("row", [3, 19])
@pytest.mark.parametrize("fault", [float("nan"), 0.5])
def test_a_wrong_softmax_is_found_in_any_row(row: int, fault: float) -> None:
    def wrong(values: torch.Tensor) -> torch.Tensor:
        result = torch.softmax(values, dim=-1)
        result[row, 7] += fault
        return result

    work = benchmarks.softmax_work(wrong, devices.cpu(), {"rows": 20, "vocab": 1000, "dtype": "fp32"})
    assert work.check is not None
    with pytest.raises(AssertionError, match="add up to 1"):
        work.check()


def test_a_softmax_over_the_wrong_values_is_found() -> None:
    work = benchmarks.softmax_work(
        lambda values: torch.softmax(2 * values, dim=-1), devices.cpu(), {"rows": 20, "vocab": 1000, "dtype": "fp32"}
    )
    assert work.check is not None
    with pytest.raises(AssertionError, match="relative error"):
        work.check()


@pytest.mark.parametrize(("fault", "named"), [(float("inf"), "not a finite number"), (100.0, "relative error")])
def test_a_wrong_head_is_found(monkeypatch: pytest.MonkeyPatch, fault: float, named: str) -> None:
    def wrong(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        result = torch.nn.functional.linear(hidden, head)
        result[0, 5] = fault
        return result

    monkeypatch.setattr(benchmarks.logits, "project", wrong)
    work = benchmarks.head_work(devices.cpu(), {"tokens": 20, "hidden": 64, "vocab": 1003, "dtype": "fp32"})
    assert work.check is not None
    with pytest.raises(AssertionError, match=named):
        work.check()

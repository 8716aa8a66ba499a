"""Benchmarks of kernel fusion: small versions of what they run, on a processor."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuguide import fusion
from gpuguide.benchmarks.fusion import gains, layernorm, linear, scenarios
from gpuguide.benchmarks.fusion.scenarios import SCENARIOS, BlockCompiler, Scenario
from gpuguide.fusion import reference
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.models.gpt2 import GPT2Config

CPU = devices.cpu()
TINY = GPT2Config(vocab_size=64, context=16, layers=2, heads=2, hidden=16)
NAMES = ("fused-sum", "add-layer-norm", "linear-gelu", "compile-gain", "compile-start")


@pytest.mark.parametrize("name", NAMES)
def test_everything_runs_on_a_fake_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.case, "release_memory", lambda device: None)
    outcome = runner.run([declarations.get(name)], devices.fake("h100-sxm"), tmp_path, commit="c0ffee")
    (record,) = outcome.records
    assert any(case.status == "ok" for case in record.cases)
    assert all(case.status in ("ok", "skipped") for case in record.cases)


@pytest.mark.parametrize("norm", [layernorm.eager, reference.add_layer_norm, fusion.add_layer_norm])
@pytest.mark.parametrize("passes", layernorm.PASSES)
def test_layer_norms_pass_their_check(norm: Any, passes: str) -> None:
    work = layernorm.work(lambda: norm, CPU, {"tokens": 64, "hidden": 96, "pass": passes})
    assert work.check is not None
    work.check()
    assert 0 < work.further()["error"].samples[0] <= layernorm.ACCEPTED


def test_a_wrong_layer_norm_is_found_out() -> None:
    def unbiased(x: Any, residual: Any, weight: Any, bias: Any) -> Any:
        y, s = fusion.add_layer_norm(x, residual, weight, bias)
        return y * 1.02, s

    work = layernorm.work(lambda: unbiased, CPU, {"tokens": 64, "hidden": 96, "pass": "forward"})
    assert work.check is not None
    with pytest.raises(AssertionError):
        work.check()


@pytest.mark.parametrize("make", [linear.eager, linear.ours, linear.cublaslt])
@pytest.mark.parametrize("keep_input", [False, True])
def test_linear_layers_pass_their_check(make: Any, keep_input: bool) -> None:
    keys = {"tokens": 64, "inner": 32, "columns": 48, "keep_input": keep_input}
    if make is linear.cublaslt and keep_input:
        assert linear.keeps_nothing(CPU, keys)
        return
    work = linear.work(make, CPU, keys)
    assert work.check is not None
    work.check()


def in_eager_mode(function: Any) -> Any:
    """Compile a function with no code generated."""
    return torch.compile(function, dynamic=False, backend="eager")


SMALL = {
    "many-small-operations": functools.partial(scenarios.many_small_operations, elements=64),
    "large-arrays": functools.partial(scenarios.large_arrays, elements=64),
    "matmul": functools.partial(scenarios.matmul, size=16),
    "gpt2": scenarios.gpt2(1, 8, shape=TINY),
    "written-out": scenarios.gpt2(1, 8, True, TINY),
    "llama": lambda device, compile: scenarios.llama_of_transformers(device, compile, 1, 64, 16),
    "bert": lambda device, compile: scenarios.bert_of_transformers(device, compile, 1, 2, 16),
}


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("name", SMALL)
def test_scenarios_are_the_same_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCENARIOS, name, Scenario(SMALL[name], blocks=True))
    for compile in (gains.uncompiled, in_eager_mode, BlockCompiler(in_eager_mode)):
        work = gains.work(lambda compile=compile: compile, False, False, CPU, {"scenario": name})
        assert work.check is not None
        work.check()


def test_blocks_are_compiled_once_for_all() -> None:
    from torch._dynamo.utils import counters

    scenarios.forget_compiled()
    counters.clear()
    scenarios.gpt2(1, 8, shape=TINY)("cpu", BlockCompiler(in_eager_mode))()
    assert counters["stats"]["unique_graphs"] == 1

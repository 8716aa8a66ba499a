from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_devices import on
from torch import nn

from gpuguide.benchmarks.precision import linear
from gpuguide.benchmarks.precision.linear import Layer, LinearProblem, Make
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import libraries
from gpuguide.measure.benchmark import Keys, find_skip_reason, too_large

FP8_LINEAR = declarations.get("fp8-linear")
SMALL: Keys = {"rows": 96, "inner": 64, "columns": 48, "recipe": "tensor"}


@pytest.mark.parametrize(("gigabytes", "fitting"), [(4, 1), (8, 2), (16, 2), (24, 3)])
def test_what_does_not_fit_is_left_out(gigabytes: int, fitting: int) -> None:
    device = on(gigabytes)
    assert sum(not too_large(FP8_LINEAR, keys, device) for keys in FP8_LINEAR.cases(device)) == fitting


def test_a_gpu_without_fp8_is_told_so() -> None:
    reasons = {
        name: find_skip_reason(FP8_LINEAR, name, SMALL, devices.fake("a100-sxm-80gb")) for name in FP8_LINEAR.contenders
    }
    assert reasons["bf16-compile"] is None
    assert "needs fp8, which compute capability 8.0" in str(reasons["gpuguide"])
    assert "needs fp8, which compute capability 8.0" in str(reasons["torchao"])


def test_without_torchao_its_layer_is_skipped_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "why_not_here", lambda name: f"{name} is away")
    device = replace(on(80), backend="cuda")
    assert find_skip_reason(FP8_LINEAR, "torchao", SMALL, device) == "torchao is away"


@pytest.mark.parametrize(("make", "format"), [(linear.ours, "fp8"), (linear.wrap_weight, "bf16")])
def test_a_small_layer_is_right_and_says_its_error(make: Make, format: str) -> None:
    torch.manual_seed(0)
    work = linear.work(make, format, devices.cpu(), SMALL)
    assert work.check is not None
    work.check()
    (error,) = work.further()["error"].samples
    assert (1e-3 < error < 4e-3) if format == "bf16" else (2e-2 < error < 8e-2)
    assert work.rates["throughput"].per_call == 3 * 2 * 96 * 64 * 48
    assert work.footprint == 2 * 2 * (96 * 64 + 64 * 48 + 96 * 48)


def test_the_smallest_case_does_not_fit_a_cache() -> None:
    size = 4096
    assert 2 * 2 * 3 * size**2 > 2 * devices.fake("h100-sxm").l2


def test_ours_computes_in_fp8_and_the_compiled_one_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch.manual_seed(0)
    problem = LinearProblem.draw(SMALL, "cpu")
    ours = linear.measure_errors(problem, linear.ours(problem.weight))
    theirs = linear.measure_errors(problem, linear.compile_bf16(problem.weight))
    assert all(ours[name] > 5 * theirs[name] for name in ours)


@pytest.mark.parametrize("what", ["result", "gradient of inputs", "gradient of weights"])
def test_a_wrong_layer_is_found(what: str) -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(inputs, weight)
            return inputs @ weight.t() * (1.1 if what == "result" else 1)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            inputs, weight = ctx.saved_tensors
            of_inputs = gradient @ weight * (1.1 if what == "gradient of inputs" else 1)
            of_weights = gradient.t() @ inputs
            if what == "gradient of weights":
                of_weights[5, 7] = float("inf")
            return of_inputs, of_weights

    def wrong(weight: nn.Parameter) -> Layer:
        return lambda inputs: Wrong.apply(inputs, weight)

    torch.manual_seed(0)
    for format in ("fp8", "bf16"):
        work = linear.work(wrong, format, devices.cpu(), SMALL)
        assert work.check is not None
        with pytest.raises(AssertionError, match=f"the relative error of the {what} is"):
            work.check()


def test_each_step_forgets_the_gradients_of_the_last() -> None:
    torch.manual_seed(0)
    problem = LinearProblem.draw(SMALL, "cpu")
    layer = linear.wrap_weight(problem.weight)
    problem.step(layer)
    assert problem.weight.grad is not None
    first = problem.weight.grad.clone()
    problem.step(layer)
    assert torch.equal(problem.weight.grad, first)


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(FP8_LINEAR.contenders))
def test_every_contender_is_right_or_skipped_with_a_reason(name: str) -> None:
    device = devices.current()
    keys: Keys = {"rows": 512, "inner": 768, "columns": 1024, "recipe": "tensor"}
    if why := find_skip_reason(FP8_LINEAR, name, keys, device):
        pytest.skip(why)
    work = FP8_LINEAR.contenders[name].build(device, keys)
    assert work.check is not None
    work.check()
    assert work.further()["error"].samples[0] < 0.08

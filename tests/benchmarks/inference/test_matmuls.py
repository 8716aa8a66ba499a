from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import interpreted
import pytest
import torch

from gpuguide.benchmarks.inference import exact, matmuls
from gpuguide.benchmarks.inference.matmuls import MatmulProblem
from gpuguide.hardware import device as devices
from gpuguide.inference.decoder import Linear
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import libraries, runner
from gpuguide.measure.benchmark import Keys, too_large
from gpuguide.models import shapes
from gpuguide.models.llama import LlamaConfig
from gpuguide.quantization import Int4, Int8

LINEAR = declarations.get("decode-linear")
PEERS = ("humming", "gemlite")
"""Contenders that multiply by 4-bit weights alone"""
SMALL: Keys = {"outputs": 48, "inputs": 256, "weights": "int8", "batch": 3}


def test_cases_are_the_matrices_of_the_7b_shape() -> None:
    cases = LINEAR.cases(devices.fake("h100-sxm"))
    assert all(list(keys) == ["outputs", "inputs", "weights", "batch"] for keys in cases)
    config = shapes.config("llama-7b-shape")
    assert isinstance(config, LlamaConfig)
    matrices = {
        ((config.heads + 2 * config.kv_heads) * config.head_dim, config.hidden),
        (config.hidden, config.hidden),
        (2 * config.inner, config.hidden),
        (config.hidden, config.inner),
    }
    assert {(keys["outputs"], keys["inputs"]) for keys in cases if keys["batch"] == 1} == matrices
    assert {keys["weights"] for keys in cases} == {"bf16", "int8", "int4"}
    assert {(keys["batch"], keys["weights"]) for keys in cases} == {
        *((batch, weights) for batch in (1, 32) for weights in ("bf16", "int8", "int4")),
        *((batch, "int4") for batch in (8, 16)),
    }
    assert LINEAR.cases(devices.cpu()) == []


def test_everything_fits_every_card() -> None:
    device = replace(devices.fake("h100-sxm"), memory=8 * 10**9)
    assert not any(too_large(LINEAR, keys, device) for keys in LINEAR.cases(device))


@pytest.mark.parametrize(("weights", "bits"), [("bf16", 16), ("int8", 8), ("int4", 4.125)])
def test_bytes_are_those_of_the_weights_with_their_scales(weights: str, bits: float) -> None:
    assert matmuls.matrix_bytes({**SMALL, "weights": weights}) == pytest.approx(48 * 256 * bits / 8, rel=2e-3)


def test_inputs_that_would_stay_in_the_cache_are_many() -> None:
    device = replace(devices.cpu(), l2=100_000)
    problem = MatmulProblem.draw(SMALL, device)
    assert len(problem.matrices) * matmuls.matrix_bytes(SMALL) >= 2 * device.l2
    kept = [linear.weight for linear in problem.matrices]
    assert all(isinstance(weight, Int8) for weight in kept)
    assert len({weight.weight.data_ptr() for weight in kept if isinstance(weight, Int8)}) == len(kept)
    assert isinstance(MatmulProblem.draw({**SMALL, "weights": "int4"}, device).matrices[0].weight, Int4)


@pytest.mark.parametrize("name", PEERS)
def test_a_library_that_is_not_there_is_a_reason_to_skip(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contender = LINEAR.contenders[name]
    assert contender.libraries == (name,)
    monkeypatch.setitem(sys.modules, libraries.get(name).module, None)
    libraries.why_not_here.cache_clear()
    gpu = replace(devices.cpu(), backend="cuda")
    assert name in (declarations.find_missing_library(contender, gpu) or "")


def multiply_by_words(tokens: torch.Tensor, values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return what a library computes from values of 4 bits that stand for those from -8 to 7."""
    grouped = (values.float() - 8).unflatten(1, (scales.shape[1], -1)) * scales.float().unsqueeze(-1)
    return (tokens.float() @ grouped.flatten(1).T).to(tokens.dtype)


class HummingLayer:
    """Stand-in for Humming's layer, which keeps the words in order."""

    def __init__(self, outputs: int, inputs: int, config: dict[str, object], *, torch_dtype: torch.dtype) -> None:
        assert config == {"dtype": "int4", "group_size": 128}
        self.shape = (outputs, inputs)

    def to(self, device: torch.device) -> HummingLayer:
        return self

    def load_from_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        self.values = (tensors["weight"].unsqueeze(-1) >> 4 * torch.arange(8) & 15).flatten(1)
        self.scales = tensors["weight_scale"]
        assert self.values.shape == self.shape

    def transform(self) -> None:
        self.humming_config = "config"

    def __call__(self, tokens: torch.Tensor, tuning_config: dict[str, object]) -> torch.Tensor:
        assert tuning_config == {"layer": self.humming_config, "tokens": len(tokens)}
        return multiply_by_words(tokens, self.values, self.scales)


def get_heuristics_config(layer: str, shape_m: int) -> dict[str, object]:
    """Stand-in for Humming's choice of a tiling."""
    return {"layer": layer, "tokens": shape_m}


class GemLiteLinear:
    """Stand-in for GemLite's layer, which packs the values itself."""

    def __init__(self, bits: int, group: int, inputs: int, outputs: int, **formats: str) -> None:
        assert (bits, group, formats) == (4, 128, {"input_dtype": "bf16", "output_dtype": "fp32"})
        self.shape = (outputs, inputs)

    def pack(self, values: torch.Tensor, scales: torch.Tensor, zero: int) -> None:
        assert (values.dtype, tuple(values.shape), zero) == (torch.uint8, self.shape, 8)
        self.values, self.scales = values, scales

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return multiply_by_words(tokens, self.values, self.scales)


@pytest.mark.parametrize("name", PEERS)
def test_a_library_multiplies_by_the_very_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = SimpleNamespace(HummingLayer=HummingLayer)
    tune = SimpleNamespace(get_heuristics_config=get_heuristics_config)
    monkeypatch.setitem(sys.modules, "humming", SimpleNamespace(layer=layers, tune=tune))
    monkeypatch.setitem(sys.modules, "humming.layer", layers)
    monkeypatch.setitem(sys.modules, "humming.tune", tune)
    formats = SimpleNamespace(BF16="bf16", FP32="fp32")
    monkeypatch.setitem(sys.modules, "gemlite", SimpleNamespace(GemLiteLinear=GemLiteLinear, DType=formats))
    make = {"humming": matmuls.with_humming, "gemlite": matmuls.with_gemlite}[name]
    work = matmuls.work(make, devices.cpu(), {**SMALL, "weights": "int4"})
    assert work.check is not None
    work.check()


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_pytorchs_products_pass(weights: str, batch: int) -> None:
    work = matmuls.work(matmuls.with_torch, devices.cpu(), {**SMALL, "weights": weights, "batch": batch})
    assert work.check is not None
    assert work.timing == "graph"
    work.check()


def test_what_is_wrong_is_found() -> None:
    work = matmuls.work(lambda tokens, linear: lambda: torch.ones(1, 3, 48), devices.cpu(), SMALL)
    assert work.check is not None
    with pytest.raises(AssertionError, match="the relative error is"):
        work.check()


def compare_our_kernels(outputs: int, inputs: int, weights: str, batch: int) -> None:
    """Compare with the reference, in fp32, which is what the interpreter multiplies in."""
    torch.manual_seed(0)
    keys: Keys = {"outputs": outputs, "inputs": inputs, "weights": weights, "batch": batch}
    drawn = MatmulProblem.draw(keys, devices.cpu())
    kept = drawn.matrices[0].weight
    linear = Linear(kept.float() if isinstance(kept, torch.Tensor) else kept)
    problem = MatmulProblem(drawn.tokens.float(), [linear])
    multiply = matmuls.ours(problem.tokens, linear)
    assert exact.relative_error(multiply().sum(0), problem.exact()) < 1e-5
    again = multiply().sum(0) / (2 if batch == 1 else 1)  # for one token, it has been added to the first result
    assert exact.relative_error(again, problem.exact()) < 1e-5


@interpreted.needs_triton
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize(("outputs", "inputs", "batch"), [(24, 300, 1), (16, 9000, 1), (70, 260, 20), (16, 1024, 17)])
def test_our_kernels_pass(outputs: int, inputs: int, weights: str, batch: int) -> None:
    """Also with a row that is cut into parts, and with sizes that fill no tile."""
    interpreted.run(__file__, f"compare_our_kernels({outputs}, {inputs}, {weights!r}, {batch})")


@pytest.mark.gpu
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("batch", [1, 8])
def test_every_contender_is_right_and_can_be_captured(weights: str, batch: int) -> None:
    keys: Keys = {"outputs": 4096, "inputs": 11008, "weights": weights, "batch": batch}
    for case in runner.measure_case(LINEAR, keys, devices.current(), quick=True):
        assert case.status == "ok" or (case.status == "skipped" and case.contender in PEERS), case

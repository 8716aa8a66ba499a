"""A linear layer, forward and backward: in fp8 with one scale a tensor, and in bf16.

All contenders have inputs, weights and gradients in bf16. The scaling recipe is a key of the case: ``tensor`` takes one
scale for a whole matrix, anew in every step, from its largest value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gpuguide.benchmarks.precision.matmuls import matmul_shape
from gpuguide.costs import roofline
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, powers_of_two
from gpuguide.measure.records import Metric, Rate

SQUARES = powers_of_two(4096, 16384)
RECIPE = "tensor"
ROWS_CHECKED = 64
ACCEPTED = {
    "bf16": {"result": 4e-3, "of inputs": 4e-3, "of weights": 4e-3},
    "fp8": {"result": 5e-2, "of inputs": 8e-2, "of weights": 8e-2},
}
"""Largest accepted error against float64, as a ratio of norms. Of fp8 it is rounding: 4 significant bits in both
matrices of the result, 4 and 3 in those of a gradient."""
Layer = Callable[[torch.Tensor], torch.Tensor]
Make = Callable[[nn.Parameter], Layer]
"""Function that returns a layer without a bias for a weight, ``(columns, inner)``"""


@dataclass(frozen=True)
class LinearProblem:
    """Inputs and weight of a layer, and the gradient of its result."""

    inputs: torch.Tensor
    """``(rows, inner)``"""
    weight: nn.Parameter
    """``(columns, inner)``"""
    gradient: torch.Tensor
    """``(rows, columns)``"""

    @classmethod
    def draw(cls, keys: Keys, device: str) -> LinearProblem:
        """Draw a problem in bf16; results are N(0, 1)."""
        rows, inner, columns = matmul_shape(keys)
        inputs, weight, gradient = (
            torch.randn(*shape, dtype=torch.bfloat16, device=device)
            for shape in ((rows, inner), (columns, inner), (rows, columns))
        )
        return cls(inputs.requires_grad_(), nn.Parameter(weight.mul_(inner**-0.5)), gradient)

    def step(self, layer: Layer) -> torch.Tensor:
        """Compute the result and both gradients, anew."""
        self.inputs.grad = self.weight.grad = None
        result = layer(self.inputs)
        result.backward(self.gradient)
        return result.detach()


def wrap_weight(weight: nn.Parameter) -> nn.Linear:
    """Return PyTorch's layer with an existing weight."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = weight
    return layer


def ours(weight: nn.Parameter) -> Layer:
    """Return our layer in fp8."""
    from gpuguide.precision import Fp8Linear

    layer = Fp8Linear(weight.shape[1], weight.shape[0], bias=False, recipe="tensor", device="meta")
    layer.weight = weight
    return layer


def compile_bf16(weight: nn.Parameter) -> Layer:
    """Return PyTorch's layer, compiled for the one shape that it is called with next."""
    torch.compiler.reset()
    return torch.compile(wrap_weight(weight), dynamic=False)


def convert_torchao(weight: nn.Parameter) -> Layer:
    """Return torchao's layer in fp8 with one scale a tensor, compiled, which it needs to be fast.

    Nothing is forgotten before, which would be the other compiled layer of the case.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    model = nn.Sequential(wrap_weight(weight))
    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("tensorwise"))
    return torch.compile(model, dynamic=False)


def work(make: Make, format: str, device: Device, keys: Keys) -> Work:
    """Compute the result of a layer and both gradients."""
    shape = matmul_shape(keys)
    rates = {"throughput": Rate("FLOP/s", 3 * roofline.matmul_flops(*shape))}
    problem = LinearProblem.draw(keys, device.torch_device)
    layer = make(problem.weight)
    errors: dict[str, float] = {}

    def call() -> None:
        problem.step(layer)

    def check() -> None:
        errors.update(measure_errors(problem, layer))
        check_errors(errors, ACCEPTED[format])

    def further() -> Mapping[str, Metric]:
        return {"error": records.metric("1", [max(errors.values())])}

    call()  # compiles
    footprint = int(2 * roofline.matmul_bytes(*shape, problem.inputs.element_size()))
    return Work([call], check, rates, footprint=footprint, further=further)


def measure_errors(problem: LinearProblem, layer: Layer) -> dict[str, float]:
    """Return the errors of the result and of both gradients against float64, each on some of its rows.

    All are NaN if a number is not finite.
    """
    result = problem.step(layer)
    inputs, weight, gradient = problem.inputs.detach(), problem.weight.detach(), problem.gradient
    assert problem.inputs.grad is not None
    assert problem.weight.grad is not None
    parts = {
        "result": (result, inputs, weight.t()),
        "of inputs": (problem.inputs.grad, gradient, weight),
        "of weights": (problem.weight.grad, gradient.t(), inputs),
    }
    return {name: measure_error(*part) for name, part in parts.items()}


def measure_error(found: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the error of some rows of a product against float64, as a ratio of norms; NaN if one is not finite."""
    if not bool(found.isfinite().all()):
        return float("nan")
    rows = torch.linspace(0, len(found) - 1, min(ROWS_CHECKED, len(found)), device=found.device).long()
    exact = left[rows].double() @ right.double()
    return float(torch.linalg.matrix_norm(found[rows].double() - exact) / torch.linalg.matrix_norm(exact))


def check_errors(errors: Mapping[str, float], accepted: Mapping[str, float]) -> None:
    """Raise an :class:`AssertionError` if an error is larger than accepted."""
    for name, largest in accepted.items():
        what = name if name == "result" else f"gradient {name}"
        assert errors[name] <= largest, (
            f"the relative error of the {what} is {errors[name]:.1e}, and at most {largest:.0e} is accepted"
        )


def cases(device: Device) -> Sequence[Keys]:
    """Return squares; on a CPU none."""
    if not device.is_gpu:
        return []
    return [{"rows": size, "inner": size, "columns": size, "recipe": RECIPE} for size in SQUARES]


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: three contenders' matrices and gradients, fp8 twice of each, one in float64."""
    rows, inner, columns = matmul_shape(keys)
    numbers = rows * inner + inner * columns + rows * columns
    return 3 * 4 * numbers + 4 * numbers + 8 * max(inner * columns, rows * inner) + 2**29


def contender(make: Make, format: str, *libraries: str) -> Contender:
    """Return a layer as a contender, with the libraries that it calls."""
    needs = frozenset({"gpu", "bf16", format})
    return Contender(lambda device, keys: work(make, format, device, keys), needs, libraries=(*libraries, "cublas"))


FP8_LINEAR = Benchmark(
    name="fp8-linear",
    title="A linear layer in fp8, forward and backward",
    question="From which size on does a linear layer gain from fp8, rounding included?",
    contenders={
        "gpuguide": contender(ours, "fp8"),
        "bf16-compile": contender(compile_bf16, "bf16"),
        "torchao": contender(convert_torchao, "fp8", "torchao"),
    },
    cases=cases,
    memory=bytes_needed,
)

"""A linear layer with GELU: two kernels, or GELU in the epilogue of the matmul."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from gpuguide.benchmarks.inputs import count_input_sets
from gpuguide.costs import roofline
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

SHAPES = ((16384, 768, 3072), (8192, 4096, 16384), (64, 4096, 16384))
"""Tokens, inner size and columns: GPT-2 small's, a 7-billion model's, and that with few tokens"""
SEARCHED = SHAPES[0]
"""Shape for which the compiler searches for kernels, which takes long"""
ACCEPTED = 6e-3
"""Largest accepted error against float64, as a ratio of norms"""
CHECKED_ROWS = 32
ELEMENT_SIZE = 2

Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
"""Function of x, weight and bias that returns the output, and the input of GELU where a case keeps it"""


def two_kernels(keep_input: bool) -> Layer:
    """Return the layer as PyTorch computes it."""

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = functional.linear(x, weight, bias)
        y = functional.gelu(before, approximate="tanh")
        return (y, before) if keep_input else (y,)

    return layer


def eager(keep_input: bool) -> Layer:
    """Return the same, set up before what is compiled: that of the last case is forgotten."""
    torch.compiler.reset()  # after eight shapes the compiler would give up on one function
    return two_kernels(keep_input)


def compiled(keep_input: bool, mode: str | None = None) -> Layer:
    """Return the same, compiled for the one shape that it is called with next."""
    return torch.compile(two_kernels(keep_input), dynamic=False, fullgraph=True, mode=mode)


def cublaslt(keep_input: bool) -> Layer:
    """Return the layer with the epilogue of cuBLASLt, through PyTorch's operator for it."""
    return lambda x, weight, bias: (torch.ops.aten._addmm_activation(bias, x, weight.t(), use_gelu=True),)


def ours(keep_input: bool) -> Layer:
    """Return our kernel, through its operator."""
    import gpuguide.fusion.operators  # noqa: F401 - registers it

    return lambda x, weight, bias: torch.ops.gpuguide.linear_gelu(x, weight, bias, keep_input)


def work(make: Callable[[bool], Layer], device: Device, keys: Keys) -> Work:
    """Compute a layer of N(0, 1) inputs."""
    tokens, inner, columns = shape_of(keys)
    layer = make(bool(keys["keep_input"]))
    moved = int(roofline.matmul_bytes(tokens, inner, columns, ELEMENT_SIZE))

    def operands() -> list[torch.Tensor]:
        sizes = ((tokens, inner), (columns, inner), (columns,))
        x, weight, bias = (torch.randn(*size, device=device.torch_device, dtype=torch.bfloat16) for size in sizes)
        return [x, weight.mul_(inner**-0.5), bias]

    sets = [operands() for _ in range(count_input_sets(moved, device))]

    def call_on(values: list[torch.Tensor]) -> Callable[[], object]:
        def call() -> object:
            with torch.no_grad():
                return layer(*values)

        return call

    def check() -> None:
        x, weight, bias = sets[0]
        rows = torch.linspace(0, tokens - 1, CHECKED_ROWS, device=x.device).long()
        before = functional.linear(x[rows].double(), weight.double(), bias.double())
        expected = [functional.gelu(before, approximate="tanh"), before]
        with torch.no_grad():
            found = layer(x, weight, bias)
        outputs = 2 if keys["keep_input"] else 1
        for got, right in zip(found[:outputs], expected[:outputs], strict=True):
            error = float((got[rows].double() - right).norm() / right.norm())
            assert error <= ACCEPTED, f"the relative error is {error:.1e}, and {ACCEPTED:.0e} is accepted"

    rates = {"throughput": Rate("FLOP/s", roofline.matmul_flops(tokens, inner, columns))}
    return Work([call_on(values) for values in sets], check, rates, "graph", moved)


def shape_of(keys: Keys) -> tuple[int, int, int]:
    """Return tokens, inner size and columns of a case."""
    return int(keys["tokens"]), int(keys["inner"]), int(keys["columns"])


def not_searched(device: Device, keys: Keys) -> str | None:
    """Return why the compiler does not search for kernels in a case."""
    searched = shape_of(keys) == SEARCHED and not keys["keep_input"]
    return None if searched else "searches for minutes; one case shows what it gains"


def keeps_nothing(device: Device, keys: Keys) -> str | None:
    """Return why cuBLASLt's epilogue cannot do a case."""
    return "PyTorch's operator for it keeps no input of GELU" if keys["keep_input"] else None


def contender(make: Callable[..., Layer], **more: Any) -> Contender:
    """Return a contender that needs a GPU."""
    return Contender(functools.partial(work, make), frozenset({"gpu", "bf16"}), libraries=("cublas",), **more)


LINEAR_GELU = Benchmark(
    name="linear-gelu",
    title="A linear layer with GELU",
    question="What does a matmul gain that computes bias and GELU before it writes its result?",
    contenders={
        "gpuguide": contender(ours),
        "eager": contender(eager),
        "compile": contender(compiled),
        "max-autotune": contender(
            functools.partial(compiled, mode="max-autotune-no-cudagraphs"), skip_reason=not_searched
        ),
        "cublaslt": contender(cublaslt, skip_reason=keeps_nothing),
    },
    cases=lambda device: [
        {"tokens": tokens, "inner": inner, "columns": columns, "keep_input": keep_input}
        for tokens, inner, columns in SHAPES
        for keep_input in (False, True)
        if device.is_gpu and (not keep_input or tokens > 64)
    ],
    memory=lambda keys: 20.0 * ELEMENT_SIZE * shape_of(keys)[0] * shape_of(keys)[2] + 2**30,
    budget=0.2,
    end=torch.compiler.reset,
)

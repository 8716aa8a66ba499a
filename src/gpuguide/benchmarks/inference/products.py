"""The products of a decode step by themselves: a matrix of the 7B shape with one token of each of a few sequences.

All weights are read for little arithmetic, so the bytes of the weights, and how fast they arrive, decide. ``torch`` is
what PyTorch has for each kind of weights: ``torch.nn.functional.linear``, ``torch._weight_int8pack_mm`` and
``torch._weight_int4pack_mm``, with the same numbers. In a whole step our kernels have norms and activation functions in
the same launch; here they multiply and add, as they do after attention and at the end of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from gpuguide.benchmarks.inference import exact
from gpuguide.benchmarks.inference.models import number, shared
from gpuguide.benchmarks.inputs import rotated
from gpuguide.hardware.device import Device
from gpuguide.inference import cost
from gpuguide.inference.decoder import Linear
from gpuguide.inference.quantize import Int4, Int8, quantize_int4, quantize_int8
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

if TYPE_CHECKING:
    from gpuguide.inference.fused import Matrix

OUT, UP, DOWN = (4096, 4096), (2 * 11008, 4096), (4096, 11008)
QUERY_KEY_VALUE = (3 * 4096, 4096)
SHAPES = {1: (QUERY_KEY_VALUE, OUT, UP, DOWN), 32: (UP, DOWN)}
"""Outputs and inputs of a layer's matrices, by the number of tokens"""
KEPT: Mapping[str, Callable[[torch.Tensor], torch.Tensor | Int8 | Int4]] = {
    "bf16": lambda weight: weight,
    "int8": quantize_int8,
    "int4": quantize_int4,
}
ACCEPTED_ERROR = 1e-2
"""Largest accepted error against fp32, as a ratio of norms"""

Multiply = Callable[[], torch.Tensor]
"""Returns what adds up to the product: ``(parts, batch, outputs)``"""


@dataclass(frozen=True)
class Problem:
    """Tokens, and several matrices of one shape, so that none is still in the L2 cache when its turn comes."""

    tokens: torch.Tensor
    """``(batch, inputs)``, bf16"""
    matrices: list[Linear]

    @classmethod
    def of(cls, keys: Keys, device: Device) -> Problem:
        """Draw one: all numbers are normal."""
        outputs, inputs = number(keys, "outputs"), number(keys, "inputs")
        tokens = torch.randn(number(keys, "batch"), inputs, dtype=torch.bfloat16, device=device.torch_device)

        def matrix() -> Linear:
            weight = torch.randn(outputs, inputs, dtype=torch.bfloat16, device=device.torch_device).mul_(0.02)
            return Linear(KEPT[str(keys["weights"])](weight))

        return cls(tokens, [matrix() for _ in range(rotated(matrix_bytes(keys), device))])

    def exact(self) -> torch.Tensor:
        """Return the product with the first matrix in fp32."""
        weight = self.matrices[0].weight
        return self.tokens.float() @ (weight if isinstance(weight, torch.Tensor) else weight.dequantize()).float().T


def matrix_bytes(keys: Keys) -> float:
    """Return the bytes of a matrix, scales included."""
    return number(keys, "outputs") * number(keys, "inputs") * cost.stored(str(keys["weights"])).matrix


# --- contenders ------------------------------------------------------------------------------------------


class KernelProduct:
    """A product by the kernels of :mod:`gpuguide.inference.fused`, for as many tokens as it is made for.

    For one token the result is added to what ``result`` holds, as a step adds it to the hidden state. For several, the
    inputs may be cut into parts, whose sums are left side by side: in a step the norm that follows adds them up.
    """

    def __init__(self, tokens: torch.Tensor, matrix: Matrix) -> None:
        from gpuguide.inference import fused
        from gpuguide.inference.attention_kernels import overlaps

        self.tokens, self.matrix = tokens, matrix
        device = tokens.device
        processors = torch.cuda.get_device_properties(device).multi_processor_count if tokens.is_cuda else 4
        self.overlap = overlaps(device)
        self.vector = fused.vector_tiling(matrix, processors, can_cut=True)
        self.several = fused.matrix_tiling(matrix, len(tokens), processors, can_split=True)
        parts = self.vector.parts if len(tokens) == 1 else self.several.parts
        self.partial = torch.empty(parts, len(tokens), matrix.outputs, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(matrix.outputs, dtype=torch.int32, device=device)
        self.added = torch.zeros(1, matrix.outputs, dtype=torch.float32, device=device)

    def __call__(self) -> torch.Tensor:
        """Multiply: returns parts, ``(parts, batch, outputs)``, in fp32, the same memory every time."""
        if len(self.tokens) == 1:
            self._one()
            return self.added.unsqueeze(0)
        self._several()
        return self.partial

    def _one(self) -> None:
        from gpuguide.inference import vector_kernels

        of, tiling = self.matrix, self.vector
        self._launch(
            vector_kernels.add_kernel, (tiling.programs, 1, tiling.parts), tiling.warps, self.tokens, *of.arguments(),
            self.added, self.partial, self.arrived, tiling.length, PARTS=tiling.parts, BIAS=of.has_bias, BITS=of.bits,
            GROUP=of.group, INPUTS=tiling.padded, ACROSS=tiling.padded // of.word, ROWS=tiling.rows,
        )  # fmt: skip

    def _several(self) -> None:
        from gpuguide.inference import matrix_kernels

        of, tiling, count = self.matrix, self.several, len(self.tokens)
        grid = (ceil(of.outputs / tiling.rows), ceil(count / tiling.tokens), tiling.parts)
        length = ceil(ceil(of.inputs / tiling.block) / tiling.parts) * tiling.block
        self._launch(
            matrix_kernels.part_kernel, grid, tiling.warps, self.tokens, *of.arguments(), count, self.partial, length,
            BITS=of.bits, TOKENS=tiling.tokens, ROWS=tiling.rows, BLOCK=tiling.block, STAGES=tiling.stages,
        )  # fmt: skip

    def _launch(self, kernel: Any, grid: tuple[int, ...], warps: int, *arguments: Any, **constants: Any) -> None:
        overlapping = {"launch_pdl": True} if self.overlap else {}
        kernel[grid](*arguments, **constants, OVERLAP=self.overlap, num_warps=warps, **overlapping)


def ours(tokens: torch.Tensor, linear: Linear) -> Multiply:
    """Return the product by our kernels: for one token, or for several."""
    from gpuguide.inference.fused import Matrix

    return KernelProduct(tokens, Matrix.of(linear))


def with_torch(tokens: torch.Tensor, linear: Linear) -> Multiply:
    """Return the product by PyTorch's own."""
    from gpuguide.benchmarks.inference.loops import as_torch_keeps

    weight = linear.weight
    kept = weight if isinstance(weight, torch.Tensor) else as_torch_keeps(weight)
    return lambda: functional.linear(tokens, kept).unsqueeze(0)


# --- work ------------------------------------------------------------------------------------------------


def work(make: Callable[[torch.Tensor, Linear], Multiply], device: Device, keys: Keys) -> Work:
    """Multiply by each matrix in its turn."""
    moved = matrix_bytes(keys)
    rates = {"bandwidth": Rate("B/s", moved)}
    if device.backend == "fake":
        return Work([lambda: None], rates=rates)
    problem: Problem = shared(("products", device.torch_device, *keys.values()), lambda: Problem.of(keys, device))
    calls = [make(problem.tokens, linear) for linear in problem.matrices]
    wanted = problem.exact()
    error = exact.relative_error(calls[0]().sum(0), wanted)  # before any other call, which may add to the result
    return Work(calls, lambda: check(error), rates, "graph", int(moved))


def check(error: float) -> None:
    """Check that the error is small."""
    assert error <= ACCEPTED_ERROR, f"the relative error is {error:.1e}, and at most {ACCEPTED_ERROR:.0e} is accepted"


def contender(make: Callable[[torch.Tensor, Linear], Multiply], *libraries: str) -> Contender:
    """Return a way of multiplying as a contender."""
    return Contender(lambda device, keys: work(make, device, keys), frozenset({"gpu", "bf16"}), libraries=libraries)


def cases(device: Device) -> Sequence[Keys]:
    """Return the matrices of a layer with one token and with several, in each kind of weights; on a CPU none."""
    if not device.is_gpu:
        return []
    return [
        {"outputs": outputs, "inputs": inputs, "weights": weights, "batch": batch}
        for batch, shapes in SHAPES.items()
        for outputs, inputs in shapes
        for weights in KEPT
    ]


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: all matrices twice, for each contender, and some in fp32 while one is made."""
    numbers = number(keys, "outputs") * number(keys, "inputs")
    return 2 * (2 * matrix_bytes(keys) + 2**28) + 40 * numbers


DECODE_LINEAR = Benchmark(
    name="decode-linear",
    title="Products of a decode step, by weights",
    question="How fast does a matrix arrive that is multiplied by one token or a few, in 16, 8 and 4 bits a weight?",
    contenders={"gpuguide": contender(ours), "torch": contender(with_torch, "cublas")},
    cases=cases,
    memory=bytes_needed,
    budget=0.1,
)

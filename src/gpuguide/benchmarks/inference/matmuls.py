"""The matmuls of a decode step by themselves: a matrix of the 7B shape with one token of each of a few sequences.

All weights are read for little arithmetic, so the bytes of the weights, and how fast they arrive, decide. ``torch`` is
what PyTorch has for each kind of weights: ``torch.nn.functional.linear``, ``torch._weight_int8pack_mm`` and
``torch._weight_int4pack_mm``, with the same numbers; Humming and GemLite multiply by the same 4-bit numbers. In a whole
step our kernels have norms and activation functions in the same launch; here they multiply and add, as they do after
attention and at the end of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from gpuguide.benchmarks.inference import exact
from gpuguide.benchmarks.inference.models import number, share_object
from gpuguide.benchmarks.inputs import count_input_sets
from gpuguide.hardware.device import Device
from gpuguide.inference import cost
from gpuguide.inference.decoder import Linear
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate
from gpuguide.quantization import Int4, Int8, pack, quantize_int4, quantize_int8, unpack
from gpuguide.quantization.formats import NIBBLES, ZERO

OUT, UP, DOWN = (4096, 4096), (2 * 11008, 4096), (4096, 11008)
QUERY_KEY_VALUE = (3 * 4096, 4096)
SHAPES = {1: (QUERY_KEY_VALUE, OUT, UP, DOWN), 8: (UP, DOWN), 16: (UP, DOWN), 32: (UP, DOWN)}
"""Outputs and inputs of a layer's matrices, by the number of tokens"""
INT4_ONLY = (8, 16)
"""Numbers of tokens for which only the 4-bit weights are asked for, where the other libraries' kernels differ most"""
GEMLITE = {1: UP, 16: UP}
"""What GemLite is measured with, by the number of tokens"""
KEPT: Mapping[str, Callable[[torch.Tensor], torch.Tensor | Int8 | Int4]] = {
    "bf16": lambda weight: weight,
    "int8": quantize_int8,
    "int4": quantize_int4,
}
ACCEPTED_ERROR = 1e-2
"""Largest accepted error against fp32, as a ratio of norms"""

Multiply = Callable[[], torch.Tensor]
"""Function that returns partial sums of the matmul: ``(parts, batch, outputs)``"""


@dataclass(frozen=True)
class MatmulProblem:
    """Tokens, and several matrices of one shape, so that none is still in the L2 cache when its turn comes."""

    tokens: torch.Tensor
    """``(batch, inputs)``, bf16"""
    matrices: list[Linear]

    @classmethod
    def draw(cls, keys: Keys, device: Device) -> MatmulProblem:
        """Draw one: all numbers are normal."""
        outputs, inputs = number(keys, "outputs"), number(keys, "inputs")
        tokens = torch.randn(number(keys, "batch"), inputs, dtype=torch.bfloat16, device=device.torch_device)

        def matrix() -> Linear:
            weight = torch.randn(outputs, inputs, dtype=torch.bfloat16, device=device.torch_device).mul_(0.02)
            return Linear(KEPT[str(keys["weights"])](weight))

        return cls(tokens, [matrix() for _ in range(count_input_sets(matrix_bytes(keys), device))])

    def exact(self) -> torch.Tensor:
        """Return the matmul with the first matrix in fp32."""
        weight = self.matrices[0].weight
        return self.tokens.float() @ (weight if isinstance(weight, torch.Tensor) else weight.dequantize()).float().T


def matrix_bytes(keys: Keys) -> float:
    """Return the bytes of a matrix, scales included."""
    return number(keys, "outputs") * number(keys, "inputs") * cost.make_storage(str(keys["weights"])).matrix


# --- contenders ------------------------------------------------------------------------------------------


def ours(tokens: torch.Tensor, linear: Linear) -> Multiply:
    """Return the matmul by our kernels: for one token, or for several."""
    from gpuguide.benchmarks.inference.step_matmul import StepMatmul

    return StepMatmul(tokens, linear).multiply


def with_torch(tokens: torch.Tensor, linear: Linear) -> Multiply:
    """Return the matmul by PyTorch's own kernels."""
    from gpuguide.benchmarks.inference.loops import as_torch_keeps

    weight = linear.weight
    kept = weight if isinstance(weight, torch.Tensor) else as_torch_keeps(weight)
    return lambda: functional.linear(tokens, kept).unsqueeze(0)


def with_humming(tokens: torch.Tensor, linear: Linear) -> Multiply:
    """Return the matmul by Humming, the kernels that vLLM prefers for 4-bit weights on Hopper, with its own tuning.

    It also stores zero as 8, in words that hold eight inputs in order. Its first call would compile the kernels for all
    numbers of tokens, 33 for these shapes, which takes minutes. So it is given the tiling that it chooses itself for
    this number.

    Source: https://github.com/vllm-project/humming.
    """
    from humming.layer import HummingLayer
    from humming.tune import get_heuristics_config

    weight = linear.weight
    assert isinstance(weight, Int4)
    config = {"dtype": "int4", "group_size": weight.group}
    layer = HummingLayer(weight.out_features, weight.in_features, config, torch_dtype=tokens.dtype).to(tokens.device)
    layer.load_from_tensors({"weight": pack_in_order(weight.weight), "weight_scale": weight.scales.to(tokens.dtype)})
    layer.transform()
    tiling = get_heuristics_config(layer.humming_config, shape_m=len(tokens))
    return lambda: layer(tokens, tuning_config=tiling).unsqueeze(0)


def pack_in_order(words: torch.Tensor) -> torch.Tensor:
    """Return the same values of 4 bits in words that hold eight neighbours in order, the first in the lowest bits."""
    eights = unpack(words).unflatten(-1, (-1, 8))
    places = [NIBBLES.index(place) for place in range(8)]
    return pack(eights[..., places].flatten(-2))


def with_gemlite(tokens: torch.Tensor, linear: Linear) -> Multiply:
    """Return the matmul by GemLite's Triton kernels, which it tunes for each shape at the first call, for seconds.

    The result is fp32, as ours is. For one token its kernel adds partial sums to the result with atomic additions, and
    each of them would round to bf16, for an error of 2 % in all.

    Source: https://github.com/dropbox/gemlite.
    """
    from gemlite import DType, GemLiteLinear

    weight = linear.weight
    assert isinstance(weight, Int4)
    layer = GemLiteLinear(
        4, weight.group, weight.in_features, weight.out_features, input_dtype=DType.BF16, output_dtype=DType.FP32
    )
    layer.pack(unpack(weight.weight), weight.scales.to(tokens.dtype), ZERO)
    return lambda: layer(tokens).unsqueeze(0)


# --- work ------------------------------------------------------------------------------------------------


def work(make: Callable[[torch.Tensor, Linear], Multiply], device: Device, keys: Keys) -> Work:
    """Multiply by each matrix in its turn."""
    moved = matrix_bytes(keys)
    rates = {"bandwidth": Rate("B/s", moved)}
    problem: MatmulProblem = share_object(
        ("products", device.torch_device, *keys.values()), lambda: MatmulProblem.draw(keys, device)
    )
    calls = [make(problem.tokens, linear) for linear in problem.matrices]
    wanted = problem.exact()
    error = exact.relative_error(calls[0]().sum(0), wanted)  # before any other call, which may add to the result
    return Work(calls, lambda: check(error), rates, "graph", int(moved))


def check(error: float) -> None:
    """Check that the error is small."""
    assert error <= ACCEPTED_ERROR, f"the relative error is {error:.1e}, and at most {ACCEPTED_ERROR:.0e} is accepted"


def require_int4(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip other weights than those of 4 bits, or None."""
    return None if keys["weights"] == "int4" else "this library is measured with the 4-bit weights that it is made for"


def restrict_gemlite(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip most shapes, or None: each is tuned for about ten seconds."""
    if why := require_int4(device, keys):
        return why
    if GEMLITE.get(number(keys, "batch")) == (keys["outputs"], keys["inputs"]):
        return None
    return "this library tunes itself for each shape, and is measured with the largest one, for 1 and 16 tokens only"


def contender(
    make: Callable[[torch.Tensor, Linear], Multiply],
    *libraries: str,
    skip_reason: Callable[[Device, Keys], str | None] = lambda device, keys: None,
) -> Contender:
    """Return a matmul as a contender."""
    needs = frozenset({"gpu", "bf16"})
    return Contender(lambda device, keys: work(make, device, keys), needs, skip_reason, libraries)


def cases(device: Device) -> Sequence[Keys]:
    """Return the matrices of a layer with one token and with several, in each kind of weights; on a CPU none."""
    if not device.is_gpu:
        return []
    return [
        {"outputs": outputs, "inputs": inputs, "weights": weights, "batch": batch}
        for batch, shapes in SHAPES.items()
        for outputs, inputs in shapes
        for weights in KEPT
        if weights == "int4" or batch not in INT4_ONLY
    ]


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: each contender's matrices, and some in fp32 while one is made."""
    numbers = number(keys, "outputs") * number(keys, "inputs")
    return len(DECODE_LINEAR.contenders) * (2 * matrix_bytes(keys) + 2**28) + 40 * numbers


DECODE_LINEAR = Benchmark(
    name="decode-linear",
    title="Products of a decode step, by weights",
    question="How fast does a matrix arrive that is multiplied by one token or a few, in 16, 8 and 4 bits a weight?",
    contenders={
        "gpuguide": contender(ours),
        "torch": contender(with_torch, "cublas"),
        "humming": contender(with_humming, "humming", skip_reason=require_int4),
        "gemlite": contender(with_gemlite, "gemlite", skip_reason=restrict_gemlite),
    },
    cases=cases,
    memory=bytes_needed,
    budget=0.1,
)

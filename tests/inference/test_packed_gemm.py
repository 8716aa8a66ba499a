"""Matmuls of a few tokens with quantised weights, unpacked in registers: against the same matrix in float64."""

from __future__ import annotations

import re
from typing import Any

import interpreted
import pytest
import torch
from interpreted import needs_triton

from gpuguide.quantization import Int4, quantize_int4, quantize_int8

SIZES = {
    "whole tiles": (2, 64, 256),
    "one row": (3, 1, 32),
    "odd rows, columns and tokens": (5, 67, 141),
    "one column more than a group": (2, 33, 129),
    "more tokens than eight": (9, 67, 300),
    "more tokens than a tile": (65, 19, 40),
}
"""Tokens, outputs and inputs"""
FORMATS = {
    "int8": quantize_int8,
    "int4, groups of 32": lambda weight: quantize_int4(weight, 32),
    "int4, groups of 64": lambda weight: quantize_int4(weight, 64),
    "int4, groups of 128": lambda weight: quantize_int4(weight, 128),
}
every_size = pytest.mark.parametrize("size", SIZES)
every_format = pytest.mark.parametrize("name", FORMATS)


def compare(size: str, name: str, dtype: str, device: str, accepted: float) -> None:
    """Assert that a matmul with a quantised matrix is near the same one in float64."""
    from gpuguide.benchmarks.inference.step_matmul import StepMatmul
    from gpuguide.inference.decoder import Linear

    count, outputs, inputs = SIZES[size]
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randn(count, inputs, generator=generator).to(device, getattr(torch, dtype))
    weight = FORMATS[name](torch.randn(outputs, inputs, generator=generator)).to(device)
    # -- all integers, also the one that no quantiser makes
    stored = weight.weight.view(-1)
    every = torch.arange(16) * 0x11111111 if isinstance(weight, Int4) else torch.arange(-128, 128)
    stored[: len(every)] = every[: len(stored)].to(stored)
    step = StepMatmul(tokens, Linear(weight))
    step.partial.fill_(float("nan"))
    found = step.multiply().sum(0).double()
    expected = tokens.double() @ weight.dequantize(torch.float64).T
    error = float((found - expected).norm() / expected.norm())
    assert error <= accepted, (step.tiling, error)


@needs_triton
@every_size
@every_format
def test_matmuls_interpreted(size: str, name: str) -> None:
    interpreted.run(__file__, f"compare({size!r}, {name!r}, 'float32', 'cpu', 1e-6)")


@needs_triton
@every_format
def test_pairs_of_numbers_interpreted(name: str) -> None:
    """As on a GPU, but for the instructions themselves."""
    interpreted.run(__file__, f"compare_with_pairs({name!r})")


def compare_with_pairs(name: str) -> None:
    """Compare with the conversion of pairs, in fp16, which NumPy has."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    from gpuguide.inference.fused import packed_gemm, step

    def mask_and_set(words: Any, mask: int, bits: int) -> Any:
        return (words & mask) | bits

    def subtract_pairs(first: Any, second: Any, like: Any) -> Any:
        assert like == tl.float16
        first, second = np.broadcast_arrays(first.handle.data, as_array(second))
        difference = np.ascontiguousarray(first).view(np.float16) - np.ascontiguousarray(second).view(np.float16)
        words = difference.view(np.int32)
        return tl.tensor(TensorHandle(words, tl.int32), tl.block_type(tl.int32, list(words.shape)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_gemm, "mask_and_set", mask_and_set)
        patch.setattr(packed_gemm, "subtract_pairs", subtract_pairs)
        patch.setattr(step, "unpacks_exactly", lambda like: False)
        for size in ("odd rows, columns and tokens", "more tokens than eight"):
            compare(size, name, "float16", "cpu", 1e-6)


def as_array(words: Any) -> Any:
    """Return interpreted words, or a constant, as a NumPy array."""
    import numpy as np

    return words.handle.data if hasattr(words, "handle") else np.array(int(words), dtype=np.int32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@every_size
@every_format
def test_matmuls_on_a_gpu(size: str, name: str, dtype: str) -> None:
    """Unpacked integers are exact in 16 bits too, so only sums are rounded, which are in fp32."""
    compare(size, name, dtype, "cuda", 1e-5)


@needs_triton
@pytest.mark.parametrize("bits", [8, 4])
def test_unpacked_weights_stay_in_registers(bits: int) -> None:
    interpreted.run(__file__, f"compiled_for_hopper({bits})", interpret=False)


def compiled_for_hopper(bits: int) -> None:
    """Two weights take one subtraction, tensor cores read them from registers, and two programs fit together.

    With 4 bits they read the inputs where these arrived in shared memory.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpuguide.inference.fused.matrix import split_k_kernel

    threads, sizes = 128, {"TOKENS": 32, "ROWS": 64, "BLOCK": 128, "STAGES": 4}
    constants = sizes | {"BITS": bits, "EXACT": False, "PDL": False}
    types = {"x": "*bf16", "weight": "*i32", "scales": "*bf16" if bits == 4 else "*fp32", "bias": "*bf16"}
    types |= {"partial": "*fp32"}
    names = split_k_kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name not in constants}
    built = triton.compile(
        ASTSource(split_k_kernel, signature, constants, aligned),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": threads // 32},
    )
    code = built.asm["ptx"]
    assert code.count("sub.rn.bf16x2") == sizes["ROWS"] * sizes["BLOCK"] // 2 // threads
    assert re.search(r"wgmma\.mma_async\S+\s+\{[^}]*\},\s*\{", code), "the left operand is no list of registers"
    block = built.asm["ttgir"].split("scf.for")[1].split("scf.yield")[0]
    assert ("ttg.local_alloc %" in block) == (bits == 8), "inputs are stored again, or no longer reordered"
    assert built.metadata.shared <= 113 * 1024

"""A linear layer with GELU in its epilogue against float64: plain, interpreted, compiled for Hopper, on a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import interpreted
import pytest
import torch
from disassembly import machine_code
from interpreted import needs_triton
from torch.nn import functional

from gpuguide.fusion import linear_gelu


def problem(rows: int, inner: int, columns: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Return x, weight, bias and dy."""
    generator = torch.Generator().manual_seed(rows)
    x, dy = (torch.randn(rows, size, generator=generator) for size in (inner, columns))
    weight = torch.randn(columns, inner, generator=generator) * inner**-0.5
    bias = torch.randn(columns, generator=generator)
    return [each.to(dtype).to(device) for each in (x, weight, bias, dy)]


def plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


def results(function: Any, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the output and the gradients of x, weight and bias."""
    inputs = [each.detach().clone().requires_grad_() for each in values[:3]]
    y = function(*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, values[3])]


def test_gradients_on_a_processor() -> None:
    values = problem(9, 8, 12, torch.float64, "cpu")
    torch.testing.assert_close(results(linear_gelu, values), results(plain, values))
    shaped = values[0].view(3, 3, 8)
    torch.testing.assert_close(linear_gelu(shaped, *values[1:3]), plain(shaped, *values[1:3]))


def test_the_operator_keeps_the_rules_of_operators() -> None:
    x, weight, bias, _ = problem(7, 24, 16, torch.float32, "cpu")
    torch.library.opcheck(torch.ops.gpuguide.linear_gelu.default, (x, weight.requires_grad_(), bias, True))


def test_bad_input() -> None:
    x, weight, bias, _ = problem(4, 8, 16, torch.float32, "cpu")
    with pytest.raises(ValueError, match=r"\(8, 16\)"):
        linear_gelu(x, weight.t(), bias)
    with pytest.raises(TypeError, match="float16"):
        linear_gelu(x.half(), weight, bias)


def check_kernel(keep_input: bool, persistent: bool) -> None:
    """Run the kernel in small tiles, in fp32: the interpreter multiplies no bf16."""
    from gpuguide.fusion import matmul_gelu as fused
    from gpuguide.triton_support.tiles import MatmulTiling

    x, weight, bias, _ = problem(70, 48, 72, torch.float32, "cpu")
    tiling = MatmulTiling(32, 32, stages=2, warps=4, group=2, persistent=persistent)
    y, before = fused.launch(x, weight, bias, keep_input, tiling)
    torch.testing.assert_close(y.double(), plain(x.double(), weight.double(), bias.double()), rtol=1e-5, atol=1e-5)
    if keep_input:
        torch.testing.assert_close(before, functional.linear(x, weight, bias), rtol=1e-5, atol=1e-5)


@needs_triton
@pytest.mark.parametrize(("keep_input", "persistent"), [(False, False), (True, True)])
def test_kernel(keep_input: bool, persistent: bool) -> None:
    interpreted.run(__file__, f"check_kernel({keep_input}, {persistent})")


def check_machine_code(path: str) -> None:
    """Two programs fit a multiprocessor, nothing spills, and GELU takes one instruction of the special units."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpuguide.fusion import matmul_gelu as fused

    tiling, inner, kernel = fused.TILING, 64, fused.linear_gelu_kernel
    tile = f"tensordesc<bf16[{tiling.rows}, {tiling.columns}]>"
    types = {"x": f"tensordesc<bf16[{tiling.rows}, {inner}]>", "weight": f"tensordesc<bf16[{tiling.columns}, {inner}]>"}
    types |= {"bias_ptr": "*bf16", "out": tile, "kept": tile}
    constants = {"ROWS": tiling.rows, "COLUMNS": tiling.columns, "INNER": inner, "GROUP": tiling.group, "KEEP": True}
    constants["PERSISTENT"] = tiling.persistent
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    compiled = triton.compile(
        ASTSource(kernel, signature, constants),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": tiling.warps, "num_stages": tiling.stages},
    )
    code = machine_code(compiled, Path(path))
    assert not re.findall(r"\bSTL\b", code)
    assert compiled.metadata.shared <= 227 * 1024 // 2
    assert code.count("MUFU.TANH") == tiling.rows * tiling.columns // (32 * tiling.warps)
    assert "MUFU.EX2" not in code


@needs_triton
def test_machine_code(tmp_path: Path) -> None:
    interpreted.run(__file__, f"check_machine_code({str(tmp_path)!r})", interpret=False)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2048, 768, 3072), (1000, 136, 200), (64, 4096, 16384)])
def test_on_a_gpu(shape: tuple[int, int, int]) -> None:
    values = problem(*shape, torch.bfloat16, "cuda")
    exact = results(plain, [each.double() for each in values])
    for got, other, right in zip(results(linear_gelu, values), results(plain, values), exact, strict=True):
        error, accepted = ((each.double() - right).norm() for each in (got, other))
        assert float(error) <= 1.5 * float(accepted)
    torch.testing.assert_close(
        results(torch.compile(linear_gelu, fullgraph=True), values), results(linear_gelu, values), rtol=2e-2, atol=2e-2
    )

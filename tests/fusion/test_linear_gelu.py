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
from gpuguide.fusion.tracing import trace


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


@pytest.mark.parametrize(("rows", "inner", "columns"), [(0, 8, 4), (3, 0, 4), (3, 8, 0)])
def test_empty_input(rows: int, inner: int, columns: int) -> None:
    values = problem(rows, max(inner, 1), columns, torch.float64, "cpu")
    values[:2] = [each[:, :inner] for each in values[:2]]
    torch.testing.assert_close(results(linear_gelu, values), results(plain, values))


def test_gradients_that_nobody_needs_are_not_computed() -> None:
    x, weight, bias, dy = problem(4, 8, 16, torch.float32, "cpu")
    y = linear_gelu(x, weight.requires_grad_(), bias)
    traced = trace(lambda: torch.autograd.grad(y, weight, dy))
    assert [each.name for each in traced.operations] == ["gelu_backward", "mm"]


def strided(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the same, each in every second column of a tensor, bias included."""
    return [torch.stack([each, each + 1], -1)[..., 0] for each in values]


def in_wider_rows(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return x and weight as the left parts of wider matrices, which the kernel can read, and a strided bias."""
    x, weight, bias, *others = values
    x, weight = (torch.cat([each, torch.ones_like(each)], 1)[:, : each.shape[1]] for each in (x, weight))
    return [x, weight, *strided([bias]), *others]


@pytest.mark.parametrize("layout", [strided, in_wider_rows])
def test_input_that_is_not_contiguous(layout: Any) -> None:
    values = layout(problem(9, 8, 12, torch.float64, "cpu"))
    assert not any(each.is_contiguous() for each in values[:3])
    torch.testing.assert_close(linear_gelu(*values[:3]), plain(*values[:3]))


def check_kernel(keep_input: bool, persistent: bool, contiguous: bool) -> None:
    """Run the kernel in small tiles, in fp32: the interpreter multiplies no bf16."""
    from gpuguide.fusion import matmul_gelu as fused
    from gpuguide.triton_support.tiles import MatmulTiling

    values = problem(70, 48, 72, torch.float32, "cpu")
    x, weight, bias, _ = values if contiguous else in_wider_rows(values)
    tiling = MatmulTiling(32, 32, stages=2, warps=4, group=2, persistent=persistent)
    y, before = fused.launch(x, weight, bias, keep_input, tiling)
    torch.testing.assert_close(y.double(), plain(x.double(), weight.double(), bias.double()), rtol=1e-5, atol=1e-5)
    if keep_input:
        torch.testing.assert_close(before, functional.linear(x, weight, bias), rtol=1e-5, atol=1e-5)


@needs_triton
@pytest.mark.parametrize(
    ("keep_input", "persistent", "contiguous"), [(False, False, True), (True, True, True), (True, False, False)]
)
def test_kernel(keep_input: bool, persistent: bool, contiguous: bool) -> None:
    interpreted.run(__file__, f"check_kernel({keep_input}, {persistent}, {contiguous})")


def check_readable_rows() -> None:
    from gpuguide.fusion.matmul_gelu import has_readable_rows

    x = torch.zeros(16, 64, dtype=torch.float16)
    assert has_readable_rows(x)
    assert has_readable_rows(x[:, :24])
    for other in (x[:0], x.t(), x[:, 1:], x[:, ::2], x[:1].expand(16, 64)):
        assert not has_readable_rows(other)


@needs_triton
def test_rows_that_the_copy_engine_can_read() -> None:
    interpreted.run(__file__, "check_readable_rows()")


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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [strided, in_wider_rows])
def test_layouts_on_a_gpu(layout: Any, dtype: torch.dtype) -> None:
    values = problem(300, 128, 256, dtype, "cuda")
    torch.testing.assert_close(linear_gelu(*layout(values)[:3]), linear_gelu(*values[:3]), rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
def test_rows_that_the_kernel_cannot_read_on_a_gpu() -> None:
    """Rows that are the same one in memory, an odd number of columns, and empty matrices."""
    x, weight, bias, _ = problem(64, 128, 256, torch.bfloat16, "cuda")
    for given in (
        (x[:1].expand(64, 128), weight, bias),
        (x[:, 1:], weight[:, 1:], bias),
        (x, weight[:255], bias[:255]),
        (x, weight[:0], bias[:0]),
        (x[:0], weight, bias),
        (x[:, :0], weight[:, :0], bias),
    ):
        torch.testing.assert_close(linear_gelu(*given), plain(*given), rtol=1e-2, atol=1e-2)

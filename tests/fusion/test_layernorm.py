"""Residual addition with layer norm against float64: plain, interpreted, compiled for Hopper, and on a GPU."""

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

from gpuguide.fusion import add_layer_norm, reference
from gpuguide.fusion.operators import WIDEST

SHAPES = {"one row": (1, 16), "GPT-2's width": (5, 768), "odd": (7, 99), "one column": (3, 1)}


def problem(shape: tuple[int, ...], dtype: torch.dtype, device: str, mean: float = 0.0) -> list[torch.Tensor]:
    """Return x, residual, weight, bias, dy and ds."""
    generator = torch.Generator().manual_seed(sum(shape))

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    x, residual, dy, ds = (normal(*shape) for _ in range(4))
    weight, bias = 1 + 0.1 * normal(shape[-1]), 0.1 * normal(shape[-1])
    return [each.to(dtype).to(device) for each in (x + mean, residual, weight, bias, dy, ds)]


def gradients(function: Any, values: list[torch.Tensor], with_ds: bool = True) -> list[torch.Tensor]:
    """Return y, s and the gradients of x, residual, weight and bias."""
    inputs = [each.detach().clone().requires_grad_() for each in values[:4]]
    y, s = function(*inputs)
    outputs, upstream = ((y, s), values[4:]) if with_ds else ((y,), values[4:5])
    return [y.detach(), s.detach(), *torch.autograd.grad(outputs, inputs, upstream)]


def plain(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    s = x + residual
    return functional.layer_norm(s, s.shape[-1:], weight, bias), s


def compare(found: list[torch.Tensor], values: list[torch.Tensor], accepted: float, with_ds: bool = True) -> None:
    """Compare with float64, as ratios of norms."""
    exact = gradients(plain, [each.double() for each in values], with_ds)
    for name, got, right in zip(("y", "s", "dx", "dr", "dw", "db"), found, exact, strict=True):
        error = float((got.double() - right).norm() / right.norm().clamp_min(1e-3))
        assert error <= accepted, f"the error of {name} is {error:.1e}"


# --- the reference, and the operator on a processor ------------------------------------------------------


@pytest.mark.parametrize("mean", [0.0, 2000.0])
def test_what_is_written_out_is_pytorchs_layer_norm(mean: float) -> None:
    x, residual, weight, bias, *_ = problem((6, 40), torch.float64, "cpu", mean)
    torch.testing.assert_close(
        reference.add_layer_norm(x, residual, weight, bias), plain(x, residual, weight, bias), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("with_ds", [True, False])
def test_gradients_on_a_processor(with_ds: bool) -> None:
    values = problem((2, 3, 20), torch.float64, "cpu")
    compare(gradients(add_layer_norm, values, with_ds), values, 1e-12, with_ds)


def mixed(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the same with x and residual in bf16, and weight and bias in fp32."""
    return [each if number in (2, 3) else each.bfloat16() for number, each in enumerate(values)]


def check_mixed(device: str) -> None:
    values = mixed(problem((9, 96), torch.float32, device))
    found = gradients(add_layer_norm, values)
    assert [each.dtype for each in found] == [*[torch.bfloat16] * 4, *[torch.float32] * 2]
    compare(found, values, 1e-2)


def test_weights_in_fp32_of_inputs_in_bf16() -> None:
    check_mixed("cpu")


def test_no_rows() -> None:
    values = [torch.zeros(0, 8), torch.zeros(0, 8), torch.ones(8), torch.zeros(8), *torch.zeros(2, 0, 8)]
    y, s, dx, _, dw, db = gradients(add_layer_norm, values)
    assert y.shape == s.shape == dx.shape == (0, 8)
    assert not dw.any()
    assert not db.any()


def test_only_the_sum_is_used() -> None:
    values = problem((2, 8), torch.float32, "cpu")
    x = values[0].requires_grad_()
    _, s = add_layer_norm(*values[:4])
    s.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x)) if x.grad is not None else False


def test_the_operator_keeps_the_rules_of_operators() -> None:
    values = [each.requires_grad_() for each in problem((3, 5, 24), torch.float32, "cpu")[:4]]
    torch.library.opcheck(torch.ops.gpuguide.add_layer_norm.default, (*values, 1e-5))


def test_compiled_as_one_graph() -> None:
    values = problem((4, 16), torch.float32, "cpu")
    compiled = torch.compile(lambda *inputs: add_layer_norm(*inputs), fullgraph=True, backend="aot_eager")
    for got, right in zip(gradients(compiled, values), gradients(add_layer_norm, values), strict=True):
        assert torch.equal(got, right)


def bad(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return good arguments with some changed."""
    x, residual, weight, bias, *_ = problem((4, 8), torch.float32, "cpu")
    return {"x": x, "residual": residual, "weight": weight, "bias": bias} | changed


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"residual": torch.zeros(4, 9)}, ValueError, r"\(4, 9\)"),
        ({"weight": torch.zeros(9)}, ValueError, r"\(9,\)"),
        ({"residual": torch.zeros(4, 8).bfloat16()}, TypeError, "bfloat16"),
        ({"bias": torch.zeros(8).double()}, TypeError, "float64"),
        ({"x": torch.zeros(4, 8).int(), "residual": torch.zeros(4, 8).int()}, TypeError, "int32"),
        ({"x": torch.zeros(8, 4).t()}, ValueError, r"x\.contiguous\(\)"),
        ({"x": torch.zeros(4, 0), "residual": torch.zeros(4, 0)}, ValueError, r"\(4, 0\)"),
        ({"x": torch.zeros(2, WIDEST + 1)}, ValueError, "layer_norm"),
        ({"x": torch.zeros(())}, ValueError, r"\(\)"),
    ],
)
def test_bad_input(arguments: dict[str, torch.Tensor], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        add_layer_norm(**bad(**arguments))


# --- interpreted -----------------------------------------------------------------------------------------


def check_kernels(shape: tuple[int, int], mean: float, with_ds: bool, fused: bool) -> None:
    """Run the kernels with two multiprocessors, so that programs of the backward kernel have several rows."""
    from gpuguide.fusion import layernorm

    layernorm.WIDEST_FUSED = 8192 if fused else 0
    x, residual, weight, bias, dy, ds = values = problem(shape, torch.float32, "cpu", mean)
    schedule = layernorm.Schedule(warps=1, rows=2, per_multiprocessor=1, stages=2)
    y, s, *statistics = layernorm.launch_forward(x, residual, weight, bias, 1e-5, schedule)
    dx, dw, db = layernorm.launch_backward(dy, ds if with_ds else None, s, weight, *statistics, schedule)
    accepted = 1e-5 if not mean else 1e-3  # s has four digits after the point with a mean of 2000
    compare([y, s, dx, dx, dw, db], values, accepted, with_ds)


@needs_triton
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_kernels(shape: tuple[int, int]) -> None:
    interpreted.run(__file__, f"check_kernels({shape}, 0.0, True, True)")


@needs_triton
@pytest.mark.parametrize(("mean", "with_ds", "fused"), [(2000.0, True, True), (0.0, False, True), (0.0, True, False)])
def test_kernels_otherwise(mean: float, with_ds: bool, fused: bool) -> None:
    """Rows with a large mean, no gradient of s, and the two kernels of wide rows."""
    interpreted.run(__file__, f"check_kernels((37, 200), {mean}, {with_ds}, {fused})")


# --- compiled for Hopper ---------------------------------------------------------------------------------

ARRAYS = ("x_ptr", "residual_ptr", "weight_ptr", "bias_ptr", "s_ptr", "y_ptr", "dy_ptr", "ds_ptr", "dx_ptr")


def compiled_for_hopper(kernel: Any, constants: dict[str, Any], warps: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    def type_of(name: str) -> str:
        if name in constants:
            return "constexpr"
        return (
            "*bf16" if name in ARRAYS else "*fp32" if name.endswith("ptr") else "fp32" if name == "epsilon" else "i32"
        )

    signature = {name: type_of(name) for name in kernel.arg_names}
    aligned = [n for n, name in enumerate(kernel.arg_names) if name.endswith("_ptr") or name == "columns"]
    attributes = {(number,): [["tt.divisibility", 16]] for number in aligned}
    return triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": warps},
    )


def check_machine_code(path: str) -> None:
    """No schedule spills registers, and the backward kernel has its next row copied while it computes."""
    from gpuguide.fusion import layernorm

    for columns in (1024, 4096):
        forward = layernorm.FORWARD[columns]
        kernel = compiled_for_hopper(
            layernorm.add_layer_norm_kernel, {"BLOCK": columns, "ROWS": forward.rows}, forward.warps
        )
        assert not spills(kernel, Path(path)), f"forward, {columns} columns"
        backward = layernorm.BACKWARD[columns]
        constants = {"BLOCK": columns, "HAS_DS": True, "SUMS": True, "STAGES": backward.stages}
        kernel = compiled_for_hopper(layernorm.add_layer_norm_backward_kernel, constants, backward.warps)
        assert not spills(kernel, Path(path)), f"backward, {columns} columns"
        assert backward.stages == 1 or "cp.async" in kernel.asm["ptx"]


def spills(kernel: Any, folder: Path) -> list[str]:
    """Return the instructions of a kernel that store registers to local memory."""
    return re.findall(r"\bSTL\b", machine_code(kernel, folder))


@needs_triton
def test_machine_code(tmp_path: Path) -> None:
    interpreted.run(__file__, f"check_machine_code({str(tmp_path)!r})", interpret=False)


# --- on a GPU --------------------------------------------------------------------------------------------

ON_A_GPU = [(64, 768), (33, 100), (1, 4096), (300, 4096), (17, 8192), (70, 16384), (3, WIDEST), (2000, 1000)]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ON_A_GPU)
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_errors_in_bf16_are_those_of_eager_code(shape: tuple[int, int], mean: float) -> None:
    values = problem(shape, torch.bfloat16, "cuda", mean)
    exact = gradients(plain, [each.double() for each in values])
    exact[1] = (values[0] + values[1]).double()
    ours, eager = gradients(add_layer_norm, values), gradients(plain, values)
    for got, other, right in zip(ours, eager, exact, strict=True):
        error, accepted = ((each.double() - right).norm() for each in (got, other))
        assert float(error) <= 1.5 * float(accepted) + 1e-6 * float(right.norm())


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "accepted"), [(torch.float32, 1e-5), (torch.float16, 2e-3)])
def test_other_dtypes(dtype: torch.dtype, accepted: float) -> None:
    for with_ds in (True, False):
        values = problem((130, 768), dtype, "cuda")
        compare(gradients(add_layer_norm, values, with_ds), values, accepted, with_ds)


@pytest.mark.gpu
def test_mixed_dtypes_and_no_rows_on_a_gpu() -> None:
    check_mixed("cuda")
    nothing, one = torch.zeros(0, 8, device="cuda"), torch.ones(8, device="cuda")
    assert add_layer_norm(nothing, nothing, one, one)[0].shape == (0, 8)


@pytest.mark.gpu
def test_upstream_gradients_that_are_not_contiguous() -> None:
    values = problem((40, 768), torch.float32, "cuda")
    values[4] = torch.ones((), device="cuda").expand(40, 768)
    values[5] = values[5].t().contiguous().t()
    compare(gradients(add_layer_norm, values), values, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [1024, 16384])
def test_more_elements_than_an_int32_can_number(columns: int) -> None:
    """The last rows of a large array are those of an array of their own."""
    rows = 2**31 // columns + 2
    x = torch.zeros(rows, columns, device="cuda", dtype=torch.bfloat16)
    x[-3:] = torch.randn(3, columns, device="cuda")
    weight, bias = torch.ones(columns, device="cuda"), torch.zeros(columns, device="cuda")

    def results(x: torch.Tensor) -> list[torch.Tensor]:
        y, _, mean, rstd = torch.ops.gpuguide.add_layer_norm(x, x, weight, bias, 1e-5)
        return [y, *torch.ops.gpuguide.add_layer_norm_backward(y, None, x, weight, mean, rstd)]

    large, small = results(x), results(x[-3:].clone())
    for got, right in zip(large[:2], small[:2], strict=True):
        torch.testing.assert_close(got[-3:], right)
    torch.testing.assert_close(large[2:], small[2:], rtol=1e-3, atol=1e-3)  # rows of zeros add nothing


@pytest.mark.gpu
def test_rows_with_a_large_mean() -> None:
    values = problem((64, 4096), torch.float32, "cuda", 2000.0)
    compare(gradients(add_layer_norm, values), values, 1e-3)


@pytest.mark.gpu
def test_the_operator_on_a_gpu() -> None:
    values = [each.requires_grad_() for each in problem((3, 5, 768), torch.float32, "cuda")[:4]]
    torch.library.opcheck(torch.ops.gpuguide.add_layer_norm.default, (*values, 1e-5))
    compiled = torch.compile(lambda *inputs: add_layer_norm(*inputs), fullgraph=True)
    whole = problem((64, 768), torch.bfloat16, "cuda")
    for got, right in zip(gradients(compiled, whole), gradients(add_layer_norm, whole), strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.gpu
def test_a_graph_follows_its_inputs() -> None:
    x, residual, weight, bias, *_ = problem((64, 768), torch.bfloat16, "cuda")
    add_layer_norm(x, residual, weight, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, _ = add_layer_norm(x, residual, weight, bias)
    x.normal_()
    graph.replay()
    assert torch.equal(y, add_layer_norm(x, residual, weight, bias)[0])

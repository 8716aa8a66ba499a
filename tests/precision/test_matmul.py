"""The matrix product in Triton against float64: interpreted on the CPU, compiled on a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import interpreted
import pytest
import torch
from disassembly import machine_code
from interpreted import needs_triton

FORMATS = {
    "bf16": (torch.bfloat16, torch.bfloat16),
    "fp16": (torch.float16, torch.float16),
    "e4m3": (torch.float8_e4m3fn, torch.float8_e4m3fn),
    "e5m2-e4m3": (torch.float8_e5m2, torch.float8_e4m3fn),
}
SHAPES = [(1, 16, 16), (40, 48, 33), (130, 80, 70)]
"""Rows, inner, columns; with tiles of 32 x 64, several for a program"""


def draw(format: str, shape: tuple[int, int, int], transposed: bool, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two matrices, the second of which lies in memory as asked."""
    generator = torch.Generator().manual_seed(0)
    rows, inner, columns = shape
    one, other = FORMATS[format]
    left = torch.randn(rows, inner, generator=generator).to(one)
    right = torch.randn(columns, inner, generator=generator).to(other)
    if transposed:
        return left.to(device), right.to(device).t()
    width = (columns + 7) // 8 * 8  # rows begin at multiples of 16 bytes
    room = torch.zeros(inner, width, dtype=other, device=device)
    room[:, :columns] = right.t().to(device)
    return left.to(device), room[:, :columns]


def agree(left: torch.Tensor, right: torch.Tensor, result: torch.Tensor, scale: float = 1.0) -> None:
    """Assert that a result is right but for its rounding."""
    exact = left.double() @ right.double() * scale
    assert result.shape == exact.shape
    error = float((result.double() - exact).norm() / exact.norm())
    limit = {torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 4e-3}[result.dtype]
    assert error < limit, error


def compare(device: str, format: str, shape: tuple[int, int, int], transposed: bool) -> None:
    """Compare with float64, in small tiles, also in halves and one tile a program, with scales and without."""
    from gpuguide.precision.matmul import matmul
    from gpuguide.triton_support.tiles import MatmulTiling

    left, right = draw(format, shape, transposed, device)
    tiling = MatmulTiling(32, 64, 64, stages=2, warps=4, group=2)
    agree(left, right, matmul(left, right, tiling=tiling))
    scales = (torch.tensor(0.5, device=device), torch.tensor(3.0, device=device))
    halves = MatmulTiling(32, 64, 64, stages=2, warps=4, group=3, halves=True, persistent=False)
    agree(left, right, matmul(left, right, scales=scales, dtype=torch.float32, tiling=halves, fast=False), 1.5)


@needs_triton
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("format", ["fp16", "e4m3", "e5m2-e4m3"])  # the interpreter multiplies no bf16
def test_interpreted_with_the_second_matrix_transposed(format: str, shape: tuple[int, int, int]) -> None:
    interpreted.run(__file__, f"compare('cpu', {format!r}, {shape}, True)")


@needs_triton
def test_interpreted_with_the_second_matrix_as_it_is() -> None:
    interpreted.run(__file__, "compare('cpu', 'fp16', (40, 48, 33), False)")


@needs_triton
@pytest.mark.parametrize(("down", "across", "group"), [(1, 1, 8), (5, 3, 2), (7, 4, 8), (16, 9, 8)])
def test_every_tile_has_its_place_and_groups_of_rows_are_finished_one_by_one(
    down: int, across: int, group: int
) -> None:
    from gpuguide.triton_support.tiles import tile_position

    taken = [tile_position.fn(tile, down, across, group) for tile in range(down * across)]
    assert sorted(taken) == [(row, column) for row in range(down) for column in range(across)]
    groups = [row // group for row, _ in taken]
    assert groups == sorted(groups)


@needs_triton
@pytest.mark.parametrize(
    ("rows", "columns", "fast", "name"),
    [
        (8192, 8192, True, "wide"),
        (4096, 4096, True, "wide"),
        (8192, 8192, False, "square"),  # sums beside those of the tensor cores
        (
            8192,
            768,
            True,
            "square",
        ),  # 192 wide tiles would be two turns, and the second half idle
        (1024, 1024, True, "small"),
        (1, 8, True, "small"),
    ],
)
def test_the_largest_tiles_that_leave_no_multiprocessors_idle(rows: int, columns: int, fast: bool, name: str) -> None:
    from gpuguide.precision.matmul import TILINGS, choose

    assert choose(rows, columns, 132, fast=fast) == TILINGS[name]


@needs_triton
def test_every_tiling_is_compiled_for_hopper_and_fits_it(tmp_path: Path) -> None:
    """Compiled for a GPU that is not here: what a program takes is known without one."""
    interpreted.run(__file__, f"compile_every_tiling({str(tmp_path)!r})", interpret=False)


@needs_triton
def test_sums_in_fp32_do_not_fit_beside_a_wide_tile(tmp_path: Path) -> None:
    interpreted.run(__file__, f"compile_with_sums_beside({str(tmp_path)!r})", interpret=False)


def compile_every_tiling(folder: str) -> None:
    """Assert that the products are Hopper's, whose operands lie in shared memory, that all fits, and what runs beside.

    In the machine code, no register is spilled, and the wait in the loop leaves one product running.
    """
    from gpuguide.precision.matmul import TILINGS

    for format, instruction in (("bf16", "bf16.bf16"), ("fp8e4nv", "e4m3.e4m3")):
        for name, tiling in TILINGS.items():
            compiled = compiled_for_hopper(tiling, format)
            assert compiled.metadata.shared <= 227 * 1024, (name, compiled.metadata.shared)
            assert f"wgmma.mma_async.sync.aligned.m64n{tiling.columns}" in compiled.asm["ptx"], name
            assert f".f32.{instruction}" in compiled.asm["ptx"], name
            assert "cp.async.bulk.tensor" in compiled.asm["ptx"], name
            code = machine_code(compiled, Path(folder))
            assert not spills(code), name
            assert "WARPGROUP.DEPBAR.LE gsb0, 0x1" in code, name


def compile_with_sums_beside(folder: str) -> None:
    """Assert which tilings have registers for sums in fp32 beside those of the tensor cores."""
    from gpuguide.precision.matmul import SLOWNESS, TILINGS

    found = {
        name: spills(machine_code(compiled_for_hopper(TILINGS[name], "fp8e4nv", fast=False), Path(folder)))
        for name in SLOWNESS
    }
    assert found == {"wide": True, "square": False, "small": False}


def spills(code: str) -> bool:
    """Return whether machine code keeps registers in memory."""
    return bool(re.search(r"\b(LDL|STL)\b", code))


def compiled_for_hopper(tiling: Any, format: str, fast: bool = True) -> Any:
    """Return the kernel, with the second matrix transposed."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpuguide.precision.matmul import matmul_kernel

    inner = tiling.inner // (1 if format.startswith("fp8") else 2)
    types = {
        "left": f"tensordesc<{format}[{tiling.rows}, {inner}]>",
        "right": f"tensordesc<{format}[{tiling.columns}, {inner}]>",
        "out": f"tensordesc<bf16[{tiling.rows}, {tiling.columns // (2 if tiling.halves else 1)}]>",
        "left_scale": "*fp32",
        "right_scale": "*fp32",
    }
    constants = {"ROWS": tiling.rows, "COLUMNS": tiling.columns, "INNER": inner, "GROUP": tiling.group}
    constants |= {"INNER_LAST": True, "SCALED": True, "HALVES": tiling.halves, "FAST": fast}
    names = matmul_kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    return triton.compile(
        ASTSource(matmul_kernel, signature, constants),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": tiling.warps, "num_stages": tiling.stages},
    )


@needs_triton
def test_bad_input_is_named() -> None:
    from gpuguide.precision.matmul import matmul

    half, full = torch.ones(16, 16, dtype=torch.bfloat16), torch.ones(16, 16)
    quantized = torch.ones(16, 16).to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match="both fp16 or both fp8; given"):
        matmul(half, full)
    with pytest.raises(TypeError, match="given"):
        matmul(quantized, half)
    with pytest.raises(ValueError, match=r"given \(16, 16\) and \(8, 16\)"):
        matmul(half, half[:8])
    with pytest.raises(ValueError, match="none of them 0"):
        matmul(half[:0], half)
    with pytest.raises(ValueError, match="Rows must be contiguous"):
        matmul(half.t(), half)
    with pytest.raises(ValueError, match="begin at multiples of 16 bytes"):
        matmul(torch.ones(4, 5, dtype=torch.bfloat16), torch.ones(5, 16, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="in fp8 the second matrix is the transpose"):
        matmul(quantized, quantized)


# --- on the GPU ----------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 64, 64), (300, 272, 520), (1024, 768, 2304)], ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_compiled_with_every_tiling(format: str, shape: tuple[int, int, int]) -> None:
    from gpuguide.precision.matmul import TILINGS, matmul

    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the named tilings need the shared memory of Hopper")
    left, right = draw(format, shape, True, "cuda")
    agree(left, right, matmul(left, right))
    agree(left, right, matmul(left, right, fast=False))
    for tiling in TILINGS.values():
        agree(left, right, matmul(left, right, tiling=tiling))
    if left.dtype.itemsize == 2:
        left, right = draw(format, shape, False, "cuda")
        agree(left, right, matmul(left, right))

"""Products with a thin matrix against float64: interpreted, compiled for a GPU that is not here, and on one."""

from __future__ import annotations

from itertools import product as pairs
from typing import Any

import interpreted
import pytest
import torch
from functorch.compile import make_boxed_func
from interpreted import needs_triton
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from gpuguide.lora.product import Spans, plain_product, product, skinny_gemm

ERRORS = {torch.float32: 2e-6, torch.float16: 5e-4}
"""Of a result, as a ratio of norms: half of the distance between numbers of the format, or a little more. The
interpreter multiplies no bf16, but the bits of it as whole numbers."""
RANKS = (1, 4, 8, 16, 24, 64, 128)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- interpreted -----------------------------------------------------------------------------------------


def narrow_is_right(rank: int) -> None:
    from gpuguide.lora.product import skinny_gemm_kernels
    from gpuguide.lora.product.skinny_gemm_kernels import Tile

    tiles = (None, Tile(64, 128), Tile(32, 64))
    for dtype, (first, (rows, inner)) in pairs(ERRORS, enumerate(((1, 1), (70, 200), (33, 768)))):
        wide, factor = drawn(rows, inner + 5, dtype=dtype)[:, :inner], drawn(inner, rank, dtype=dtype, seed=1)
        wanted = -0.7 * (wide.double() @ factor.double())
        layouts = (factor, factor.t().contiguous().t(), factor.repeat_interleave(2, 1)[:, ::2])
        for given, tile in zip(layouts, tiles[first:] + tiles[:first], strict=True):  # each with each, over all shapes
            found = skinny_gemm_kernels.skinny_matmul(wide, given, -0.7, tile)
            assert found.is_contiguous()
            assert found.dtype == dtype
            assert error(found, wanted) < ERRORS[dtype], (dtype, rows, inner, tile)


def sums_are_right(rank: int) -> None:
    from gpuguide.lora.product import skinny_gemm_kernels
    from gpuguide.lora.product.skinny_gemm_kernels import Tile

    tiles = (None, Tile(32, 64, programs=9), Tile(16, 128, programs=1))
    for dtype, (first, (rows, columns, others)) in pairs(
        ERRORS, enumerate(((1, 1, 3), (300, 200, 65), (520, 96, 256)))
    ):
        wide = drawn(rows, columns + 3, dtype=dtype)[:, :columns]
        other = drawn(others, rows, dtype=dtype, seed=1).t()
        factor, other_factor = drawn(rows, rank, dtype=dtype, seed=2), drawn(rank, rows, dtype=dtype, seed=3).t()
        wanted = wide.double().t() @ factor.double(), other_factor.double().t() @ other.double()
        for tile in tiles if dtype == torch.float32 else tiles[first : first + 1]:
            found = skinny_gemm_kernels.reduce_rows(wide, factor, other, other_factor, tile)
            for one, right in zip(found, wanted, strict=True):
                assert one.is_contiguous()
                assert one.shape == right.shape
                assert one.dtype == dtype
                assert error(one, right) < ERRORS[dtype], (dtype, rows, columns, tile)


PARTS = {"narrow": narrow_is_right, "sums": sums_are_right}


@needs_triton
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("part", PARTS)
def test_kernels_interpreted(part: str, rank: int) -> None:
    interpreted.run(__file__, f"PARTS[{part!r}]({rank})")


@needs_triton
def test_tiles_fit_a_hopper_gpu_and_are_read_in_wide_loads() -> None:
    interpreted.run(__file__, "compiled_for_hopper()", interpret=False)


def compiled_for_hopper() -> None:
    """Shared memory holds the tiles, all loads of a loop are of 16 bytes, and large tiles go to the tensor cores."""
    from gpuguide.lora.product import skinny_gemm_kernels

    for rank in (8, 16, 24, 64, 128):
        for rows, inner_last in pairs((8192, 4096, 512), (True, False)):
            tile = skinny_gemm_kernels.skinny_matmul_tile(rows, rank, 132)
            built = compiled(skinny_gemm_kernels.skinny_matmul_kernel, rank, tile, INNER_LAST=inner_last)
            check(built, tile.rows >= 64, (rank, tile, inner_last))
        for columns in (4096, 132 * 128 + 1):
            tile = skinny_gemm_kernels.reduction_tile(rank, columns, 132)
            check(compiled(skinny_gemm_kernels.partial_sums_kernel, rank, tile), True, (rank, columns))
        for one in ("rows", "columns", "other_columns", "row_stride", "other_row_stride"):
            compiled(skinny_gemm_kernels.partial_sums_kernel, rank, tile, **{one: 1})
    for one in ("rows", "inner", "row_stride"):
        compiled(
            skinny_gemm_kernels.skinny_matmul_kernel,
            16,
            skinny_gemm_kernels.skinny_matmul_tile(1, 16, 132),
            INNER_LAST=True,
            **{one: 1},
        )


def check(built: Any, large: bool, case: object) -> None:
    code = built.asm["ptx"]
    assert built.metadata.shared <= 227 * 1024, case
    assert code.count("cp.async.cg.shared.global") >= 8, case
    assert "cp.async.ca" not in code, case
    assert "ld.global" not in code, case
    assert ("wgmma.mma_async" in code) == large, case


def compiled(kernel: Any, rank: int, tile: Any, **more: int) -> Any:
    """Return a kernel as it is compiled for matrices that begin, and whose rows begin, where wide loads may.

    A number that is one is a constant.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpuguide.lora.product import skinny_gemm_kernels

    constants = {
        "RANK": rank,
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "WIDTH": skinny_gemm_kernels.width(rank),
        **more,
    }
    matrices = ("wide", "thin", "out", "other_wide", "other_thin")
    types = dict.fromkeys(matrices, "*bf16") | {"sums": "*fp32", "scale": "fp32"}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = {
        (place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name not in {*constants, "scale"}
    }
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


# --- operators -------------------------------------------------------------------------------------------


def operands(dtype: torch.dtype = torch.float64, device: str = "cpu", rank: int = 3) -> tuple[torch.Tensor, ...]:
    """What comes back, what came out of A, what A read, and what comes back through B."""
    shapes = ((40, 24), (40, rank), (40, 16), (40, rank))
    return tuple(drawn(*shape, dtype=dtype, seed=seed).to(device) for seed, shape in enumerate(shapes))


def test_operators_are_what_pytorch_expects_of_them() -> None:
    rows, hidden, read, through_up = operands()
    torch.library.opcheck(skinny_gemm.skinny_matmul_operator, (read, drawn(3, 16, dtype=read.dtype).t(), 0.7))
    torch.library.opcheck(skinny_gemm.factor_gradients_operator, (rows, hidden, read, through_up))
    with FlopCounterMode(display=False) as counter:
        skinny_gemm.skinny_matmul_operator(read, drawn(16, 3, dtype=read.dtype), 1.0)
        skinny_gemm.factor_gradients_operator(rows, hidden, read, through_up)
    assert counter.get_total_flops() == 2 * 40 * 3 * (16 + 24 + 16)


@pytest.mark.parametrize("spans", [None, ((0, 5), (7, 11))])
@pytest.mark.parametrize("dropping", [False, True])
def test_a_compiler_takes_the_operators(monkeypatch: pytest.MonkeyPatch, spans: Spans | None, dropping: bool) -> None:
    """They are in both graphs, as they would be on a GPU, and the gradients are those of the plain product."""
    torch.compiler.reset()
    monkeypatch.setattr(skinny_gemm, "is_skinny", lambda wide, thin: True)
    graphs: list[str] = []
    x, dropped = (drawn(2, 3, 5, dtype=torch.float64, seed=seed).requires_grad_() for seed in range(2))
    weight, down = drawn(11, 5, dtype=torch.float64), drawn(4, 5, dtype=torch.float64, seed=3).requires_grad_()
    up = drawn(*((9, 2) if spans else (11, 4)), dtype=torch.float64, seed=4).requires_grad_()
    inputs = [x, down, up, *([dropped] if dropping else [])]

    def compiler(graph: Any, example: Any) -> Any:
        graphs.append(graph.print_readable(print_output=False))
        return make_boxed_func(graph)

    def loss(compute: Any) -> torch.Tensor:
        return compute(x.sin(), weight, None, down, up, 0.7, dropped if dropping else None, spans).sin().sum()

    compiled = torch.compile(loss, fullgraph=True, backend=aot_autograd(fw_compiler=compiler))
    found = torch.autograd.grad(compiled(product), inputs)
    for one, other in zip(found, torch.autograd.grad(loss(plain_product), inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    forward, backward = graphs
    assert "gpuguide.narrow" in forward
    assert backward.count("gpuguide.narrow") == backward.count("gpuguide.thin_gradients") == 1


def test_an_activation_is_written_once_for_all_that_read_it() -> None:
    """Kept as another view than the products read, it would be computed for both: the compiler does not see through."""
    torch.compiler.reset()
    graphs: list[Any] = []
    x, weight = drawn(2, 3, 5, dtype=torch.bfloat16).requires_grad_(), drawn(4, 5, dtype=torch.bfloat16)
    down, up = (drawn(*shape, dtype=torch.bfloat16, seed=3).requires_grad_() for shape in ((2, 5), (4, 2)))

    def compiler(graph: Any, example: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph)

    def loss() -> torch.Tensor:
        return product(functional.gelu(x), weight, None, down, up, 1.0).sum()

    backend = aot_autograd(fw_compiler=compiler, partition_fn=min_cut_rematerialization_partition)
    torch.compile(loss, fullgraph=True, backend=backend)().backward()
    (gelu,) = (node for node in graphs[0].graph.nodes if node.target is torch.ops.aten.gelu.default)
    assert len(gelu.users) == 1


# --- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rank", [1, 16, 24, 64, 128])
def test_kernels_on_a_gpu(rank: int, dtype: torch.dtype) -> None:
    """As near to float64 as the format allows, and the same bits each time, for any layout."""
    nearest = {torch.bfloat16: 2e-3, torch.float16: 3e-4}[dtype]  # about what rounding the exact result gives
    for rows, reads, writes in ((1, 1, 3), (70, 200, 65), (8192, 768, 2304), (4096, 3072, 130)):
        whole = drawn(rows, writes + 16, dtype=dtype).cuda()  # so that some rows begin at whole 32 bytes
        hidden, through_up = (drawn(rows, rank, dtype=dtype, seed=seed).cuda() for seed in (1, 2))
        read, up = drawn(rows, reads, dtype=dtype, seed=3).cuda(), drawn(writes, rank, dtype=dtype, seed=4).cuda()
        down = drawn(rank, reads, dtype=dtype, seed=5).cuda()
        for of_layer in (whole[:, 16:], whole[:, :writes], whole[:, 5 : writes + 5]):
            found = (
                skinny_gemm.skinny_matmul(of_layer, up, 0.5),
                skinny_gemm.skinny_matmul(read, down.t(), 0.5),
                *skinny_gemm.factor_gradients(of_layer, hidden, read, through_up),
            )
            wide = [each.double() for each in (of_layer, up, read, down, hidden, through_up)]
            wanted = (
                0.5 * wide[0] @ wide[1],
                0.5 * wide[2] @ wide[3].t(),
                wide[0].t() @ wide[4],
                wide[5].t() @ wide[2],
            )
            errors = [error(one, right) for one, right in zip(found, wanted, strict=True)]
            assert max(errors) < (2 if rows == 1 else 1) * nearest, (rows, reads, writes, errors)
            again = (
                skinny_gemm.skinny_matmul(of_layer, up, 0.5),
                *skinny_gemm.factor_gradients(of_layer, hidden, read, through_up),
            )
            assert all(torch.equal(one, found[place]) for one, place in zip(again, (0, 2, 3), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("spans", [None, ((0, 24), (40, 64))])
def test_a_layer_on_a_gpu(spans: Spans | None) -> None:
    """In eager mode and compiled, against the plain product in float64, and on a matrix without rows."""
    torch.compiler.reset()
    x, weight = drawn(2, 300, 32, dtype=torch.bfloat16).cuda(), drawn(64, 32, dtype=torch.bfloat16, seed=1).cuda()
    down = drawn(16, 32, dtype=torch.bfloat16, seed=2).cuda().requires_grad_()
    up = drawn(*((48, 8) if spans else (64, 16)), dtype=torch.bfloat16, seed=3).cuda().requires_grad_()
    inputs = [x.requires_grad_(), down, up]

    def gradients(compute: Any, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = compute(given[0], weight.to(given[0].dtype), None, *given[1:], 0.5, None, spans)
        return torch.autograd.grad(out.square().sum(), given)

    wanted = gradients(plain_product, *(each.detach().double().requires_grad_() for each in inputs))
    for compute in (product, torch.compile(product, fullgraph=True)):
        for found, right in zip(gradients(compute, *inputs), wanted, strict=True):
            assert error(found, right) < 1e-2
    nothing = gradients(product, x.detach()[:, :0].requires_grad_(), down, up)
    assert not any(gradient.any() for gradient in nothing)

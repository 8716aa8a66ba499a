"""The backward kernel in Gluon: its machine code, its fallback and, on a GPU, its gradients.

Gluon has no interpreter, so a CPU can only compile the kernel.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import interpreted
import pytest
import torch
from disassembly import machine_code
from interpreted import needs_triton

from gpuguide.attention import flash, reference

Tensors = tuple[torch.Tensor, ...]


def compile_for_hopper(head_dim: int, causal: bool, dtype: str) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.experimental.gluon.language import NVMMASharedLayout

    from gpuguide.attention import gluon_backward, gluon_backward_kernels, gluon_flash

    schedule = gluon_backward.SCHEDULES[head_dim]
    function, block_m = gluon_backward_kernels.attn_bwd_kernel, schedule.block_m
    rows, columns = (
        f"tensordesc<{dtype}[1, 1, {size}, {head_dim}],{NVMMASharedLayout(128, 16, rank=4)!r}>"
        for size in (block_m, gluon_backward.HALF_N)
    )
    numbers = f"tensordesc<fp32[1, 1, {block_m}],{NVMMASharedLayout(0, 32, rank=3)!r}>"
    types = dict.fromkeys(("desc_q", "desc_do"), rows) | dict.fromkeys(("desc_lse", "desc_delta"), numbers)
    types |= dict.fromkeys(("desc_k", "desc_v", "desc_dk", "desc_dv"), columns) | {"scale": "fp32"}
    types["desc_dq"] = f"tensordesc<fp32[1, {block_m * head_dim // 2}],{NVMMASharedLayout(0, 32, rank=2)!r}>"
    constants = {"CAUSAL": causal, "ACCUMULATE": True, "DELAY": schedule.delay_dq}
    constants |= {"SECTION": schedule.section, "STAGES": schedule.num_stages}
    constants |= {"BLOCK_M": block_m, "HEAD_DIM": head_dim}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in function.arg_names}
    return triton.compile(
        GluonASTSource(function, signature, constants),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": 4, "maxnreg": gluon_flash.REGISTERS},
    )


def machine_code_of_every_kernel(folder: str) -> None:
    """It fits an H100, hardly spills, lets the copy engine add, and starts several matmuls before it waits."""
    for head_dim, causal, dtype in ((64, True, "bf16"), (64, False, "fp16"), (128, True, "bf16"), (128, False, "fp16")):
        kernel = compile_for_hopper(head_dim, causal, dtype)
        assert kernel.metadata.shared <= 227 * 1024
        code = machine_code(kernel, Path(folder))
        assert code.count("UTMAREDG") >= 4
        matmuls, waits = code.count("HGMMA"), len(re.findall(r"WARPGROUP\.DEPBAR", code))
        assert matmuls >= 4 * 32  # in each of two loops of each of two groups
        assert waits <= 4 * 6
        spills = len(re.findall(r"\bLDL", code))
        assert spills <= 120, spills


@needs_triton
def test_machine_code(tmp_path: Path) -> None:
    interpreted.run(__file__, f"machine_code_of_every_kernel({str(tmp_path)!r})", interpret=False)


def without_the_reduction(folder: str) -> None:
    """A Triton without it is named once."""
    from triton._C.libtriton import ir

    from gpuguide.attention import gluon_backward

    kind = ir.DESCRIPTOR_REDUCE_KIND
    del ir.DESCRIPTOR_REDUCE_KIND
    try:
        gluon_backward.can_add_to_global_memory.cache_clear()
        with pytest.warns(RuntimeWarning, match="create_async_tma_reduce"):
            assert not gluon_backward.can_add_to_global_memory()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not gluon_backward.can_add_to_global_memory()
    finally:
        ir.DESCRIPTOR_REDUCE_KIND = kind
        gluon_backward.can_add_to_global_memory.cache_clear()
    assert gluon_backward.can_add_to_global_memory()


@needs_triton
def test_without_the_reduction(tmp_path: Path) -> None:
    interpreted.run(__file__, f"without_the_reduction({str(tmp_path)!r})", interpret=False)


def test_the_pair_takes_over_where_the_kernel_is_not_supported() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, d_out = torch.randn(4, 1, 2, 5, 8, generator=generator, dtype=torch.float64)
    out, lse = reference.attention_with_log_sum_exp(q, k, v, causal=True)
    found = flash.compute_all_gradients(q, k, v, out, lse, d_out, None, True, 8**-0.5)
    for one, other in zip(found, reference.gradients(q, k, v, d_out, causal=True), strict=True):
        torch.testing.assert_close(one, other)


def order_of_dq() -> None:
    """What runs before the kernel and after it: padding, delta, zeros, and the order of registers."""
    from gpuguide.attention import gluon_backward

    for head_dim, schedule in gluon_backward.SCHEDULES.items():
        block_m, seqlen_q = schedule.block_m, 77
        generator = torch.Generator().manual_seed(0)
        q, d_out = torch.randn(2, 2, 3, seqlen_q, head_dim, generator=generator)
        lse, d_lse = torch.randn(2, 2, 3, seqlen_q, generator=generator)
        prepared = gluon_backward.prepare(q, d_out, lse, d_lse, block_m)
        wanted = lse / torch.log(torch.tensor(2.0)), (q * d_out).sum(-1) - d_lse
        for found, right in zip(prepared[:2], wanted, strict=True):
            torch.testing.assert_close(found[..., :seqlen_q], right, rtol=1e-5, atol=1e-5)
            assert found.shape[-1] == 80
            assert not found[..., seqlen_q:].any()
        assert not prepared[2].any()
        tiles = -(-seqlen_q // block_m)
        dq = torch.randn(2, 3, tiles * block_m, head_dim, generator=generator)
        found = gluon_backward.convert(in_order_of_registers(dq, block_m), q, 0.5, block_m)
        torch.testing.assert_close(found, dq[:, :, :seqlen_q] / 2, rtol=0, atol=0)


def in_order_of_registers(dq: torch.Tensor, block_m: int) -> torch.Tensor:
    """Return dq in the order in which the threads of wgmma hold the two halves of its tiles, four numbers at a time."""
    head_dim = dq.shape[-1]
    tiles = dq.view(-1, block_m, head_dim)
    halves = tiles.split(64, dim=1) if block_m > 64 else tiles.split(head_dim // 2, dim=2)
    half = torch.stack(list(halves), dim=1)  # tiles, 2, 64 rows, columns
    warp_row_column = half.reshape(*half.shape[:2], 4, 2, 8, half.shape[-1] // 8, 4, 2)
    return warp_row_column.permute(0, 1, 2, 5, 4, 6, 3, 7).reshape(-1, half[0, 0].numel())


@needs_triton
def test_order_of_dq() -> None:
    interpreted.run(__file__, "order_of_dq()")


# --- on a GPU ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _on_hopper(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the Gluon kernel is for compute capability 9")


def draw(shape: tuple[int, ...], head_dim: int, dtype: torch.dtype) -> Tensors:
    """Return q, k, v and the gradient of the output, of a shape of batch, heads, kv_heads, queries and keys."""
    batch, heads, kv_heads, queries, keys = shape
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = ((heads, queries), (kv_heads, keys), (kv_heads, keys), (heads, queries))
    return tuple(torch.randn(batch, *size, head_dim, generator=generator, device="cuda").to(dtype) for size in sizes)


def compute_gradients(inputs: Tensors, causal: bool, **options: Any) -> Tensors:
    leaves = [tensor.detach().requires_grad_() for tensor in inputs[:3]]
    out = flash.flash_attention(*leaves, causal=causal, backend="gluon", **options)
    return torch.autograd.grad(out, leaves, inputs[3])


SHAPES = {
    "one query": (1, 2, 2, 1, 4097),
    "shared heads, odd lengths": (2, 6, 2, 113, 203),
    "many shared heads": (1, 8, 1, 1023, 1024),
    "few queries": (1, 2, 2, 3, 799),
    "rows that see nothing": (1, 4, 2, 799, 403),
    "more heads than a section": (3, 7, 7, 300, 300),
}
"""Batch, heads, kv_heads, queries, keys"""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_on_a_gpu(shape: tuple[int, ...], causal: bool, head_dim: int, dtype: torch.dtype) -> None:
    """At most 1.5 times the errors of the Triton kernels, which round at the same places."""
    inputs = draw(shape, head_dim, dtype)
    q, k, v, d_out = (tensor.float() for tensor in inputs)
    wanted = reference.gradients(q, k, v, d_out, causal=causal)
    ours, pair = (compute_gradients(inputs, causal, deterministic=deterministic) for deterministic in (False, True))
    for found, theirs, right in zip(ours, pair, wanted, strict=True):
        norm = right.norm().clamp_min(1.0)
        assert (found.float() - right).norm() / norm <= 1.5 * (theirs.float() - right).norm() / norm + 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
def test_only_dq_differs_from_run_to_run(head_dim: int) -> None:
    inputs = draw((2, 4, 2, 1000, 1000), head_dim, torch.bfloat16)
    first, exact = compute_gradients(inputs, True), compute_gradients(inputs, True, deterministic=True)
    for _ in range(5):
        dq, dk, dv = compute_gradients(inputs, True)
        torch.testing.assert_close(dq, first[0], rtol=2e-2, atol=2e-2)
        assert torch.equal(dk, first[1])
        assert torch.equal(dv, first[2])
        again = compute_gradients(inputs, True, deterministic=True)
        assert all(torch.equal(one, other) for one, other in zip(again, exact, strict=True))


@pytest.mark.gpu
def test_the_setting_of_pytorch_makes_it_deterministic() -> None:
    inputs = draw((1, 2, 2, 500, 500), 64, torch.bfloat16)
    exact = compute_gradients(inputs, True, deterministic=True)
    torch.use_deterministic_algorithms(True)
    try:
        found = compute_gradients(inputs, True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(found, exact, strict=True))


@pytest.mark.gpu
def test_the_gradient_of_the_log_sum_exp_on_a_gpu() -> None:
    inputs = draw((1, 4, 2, 130, 150), 128, torch.bfloat16)
    d_lse = torch.randn(1, 4, 130, device="cuda")

    def gradients(deterministic: bool) -> Tensors:
        leaves = [tensor.detach().requires_grad_() for tensor in inputs[:3]]
        results = flash.flash_attention_with_log_sum_exp(
            *leaves, causal=True, backend="gluon", deterministic=deterministic
        )
        return torch.autograd.grad(results, leaves, (inputs[3], d_lse))

    for one, other in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_a_cuda_graph_and_a_compiled_function_hold_it() -> None:
    inputs = draw((1, 4, 2, 512, 512), 128, torch.bfloat16)
    wanted = compute_gradients(inputs, True)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = compute_gradients(inputs, True)
    for _ in range(2):
        graph.replay()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flash.flash_attention(q, k, v, causal=True, backend="gluon")

    compiled = torch.compile(attend, fullgraph=True)
    leaves = [tensor.detach().requires_grad_() for tensor in inputs[:3]]
    for results in (found, torch.autograd.grad(compiled(*leaves), leaves, inputs[3])):
        for one, other in zip(results, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)

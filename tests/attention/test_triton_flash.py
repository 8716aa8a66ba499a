"""The kernels against the definition in float64: interpreted on the CPU, and compiled on a GPU."""

from __future__ import annotations

import interpreted
import pytest
import torch
from interpreted import needs_triton
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpuguide.attention import reference
from gpuguide.attention.flash import flash_attention

Tensors = tuple[torch.Tensor, ...]

SHAPES = {
    "a tile and a bit": (1, 2, 2, 130, 130),
    "fewer queries than keys, and shared heads": (1, 4, 2, 70, 201),
    "rows that see nothing": (2, 2, 1, 201, 70),
    "one query": (1, 2, 2, 1, 150),
    "one key": (1, 2, 1, 65, 1),
}
"""Batch, heads, kv_heads, queries, keys"""
LONGER = {
    **SHAPES,
    "more tiles than have room": (1, 2, 1, 333, 1500),
    "one query and many keys": (1, 4, 2, 1, 4097),
    "three queries": (2, 4, 1, 3, 799),
    "a query tile and keys that end within theirs": (1, 4, 2, 113, 203),
    "one query less than keys": (1, 2, 1, 1023, 1024),
    "more tiles than multiprocessors": (3, 24, 8, 400, 400),
}


def draw(shape: tuple[int, ...], head_dim: int, dtype: torch.dtype, device: str, spread: float = 1.0) -> Tensors:
    """Return q, k, v and the gradient of the output."""
    batch, heads, kv_heads, queries, keys = shape
    generator = torch.Generator(device).manual_seed(1)
    sizes = ((heads, queries), (kv_heads, keys), (kv_heads, keys), (heads, queries))
    return tuple(
        torch.randn(batch, *size, head_dim, generator=generator, device=device).mul_(spread).to(dtype) for size in sizes
    )


def far_below_zero(shape: tuple[int, ...], head_dim: int, dtype: torch.dtype, device: str) -> Tensors:
    """Return tensors all of whose scores are so low that a key with a score of zero, if there were one, had it all."""
    q, k, v, d_out = draw(shape, head_dim, dtype, device, spread=0.5)
    distance = {torch.float32: 6.0, torch.bfloat16: 6.0, torch.float16: 2.5}[dtype]
    return q + distance, k - distance, v, d_out


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, causal: bool) -> Tensors:
    """Return output and gradients in float64."""
    wide = [tensor.double() for tensor in (q, k, v)]
    out = reference.attention(*wide, causal=causal)
    return out, *reference.gradients(*wide, d_out.double(), causal=causal)


def ours(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
    backend: str = "triton",
    deterministic: bool = False,
) -> Tensors:
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    out = flash_attention(*inputs, causal=causal, backend=backend, deterministic=deterministic)
    return out.detach(), *torch.autograd.grad(out, inputs, d_out)


def errors(found: Tensors, wanted: Tensors) -> list[float]:
    """Return errors as ratios of norms. One may be zero: the queries of a single key have no gradient."""
    return [float((x.double() - y).norm() / y.norm().clamp_min(1.0)) for x, y in zip(found, wanted, strict=True)]


# --- interpreted -------------------------------------------------------------------------------------------


def compare(shape: tuple[int, ...], device: str) -> None:
    """Both masks and both head dimensions, which are independent of each other; a GPU gets all pairs of them."""
    for causal, head_dim in ((False, 64), (True, 32)):
        inputs = draw(shape, head_dim, torch.float32, device)
        found = errors(ours(*inputs, causal), exact(*inputs, causal))
        most = 1e-6 if shape[-1] > 1 else 3e-5  # with a single key, gradients are zero but for rounding
        assert max(found) < most, (causal, head_dim, found)


def every_launch_config(device: str) -> None:
    """Tiles of any shape, one loop or two, and powers of two or e give the same."""
    from gpuguide.attention import triton_flash
    from gpuguide.attention.triton_flash import LaunchConfig

    q, k, v, d_out = draw((1, 2, 1, 70, 100), 32, torch.float32, device)
    launches = [
        LaunchConfig(64, 32, 4, 2),
        LaunchConfig(32, 64, 4, 2),
        LaunchConfig(128, 128, 4, 2),
        LaunchConfig(16, 16, 4, 2),
    ]
    launches += [
        LaunchConfig(32, 32, 4, 2, split=False),
        LaunchConfig(32, 32, 4, 2, exp2=False),
        LaunchConfig(32, 32, 4, 2, max_registers=96),
    ]
    for causal in (False, True):
        wanted = exact(q, k, v, d_out, causal)
        log_sums = reference.attention_with_log_sum_exp(q.double(), k.double(), v.double(), causal=causal)[1]
        for launch in launches:
            out, lse = triton_flash.forward(q, k, v, causal, 32**-0.5, launch)
            found = triton_flash.backward(q, k, v, out, lse, d_out, causal, 32**-0.5, launch, launch)
            assert max(errors((out, *found), wanted)) < 1e-6, (causal, launch)
            torch.testing.assert_close(lse.double(), log_sums, rtol=1e-6, atol=1e-6)


def layouts(device: str) -> None:
    """Strides that a descriptor can hold, and such that must be copied, change nothing."""
    q, k, v, d_out = draw((2, 2, 2, 40, 40), 32, torch.float32, device)
    wanted = ours(q, k, v, d_out, True)
    swapped = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v, d_out)]
    assert not swapped[0].is_contiguous()
    columns = [tensor.transpose(2, 3).contiguous().transpose(2, 3) for tensor in (q, k, v, d_out)]
    shifted = [torch.empty(tensor.numel() + 1, device=device)[1:].view_as(tensor).copy_(tensor) for tensor in (q, k, v)]
    for given in (swapped, columns, [*shifted, d_out]):
        for found, right in zip(ours(*given, True), wanted, strict=True):
            assert torch.equal(found, right)
    one_head, one_row = d_out[:, :1].expand_as(q), d_out[:, :, :1].expand_as(q)
    for given in (one_head, one_row):
        for found, right in zip(ours(q, k, v, given, True), ours(q, k, v, given.contiguous(), True), strict=True):
            assert torch.equal(found, right)
    expanded = ours(q, k, v, torch.ones((), device=device).expand_as(q), True)
    for found, right in zip(expanded, ours(q, k, v, torch.ones_like(q), True), strict=True):
        assert torch.equal(found, right)


def edges(device: str) -> None:
    """Scores of thousands and far below zero, scales of any sign, rows that see nothing, and a second derivative."""
    for causal in (False, True):
        large = draw((1, 2, 2, 50, 50), 32, torch.float32, device, spread=60.0)
        found, wanted = ours(*large, causal), exact(*large, causal)
        assert errors(found[:1], wanted[:1])[0] < 1e-4
        assert all(bool(torch.isfinite(tensor).all()) for tensor in found)
        far = far_below_zero((1, 2, 2, 50, 70), 32, torch.float32, device)
        assert max(errors(ours(*far, causal), exact(*far, causal))) < 1e-4
    q, k, v, d_out = draw((1, 2, 2, 50, 20), 32, torch.float32, device)
    negative = flash_attention(q, k, v, causal=True, scale=-0.3)
    assert (
        max(errors((negative,), (reference.attention(-q.double(), k.double(), v.double(), causal=True, scale=0.3),)))
        < 1e-6
    )
    for causal in (False, True):
        unscaled = flash_attention(q, k, v, causal=causal, scale=0.0)
        assert (
            errors((unscaled,), (reference.attention(q.double(), k.double(), v.double(), causal=causal, scale=0.0),))[0]
            < 1e-6
        )
    out, d_q, *_ = ours(q, k, v, d_out, True)
    assert not out[:, :, :30].any()
    assert not d_q[:, :, :30].any()
    assert out[:, :, 30:].all()
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    (gradient,) = torch.autograd.grad(flash_attention(*inputs).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(gradient.sum(), q)


PARTS = {name: lambda device, shape=shape: compare(shape, device) for name, shape in SHAPES.items()}
PARTS |= {"launches": every_launch_config, "layouts": layouts, "edges": edges}


@needs_triton
@pytest.mark.parametrize("part", PARTS)
def test_kernels_interpreted(part: str) -> None:
    interpreted.run(__file__, f"PARTS[{part!r}]('cpu')")


@needs_triton
def test_every_launch_fits_its_gpus() -> None:
    """Compiled for a GPU that is not here: a program's shared memory is known without one."""
    interpreted.run(__file__, "shared_memory_of_every_launch()", interpret=False)


def shared_memory_of_every_launch() -> None:
    from gpuguide.attention import triton_flash

    for launches, capability, most in ((triton_flash.HOPPER, 90, 227), (triton_flash.OTHERS, 86, 99)):
        for (kernel, head_dim), launch in launches.items():
            used = shared_memory(kernel, head_dim, launch, capability)
            assert used <= most * 1024, (kernel, head_dim, capability, used)


def shared_memory(kernel: str, head_dim: int, launch: object, capability: int) -> int:
    """Return the bytes of shared memory that a program takes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpuguide.attention import triton_flash

    function = {
        "forward": triton_flash.attn_fwd_kernel,
        "forward-short": triton_flash.attn_fwd_kernel,
        "keys": triton_flash.attn_bwd_dkdv_kernel,
        "queries": triton_flash.attn_bwd_dq_kernel,
    }[kernel]
    rows, columns = (f"tensordesc<bf16[1, 1, {size}, {head_dim}]>" for size in (launch.block_m, launch.block_n))
    types = dict.fromkeys(("desc_q", "desc_o", "desc_do", "desc_dq"), rows)
    types |= dict.fromkeys(("desc_k", "desc_v", "desc_dk", "desc_dv"), columns)
    types |= {"lse_ptr": "*fp32", "delta_ptr": "*fp32", "scale": "fp32"}
    constants = {"CAUSAL": True, "SPLIT": True, "EXP2": True, "HEAD_DIM": head_dim}
    constants |= {"BLOCK_M": launch.block_m, "BLOCK_N": launch.block_n}
    constants = {name: value for name, value in constants.items() if name in function.arg_names}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in function.arg_names}
    options = triton_flash.launch_arguments(launch)
    options = {name: value for name, value in options.items() if name not in function.arg_names}
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(ASTSource(function, signature, constants), target=target, options=options)
    return int(compiled.metadata.shared)


# --- on a GPU ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["triton", "gluon"])
def backend(request: pytest.FixtureRequest) -> str:
    """The kernel of the forward pass."""
    if request.param == "gluon" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("this schedule is for GPUs of compute capability 9")
    return str(request.param)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", LONGER.values(), ids=LONGER)
def test_errors_on_a_gpu(shape: tuple[int, ...], causal: bool, head_dim: int, dtype: torch.dtype, backend: str) -> None:
    """At most twice the errors of PyTorch in the same format for the output, and three times for gradients."""
    inputs = draw(shape, head_dim, dtype, "cuda")
    wanted = exact(*inputs, causal)
    peer = [tensor.detach().requires_grad_() for tensor in inputs[:3]]
    out = reference.attention(*peer, causal=causal)
    of_peer = errors((out, *torch.autograd.grad(out, peer, inputs[3])), wanted)
    for found, theirs, most in zip(errors(ours(*inputs, causal, backend), wanted), of_peer, (2, 3, 3, 3), strict=True):
        assert found <= most * theirs + 3e-5  # PyTorch gives exact zeros for the gradients of a single key


@pytest.mark.gpu
def test_layouts_on_a_gpu(backend: str) -> None:
    """Heads beside positions, as a projection leaves them, and strides that the copy engine cannot hold."""
    q, k, v, d_out = draw((2, 4, 2, 130, 130), 64, torch.bfloat16, "cuda")

    def compare(*given: torch.Tensor, wanted: Tensors) -> None:
        """The output, dK and dV are the same bit by bit, and so is dQ if its order of additions is fixed."""
        for at, (found, right) in enumerate(zip(ours(*given, True, backend), wanted, strict=True)):
            most = 2e-2 if at == 1 and backend == "gluon" else 0.0
            torch.testing.assert_close(found, right, rtol=most, atol=most)

    wanted = ours(q, k, v, d_out, True, backend)
    swapped = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v, d_out)]
    columns = [tensor.transpose(2, 3).contiguous().transpose(2, 3) for tensor in (q, k, v, d_out)]
    for given in (swapped, columns):
        compare(*given, wanted=wanted)
    ones = torch.ones((), dtype=torch.bfloat16, device="cuda").expand_as(q)
    for given in (d_out[:1].expand_as(q), d_out[:, :1].expand_as(q), d_out[:, :, :1].expand_as(q), ones):
        compare(q, k, v, given, wanted=ours(q, k, v, given.contiguous(), True, backend))


@pytest.mark.gpu
def test_the_same_every_time(backend: str) -> None:
    inputs = draw((2, 4, 2, 1000, 1000), 64, torch.bfloat16, "cuda")
    first = ours(*inputs, True, backend, deterministic=True)
    for _ in range(5):
        again = ours(*inputs, True, backend, deterministic=True)
        assert all(torch.equal(x, y) for x, y in zip(again, first, strict=True))


@pytest.mark.gpu
def test_large_scores_on_a_gpu(backend: str) -> None:
    inputs = draw((1, 2, 2, 300, 300), 64, torch.bfloat16, "cuda", spread=40.0)
    found = ours(*inputs, True, backend)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found)
    assert errors(found[:1], exact(*inputs, True)[:1])[0] < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_scores_far_below_zero_on_a_gpu(causal: bool, dtype: torch.dtype, backend: str) -> None:
    """At most three times the errors of the library's flash kernel.

    All keys lie far to one side. The sum over them that makes a gradient nearly cancels, and leaves what was rounded
    away: from the output as it is kept, and from the factors of the last product. Both kernels round these.
    """
    inputs = far_below_zero((1, 2, 2, 130, 130), 64, dtype, "cuda")
    peer = [tensor.detach().requires_grad_() for tensor in inputs[:3]]
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        out = functional.scaled_dot_product_attention(*peer, is_causal=causal)
    wanted = exact(*inputs, causal)
    of_peer = errors((out, *torch.autograd.grad(out, peer, inputs[3])), wanted)
    for found, theirs in zip(errors(ours(*inputs, causal, backend), wanted), of_peer, strict=True):
        assert found <= 3 * theirs + 1e-3


@pytest.mark.gpu
def test_more_than_two_to_the_31_numbers(backend: str) -> None:
    """The last head is right, where an offset no longer fits 32 bits."""
    batch, heads, length, head_dim = 130, 64, 2048, 128
    if torch.cuda.get_device_properties(0).total_memory < 40e9:
        pytest.skip("needs 20 GB")
    q, k, v = (torch.randn(batch, heads, length, head_dim, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    assert q.numel() > 2**31
    out = flash_attention(q, k, v, causal=True, backend=backend)
    last = functional.scaled_dot_product_attention(q[-1:, -1:], k[-1:, -1:], v[-1:, -1:], is_causal=True)
    torch.testing.assert_close(out[-1:, -1:], last, rtol=2e-2, atol=2e-2)

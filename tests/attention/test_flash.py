"""The operators: what the rest of PyTorch asks of them. On a CPU they compute without kernels; on a GPU with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from gpuguide.attention import flash, reference
from gpuguide.attention.flash import flash_attention, flash_attention_with_log_sum_exp

Tensors = tuple[torch.Tensor, ...]
BACKENDS = ("triton", "gluon")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
on_both = pytest.mark.parametrize("device", DEVICES)


def draw(device: str, *, queries: int = 5, keys: int = 7, wide: bool = True) -> Tensors:
    """Return q, k and v that want gradients: in float64 on a CPU, in bf16 on a GPU."""
    generator = torch.Generator().manual_seed(0)
    head_dim, dtype = (64, torch.bfloat16) if device == "cuda" else (8, torch.float64 if wide else torch.float32)
    sizes = ((4, queries), (2, keys), (2, keys))
    drawn = (torch.randn(2, *size, head_dim, generator=generator, dtype=torch.float64) for size in sizes)
    return tuple(tensor.to(device, dtype).requires_grad_() for tensor in drawn)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return flash_attention(q, k, v, causal=True)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    most = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 4e-2}[found.dtype]
    torch.testing.assert_close(found.double(), wanted.double(), rtol=most, atol=most)


# --- results and gradients -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("queries", "keys", "scale"), [(5, 7, None), (7, 5, -0.4), (1, 4, None), (3, 2, 0.0)])
def test_gradients_agree_with_differences(is_causal: bool, queries: int, keys: int, scale: float | None) -> None:
    tensors = draw("cpu", queries=queries, keys=keys)
    for backend in BACKENDS:
        attend = functools.partial(flash_attention, causal=is_causal, scale=scale, backend=backend)
        close(attend(*tensors), reference.attention(*tensors, causal=is_causal, scale=scale))
        assert torch.autograd.gradcheck(attend, tensors)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_log_sum_exp_has_gradients_too(backend: str) -> None:
    tensors = draw("cpu")
    attend = functools.partial(flash_attention_with_log_sum_exp, causal=True, backend=backend)
    for one, other in zip(attend(*tensors), reference.attention_with_log_sum_exp(*tensors, causal=True), strict=True):
        close(one, other)
    assert torch.autograd.gradcheck(attend, tensors)
    assert torch.autograd.gradcheck(lambda *given: attend(*given)[1], tensors)


@on_both
def test_parts_of_the_keys_are_joined_by_their_log_sum_exp(device: str) -> None:
    q, k, v = (tensor.detach() for tensor in draw(device, keys=9))
    parts = [flash_attention_with_log_sum_exp(q, k[:, :, at], v[:, :, at]) for at in (slice(4), slice(4, None))]
    shares = torch.softmax(torch.stack([lse for _, lse in parts]), dim=0)
    joined = sum(share[..., None] * out for share, (out, _) in zip(shares, parts, strict=True))
    close(joined.to(q.dtype), reference.attention(q.double(), k.double(), v.double()))


@on_both
@pytest.mark.parametrize("wanting", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
def test_only_the_gradients_that_are_asked_for_are_computed(
    device: str, wanting: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []
    for name in ("compute_dq", "compute_dkdv"):
        monkeypatch.setattr(flash, name, noting(getattr(flash, name), name, launched))
    tensors = [tensor.detach().requires_grad_(at in wanting) for at, tensor in enumerate(draw(device))]
    causal(*tensors).sum().backward()
    assert launched == ["compute_dq"] * (0 in wanting) + ["compute_dkdv"] * (1 in wanting or 2 in wanting)
    wide = [tensor.detach().double() for tensor in tensors]
    exact = reference.gradients(*wide, torch.ones_like(wide[0]), causal=True)
    for at, (tensor, right) in enumerate(zip(tensors, exact, strict=True)):
        assert (tensor.grad is not None) == (at in wanting)
        if tensor.grad is not None:
            close(tensor.grad, right)


def noting(function: Callable[..., Any], name: str, notes: list[str]) -> Callable[..., Any]:
    def noted(*given: Any) -> Any:
        notes.append(name)
        return function(*given)

    return noted


@pytest.mark.parametrize("wanting", [(0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("order", ["any", "fixed", "fixed in PyTorch"])
def test_one_kernel_computes_all_gradients_unless_their_order_of_additions_is_fixed(
    wanting: tuple[int, ...], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []
    name = "compute_all_gradients"
    monkeypatch.setattr(flash, name, noting(getattr(flash, name), name, launched))
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: order == "fixed in PyTorch")
    tensors = [tensor.detach().requires_grad_(at in wanting) for at, tensor in enumerate(draw("cpu"))]
    out = flash_attention(*tensors, causal=True, backend="gluon", deterministic=order == "fixed")
    found = torch.autograd.grad(out.sum(), [tensors[at] for at in wanting])
    assert launched == [name] * (order == "any" and wanting == (0, 1, 2))
    exact = reference.gradients(*(tensor.detach() for tensor in tensors), torch.ones_like(out), causal=True)
    for at, gradient in zip(wanting, found, strict=True):
        close(gradient, exact[at])


@on_both
def test_a_second_derivative_is_refused_when_it_is_taken(device: str) -> None:
    tensors = draw(device)
    (gradient,) = torch.autograd.grad(causal(*tensors).sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r"^flash_attention has no second derivative: .* Use gpuguide\.attention\."):
        torch.autograd.grad(gradient.sum(), tensors[0])
    with pytest.raises(RuntimeError, match=r"^flash_attention has no second derivative: "):
        torch.func.jacrev(torch.func.grad(lambda q: causal(q, *tensors[1:]).sum()))(tensors[0])


# --- what PyTorch asks of an operator --------------------------------------------------------------------


@on_both
@pytest.mark.parametrize("transposed", [False, True])
def test_opcheck(device: str, transposed: bool) -> None:
    q, k, v = draw(device, wide=False)
    if transposed:
        q, k, v = (tensor.detach().mT.contiguous().mT.requires_grad_() for tensor in (q, k, v))
    given = (q.detach(), k.detach(), v.detach())
    out, lse = torch.ops.gpuguide.flash_attention(*given, True, 0.3, "triton", False)
    delta = torch.ops.gpuguide.flash_delta(out, out)
    of_forward, backward = (True, 0.3, "triton", False), (*given, out, lse, delta, True, 0.3)
    for operator, inputs in (
        (torch.ops.gpuguide.flash_attention, (q, k, v, *of_forward)),
        (torch.ops.gpuguide.flash_delta, (out, out)),
        (torch.ops.gpuguide.flash_dq, backward),
        (torch.ops.gpuguide.flash_dkdv, backward),
        (torch.ops.gpuguide.flash_backward, (*given, out, lse, out, None, True, 0.3)),
        (torch.ops.gpuguide.flash_backward, (*given, out, lse, out, delta, True, 0.3)),
    ):
        torch.library.opcheck(operator, inputs, rtol=2e-2, atol=2e-2)


@on_both
def test_a_compiled_graph_holds_the_operators(device: str) -> None:
    torch.compiler.reset()  # what another test has compiled is not compiled again
    tensors, graphs = draw(device), []

    def compiler(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append({str(node.target) for node in graph.graph.nodes if node.op == "call_function"})
        return graph

    from torch._dynamo.backends.common import aot_autograd

    compiled = torch.compile(causal, fullgraph=True, backend=aot_autograd(fw_compiler=compiler))
    out = compiled(*tensors)
    close(out, causal(*tensors))
    found = torch.autograd.grad(out.sum(), tensors)
    for one, other in zip(found, torch.autograd.grad(causal(*tensors).sum(), tensors), strict=True):
        close(one, other)
    assert graphs[0] >= {"gpuguide.flash_attention.default"}
    assert graphs[1] >= {f"gpuguide.flash_{name}.default" for name in ("delta", "dq", "dkdv")}


@on_both
def test_lengths_that_change_do_not_break_a_compiled_function(device: str) -> None:
    compiled = torch.compile(causal, fullgraph=True, backend="aot_eager")
    for length in (5, 9, 12, 40):
        tensors = draw(device, queries=length, keys=length)
        close(compiled(*tensors), causal(*tensors))


@on_both
def test_mapped_over_one_dimension_more(device: str) -> None:
    q, k, v = (tensor.detach() for tensor in draw(device))
    many = torch.stack([q, 2 * q, -q])
    one_by_one = torch.stack([causal(each, k, v) for each in many])
    close(torch.vmap(causal, in_dims=(0, None, None))(many, k, v), one_by_one)
    last = torch.vmap(causal, in_dims=(4, None, None), out_dims=4)(many.movedim(0, 4), k, v)
    close(last, one_by_one.movedim(0, 4))
    twice = torch.vmap(torch.vmap(causal, (0, None, None)), (None, 0, None))(many, torch.stack([k, k / 2]), v)
    close(twice[1, 2], causal(many[2], k / 2, v))


@on_both
def test_functions_of_functions(device: str) -> None:
    q, k, v = (tensor.detach() for tensor in draw(device))

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return causal(q, k, v).float().square().sum()

    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    wanted = torch.autograd.grad(loss(*leaves), leaves)
    for found, right in zip(torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v), wanted, strict=True):
        close(found, right)
    many = torch.stack([q, 2 * q])
    mapped = torch.vmap(torch.func.grad(loss), in_dims=(0, None, None))(many, k, v)
    close(mapped[0], wanted[0])
    close(mapped[1], torch.func.grad(loss)(many[1], k, v))


def test_a_gradient_of_what_is_mapped() -> None:
    q, k, v = (tensor.detach() for tensor in draw("cpu"))
    many = torch.stack([q, 2 * q])

    def loss(many: torch.Tensor) -> torch.Tensor:
        return torch.vmap(causal, (0, None, None))(many, k, v).square().sum()

    leaf = many.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(sum(causal(each, k, v).square().sum() for each in leaf), leaf)
    close(torch.func.grad(loss)(many), wanted)


def test_forward_mode_is_refused_and_not_taken_for_zero() -> None:
    q, k, v = (tensor.detach() for tensor in draw("cpu"))
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(lambda q: causal(q, k, v), (q,), (q,))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        causal(forward_ad.make_dual(q, q), k, v)


def test_forward_mode_under_a_compiler_is_refused_and_not_taken_for_zero() -> None:
    q, k, v = (tensor.detach() for tensor in draw("cpu"))
    torch.compiler.reset()
    compiled = torch.compile(lambda q: torch.func.jvp(lambda q: causal(q, k, v), (q,), (q,))[1])
    with pytest.raises(NotImplementedError, match="jvp"):
        compiled(q)


def test_what_was_expanded_is_not_copied_whole() -> None:
    from gpuguide.attention.layout import is_addressable, make_addressable

    row = torch.randn(16)
    for given in (row.expand(2, 3, 4, 16), torch.ones(()).expand(2, 3, 4, 16), torch.randn(2, 1, 4, 16).mT):
        given = given.expand(2, 3, *given.shape[2:])
        found = make_addressable(given)
        assert torch.equal(found, given)
        assert found.stride()[:2] == (given.stride(0) and found.stride(0), 0)
    assert make_addressable(row.expand(2, 3, 4, 16)).untyped_storage().nbytes() == row.nbytes
    assert is_addressable(row.expand(2, 3, 4, 16))


# --- threads ---------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["flash_attention", "gluon", "flash_delta", "flash_dq", "flash_dkdv", "flash_backward"]
)
def test_an_operator_may_be_the_first_that_a_thread_does_on_a_gpu(name: str) -> None:
    """Compiled and with memory at hand, it makes no call that would give the thread a context in passing."""
    if name in ("gluon", "flash_backward") and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("the Gluon kernel is for compute capability 9")
    q, k, v = (tensor.detach() for tensor in draw("cuda"))
    out, lse = flash.forward(q, k, v, True, 0.3, "triton", False)
    delta = flash.compute_delta(out, out)
    backward = (q, k, v, out, lse, delta, True, 0.3)
    calls: dict[str, Callable[[], Any]] = {
        "flash_attention": lambda: flash.forward(q, k, v, True, 0.3, "triton", False),
        "gluon": lambda: flash.forward(q, k, v, True, 0.3, "gluon", False),
        "flash_delta": lambda: flash.compute_delta(out, out),
        "flash_dq": lambda: flash.compute_dq(*backward),
        "flash_dkdv": lambda: flash.compute_dkdv(*backward),
        "flash_backward": lambda: flash.compute_all_gradients(q, k, v, out, lse, out, None, True, 0.3),
    }
    call = calls[name]
    wanted = call()
    call()  # leaves memory to the allocator
    with ThreadPoolExecutor(1) as new_thread:
        found = new_thread.submit(call).result()
    most = 2e-2 if name == "flash_backward" else 0.0
    torch.testing.assert_close(found, wanted, rtol=most, atol=most)

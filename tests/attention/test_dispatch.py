"""Who computes an attention, and why; what is refused; and that PyTorch's attention obeys our conventions."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import gpuguide.attention as package
from gpuguide import kernels
from gpuguide.attention import attention, choose, reference

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(
    queries: int = 5,
    keys: int = 5,
    heads: tuple[int, int] = (4, 2),
    dtype: torch.dtype = torch.float64,
    head_dim: int = 8,
    device: str = "cpu",
) -> Tensors:
    shapes = [(2, heads[0], queries, head_dim), (2, heads[1], keys, head_dim), (2, heads[1], keys, head_dim)]
    generator = torch.Generator().manual_seed(0)
    if device != "cpu":
        return tuple(torch.empty(shape, dtype=dtype, device=device) for shape in shapes)
    return tuple(torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pretend that there is a Hopper GPU and our kernels; tensors on it have shapes and no numbers."""
    for name in ("triton", "gluon"):
        kernel = ModuleType(f"gpuguide.attention.{name}_flash")
        kernel.HEAD_SIZES = (64, 128)
        kernel.flash_attention = lambda q, k, v, *, causal, scale, by=name: SimpleNamespace(
            by=by, causal=causal, scale=scale
        )
        monkeypatch.setitem(sys.modules, kernel.__name__, kernel)
        monkeypatch.setattr(package, f"{name}_flash", kernel, raising=False)
    monkeypatch.setattr(package, "_has_gluon", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: nullcontext())
    monkeypatch.setattr(kernels, "take", lambda tensor: True)
    with FakeTensorMode():
        yield


def on_gpu(dtype: torch.dtype = torch.bfloat16, head_dim: int = 128, keys: int = 5) -> Tensors:
    return inputs(keys=keys, dtype=dtype, head_dim=head_dim, device="cuda")


# --- choices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("head_dim", "backend", "end"),
    [(64, "triton", ""), (128, "gluon", ", and is faster there with its schedule written by hand")],
)
def test_our_kernel_is_chosen_where_it_can(
    gpu: None, dtype: torch.dtype, head_dim: int, backend: str, end: str
) -> None:
    reason = f"Our kernel takes {str(dtype).removeprefix('torch.')} with head_dim {head_dim} on this GPU{end}."
    assert choose(*on_gpu(dtype, head_dim), causal=True) == package.Choice(backend, reason)


@pytest.mark.parametrize(("capability", "has_gluon"), [((10, 0), True), ((9, 0), False)])
def test_the_schedule_by_hand_is_for_one_generation_and_needs_gluon(
    gpu: None, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], has_gluon: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(package, "_has_gluon", lambda: has_gluon)
    assert choose(*on_gpu()).backend == "triton"
    assert attention(*on_gpu(), backend="triton").by == "triton"
    reason = (
        "Gluon, which the schedule by hand is written in, is not part of this Triton."
        if capability == (9, 0)
        else "The GPU has compute capability 10.0, and the schedule by hand is for 9.0."
    )
    message = f"The backend gluon cannot do this: {reason} Leave the backend out, or ask for sdpa."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attention(*on_gpu(), backend="gluon")


def test_our_kernels_get_what_was_given(gpu: None) -> None:
    found = attention(*on_gpu(), causal=True)
    assert (found.by, found.causal, found.scale) == ("gluon", True, 1 / math.sqrt(128))
    found = attention(*on_gpu(), scale=2.0, backend="triton")
    assert (found.by, found.causal, found.scale) == ("triton", False, 2.0)
    assert attention(*on_gpu(head_dim=64)).by == "triton"
    assert attention(*on_gpu(head_dim=64), backend="gluon").by == "gluon"


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"dtype": torch.float32}, "The tensors are float32, and our kernel takes bfloat16 and float16."),
        ({"dtype": torch.float64}, "The tensors are float64, and our kernel takes bfloat16 and float16."),
        ({"head_dim": 96}, "head_dim is 96, and our kernel takes 64, 128."),
        ({"keys": 0}, "There is nothing to compute: a tensor is empty."),
    ],
)
def test_fallbacks_by_what_is_given(gpu: None, tensors: dict[str, object], reason: str) -> None:
    given = on_gpu(**tensors)
    assert choose(*given) == package.Choice("sdpa", reason)
    assert attention(*given).shape == given[0].shape
    for backend in ("gluon", "triton"):
        message = f"The backend {backend} cannot do this: {reason} Leave the backend out, or ask for sdpa."
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            attention(*given, backend=backend)


def test_fallback_for_a_mask(gpu: None) -> None:
    mask = torch.ones(5, 5, dtype=torch.bool, device="cuda")
    reason = "There is a mask, and our kernel knows none but the causal one."
    assert choose(*on_gpu(), mask=mask) == package.Choice("sdpa", reason)


def test_fallback_on_an_old_gpu(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    reason = "The GPU has compute capability 8.6, and our kernel is fast from 9.0 on."
    assert choose(*on_gpu()) == package.Choice("sdpa", reason)


def test_fallback_without_triton(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "take", lambda tensor: False)
    reason = "Triton, which our kernel is written in, is not installed."
    assert choose(*on_gpu()) == package.Choice("sdpa", reason)


def test_fallback_on_the_processor() -> None:
    reason = "The tensors are on cpu, and our kernel runs on NVIDIA GPUs."
    assert choose(*inputs(dtype=torch.bfloat16)) == package.Choice("sdpa", reason)
    message = f"The backend triton cannot do this: {reason} Leave the backend out, or ask for sdpa."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attention(*inputs(), backend="triton")


def test_autocast_decides_the_format() -> None:
    tensors = inputs(dtype=torch.float32)
    mask = torch.zeros(5, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attention(*tensors).dtype == torch.bfloat16
        assert attention(*tensors, mask=mask).dtype == torch.bfloat16
        assert attention(*inputs()).dtype == torch.float64


# --- PyTorch's attention under our conventions -----------------------------------------------------------


@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 7), (3, 7), (7, 3), (7, 1), (4, 0), (0, 4)])
def test_results_and_gradients(
    queries: int, keys: int, heads: tuple[int, int], causal: bool, scale: float | None
) -> None:
    tensors = inputs(queries, keys, heads)
    found = attention(*tensors, causal=causal, scale=scale)
    torch.testing.assert_close(found, reference.attention(*tensors, causal=causal, scale=scale))
    d_out = torch.randn_like(found)
    ours = torch.autograd.grad(found, tensors, d_out)
    exact = reference.gradients(*tensors, d_out, causal=causal, scale=scale)
    for gradient, expected in zip(ours, exact, strict=True):
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("shape", [(), (7,), (1, 7), (5, 1), (5, 7), (4, 5, 7), (2, 1, 5, 7), (2, 4, 5, 7)])
@pytest.mark.parametrize("boolean", [True, False])
def test_masks(shape: tuple[int, ...], boolean: bool) -> None:
    tensors = inputs(5, 7)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    if len(shape) > 1:
        mask[..., 0, :] = 1  # a query that sees no key
    mask = mask < 0.6 if boolean else mask.masked_fill(mask > 0.6, -torch.inf)
    found = attention(*tensors, mask=mask, backend="sdpa")
    torch.testing.assert_close(found, reference.attention(*tensors, mask=mask))
    d_out = torch.randn_like(found)
    ours = torch.autograd.grad(found, tensors, d_out)
    for gradient, expected in zip(ours, reference.gradients(*tensors, d_out, mask=mask), strict=True):
        torch.testing.assert_close(gradient, expected)


def test_strided_inputs() -> None:
    q, k, v = (tensor.mT.contiguous().mT for tensor in inputs(6, 9))
    torch.testing.assert_close(attention(q, k, v, causal=True), reference.attention(q, k, v, causal=True))


@pytest.mark.gpu
@pytest.mark.parametrize(("backend", "head_dim"), [(None, 64), (None, 128), ("sdpa", 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("queries", "keys"), [(65, 65), (1, 70), (33, 70), (70, 33), (5, 0)])
def test_on_a_gpu(queries: int, keys: int, dtype: torch.dtype, backend: str | None, head_dim: int) -> None:
    tensors = tuple(tensor.detach().cuda() for tensor in inputs(queries, keys, dtype=dtype, head_dim=head_dim))
    mask = torch.rand(queries, keys, generator=torch.Generator().manual_seed(2)).cuda() < 0.6
    mask[0] = False  # a query that sees no key
    rough = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4, torch.float64: 1e-10}[dtype]
    for given in ({"causal": False}, {"causal": True}, {"mask": mask}):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        found = attention(*leaves, **given, backend=backend if "mask" not in given else None)
        exact = [tensor.double() for tensor in tensors]
        torch.testing.assert_close(found.double(), reference.attention(*exact, **given), rtol=rough, atol=rough)
        d_out = torch.randn_like(found)
        ours = torch.autograd.grad(found, leaves, d_out)
        for gradient, expected in zip(ours, reference.gradients(*exact, d_out.double(), **given), strict=True):
            torch.testing.assert_close(gradient.double(), expected, rtol=4 * rough, atol=4 * rough)


# --- refusals --------------------------------------------------------------------------------------------


def of(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


Q, K = (2, 4, 5, 8), (2, 2, 6, 8)
REFUSED = [
    (
        (of(Q[1:]), of(K), of(K)),
        "q, k and v must be (batch, heads, length, head_dim); given (4, 5, 8), (2, 2, 6, 8) and (2, 2, 6, 8).",
    ),
    (
        (of(Q), of(K), of((2, 2, 7, 8))),
        "k and v must have the same shape; given (2, 2, 6, 8) and (2, 2, 7, 8).",
    ),
    (
        (of((3, 4, 5, 8)), of(K), of(K)),
        "q, k and v must agree in batch and head_dim; given (3, 4, 5, 8), (2, 2, 6, 8) and (2, 2, 6, 8).",
    ),
    (
        (of((2, 4, 5, 9)), of(K), of(K)),
        "q, k and v must agree in batch and head_dim; given (2, 4, 5, 9), (2, 2, 6, 8) and (2, 2, 6, 8).",
    ),
    (
        (of((2, 4, 5, 0)), of((2, 2, 6, 0)), of((2, 2, 6, 0))),
        "head_dim must be at least 1; given (2, 4, 5, 0), (2, 2, 6, 0) and (2, 2, 6, 0).",
    ),
    (
        (of((2, 3, 5, 8)), of(K), of(K)),
        "The heads of q must be a multiple of those of k and v, which they share; given 3 and 2.",
    ),
    (
        (of(Q), of((2, 0, 6, 8)), of((2, 0, 6, 8))),
        "The heads of q must be a multiple of those of k and v, which they share; given 4 and 0.",
    ),
    (
        (of(Q), of(K, device="meta"), of(K)),
        "q, k and v must be on one device; given cpu, meta and cpu.",
    ),
    (
        (of(Q), of(K), of(K, torch.bfloat16)),
        "q, k and v must have one format; given float32, float32 and bfloat16.",
    ),
    (
        (of(Q, torch.int64), of(K, torch.int64), of(K, torch.int64)),
        "q, k and v are int64; convert them to one of bfloat16, float16, float32, float64.",
    ),
]


@pytest.mark.parametrize(("tensors", "message"), REFUSED)
def test_tensors_that_do_not_fit_are_named(tensors: Tensors, message: str) -> None:
    for function in (attention, choose):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            function(*tensors)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            of((5, 6), torch.int64),
            "The mask must be boolean, true where a query sees a key, or float32 like q; given int64.",
        ),
        (
            of((5, 6), torch.bfloat16),
            "The mask must be boolean, true where a query sees a key, or float32 like q; given bfloat16.",
        ),
        (
            of((6, 5)),
            "The mask must broadcast to (batch, heads, queries, keys), here (2, 4, 5, 6); given (6, 5).",
        ),
        (
            of((1, 2, 4, 5, 6)),
            "The mask must broadcast to (batch, heads, queries, keys), here (2, 4, 5, 6); given (1, 2, 4, 5, 6).",
        ),
        (of((5, 6), device="meta"), "The mask must be on the device of q; given meta and cpu."),
    ],
)
def test_masks_that_do_not_fit_are_named(mask: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attention(of(Q), of(K), of(K), mask=mask)


def test_a_mask_together_with_causal_is_refused_and_the_remedy_works() -> None:
    tensors, mask = inputs(5, 6), torch.rand(5, 6, generator=torch.Generator().manual_seed(0)) < 0.8
    message = (
        "A mask was given together with causal=True; give one of them. For both, give the mask "
        "mask & gpuguide.attention.reference.causal_mask(queries, keys, device)."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        attention(*tensors, mask=mask, causal=True)
    both = mask & reference.causal_mask(5, 6, "cpu")
    torch.testing.assert_close(attention(*tensors, mask=both), reference.attention(*tensors, mask=mask, causal=True))


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match=r"^The backend is 'flash'; it must be one of gluon, triton, sdpa, or None\.$"):
        attention(*inputs(), backend="flash")

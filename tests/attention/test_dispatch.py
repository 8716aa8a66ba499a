"""Who computes an attention, and why; what is refused; and that PyTorch's attention obeys our conventions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend

import gpuguide.attention as package
from gpuguide.attention import attention, choice, choose, flash, gpu, reference, sdpa
from gpuguide.attention.gpu import GPU

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


HOPPER = GPU("NVIDIA H100 80GB HBM3", (9, 0), 91900, True, True, None, ())


def row(order: Iterable[str], **keys: object) -> dict[str, object]:
    """Return a measured case of one short sequence, with what is said of it."""
    case = {"pass": "forward", "head_dim": 128, "seq_len": 512, "causal": True, "heads": 16, "kv_heads": 16}
    return {**case, **keys, "order": list(order)}


Use = Callable[..., None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Use]:
    """Pretend that there is a GPU of some kind with some measurements. Tensors on it have shapes and no numbers."""

    def use(*rows: dict[str, object], **other: object) -> None:
        found = replace(
            HOPPER, measured_on="NVIDIA H100 80GB HBM3" if rows else None, cases=gpu.sort_by_keys(rows), **other
        )
        monkeypatch.setattr(gpu, "_describe_gpu", lambda index: found)

    use()
    with FakeTensorMode():
        yield use


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Note who is asked, and with what."""
    notes: list[tuple[object, ...]] = []

    def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: object) -> torch.Tensor:
        notes.append((given["backend"], given["causal"], given["scale"]))
        return q

    def theirs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: object) -> torch.Tensor:
        notes.append((given["kernel"], given["exclusive"]))
        return q

    monkeypatch.setattr(flash, "flash_attention", ours)
    monkeypatch.setattr(sdpa, "attention", theirs)
    return notes


def on_gpu(
    dtype: torch.dtype = torch.bfloat16, head_dim: int = 128, queries: int = 5, keys: int = 5, grad: bool = False
) -> Tensors:
    tensors = inputs(queries, keys, dtype=dtype, head_dim=head_dim, device="cuda")
    return tuple(tensor.requires_grad_(grad) for tensor in tensors)


# --- choices ---------------------------------------------------------------------------------------------


def test_the_fastest_of_the_nearest_measured_case_is_asked(use: Use, asked: list[tuple[object, ...]]) -> None:
    use(
        row(["sdpa-cudnn", "gluon"]),
        row(["gluon", "sdpa-cudnn"], seq_len=2048),
        row(["triton"], seq_len=2048, causal=False),
        row(["sdpa-flash"], seq_len=512, **{"pass": "forward-backward"}),
        row(["sdpa-efficient"], seq_len=512, kv_heads=4),
        row(["triton"], head_dim=64),
    )
    lengths = {1: "sdpa-cudnn", 512: "sdpa-cudnn", 1023: "sdpa-cudnn", 1025: "gluon", 2048: "gluon", 9000: "gluon"}
    for length, backend in lengths.items():
        tensors = inputs(max(length, 2), max(length, 2), (4, 4), torch.bfloat16, 128, "cuda")
        assert choose(*tensors, causal=True).backend == backend, length
        attention(*tensors, causal=True)
        assert asked.pop()[0] == backend
    reason = (
        "The fastest of those usable here in the nearest case measured on NVIDIA H100 80GB HBM3: "
        "forward, heads of 128, 2048 keys, no mask."
    )
    given = inputs(5, 5, (4, 4), torch.bfloat16, 128, "cuda")
    assert choose(*given) == package.BackendChoice("triton", reason)
    assert choose(*given, causal=True).backend == "sdpa-cudnn"
    assert choose(*on_gpu(), causal=True).backend == "sdpa-efficient", "heads that share keys"
    assert choose(*on_gpu(grad=True), causal=True).backend == "sdpa-flash", "with gradients"
    assert choose(*on_gpu(head_dim=64), causal=True).backend == "triton"
    with torch.no_grad():
        assert choose(*on_gpu(grad=True), causal=True).backend == "sdpa-efficient"


def test_the_choice_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [row(["sdpa-cudnn"], seq_len=64), row(["gluon"], seq_len=1024), row(["triton"], head_dim=64)]
    found = replace(HOPPER, measured_on=HOPPER.name, cases=gpu.sort_by_keys(table))
    monkeypatch.setattr(gpu, "_describe_gpu", lambda index: found)

    def chosen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        backend, _ = choice.decide_for_gpu(gpu.describe_gpu(0), q, k, v, True, None)
        return q.new_full((), choice.BACKENDS.index(backend))

    compiled = torch.compile(chosen, fullgraph=True, backend="eager")
    for length, heads, size, backend in (
        (64, (4, 4), 128, "sdpa-cudnn"),
        (100, (4, 2), 128, "sdpa-cudnn"),
        (300, (4, 4), 128, "gluon"),
        (5000, (6, 2), 128, "gluon"),
        (300, (4, 4), 64, "triton"),
        (300, (4, 4), 96, "sdpa"),
    ):
        with torch.no_grad():
            index = compiled(*inputs(length, length, heads, torch.bfloat16, size))
        assert choice.BACKENDS[int(index)] == backend


def test_who_cannot_be_asked_is_passed_over(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = row(["gluon", "sdpa-cudnn", "triton", "sdpa-flash"])
    for facts, backend in (
        ({}, "gluon"),
        ({"has_gluon": False}, "sdpa-cudnn"),
        ({"capability": (10, 0)}, "sdpa-cudnn"),
        ({"has_triton": False}, "sdpa-cudnn"),
    ):
        use(everybody, **facts)
        assert choose(*on_gpu(), causal=True).backend == backend
    monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: False)
    assert choose(*on_gpu(), causal=True).backend == "sdpa-flash", "neither Triton nor what a user has switched off"
    use(row(["gluon"]), has_triton=False)
    assert choose(*on_gpu(), causal=True).backend == "sdpa"


UNMEASURED = [
    ({"dtype": torch.float32}, "The tensors are float32, and our kernel takes bfloat16 and float16."),
    ({"dtype": torch.float64}, "The tensors are float64, and our kernel takes bfloat16 and float16."),
    ({"head_dim": 96}, "Heads of 96 were not measured."),
    ({"head_dim": 32}, "Heads of 32 were not measured."),
    ({"keys": 0}, "There is nothing to compute: a tensor is empty."),
    ({"queries": 1}, "A single query was not measured."),
]


@pytest.mark.parametrize(("tensors", "reason"), UNMEASURED)
def test_what_was_not_measured_is_left_to_pytorch(
    use: Use, asked: list[tuple[object, ...]], tensors: dict[str, object], reason: str
) -> None:
    use(row(["gluon"]))
    given = on_gpu(**tensors)
    chosen = choose(*given, causal=True)
    assert (chosen.backend, chosen.reason) == ("sdpa", f"{reason} PyTorch chooses among its own kernels.")
    attention(*given, causal=True)
    assert asked == [("sdpa", False)]


def test_a_gpu_whose_generation_was_not_measured_is_left_to_pytorch(use: Use) -> None:
    use(name="NVIDIA B200", capability=(10, 0))
    reason = "No GPU of the generation of NVIDIA B200 was measured. PyTorch chooses among its own kernels."
    assert choose(*on_gpu(), causal=True).reason == reason


def test_a_mask_is_left_to_pytorch(use: Use) -> None:
    use(row(["gluon"]))
    chosen = choose(*on_gpu(), mask=torch.ones(5, 5, dtype=torch.bool, device="cuda"))
    reason = "There is a mask, and our kernel supports the causal mask only. PyTorch chooses among its own kernels."
    assert (chosen.backend, chosen.reason) == ("sdpa", reason)
    assert "The mask is copied, with the rows that see no key unmasked." in chosen.notes


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_where_pytorch_would_need_a_mask_ours_is_asked(use: Use, head_dim: int) -> None:
    use(row(["sdpa-cudnn", "gluon", "triton"]), row(["sdpa-cudnn", "triton"], head_dim=64))
    chosen = choose(*on_gpu(head_dim=head_dim, queries=3, keys=9), causal=True)
    assert chosen.backend == ("gluon" if head_dim == 128 else "triton")
    assert chosen.reason.endswith("for which PyTorch would need a mask and our kernel does not.")
    use(row(["sdpa-cudnn"]), has_triton=False)
    chosen = choose(*on_gpu(queries=3, keys=9), causal=True)
    assert chosen.backend == "sdpa-cudnn"
    assert any(note.startswith("A mask of queries by keys is made") for note in chosen.notes)


def test_what_is_copied_is_said(use: Use) -> None:
    use(row(["gluon"]))
    q, k, v = on_gpu()
    assert choose(q, k, v, causal=True).notes == ()
    batch, heads, length, size = q.shape
    swapped = q.new_empty(batch, length, heads, size).transpose(1, 2)
    assert choose(swapped, k, v, causal=True).notes == (), "heads beside positions"
    (note,) = choose(q, k.new_empty(*k.shape[:2], size, length).mT, v, causal=True).notes
    assert note.startswith("k is copied: the copy engine needs ")


def test_what_autocast_converts_is_said() -> None:
    tensors = inputs(dtype=torch.float32)
    assert choose(*tensors).notes == ()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert choose(*tensors).notes == ("Autocast converts float32 to bfloat16.",)


# --- asking for one --------------------------------------------------------------------------------------


def test_our_kernels_get_what_was_given(use: Use, asked: list[tuple[object, ...]]) -> None:
    attention(*on_gpu(), causal=True, backend="gluon")
    attention(*on_gpu(), scale=2.0, backend="triton")
    attention(*on_gpu(head_dim=64), backend="sdpa-cudnn")
    attention(*on_gpu(head_dim=64))
    assert asked == [
        ("gluon", True, 1 / math.sqrt(128)),
        ("triton", False, 2.0),
        ("sdpa-cudnn", True),
        ("sdpa", False),
    ]


@pytest.mark.parametrize(
    ("tensors", "facts", "reason"),
    [
        ({"dtype": torch.float32}, {}, "The tensors are float32, and our kernel takes bfloat16 and float16."),
        ({"head_dim": 96}, {}, "head_dim is 96, and our kernel takes 32, 64, 128."),
        ({"keys": 0}, {}, "There is nothing to compute: a tensor is empty."),
        ({}, {"capability": (8, 6)}, "The GPU has compute capability 8.6, and our kernel is fast from 9.0 upwards."),
        ({}, {"has_triton": False}, "Triton, which our kernel is written in, is not installed."),
    ],
)
def test_why_ours_cannot_be_asked_for(
    use: Use, tensors: dict[str, object], facts: dict[str, object], reason: str
) -> None:
    use(row(["gluon"]), **facts)
    given = on_gpu(**tensors)
    for backend in ("gluon", "triton"):
        with pytest.raises(ValueError, match=f"{backend} .*{re.escape(reason)}"):
            attention(*given, backend=backend)


@pytest.mark.parametrize(("capability", "has_gluon"), [((10, 0), True), ((9, 0), False)])
def test_the_gluon_kernel_is_for_one_generation_and_needs_gluon(
    use: Use, asked: list[tuple[object, ...]], capability: tuple[int, int], has_gluon: bool
) -> None:
    use(capability=capability, has_gluon=has_gluon)
    attention(*on_gpu(), backend="triton")
    assert asked[0][0] == "triton"
    with pytest.raises(ValueError, match="no Gluon" if capability == (9, 0) else r"capability 10\.0"):
        attention(*on_gpu(), backend="gluon")


def test_on_the_processor_pytorch_is_asked() -> None:
    reason = "The tensors are on cpu, and our kernel runs on NVIDIA GPUs."
    assert choose(*inputs(dtype=torch.bfloat16)) == package.BackendChoice("sdpa", reason)
    with pytest.raises(ValueError, match=f"triton .*{re.escape(reason)}"):
        attention(*inputs(), backend="triton")


# --- known wrong results ---------------------------------------------------------------------------------


def masked(keys: int, grad: bool = True) -> tuple[Tensors, torch.Tensor]:
    return on_gpu(keys=keys, grad=grad), torch.ones(5, keys, dtype=torch.bool, device="cuda")


def test_cudnn_is_not_asked_where_it_is_known_to_be_wrong(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[SDPBackend]] = []

    @contextmanager
    def only(kernels: list[SDPBackend], set_priority: bool) -> Iterator[None]:
        calls.append(kernels)
        yield

    monkeypatch.setattr(sdpa, "sdpa_kernel", only)
    monkeypatch.setattr(sdpa.functional, "scaled_dot_product_attention", lambda q, *given, **named: q)
    tensors, mask = masked(704)
    (note,) = [note for note in choose(*tensors, mask=mask).notes if "pytorch#196678" in note]
    assert note.startswith("cuDNN is skipped: before 9.26 ")
    safe = {SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH}
    for order in (None, sdpa.kernel_order("sdpa-cudnn"), sdpa.kernel_order("sdpa-flash")):
        sdpa.call_sdpa(*tensors, mask, False, 1.0, order)
        assert set(calls.pop()) == safe
    with monkeypatch.context() as disabling:
        disabling.setattr(sdpa, "is_enabled", lambda kernel: kernel != "sdpa-flash")
        sdpa.call_sdpa(*tensors, mask, False, 1.0, None)
        assert set(calls.pop()) == safe - {SDPBackend.FLASH_ATTENTION}, "somebody has disabled it"
    for keys, grad, facts in ((640, True, {}), (704, False, {}), (704, True, {"cudnn": 92600})):
        use(**facts)
        tensors, mask = masked(keys, grad)
        assert not any("cuDNN" in note for note in choose(*tensors, mask=mask).notes)
        sdpa.call_sdpa(*tensors, mask, False, 1.0, None)
        assert calls == []


@pytest.mark.parametrize(
    ("capability", "grad", "reference"),
    [((9, 0), True, "cudnn-frontend#1072"), ((9, 0), False, None), ((10, 0), False, "pytorch#193893")],
)
def test_a_single_query_is_not_for_every_cudnn(
    use: Use, capability: tuple[int, int], grad: bool, reference: str | None
) -> None:
    use(capability=capability)
    skipped = [note for note in choose(*on_gpu(queries=1, keys=128, grad=grad)).notes if "skipped" in note]
    assert [reference in note for note in skipped] == [True] * (reference is not None)


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


def skip_without_what_it_needs(backend: str | None) -> None:
    """Skip where the GPU is too old for our kernels, or of another generation than the schedule by hand is for."""
    capability = torch.cuda.get_device_capability()
    if backend in choice.OURS and capability < choice.OLDEST:
        pytest.skip("our kernels are for GPUs of compute capability 9.0 and newer")
    if backend == "gluon" and capability[0] != choice.GLUON_GENERATION:
        pytest.skip("the schedule by hand is for GPUs of compute capability 9")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("backend", "head_dim"), [(None, 64), (None, 128), ("triton", 64), ("gluon", 128), ("sdpa", 64)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("queries", "keys"), [(65, 65), (1, 70), (33, 70), (70, 33), (5, 0)])
def test_on_a_gpu(queries: int, keys: int, dtype: torch.dtype, backend: str | None, head_dim: int) -> None:
    skip_without_what_it_needs(backend)
    tensors = tuple(tensor.detach().cuda() for tensor in inputs(queries, keys, dtype=dtype, head_dim=head_dim))
    mask = torch.rand(queries, keys, generator=torch.Generator().manual_seed(2)).cuda() < 0.6
    mask[0] = False  # a query that sees no key
    if backend != "sdpa" and (dtype.itemsize > 2 or not keys):
        backend = None  # these our kernels refuse
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


def on_a_gpu(queries: int = 65, keys: int = 65, head_dim: int = 128, dtype: torch.dtype = torch.bfloat16) -> Tensors:
    drawn = inputs(queries, keys, dtype=dtype, head_dim=head_dim)
    return tuple(tensor.detach().cuda().requires_grad_() for tensor in drawn)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "gluon", "triton", "sdpa-cudnn", "sdpa-flash", "sdpa"])
@pytest.mark.parametrize("head_dim", [64, 128, 96])
@pytest.mark.parametrize("causal", [False, True])
def test_compiled_on_a_gpu(backend: str | None, head_dim: int, causal: bool) -> None:
    skip_without_what_it_needs(backend)
    if head_dim == 96 and backend in choice.OURS:
        backend = None  # a head that our kernels do not take is PyTorch's, compiled or not
    tensors = on_a_gpu(head_dim=head_dim)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, causal=causal, backend=backend)

    torch.compiler.reset()
    found, wanted = torch.compile(function, fullgraph=True, backend="aot_eager")(*tensors), function(*tensors)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    gradients = [torch.autograd.grad(out.float().square().sum(), tensors) for out in (found, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=4e-2, atol=4e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "gluon"])
def test_autocast_is_compiled_on_a_gpu(backend: str | None) -> None:
    skip_without_what_it_needs(backend)
    tensors = on_a_gpu(dtype=torch.float32)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        wanted = attention(*tensors, causal=True, backend=backend)
        found = torch.compile(attention, fullgraph=True)(*tensors, causal=True, backend=backend)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    torch.autograd.grad(found.float().sum(), tensors)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "gluon", "triton", "sdpa"])
def test_mapped_and_transformed_on_a_gpu(backend: str | None) -> None:
    skip_without_what_it_needs(backend)
    q, k, v = (tensor.detach() for tensor in on_a_gpu())
    many = torch.stack([q, 2 * q, -q])

    def function(q: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, causal=True, backend=backend)

    def loss(q: torch.Tensor) -> torch.Tensor:
        return function(q).float().square().sum()

    one_by_one = torch.stack([function(each) for each in many])
    torch.testing.assert_close(torch.vmap(function)(many), one_by_one, rtol=2e-2, atol=2e-2)
    leaf = q.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(q), wanted, rtol=4e-2, atol=4e-2)
    mapped = torch.vmap(torch.func.grad(loss))(many)
    torch.testing.assert_close(mapped[0], wanted, rtol=4e-2, atol=4e-2)


@pytest.mark.gpu
def test_choices_on_a_gpu_say_who_takes_what() -> None:
    assert choose(*on_a_gpu(), causal=True).backend in package.BACKENDS
    left = choose(*on_a_gpu(head_dim=96), causal=True)
    assert left.backend == "sdpa"
    assert left.notes[-1].startswith("PyTorch's kernels that support the call: sdpa-")
    wide = choose(*on_a_gpu(dtype=torch.float64), causal=True)
    assert wide.notes[-1] == "None of PyTorch's fused kernels supports the call, so all scores are stored in memory."


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "sdpa"])
@pytest.mark.parametrize("length", [192, 704])
def test_gradients_are_numbers_where_cudnn_alone_may_give_none(length: int, backend: str | None) -> None:
    """With a mask, and all scores far below zero (pytorch#196678)."""
    q, k, v = (tensor.detach() * 0.1 for tensor in on_a_gpu(length, length, 64))
    q[..., 0], k[..., 0] = 1.0, -120 * 64**0.5
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    mask = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
    out = attention(*leaves, mask=mask, backend=backend)
    assert all(bool(gradient.isfinite().all()) for gradient in torch.autograd.grad(out.sum(), leaves))


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
        "q, k and v must have one dtype; given float32, float32 and bfloat16.",
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
    with pytest.raises(ValueError, match=r"^The backend is 'flash'; it must be one of gluon, triton, sdpa-cudnn, "):
        attention(*inputs(), backend="flash")

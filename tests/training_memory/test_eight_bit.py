"""AdamW with states in 8 bits against fp32, by PyTorch and by the kernel."""

from __future__ import annotations

from typing import Any

import interpreted
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interpreted import needs_triton
from torch import nn

from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.training_memory import eight_bit
from gpuguide.training_memory.eight_bit import (
    AdamW8bit,
    pack_first,
    pack_second,
    unpack_first,
    unpack_second,
)
from gpuguide.training_memory.eight_bit_layout import GROUP

SHAPES = ((5, 300), (7,), (33, 64), (1024,))
BETAS = (0.9, 0.95)


@given(st.integers(0, 1000), st.floats(1e-12, 1e6), st.floats(0, 8))
def test_a_second_moment_is_never_stored_too_small(seed: int, scale: float, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    v = scale * torch.exp(-spread * torch.rand(3, GROUP, generator=generator) * 2)
    back = unpack_second(*pack_second(v))
    assert (back >= v * (1 - 1e-6)).all()
    largest = v.amax(1, keepdim=True)
    assert ((back / largest) ** 0.25 <= (v / largest) ** 0.25 + 1 / 255 + 1e-6).all()


def test_packing_keeps_zero_and_the_largest() -> None:
    values = torch.zeros(2, GROUP)
    values[1, 3], values[1, 4] = 2.0, 1.0
    m = unpack_first(*pack_first(-values))
    torch.testing.assert_close(m, -values, rtol=0.02, atol=0)
    v = unpack_second(*pack_second(values))
    torch.testing.assert_close(v, values, rtol=0.02, atol=0)
    small = torch.full((1, GROUP), 1e-6)
    small[0, 0] = 1.0
    assert unpack_second(*pack_second(small, "square-root-nearest"), "square-root-nearest")[0, 1] == 0
    assert unpack_second(*pack_second(small))[0, 1] >= 1e-6


def steps(device: str, dtype: torch.dtype, count: int = 4) -> tuple[AdamW8bit, list[Any], list[Any]]:
    """Return an optimizer after some steps, its parameters, and those of fp32 states on the same gradients."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in SHAPES]
    ours = [nn.Parameter(each.to(device, dtype)) for each in values]
    theirs = [nn.Parameter(each.to(device)) for each in values]

    def groups(parameters: list[Any]) -> list[dict[str, Any]]:
        others = {"lr": 2e-2, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.0}
        return [{"params": parameters[::2]}, {"params": parameters[1::2], **others}]

    settings: dict[str, Any] = {"lr": 1e-2, "betas": BETAS, "weight_decay": 0.1}
    packed = AdamW8bit(groups(ours), **settings)
    plain = torch.optim.AdamW(groups(theirs), **settings)
    for _ in range(count):
        for one, other in zip(ours, theirs, strict=True):
            gradient = torch.randn(other.shape, generator=generator).to(device, dtype)
            one.grad, other.grad = gradient, gradient.float()
        packed.step()
        plain.step()
    return packed, ours, theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_are_near_those_of_fp32(dtype: torch.dtype) -> None:
    start = torch.randn(SHAPES[0], generator=torch.Generator().manual_seed(0))
    _, ours, theirs = steps("cpu", dtype)
    for one, other in zip(ours, theirs, strict=True):
        spacing = 2**-7 * other.abs() if dtype == torch.bfloat16 else 0.0
        assert ((one.float() - other).abs() <= 0.012 + 4 * spacing).all()
    moved = theirs[0].detach().cpu() - start
    off = ours[0].detach().float() - theirs[0].detach()
    if dtype == torch.float32:
        assert torch.linalg.vector_norm(off) < 0.1 * torch.linalg.vector_norm(moved)


def train(rounding: Any, count: int = 150) -> float:
    """Return the loss of a small network after some steps, whose inputs differ in size as those of words do."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
    sizes = 10 ** torch.linspace(0, -3, 64)
    optimizer = AdamW8bit(network.parameters(), lr=1e-2, betas=BETAS, weight_decay=0.0, rounding=rounding)
    for _ in range(count):
        x = torch.randn(64, 64) * sizes
        loss = (network(x) - x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def test_the_fourth_root_rounded_up_trains_and_the_square_root_rounded_to_the_nearest_diverges() -> None:
    assert train("square-root-nearest") > 3 * train("fourth-root-up")


def test_a_saved_state_goes_on_and_a_missing_gradient_changes_nothing() -> None:
    optimizer, ours, _ = steps("cpu", torch.float32)
    other = AdamW8bit([nn.Parameter(each.detach().clone()) for each in optimizer.parameters], lr=1.0)
    state = {**optimizer.state_dict(), "param_groups": other.state_dict()["param_groups"]}
    other.load_state_dict(state)
    assert torch.equal(other.m, optimizer.m)
    before = [each.detach().clone() for each in ours]
    for each in ours[1:]:
        each.grad = None
    optimizer.step()
    assert not torch.equal(ours[0], before[0])
    assert all(map(torch.equal, ours[1:], before[1:]))


class Wrapped(torch.Tensor):
    """A tensor that holds another, as sharded parameters do."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        """Return a wrapper of a tensor's shape."""
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Return the names of the tensors within."""
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, *_: Any) -> Any:
        """Return a wrapper of tensors."""
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the wrapper itself, which is enough to make a parameter."""
        return args[0]


def test_what_it_cannot_train_is_refused_with_what_to_do() -> None:
    with pytest.raises(GpuguideError, match=r"shape \(3,\) is in torch.float16; .*convert it"):
        AdamW8bit([nn.Parameter(torch.zeros(3, dtype=torch.float16))])
    with pytest.raises(UnknownName, match="fourth-root-up"):
        AdamW8bit([nn.Parameter(torch.zeros(3))], rounding="fourth-root")  # type: ignore[arg-type]
    with pytest.raises(GpuguideError, match="on cpu and meta; make one AdamW8bit for the parameters of each device"):
        AdamW8bit([nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3, device="meta"))])
    with pytest.raises(GpuguideError, match=r"is a Wrapped.* use torch\.optim\.AdamW"):
        AdamW8bit([Wrapped(torch.zeros(3)).requires_grad_()])
    with pytest.raises(GpuguideError, match="lr is -1"):
        AdamW8bit([nn.Parameter(torch.zeros(3))], lr=-1)
    with pytest.raises(GpuguideError, match="betas are"):
        AdamW8bit([{"params": [nn.Parameter(torch.zeros(3))], "betas": (0.9, 1.0)}])
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = AdamW8bit(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(GpuguideError, match="is sparse; use"):
        optimizer.step()


def test_a_group_without_parameters_is_no_error() -> None:
    optimizer = AdamW8bit([{"params": []}])
    optimizer.step()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    assert len(optimizer.m) == GROUP


def test_a_closure_is_called_with_gradients_and_its_loss_returned() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = AdamW8bit([parameter], lr=0.1)

    def closure() -> torch.Tensor:
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 3
    assert (parameter < 1).all()


def test_a_group_that_is_added_later_takes_the_steps_of_a_new_optimizer() -> None:
    first, later, alone = (nn.Parameter(torch.ones(300)) for _ in range(3))
    optimizer = AdamW8bit([first], lr=1e-2)
    for _ in range(20):
        first.grad = torch.ones(300)
        optimizer.step()
    with pytest.raises(GpuguideError, match="float16"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3, dtype=torch.float16))]})
    assert len(optimizer.param_groups) == 1
    kept = optimizer.m.clone()
    optimizer.add_param_group({"params": [later], "lr": 1e-3, "betas": (0.8, 0.99)})
    assert torch.equal(optimizer.m[: len(kept)], kept)
    other = AdamW8bit([alone], lr=1e-3, betas=(0.8, 0.99))
    for _ in range(3):
        later.grad, alone.grad = torch.ones(300), torch.ones(300)
        optimizer.step()
        other.step()
    assert torch.equal(later, alone)


def test_a_state_of_other_parameters_is_refused() -> None:
    optimizer, other = (AdamW8bit([nn.Parameter(torch.zeros(size))]) for size in (3, 300))
    with pytest.raises(GpuguideError, match="same order"):
        other.load_state_dict(optimizer.state_dict())


def test_a_learning_rate_in_a_tensor_keeps_its_tensor_when_a_state_is_loaded() -> None:
    lr = torch.tensor(0.5)
    optimizer = AdamW8bit([nn.Parameter(torch.zeros(3))], lr=lr)
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.25
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] is lr
    assert lr == 0.25


def test_a_capture_with_a_learning_rate_that_is_a_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eight_bit, "is_capturing", lambda tensor: True)
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    with pytest.raises(GpuguideError, match=r"lr=torch\.tensor\(0\.1, device='cpu'\)"):
        AdamW8bit([parameter], lr=0.1).step()
    assert (parameter == 1).all()
    AdamW8bit([parameter], lr=torch.tensor(0.1)).step()
    assert (parameter < 1).all()


def test_it_takes_two_bytes_and_a_thirty_second_a_number() -> None:
    optimizer = AdamW8bit([nn.Parameter(torch.zeros(512, 512, dtype=torch.bfloat16))])
    tensors = (optimizer.m, optimizer.v, optimizer.m_scale, optimizer.v_scale)
    assert sum(each.nbytes for each in tensors) == 2.03125 * 512 * 512


# --- the kernel --------------------------------------------------------------------------------------------------


def assert_the_kernel_does_what_pytorch_does(device: str) -> None:
    """Compare states and weights after some steps with those of the plain version on the same gradients."""
    from gpuguide import triton_support

    supported = triton_support.supports_triton
    for dtype in (torch.float32, torch.bfloat16):
        triton_support.supports_triton = (lambda tensor: True) if device == "cpu" else supported
        kernel, ours, theirs = steps(device, dtype)
        assert kernel._kernel is not None
        triton_support.supports_triton = lambda tensor: False
        plain, others, _ = steps(device, dtype)
        triton_support.supports_triton = supported
        torch.testing.assert_close(kernel.m_scale, plain.m_scale, rtol=1e-3, atol=1e-7)
        torch.testing.assert_close(kernel.v_scale, plain.v_scale, rtol=1e-3, atol=1e-7)
        for name in ("m", "v"):  # a number at the edge between two codes may fall to either, and the next steps follow
            off = (getattr(kernel, name).int() - getattr(plain, name).int()).abs()
            assert off.max() <= 3
            assert (off > 0).float().mean() < 0.05
        for one, other, exact in zip(ours, others, theirs, strict=True):
            spacing = 4 * 2**-7 * exact.abs() if dtype == torch.bfloat16 else 0.0
            assert ((one - other).abs() <= 2e-3 + spacing).all()
        if dtype == torch.bfloat16:  # rounded at random, the errors have no bias
            errors = torch.cat([(one.float() - exact).flatten() for one, exact in zip(ours, theirs, strict=True)])
            assert errors.mean().abs() < 5 * errors.std() / len(errors) ** 0.5


def assert_the_kernel_reads_all_formats(device: str) -> None:
    """Compare the kernel with fp32 on mixed formats, strides, late parameters, and a tensor as learning rate."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(64, 40, generator=generator) for _ in range(6)]
    formats = (torch.float32, torch.bfloat16)
    ours = [nn.Parameter(each.to(device, formats[number % 2])) for number, each in enumerate(values)]
    ours[2] = nn.Parameter(values[2].to(device).t())
    theirs = [nn.Parameter(each.detach().float()) for each in ours]
    lr = torch.tensor(1e-2, device=device)
    optimizer = AdamW8bit(ours[:5], lr=lr, betas=(0.0, 0.9))
    plain = torch.optim.AdamW(theirs[:5], lr=1e-2, betas=(0.0, 0.9))
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": ours[5:], "betas": (0.5, 0.9)})
            plain.add_param_group({"params": theirs[5:], "betas": (0.5, 0.9)})
            ours[0].data = ours[0].data.clone()
            lr.fill_(2e-2)
            for group in plain.param_groups:
                group["lr"] = 2e-2
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            gradient = torch.randn(other.shape, generator=generator).to(device)
            other.grad = gradient
            if number == 3 and hasattr(one, "grad_dtype"):
                one.grad_dtype = torch.float32
            one.grad = gradient if number == 3 and hasattr(one, "grad_dtype") else gradient.to(one.dtype)
            if number == 4:
                flat = torch.empty(gradient.numel() + 1, device=device)[1:].view_as(gradient)
                one.grad = flat.copy_(gradient)
        optimizer.step()
        plain.step()
    assert optimizer.count.tolist() == [4] * 5 + [2]
    for one, other in zip(ours, theirs, strict=True):
        spacing = 4 * 2**-7 * other.abs() if one.dtype == torch.bfloat16 else 0.0
        assert ((one.float() - other).abs() <= 0.02 + spacing).all()


def assert_what_is_not_finite_stays(device: str) -> None:
    """Check that NaN with all bits set does not become a number when it is rounded."""
    parameter = nn.Parameter(torch.ones(GROUP, dtype=torch.bfloat16, device=device))
    if not hasattr(parameter, "grad_dtype"):
        return
    parameter.grad_dtype = torch.float32
    parameter.grad = torch.full((GROUP,), 2**31 - 1, dtype=torch.int32, device=device).view(torch.float32)
    AdamW8bit([parameter]).step()
    assert parameter.isnan().all()


def check_kernel() -> None:
    """Run the kernel, interpreted."""
    from gpuguide import triton_support

    assert_the_kernel_does_what_pytorch_does("cpu")
    supported = triton_support.supports_triton
    triton_support.supports_triton = lambda tensor: True
    assert_the_kernel_reads_all_formats("cpu")
    assert_what_is_not_finite_stays("cpu")
    assert_a_capture_keeps_its_tables()
    triton_support.supports_triton = supported


def assert_a_capture_keeps_its_tables() -> None:
    """Check that a capture keeps what it reads, and is refused where the gradients have moved."""
    from gpuguide.training_memory import eight_bit_kernels

    parameter = nn.Parameter(torch.ones(GROUP))
    parameter.grad = torch.ones(GROUP)
    optimizer = AdamW8bit([parameter], lr=torch.tensor(0.1))
    optimizer.step()
    not_capturing = eight_bit.is_capturing
    eight_bit.is_capturing = eight_bit_kernels.is_capturing = lambda tensor: True
    optimizer.step()
    kept = optimizer._kernel.captured[0][0]
    moved = torch.ones(GROUP)
    parameter.grad = moved
    with pytest.raises(GpuguideError, match=r"addresses .*set_to_none=False"):
        optimizer.step()
    with pytest.raises(GpuguideError, match="before the capture"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    eight_bit.is_capturing = eight_bit_kernels.is_capturing = not_capturing
    before = kept.clone()
    optimizer.step()
    assert torch.equal(kept, before)
    assert len(optimizer.param_groups) == 1


@needs_triton
def test_the_kernel_does_what_pytorch_does() -> None:
    interpreted.run(__file__, "check_kernel()")


def test_without_the_kernel_all_formats_are_trained() -> None:
    assert_the_kernel_reads_all_formats("cpu")
    assert_what_is_not_finite_stays("cpu")


@pytest.mark.gpu
def test_the_kernel_does_what_pytorch_does_on_a_gpu() -> None:
    assert_the_kernel_does_what_pytorch_does("cuda")
    assert_the_kernel_reads_all_formats("cuda")
    assert_what_is_not_finite_stays("cuda")


@pytest.mark.gpu
def test_a_replay_follows_the_learning_rate_and_eager_steps_between_do_not_disturb_it() -> None:
    def made() -> tuple[nn.Parameter, torch.Tensor, AdamW8bit]:
        parameter = nn.Parameter(torch.ones(5000, device="cuda"))
        parameter.grad = torch.linspace(-1, 1, 5000, device="cuda")
        lr = torch.tensor(1e-2, device="cuda")
        return parameter, lr, AdamW8bit([parameter], lr=lr)

    (captured, rate, optimizer), (eager, other_rate, other) = made(), made()
    optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    graph.replay()
    rate.fill_(0.1)
    graph.replay()
    gradient = captured.grad
    captured.grad = torch.ones_like(captured)
    optimizer.step()
    captured.grad = gradient
    graph.replay()
    other.step()
    other.step()
    other_rate.fill_(0.1)
    other.step()
    moved, eager.grad = eager.grad, torch.ones_like(eager)
    other.step()
    eager.grad = moved
    other.step()
    torch.testing.assert_close(captured, eager)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_capture_that_could_not_be_replayed_is_refused() -> None:
    for lr, keeps, says in ((0.1, True, "learning rate"), (torch.tensor(0.1, device="cuda"), False, "set_to_none")):
        parameter = nn.Parameter(torch.ones(GROUP, device="cuda"))
        parameter.grad = torch.ones_like(parameter)
        optimizer = AdamW8bit([parameter], lr=lr)
        optimizer.step()
        if not keeps:
            moved = torch.ones_like(parameter)
            parameter.grad = moved
        torch.cuda.synchronize()
        with pytest.raises(GpuguideError, match=says), torch.cuda.graph(torch.cuda.CUDAGraph()):
            optimizer.step()
        torch.cuda.synchronize()


@pytest.mark.gpu
def test_parameters_of_a_gpu_that_is_not_the_current_one_are_updated() -> None:
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    parameter = nn.Parameter(torch.ones(GROUP, device=last))
    parameter.grad = torch.ones_like(parameter)
    AdamW8bit([parameter], lr=0.1).step()
    assert (parameter < 1).all()

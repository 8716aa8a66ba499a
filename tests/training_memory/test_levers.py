"""Each lever gives the gradients of the plain step, and takes the memory that the cost model says."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alive import Ledger
from torch import nn
from torch.nn import functional

from gpuguide.costs import memory
from gpuguide.cross_entropy import linear_cross_entropy
from gpuguide.errors import GpuguideError
from gpuguide.gradients import kept_bytes
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.models.llama import Llama, LlamaConfig
from gpuguide.training_memory.in_backward import StepInBackward
from gpuguide.training_memory.offload import ActivationOffload, numbered
from gpuguide.training_memory.recompute import KEPT_IN_GPT2, KEPT_IN_LLAMA, checkpointed, recompute_by_hand

SHAPE = GPT2Config(vocab_size=1000, context=128, layers=4, heads=4, hidden=128)
COSTS = memory.Shape(4, 128, 4, 4, 32, 512, 1000, 128, gated=False, tied=True, learned_positions=True, bias="all",
                     layer_norm=True)  # fmt: skip
BATCH, SEQ_LEN = 3, 96
Call = Callable[..., torch.Tensor]
Forward = Callable[[GPT2, torch.Tensor], torch.Tensor]


def every_second(calls: list[int], layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Compute the first, third, … layer again."""
    calls.append(0)
    return checkpointed(layer, hidden) if len(calls) % 2 else layer(hidden)


def layer_calls() -> dict[str, tuple[Callable[[], Call], dict[str, Any]]]:
    """Return what calls the layers in each way, made anew for each forward pass, and the setup that it stands for."""
    return {
        "plain": (lambda: lambda layer, hidden: layer(hidden), {}),
        "all": (lambda: checkpointed, {"checkpointing": True}),
        "by hand": (lambda: recompute_by_hand, {"checkpointing": True}),
        "every second": (
            lambda: lambda *given, calls=[]: every_second(calls, *given),
            {"checkpointing": True, "checkpoint_every": 2},
        ),
        "selective": (
            lambda: lambda *given: checkpointed(*given, keep=KEPT_IN_GPT2),
            {"checkpointing": True, "selective": True},
        ),
        "offload": (lambda: ActivationOffload(torch.device("cpu"), last=SHAPE.layers - 1), {"offloaded": True}),
        "offload all": (lambda: ActivationOffload(torch.device("cpu")), {"offloaded": True}),
    }


CALLS = layer_calls()


def model() -> GPT2:
    """Return the model of all tests."""
    torch.manual_seed(0)
    return GPT2(SHAPE)


def tokens() -> torch.Tensor:
    """Return a batch."""
    return torch.randint(SHAPE.vocab_size, (BATCH, SEQ_LEN), generator=torch.Generator().manual_seed(1))


def forward(made: GPT2, batch: torch.Tensor, call: Call, chunked: bool = False) -> torch.Tensor:
    """Return the loss."""
    hidden = made.embed(batch)
    for block in made.blocks:
        hidden = call(block, hidden)
    if chunked:
        return linear_cross_entropy(made.final_norm(hidden), made.head.weight, batch)
    return functional.cross_entropy(made.head(made.final_norm(hidden)).flatten(0, 1), batch.flatten())


def bytes_on_device(offload: ActivationOffload) -> int:
    """Return the bytes of saved tensors that are on the device now, except those that always stay there."""
    storages = (storage for layer in offload.layers for storage in layer.storages.values())
    return sum(len(storage.on_device) for storage in storages if storage.on_device is not None)


def gradients(call: Call, chunked: bool = False, autocast: bool = False) -> list[torch.Tensor]:
    """Return the gradients of all parameters."""
    made = model()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = forward(made, tokens(), call, chunked)
    loss.backward()
    return [each.grad for each in made.parameters() if each.grad is not None]


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_those_of_the_plain_step(name: str) -> None:
    expected, found = gradients(lambda layer, hidden: layer(hidden)), gradients(CALLS[name][0]())
    for right, got in zip(expected, found, strict=True):
        assert torch.linalg.vector_norm(got - right) <= 1e-6 * torch.linalg.vector_norm(right)


@pytest.mark.parametrize("name", ["all", "selective", "offload"])
def test_under_autocast_too(name: str) -> None:
    expected = gradients(lambda layer, hidden: layer(hidden), autocast=True)
    for right, got in zip(expected, gradients(CALLS[name][0](), autocast=True), strict=True):
        assert torch.linalg.vector_norm(got - right) <= 1e-6 * torch.linalg.vector_norm(right)


def step_in_backward(made: nn.Module) -> StepInBackward:
    """Return optimizers that step in the backward pass."""
    return StepInBackward(made.parameters(), lambda each: torch.optim.AdamW(each, lr=1e-2, foreach=False))


def test_a_step_inside_the_backward_pass_is_the_step_after_it() -> None:
    after, inside = model(), model()
    optimizer = torch.optim.AdamW(after.parameters(), lr=1e-2)
    stepping = step_in_backward(inside)
    for _ in range(3):
        for made in (after, inside):
            forward(made, tokens(), lambda layer, hidden: layer(hidden)).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert all(each.grad is None for each in inside.parameters())
    for right, got in zip(after.parameters(), inside.parameters(), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-6)
    stepping.set_learning_rate(0.0)
    before = [each.detach().clone() for each in inside.parameters()]
    forward(inside, tokens(), lambda layer, hidden: layer(hidden)).backward()
    assert all(map(torch.equal, before, inside.parameters()))
    stepping.remove()
    forward(inside, tokens(), lambda layer, hidden: layer(hidden)).backward()
    assert all(each.grad is not None for each in inside.parameters())
    with pytest.raises(GpuguideError, match="No parameter"):
        step_in_backward(inside.requires_grad_(False))


def test_a_layer_that_is_added_later_steps_in_the_backward_pass_too() -> None:
    made = model()
    made.blocks[0].requires_grad_(False)
    stepping = step_in_backward(made)
    before = [each.detach().clone() for each in made.blocks[0].parameters()]
    made.blocks[0].requires_grad_(True)
    stepping.add(made.parameters())
    forward(made, tokens(), lambda layer, hidden: layer(hidden)).backward()
    assert all(each.grad is None for each in made.parameters())
    assert not any(map(torch.equal, before, made.blocks[0].parameters()))


def test_a_learning_rate_in_a_tensor_is_changed_in_place() -> None:
    rates: list[torch.Tensor] = []

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        rates.append(torch.tensor(1e-2))
        return torch.optim.AdamW(parameters, lr=rates[-1], foreach=False)

    stepping = StepInBackward(model().parameters(), make)
    stepping.set_learning_rate(0.5)
    assert all(rate == 0.5 for rate in rates)
    assert all(map(operator.is_, rates, (each.param_groups[0]["lr"] for each in stepping.optimizers.values())))


# --- memory ------------------------------------------------------------------------------------------------------


def peak(call: Callable[[], Call], chunked: bool, inside: bool) -> int:
    """Return the most bytes that are alive in the second step."""
    made, batch = model(), tokens()
    targets = batch.clone()
    with Ledger() as ledger:
        for tensor in (*made.parameters(), batch, targets):
            ledger.count(tensor.data)
        stepping = step_in_backward(made) if inside else None
        optimizer = None if inside else torch.optim.AdamW(made.parameters(), lr=1e-3, foreach=True)
        for _ in range(2):
            ledger.peak = ledger.now
            forward(made, batch, call(), chunked).backward()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
        del stepping
    return ledger.peak


@pytest.mark.parametrize("inside", [False, True], ids=["after", "inside"])
@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
@pytest.mark.parametrize("name", ["plain", "all", "every second", "selective"])
def test_the_peak_is_what_is_predicted(name: str, chunked: bool, inside: bool) -> None:
    call, fields = CALLS[name]
    setup = memory.Setup(
        precision="fp32", batch=BATCH, seq_len=SEQ_LEN, loss="chunked" if chunked else "whole",
        optimizer="adamw-fused" if inside else "adamw", optimizer_in_backward=inside, **fields,
    )  # fmt: skip
    # The chunk of logits is made inside of one operation, where the ledger does not see it.
    unseen = ("workspace", "logits") if chunked else ("workspace",)
    moments = memory.predict(COSTS, setup).moments
    expected = max(moment.total - sum(moment.parts[part] for part in unseen) for moment in moments)
    assert peak(call, chunked, inside) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", ["all", "every second", "selective"])
def test_what_is_kept_between_the_passes_is_what_is_predicted(name: str) -> None:
    call, fields = CALLS[name]
    made, batch = model(), tokens()
    with Ledger() as ledger:
        for parameter in made.parameters():
            ledger.count(parameter.data)
        hidden = made.embed(batch)
        called = call()
        before = ledger.now
        for block in made.blocks:
            hidden = called(block, hidden)
        gc.collect()
        kept = ledger.now - before
    setup = memory.Setup(precision="fp32", batch=BATCH, seq_len=SEQ_LEN, **fields)
    assert kept == pytest.approx(memory.values(COSTS, setup)["activations"], rel=0.02)


@pytest.mark.parametrize("name", ["offload", "offload all"])
def test_one_layer_is_on_the_device_between_the_passes(name: str) -> None:
    offload, made = CALLS[name][0](), model()
    assert isinstance(offload, ActivationOffload)
    loss = forward(made, tokens(), offload)
    setup = memory.Setup(precision="fp32", batch=BATCH, seq_len=SEQ_LEN, offloaded=True)
    expected = memory.values(COSTS, setup)["activations"]
    assert bytes_on_device(offload) == pytest.approx(expected, rel=0.02)
    loss.backward()
    assert bytes_on_device(offload) == 0


def test_a_device_without_a_number_is_that_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert numbered("cuda") == torch.device("cuda", 1)
    assert numbered("cuda:0") == torch.device("cuda", 0)
    assert numbered("cpu:0") == torch.zeros(0).device
    offload = ActivationOffload("cpu:0")
    forward(model(), tokens(), offload)
    assert bytes_on_device(offload) > 0


def test_a_sparse_tensor_stays_on_its_device() -> None:
    class Sparse(nn.Module):
        """A product with a sparse matrix, which autograd saves."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return the product."""
            return torch.sparse.mm(torch.eye(300).to_sparse(), x)

    x = torch.randn(300, 100, requires_grad=True)
    ActivationOffload("cpu")(Sparse(), x).sum().backward()
    assert x.grad is not None
    assert (x.grad == 1).all()


class WrittenOut(nn.Module):
    """GELU in the operations of ``gelu_new`` of transformers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the function of each number."""
        return 0.5 * x * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0))))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_gelu_new_keeps_four_numbers_for_one(precision: str, dtype: torch.dtype) -> None:
    made = model().blocks[0].to(dtype)
    hidden = torch.randn(BATCH, SEQ_LEN, SHAPE.hidden, dtype=dtype)
    fused = kept_bytes(lambda: made(hidden), made.parameters())
    feed_forward, written_out = made.feed_forward, WrittenOut()
    feed_forward.forward = lambda x: feed_forward.down(written_out(feed_forward.up(x)))
    more = kept_bytes(lambda: made(hidden), made.parameters()) - fused
    layers = [
        memory.activations_of_layer(
            COSTS, memory.Setup(precision=precision, batch=BATCH, seq_len=SEQ_LEN, activation=each)
        )
        for each in ("gelu-new", "fused")
    ]
    assert more == layers[0] - layers[1]


# --- Llama -------------------------------------------------------------------------------------------------------


def test_layers_with_several_inputs_are_recomputed_and_offloaded() -> None:
    torch.manual_seed(0)
    made = Llama(LlamaConfig(vocab_size=100, context=64, layers=2, heads=4, kv_heads=2, hidden=64, inner=160))
    batch = torch.randint(100, (2, 64))

    def loss(call: Call) -> list[torch.Tensor]:
        hidden = made.embed(batch)
        cos, sin = made.rotary(torch.arange(64), hidden.dtype)
        for block in made.blocks:
            hidden = call(block, hidden, cos, sin)
        made.head(made.final_norm(hidden)).square().mean().backward()
        found = [each.grad.clone() for each in made.parameters() if each.grad is not None]
        made.zero_grad()
        return found

    expected = loss(lambda block, *given: block(*given))
    for call in (
        lambda *given: checkpointed(*given, keep=KEPT_IN_LLAMA),
        ActivationOffload(torch.device("cpu"), last=1),
        checkpointed,
    ):
        for right, got in zip(expected, loss(call), strict=True):
            assert torch.linalg.vector_norm(got - right) <= 1e-6 * torch.linalg.vector_norm(right)
    with pytest.raises(GpuguideError, match=r"feed_forward\.down"):
        checkpointed(made.blocks[0], made.embed(batch), keep=["feed_forward.dwn"])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["plain", "all", "every second", "selective", "offload", "offload all"])
def test_on_a_gpu_gradients_are_those_of_the_plain_step(name: str) -> None:
    config = GPT2Config(vocab_size=5120, context=512, layers=6, heads=8, hidden=512)
    batch = torch.randint(5120, (8, 512), device="cuda")
    found = []
    for call in (lambda layer, hidden: layer(hidden), CALLS[name][0]()):
        torch.manual_seed(0)
        made = GPT2(config).cuda()
        if isinstance(call, ActivationOffload):
            call = ActivationOffload("cuda", last=5 if name == "offload" else None)
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(made, batch, call)
        if isinstance(call, ActivationOffload):
            whole = sum(
                len(each.on_host)
                for layer in call.layers
                for each in layer.storages.values()
                if each.on_host is not None
            )
            assert 0 < bytes_on_device(call) < 0.5 * whole
        loss.backward()
        found.append([each.grad for each in made.parameters() if each.grad is not None])
    for right, got in zip(*found, strict=True):
        assert torch.linalg.vector_norm(got - right) <= 1e-3 * torch.linalg.vector_norm(right)

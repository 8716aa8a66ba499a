"""A compiled step against plain PyTorch, and the loss without a head against all logits."""

from __future__ import annotations

from typing import Any

import pytest
import small_adapted as small
import torch
from torch.nn import functional

from gpuguide import lora, training
from gpuguide.errors import GpuguideError
from gpuguide.lora.packed import Packing
from gpuguide.precision import LossScaler, TrainingSetup, train_step
from gpuguide.quantization import quantize_int4, quantize_int8

TARGETS = {
    "gpt2": ["query_key_value:q,v", "attention.out", "up"],
    "llama": ["query_key_value:q,k,v", "gate_up:gate,up", "down"],
}
TARGETS_OF_LOSS = torch.randint(61, (2, 8), generator=torch.Generator().manual_seed(6))
TARGETS_OF_LOSS[0, 3] = -100


def adapted(name: str, dtype: torch.dtype = torch.float32, packing: Packing | None = None, dropout: float = 0) -> Any:
    """A model with adapters that have something to add."""
    model = small.model(name)
    lora.add_adapters(model, TARGETS[name], lora.Settings(rank=2, dropout=dropout), dtype=dtype, packing=packing)
    small.something_to_add(model)
    return model


def plain_losses(model: Any, steps: int, clip: float | None = None, device: str = "cpu") -> list[float]:
    """What PyTorch alone makes of it: all logits, and its own AdamW."""
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1), []
    tokens, targets = small.TOKENS.to(device), TARGETS_OF_LOSS.to(device)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(trained, clip)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def step_of(model: Any, **more: Any) -> training.TrainingStep:
    settings = training.StepSettings(**{"learning_rate": 1e-2, "weight_decay": 0.1, "backend": "aot_eager", **more})
    return training.TrainingStep(training.WithoutHead(model, chunk=3).loss, model.parameters(), 2, 8, settings)


@pytest.fixture(autouse=True)
def clean_compiler() -> None:
    """Forget other tests' models: the compiler counts them as one function that changes too often."""
    torch.compiler.reset()


@pytest.mark.parametrize(("name", "clip"), [("gpt2", 0.1), ("llama", None)])
def test_twenty_compiled_steps_are_those_of_pytorch(name: str, clip: float | None) -> None:
    """In float64, since AdamW makes a whole step of a gradient that rounding alone gave a sign."""
    step = step_of(adapted(name, torch.float64).double(), clip=clip)
    found = [float(step(small.TOKENS, TARGETS_OF_LOSS)) for _ in range(20)]
    assert found == pytest.approx(plain_losses(adapted(name, torch.float64).double(), 20, clip), abs=1e-6)
    assert found[-1] < found[0] - 0.05


@pytest.mark.parametrize(
    ("packing", "backend"),
    [
        (lora.quantize_nf4, "eager"),
        (lora.quantize_nf4, "aot_eager"),
        (quantize_int8, "aot_eager"),
        (quantize_int4, "aot_eager"),
    ],
)
def test_packed_weights_compile_in_one_graph(packing: Packing, backend: str) -> None:
    step = step_of(adapted("gpt2", packing=packing), backend=backend)
    found = [float(step(small.TOKENS, TARGETS_OF_LOSS)) for _ in range(3)]
    assert found == pytest.approx(plain_losses(adapted("gpt2", packing=packing), 3), abs=1e-5)


def test_dropout_compiles_and_is_off_in_eval_mode() -> None:
    model = adapted("gpt2", dropout=0.5)
    quiet = model(small.TOKENS)
    assert torch.equal(quiet, adapted("gpt2")(small.TOKENS))
    model.train()
    step = step_of(model)
    torch.manual_seed(0)
    one = float(step(small.TOKENS, TARGETS_OF_LOSS))
    assert one != pytest.approx(plain_losses(adapted("gpt2"), 1)[0], abs=1e-6)


def test_narrow_adapters_keep_updates_that_bf16_would_lose() -> None:
    found = {}
    for masters in (True, False):
        model = adapted("gpt2", torch.bfloat16)
        step = step_of(model, learning_rate=1e-5, backend=None, masters=masters)
        before = [each.detach().clone() for each in step.parameters]
        for _ in range(30):
            step(small.TOKENS, TARGETS_OF_LOSS)
        changed = sum(int((one != other).sum()) for one, other in zip(before, step.parameters, strict=True))
        found[masters] = changed / sum(each.numel() for each in before)
    assert found[True] > 2 * found[False]


def test_other_values_and_another_rate_are_taken() -> None:
    step = step_of(adapted("gpt2", torch.bfloat16), backend=None)
    values = [torch.ones_like(each) for each in step.parameters]
    step.load(values)
    assert all(torch.equal(each, torch.ones_like(each)) for each in step.masters.trained)
    step.set_learning_rate(0.0)
    step(small.TOKENS, TARGETS_OF_LOSS)
    assert all(torch.equal(each, torch.ones_like(each)) for each in step.parameters)


@pytest.mark.parametrize("name", TARGETS)
def test_the_step_of_mixed_precision_takes_the_loss_without_a_head(name: str) -> None:
    model = adapted(name)
    headless = training.WithoutHead(model)
    trained = [each for each in model.parameters() if each.requires_grad]
    setup = TrainingSetup(
        headless,
        torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1),
        LossScaler(1.0, enabled=False),
        format="fp32",
        clip=1e9,
    )
    found = [train_step(setup, [(small.TOKENS, TARGETS_OF_LOSS)], headless.loss_sum).loss for _ in range(5)]
    assert found == pytest.approx(plain_losses(adapted(name), 5), abs=1e-4)


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("name", TARGETS)
def test_the_loss_of_a_model_of_transformers_is_its_own(name: str) -> None:
    from gpuguide.benchmarks.inference.with_transformers import convert_model

    theirs = convert_model(small.model(name), "cpu").requires_grad_(False)
    labels = torch.cat([small.TOKENS[:, 1:], torch.full((2, 1), -100)], 1)
    found = training.WithoutHead(theirs).loss(small.TOKENS, labels)
    torch.testing.assert_close(found, theirs(small.TOKENS, labels=small.TOKENS).loss)


def test_heads_that_do_more_are_refused() -> None:
    class Model(torch.nn.Module):
        def __init__(self, head: object, **config: object) -> None:
            super().__init__()
            self.head, self.config = head, type("Config", (), config)

    untied = small.model()
    untied.head = torch.nn.Linear(32, 61, bias=False)
    lora.add_adapters(untied, ["head"], lora.Settings(rank=2))
    for model, says in (
        (untied, "has an adapter"),
        (Model(torch.nn.Linear(2, 3)), "has a bias"),
        (Model(torch.nn.Identity()), "is a Identity"),
        (Model(torch.nn.Linear(2, 3, bias=False), logit_scale=0.1), "logit_scale"),
    ):
        with pytest.raises(GpuguideError, match=says):
            training.WithoutHead(model)


def test_what_makes_no_step_is_said() -> None:
    frozen = small.model().requires_grad_(False)
    with pytest.raises(GpuguideError, match="No parameter asks for a gradient"):
        step_of(frozen)
    with pytest.raises(GpuguideError, match="needs a GPU"):
        step_of(adapted("gpt2"), graphed=True)
    step = step_of(adapted("gpt2"), backend=None)
    with pytest.raises(GpuguideError, match=r"takes tokens of the shape \(2, 8\)"):
        step(small.TOKENS[:1], TARGETS_OF_LOSS)
    for wrong in (
        {"learning_rate": 0},
        {"clip": 0},
        {"weight_decay": -1},
        {"mode": "max-autotune", "backend": "eager"},
    ):
        with pytest.raises(GpuguideError, match=f"{next(iter(wrong))} is"):
            training.StepSettings(**wrong)


# --- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("backend", [None, "inductor"])
@pytest.mark.parametrize("packing", [None, lora.quantize_nf4, quantize_int8, quantize_int4])
def test_a_captured_step_is_the_plain_one(backend: str | None, packing: Packing | None) -> None:
    """Over 12 steps: at the 18th, rounding moves plain PyTorch's own loss by 0.01, since AdamW makes a whole step of a
    gradient whose sign rounding chose."""
    step = step_of(adapted("gpt2", packing=packing).cuda(), backend=backend)
    found = [float(step(small.TOKENS, TARGETS_OF_LOSS)) for _ in range(12)]
    assert step.graph is not None
    wanted = plain_losses(adapted("gpt2", packing=packing).cuda(), 12, device="cuda")
    assert found == pytest.approx(wanted, abs=1e-3)
    step.set_learning_rate(0.0)
    before = [each.detach().clone() for each in step.parameters]
    step(small.TOKENS, TARGETS_OF_LOSS)
    assert all(torch.equal(one, other) for one, other in zip(before, step.parameters, strict=True))

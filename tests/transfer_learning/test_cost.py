from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpuguide import lora
from gpuguide.gradients import kept_bytes
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.transfer_learning import (
    Depth,
    NewHead,
    NextToken,
    SoftPrompt,
    activation_bytes,
    operations,
    train_only,
    training_bytes,
)

LAYERS, HIDDEN, TEXTS, SEQ = 6, 64, 4, 96
CONFIG = GPT2Config(vocab_size=40, context=128, layers=LAYERS, heads=2, hidden=HIDDEN, dropout=0.0)


def last_two(model: GPT2) -> nn.Module:
    module = NextToken(model)
    train_only(module, "model.blocks.4.*", "model.blocks.5.*", "model.final_norm.*")
    return module


def head(model: GPT2) -> nn.Module:
    module = NewHead(model, 2)
    train_only(module, "fc.*")
    return module


def adapted(model: GPT2) -> nn.Module:
    lora.add_adapters(model, ["query_key_value", "out", "up", "down"], lora.Settings(rank=1))
    return NextToken(model)


WAYS: dict[str, tuple[Callable[[GPT2], nn.Module], Depth]] = {
    "head": (head, Depth(LAYERS, 0, "trained")),
    "last two": (last_two, Depth(LAYERS, 2, "trained")),
    "adapters": (adapted, Depth(LAYERS, LAYERS, "adapted")),
    "soft prompt": (lambda model: SoftPrompt(model, 1), Depth(LAYERS, LAYERS, "passed")),
    "all": (NextToken, Depth(LAYERS, LAYERS, "trained")),
}
each_way = pytest.mark.parametrize(("prepare", "depth"), WAYS.values(), ids=WAYS)


def prepared(prepare: Callable[[GPT2], nn.Module]) -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    module = prepare(GPT2(CONFIG))
    tokens, last = torch.randint(40, (TEXTS, SEQ)), torch.full((TEXTS,), SEQ - 1)

    def call() -> torch.Tensor:
        result: torch.Tensor = module(tokens, last).sum()
        return result

    call.module = module  # type: ignore[attr-defined]
    return call


@each_way
def test_operations_are_those_that_pytorch_counts(prepare: Callable[[GPT2], nn.Module], depth: Depth) -> None:
    call = prepared(prepare)
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        call().backward()
    # PyTorch counts all scores, masked ones too: as many as twice the length has below its diagonal. What the lowest
    # layer that is reached need not pass further, the head and thin matrices are a few hundredths.
    expected = TEXTS * SEQ * operations(depth, HIDDEN, 2 * SEQ)
    assert counted.get_total_flops() == pytest.approx(expected, rel=0.06)


@each_way
def test_what_layers_keep_is_what_autograd_saves(prepare: Callable[[GPT2], nn.Module], depth: Depth) -> None:
    call = prepared(prepare)
    found = kept_bytes(call, call.module.parameters())  # type: ignore[attr-defined]
    # Beside it: the statistics of norms and of attention, a few numbers a token, and what the head keeps of each text.
    assert found == pytest.approx(activation_bytes(depth, HIDDEN, TEXTS * SEQ), rel=0.05, abs=2 * TEXTS * HIDDEN * 4)


def test_saved_memory_that_is_shared_counts_once() -> None:
    layer = nn.Linear(8, 8, bias=False)
    inputs = torch.randn(16, 8, requires_grad=True)
    assert kept_bytes(lambda: layer(inputs).sum(), layer.parameters()) == inputs.nbytes
    assert (
        kept_bytes(lambda: layer(inputs).sum() + layer(inputs.view(16, 8)).sum(), layer.parameters()) == inputs.nbytes
    )
    assert kept_bytes(lambda: layer(inputs).relu().sum(), layer.parameters()) == 2 * inputs.nbytes


def test_deeper_costs_more_and_training_more_than_passing() -> None:
    costs = [operations(Depth(12, reached, "trained"), 768, 128) for reached in range(13)]
    assert costs == sorted(costs)
    full, prompt, none = (Depth(12, *given) for given in ((12, "trained"), (12, "passed"), (0, "trained")))
    assert operations(full, 768, 128) == 3 * operations(none, 768, 128)
    assert operations(none, 768, 128) < operations(prompt, 768, 128) < operations(full, 768, 128)


def test_the_highest_point_is_where_the_backward_pass_begins_or_ends() -> None:
    assert training_bytes(1000, 0, 0) == 4000
    assert training_bytes(1000, 1000, 0) == 4000 + 8000 + 4000
    assert training_bytes(1000, 1000, 50_000) == 4000 + 8000 + 50_000


@pytest.mark.parametrize("reached", [-1, 7])
def test_layers_that_there_are_not_cannot_be_reached(reached: int) -> None:
    with pytest.raises(ValueError, match=f"{reached} layers are reached; from 0 to 6 are possible"):
        Depth(6, reached, "trained")

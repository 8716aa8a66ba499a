"""The calculator's lines on adapters, against what a model with this library's adapters keeps and takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from gpuguide import lora, training
from gpuguide.costs import memory, presets
from gpuguide.gradients import kept_bytes
from gpuguide.models import gpt2

TARGETS = {
    "query-value": ["query_key_value:query,value"],
    "attention": ["query_key_value:query,key,value", "attention.out"],
    "all": ["query_key_value:query,key,value", "attention.out", "feed_forward.up", "feed_forward.down"],
}
GPT2 = presets.shape("gpt2")


def model_of(shape: memory.Shape, setup: memory.Setup) -> gpt2.GPT2:
    """A model with adapters where a setup has them, in bf16."""
    config = gpt2.GPT2Config(shape.vocab, shape.context, shape.layers, shape.heads, shape.hidden)
    model = gpt2.GPT2(config).bfloat16()
    lora.add_adapters(model, TARGETS[setup.adapted], lora.Settings(rank=setup.lora_rank), dtype=torch.bfloat16)
    return model


@pytest.mark.parametrize("adapted", memory.ADAPTED)
def test_the_parameters_are_those_of_the_calculator(adapted: str) -> None:
    setup = memory.Setup(precision="bf16", lora_rank=16, adapted=adapted)
    with torch.device("meta"):
        model = model_of(GPT2, setup)
    assert lora.count_parameters(model).trained == memory.values(GPT2, setup)["adapters"]


@pytest.mark.parametrize("adapted", memory.ADAPTED)
def test_a_block_keeps_what_is_counted(adapted: str) -> None:
    shape = replace(GPT2, layers=1, vocab=64, context=64)
    setup = memory.Setup(precision="bf16", batch=2, seq_len=64, lora_rank=8, adapted=adapted)
    block = model_of(shape, setup).blocks[0]
    hidden = torch.randn(2, 64, shape.hidden, dtype=torch.bfloat16, requires_grad=True)
    saved = kept_bytes(lambda: block(hidden), block.parameters())
    assert saved == pytest.approx(memory.activations_of_layer(shape, setup), rel=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("adapted", memory.ADAPTED)
def test_a_step_takes_what_is_predicted(adapted: str) -> None:
    """Nothing compiled or captured, and all logits: what the calculator assumes."""
    setup = memory.Setup(precision="bf16", batch=8, seq_len=512, lora_rank=16, adapted=adapted, optimizer="adamw-fused")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    model = model_of(GPT2, setup).cuda()
    tokens = torch.randint(GPT2.vocab, (8, 512), device="cuda")

    def loss(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    settings = training.StepSettings(backend=None, graphed=False, masters=False)
    step = training.TrainingStep(loss, model.parameters(), 8, 512, settings)
    step(tokens, tokens)
    torch.cuda.reset_peak_memory_stats()
    step(tokens, tokens)
    taken = torch.cuda.max_memory_allocated() - before
    assert taken == pytest.approx(memory.predict(GPT2, setup).total, rel=0.05)

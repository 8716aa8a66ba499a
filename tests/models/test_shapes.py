from __future__ import annotations

import dataclasses

import pytest
import torch

from gpuguide.costs import presets
from gpuguide.errors import UnknownName
from gpuguide.models import gpt2, llama, shapes

TINY_LLAMA = llama.LlamaConfig(vocab_size=64, context=32, layers=2, heads=4, kv_heads=2, hidden=32, inner=48)
TINY_GPT2 = gpt2.GPT2Config(vocab_size=64, context=32, layers=2, heads=2, hidden=32)
PRESETS = {"gpt2-small": "gpt2", "llama-1b-shape": "llama-3.2-1b", "llama-7b-shape": "llama-2-7b"}


def test_every_shape_is_compared_with_a_published_one() -> None:
    assert PRESETS.keys() == shapes.SHAPES.keys()


@pytest.mark.parametrize("name", PRESETS)
def test_shapes_are_the_published_ones(name: str) -> None:
    published = presets.get(PRESETS[name])
    config = shapes.config(name)
    theirs = published.shape
    assert (config.vocab_size, config.context, config.layers) == (theirs.vocab, theirs.context, theirs.layers)
    assert (config.heads, config.hidden, config.head_dim) == (theirs.heads, theirs.hidden, theirs.head_dim)
    if isinstance(config, llama.LlamaConfig):
        assert (config.kv_heads, config.inner, config.tied) == (theirs.kv_heads, theirs.intermediate, theirs.tied)
    model = shapes.build_meta_model(config, torch.bfloat16)
    assert model.parameter_count() == published.parameters
    assert {(parameter.device.type, parameter.dtype) for parameter in model.parameters()} == {("meta", torch.bfloat16)}


@pytest.mark.parametrize("config", [TINY_LLAMA, dataclasses.replace(TINY_LLAMA, tied=True), TINY_GPT2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_random_model_is_whole(config: gpt2.GPT2Config | llama.LlamaConfig, dtype: torch.dtype) -> None:
    model = shapes.random_model(config, dtype, seed=3)
    built = gpt2.GPT2(config) if isinstance(config, gpt2.GPT2Config) else llama.Llama(config)
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == {
        name: tensor.shape for name, tensor in built.state_dict().items()
    }
    assert model.parameter_count() == built.parameter_count()
    assert (model.head.weight is model.token_embedding.weight) == (built.head.weight is built.token_embedding.weight)
    assert not model.training
    for name, parameter in model.named_parameters():
        assert parameter.dtype == dtype
        assert parameter.requires_grad
        if parameter.ndim == 2:
            assert parameter.float().std().item() == pytest.approx(0.02, rel=0.1), name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        else:
            assert bool((parameter == 1).all()), name
    logits = model(torch.arange(32).view(2, 16))
    assert bool(logits.isfinite().all())
    assert logits.std() > 0.01


def test_the_seed_decides() -> None:
    first, same, other = (shapes.random_model(TINY_LLAMA, seed=seed).head.weight for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_the_random_numbers_of_others_go_on_as_before() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    shapes.random_model(TINY_LLAMA)
    assert torch.equal(torch.rand(1), expected)


def test_a_random_model_by_name() -> None:
    model = shapes.random_model("gpt2-small", torch.bfloat16)
    assert isinstance(model, gpt2.GPT2)
    assert model.config == gpt2.GPT2Config()
    with pytest.raises(UnknownName, match=r"There is no shape named 'llama-7b'\. Did you mean llama-7b-shape"):
        shapes.random_model("llama-7b")

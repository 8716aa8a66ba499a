from __future__ import annotations

import gc
import weakref

import pytest
import torch

from gpuguide.benchmarks.inference import models, with_transformers
from gpuguide.costs import presets
from gpuguide.inference import cost
from gpuguide.models import shapes

CPU = "cpu"
TINY = ["tiny-gpt2", "tiny-llama", "tiny-llama-untied"]


@pytest.mark.parametrize(
    ("name", "preset"),
    [("gpt2-small", "gpt2"), ("llama-1b-shape", "llama-3.2-1b"), ("llama-7b-shape", "llama-2-7b")],
)
def test_shapes_are_those_of_published_models(name: str, preset: str) -> None:
    assert models.shape_of({"model": name}) == presets.shape(preset)


def test_contenders_of_a_case_share_a_model_and_it_goes_when_the_case_ends() -> None:
    model, decoder = models.model("tiny-llama", CPU), models.decoder("tiny-llama", "bf16", CPU)
    assert models.model("tiny-llama", CPU) is model
    assert models.decoder("tiny-llama", "bf16", CPU) is decoder
    assert models.decoder("tiny-llama", "int8", CPU) is not decoder
    assert decoder.token_embedding.data_ptr() == model.token_embedding.weight.data_ptr()
    last = weakref.ref(model)
    del model, decoder
    gc.collect()
    assert last() is None


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_declared_bytes_of_weights_cover_the_model_and_what_a_decoder_adds(name: str, weights: str) -> None:
    model, decoder = models.model(name, CPU), models.decoder(name, weights, CPU)
    tensors = {parameter.data_ptr(): parameter.nbytes for parameter in model.parameters()}
    for layer in decoder.layers:
        for linear in (layer.query_key_value, layer.out, layer.up, layer.down):
            kept = linear.weight
            if isinstance(kept, torch.Tensor):
                tensors[kept.data_ptr()] = kept.nbytes
            else:
                tensors[kept.weight.data_ptr()] = kept.nbytes
    held = sum(tensors.values())
    needed = models.weights_needed({"model": name, "weights": weights})
    assert held <= needed <= 2.2 * held


def test_the_cache_is_counted_as_the_cost_model_does() -> None:
    keys = {"model": "llama-7b-shape", "batch": 3}
    assert models.cache_needed(keys, 10) == 30 * cost.cache_bytes_per_token(presets.shape("llama-2-7b"))


def test_prompts_are_the_same_for_everyone_and_within_the_vocabulary() -> None:
    keys = {"model": "tiny-gpt2"}
    prompts = models.prompts_for(keys, 4, 20)
    assert prompts == models.prompts_for(keys, 4, 20)
    assert [len(prompt) for prompt in prompts] == [20] * 4
    assert len({tuple(prompt) for prompt in prompts}) == 4
    assert all(0 <= token < shapes.config("tiny-gpt2").vocab_size for prompt in prompts for token in prompt)


@pytest.mark.parametrize("name", TINY)
def test_a_model_of_transformers_has_the_same_logits_and_mostly_the_same_memory(name: str) -> None:
    ours = shapes.random_model(name)
    theirs = with_transformers.convert_model(ours, CPU)
    tokens = torch.randint(512, (2, 12))
    with torch.inference_mode():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=1e-5, atol=1e-5)
    memory = {parameter.untyped_storage().data_ptr() for parameter in ours.parameters()}
    shared = [each for each in theirs.parameters() if each.untyped_storage().data_ptr() in memory]
    if name == "tiny-gpt2":  # their linear layers have their weights the other way round
        assert theirs.transformer.wte.weight in set(shared)
    else:
        assert len(shared) == len(list(theirs.parameters()))


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("static", [False, True])
def test_generate_writes_as_many_tokens_as_it_is_asked_for_and_none_ends_a_text(name: str, static: bool) -> None:
    ours = shapes.random_model(name)
    prompts = models.prompts_for({"model": name}, 3, 16)
    texts = with_transformers.generator(with_transformers.convert_model(ours, CPU), prompts, 24, CPU, static=static)()
    assert texts.shape == (3, 40)
    assert texts[:, :16].tolist() == prompts
    with torch.inference_mode():
        wanted = ours(texts[:, :-1]).argmax(-1)[:, 15:]
    assert torch.equal(texts[:, 16:], wanted)

"""A model laid out for writing computes what the model computes, and holds no more than it must."""

from __future__ import annotations

import re

import pytest
import torch
from random_models import random_gpt2, random_llama, random_prompts
from torch import nn

from gpuguide.costs import presets
from gpuguide.errors import GpuguideError
from gpuguide.inference import Decoder, plain, prepare, static_cache
from gpuguide.inference.decoder import WEIGHTS, neighbours
from gpuguide.models import shapes
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.models.llama import Llama, RopeScaling
from gpuguide.quantization import GROUPS, Int4, Int8, quantize_model

MODELS = {
    "gpt2": random_gpt2(),
    "gpt2 with odd sizes": random_gpt2(vocab_size=101, heads=3, hidden=39),
    "llama": random_llama(),
    "tied": random_llama(tied=True),
    "not grouped": random_llama(heads=3, kv_heads=3, hidden=48, inner=50),
    "one head of keys": random_llama(heads=3, kv_heads=1, hidden=42),
    "scaled rotations": random_llama(rope_scaling=RopeScaling(8.0, 1.0, 4.0, 16)),
}
TOKENS = torch.tensor(random_prompts([70, 70], seed=3))
every_model = pytest.mark.parametrize("name", MODELS)


def logits(decoder: Decoder) -> torch.Tensor:
    """Return a decoder's logits after each of the tokens, ``(2, 70, vocab_size)``, as one decode step gives them."""
    cache = static_cache(decoder, 2, 70)
    with torch.inference_mode():
        return plain.decode(decoder, cache, TOKENS, torch.arange(2), torch.zeros(2, dtype=torch.int64))


def of_model(model: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = model(TOKENS)
    return result


@every_model
def test_logits_are_those_of_the_model(name: str) -> None:
    """Of a model in fp64 all but what is rotated, which goes through fp32."""
    model = MODELS[name].double()
    accepted = 1e-10 if isinstance(model, GPT2) else 1e-4
    torch.testing.assert_close(logits(prepare(model)), of_model(model), rtol=accepted, atol=accepted)
    exact = of_model(model)
    model.float()
    torch.testing.assert_close(logits(prepare(model)).double(), exact, rtol=1e-3, atol=1e-3)


@every_model
@pytest.mark.parametrize(("weights", "group"), [("int8", 128), *(("int4", group) for group in GROUPS)])
def test_quantised_logits_are_those_of_a_model_with_the_values_read_back(name: str, weights: str, group: int) -> None:
    """Its matrices are quantised before they are laid out anew, and ours after: each row's numbers are the same."""
    model = MODELS[name].float()
    expected = of_model(quantize_model(model, weights, group).double())
    found = logits(prepare(model, weights=weights, group=group)).double()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(found, of_model(model).double(), rtol=1e-3, atol=1e-3)


def test_neighbours_are_the_two_of_a_pair() -> None:
    heads, half, inputs = 3, 5, 2
    weight = torch.arange(heads * 2 * half * inputs).view(-1, inputs)
    found = neighbours(weight, heads).view(heads, half, 2, inputs)
    for head in range(heads):
        for pair in range(half):
            for side in range(2):
                assert torch.equal(found[head, pair, side], weight[head * 2 * half + side * half + pair])


@pytest.mark.parametrize(("model", "tied"), [(random_gpt2(), True), (random_llama(tied=True), True),
                                             (random_llama(), False)])  # fmt: skip
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_tied_head_is_held_once(model: GPT2 | Llama, tied: bool, dtype: torch.dtype | None) -> None:
    decoder = prepare(model, dtype=dtype)
    assert isinstance(decoder.head.weight, torch.Tensor)
    assert (decoder.head.weight.data_ptr() == decoder.token_embedding.data_ptr()) == tied
    assert torch.equal(decoder.head.weight, model.head.weight.detach().to(decoder.dtype))


@pytest.mark.parametrize("model", [random_gpt2(), random_llama(tied=True)])
def test_a_head_that_is_no_longer_tied_is_the_models_own(model: GPT2 | Llama) -> None:
    untied = quantize_model(model, "int4", head=True)
    decoder = prepare(untied)
    torch.testing.assert_close(logits(decoder), of_model(untied), rtol=1e-3, atol=1e-3)
    assert not decoder.shape.tied
    assert decoder.shape.parameters() == decoder.shape.hidden * decoder.shape.vocab + model.parameter_count()


def test_what_needs_no_change_is_the_model_s_own_memory() -> None:
    model = random_gpt2()
    decoder = prepare(model)
    own = {parameter.data_ptr() for parameter in model.parameters()}
    assert decoder.token_embedding.data_ptr() in own
    for layer in decoder.layers:
        for linear in (layer.query_key_value, layer.out, layer.up, layer.down):
            assert isinstance(linear.weight, torch.Tensor)
            assert linear.weight.data_ptr() in own
    assert not decoder.head.weight.requires_grad  # type: ignore[union-attr]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_formats(weights: str) -> None:
    """Matrices of layers are quantised, the head and the embeddings never; rotations stay in fp32."""
    decoder = prepare(random_llama(), weights=weights, dtype=torch.bfloat16, group=32)
    kind = {"plain": torch.Tensor, "int8": Int8, "int4": Int4}[weights]
    for layer in decoder.layers:
        for linear in (layer.query_key_value, layer.out, layer.up, layer.down):
            assert isinstance(linear.weight, kind)
            if isinstance(linear.weight, torch.Tensor):
                assert linear.weight.dtype == torch.bfloat16
        assert layer.attention_norm.weight.dtype == torch.bfloat16
    assert decoder.dtype == decoder.head.weight.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert decoder.rotations is not None
    assert decoder.rotations.dtype == torch.float32
    assert decoder.device.type == "cpu"


@every_model
def test_the_shape_counts_every_parameter_once(name: str) -> None:
    assert prepare(MODELS[name]).shape.parameters() == MODELS[name].parameter_count()


@pytest.mark.parametrize(("name", "published"), [("gpt2-small", "gpt2"), ("llama-1b-shape", "llama-3.2-1b")])
def test_the_shape_is_the_published_one(name: str, published: str) -> None:
    shape = prepare(shapes.build_meta_model(shapes.config(name), torch.bfloat16)).shape
    assert shape == presets.shape(published)


@pytest.mark.parametrize(("dtype", "narrow"), [(torch.float32, torch.float16), (torch.float64, torch.float32)])
@pytest.mark.parametrize("weight", ["token_embedding", "blocks.1.feed_forward.up", "final_norm"])
def test_a_weight_that_a_format_cannot_hold_is_refused(weight: str, dtype: torch.dtype, narrow: torch.dtype) -> None:
    model = random_gpt2().to(dtype)
    largest = 2 * torch.finfo(narrow).max
    with torch.no_grad():
        model.get_submodule(weight).weight.flatten()[0] = -largest  # type: ignore[operator, union-attr]
    fitting = torch.bfloat16 if narrow == torch.float16 else dtype
    message = f"A weight of {-largest:.3g} is too large for {narrow}; prepare the model in {fitting}."
    with pytest.raises(GpuguideError, match=f"^{re.escape(message)}$"):
        prepare(model, dtype=narrow)
    prepare(model, dtype=fitting)


def test_an_unknown_kind_of_weights() -> None:
    with pytest.raises(GpuguideError, match=re.escape("Weights are 'int2'; known: plain, int8, int4.")):
        prepare(random_gpt2(), weights="int2")


def test_matrices_that_cannot_be_quantised() -> None:
    model = random_gpt2()
    with pytest.raises(GpuguideError, match=r"^The model cannot be kept in int4\. The group is 17; .* 32, 64 or 128"):
        prepare(model, weights="int4", group=17)
    with torch.no_grad():
        model.get_submodule("blocks.1.feed_forward.up").weight[3, 0] = torch.nan  # type: ignore[operator, union-attr, index]
    with pytest.raises(GpuguideError, match=r"^The model cannot be kept in int8\. .* row 3 of \(128, 32\) is not"):
        prepare(model, weights="int8")


def test_an_unknown_architecture() -> None:
    with pytest.raises(GpuguideError, match="A Linear cannot be prepared; the architectures are GPT2 and Llama"):
        prepare(nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize(("head_dim", "dtype", "suits"), [
    (16, torch.float32, True),
    (16, torch.bfloat16, True),
    (16, torch.float64, False),
    (24, torch.float32, False),
])  # fmt: skip
def test_kernels_take_what_they_can_compute(
    head_dim: int, dtype: torch.dtype, suits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where they would otherwise round float64, or fail on heads that are no power of two."""
    monkeypatch.setattr("gpuguide.triton_support.supports_triton", lambda tensor: tensor.dtype != torch.float64)
    model = GPT2(GPT2Config(vocab_size=11, context=8, layers=1, heads=2, hidden=2 * head_dim))
    assert prepare(model, dtype=dtype).suits_kernels() is suits

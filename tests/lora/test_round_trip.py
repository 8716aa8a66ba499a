"""An adapter that is saved and loaded is the same one, bit for bit, whatever is in it."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_adapted as small
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gpuguide import lora
from gpuguide.finetuning import peft_names
from gpuguide.lora.model import add_to_targets
from gpuguide.lora.targets import Target, find_targets
from gpuguide.models import llama

MODELS = ("gpt2", "llama", "llama-untied")
ATTENTION = [f"query_key_value{parts}" for parts in ("", ":q", ":v", ":q,k", ":q,v", ":k,v", ":q,k,v")]
GATE_UP = [f"gate_up{parts}" for parts in ("", ":gate", ":up", ":gate,up")]
SPECIAL = (math.inf, -math.inf, math.nan, -0.0, 1e-45, 3.4e38)


def small_model(name: str) -> Any:
    if name != "llama-untied":
        return small.model(name)
    torch.manual_seed(0)
    return llama.Llama(replace(small.LLAMA, tied=False)).eval()


@st.composite
def targets(draw: st.DrawFn, name: str) -> list[str]:
    """Some kinds of matrices of a model, or parts of them."""
    kinds = [ATTENTION, ["attention.out"], ["down"], ["up"] if name == "gpt2" else GATE_UP]
    if name == "llama-untied":
        kinds.append(["head"])
    return [draw(st.sampled_from(kind)) for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, unique_by=str))]


@st.composite
def adapted(draw: st.DrawFn, name: str, special: bool = True) -> nn.Module:
    """A model with random adapters, of whose layers each has settings of its own."""
    model = small_model(name)
    stabilised, dropout = draw(st.booleans()), draw(st.sampled_from([0.0, 0.1]))
    alphas = st.one_of(st.integers(1, 64), st.floats(1e-3, 1e3))
    chosen = {
        target: lora.Settings(draw(st.integers(1, 7)), draw(alphas), dropout, stabilised)
        for target in find_targets(model, draw(targets(name)))
    }
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16])) if special else torch.float32
    add_to_targets(model, chosen, dtype=dtype)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    for layer in lora.find_adapted_layers(model).values():
        for matrix in layer.adapter("default").parameters():
            matrix.data = torch.randn(matrix.shape, generator=generator).to(dtype)
            if special and draw(st.booleans()):
                matrix.data.view(-1)[draw(st.integers(0, matrix.numel() - 1))] = draw(st.sampled_from(SPECIAL))
    return model.eval()


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("named_as_in_transformers", [False, True])
@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
def test_an_adapter_comes_back_bit_for_bit(name: str, named_as_in_transformers: bool, data: st.DataObject) -> None:
    model, again = data.draw(adapted(name)), small_model(name)
    places = peft_names.places(again) if named_as_in_transformers else None
    dtype = next(iter(lora.find_adapted_layers(model).values())).adapter("default").down.dtype
    with tempfile.TemporaryDirectory() as folder:
        lora.save_adapter(model, Path(folder), places=places)
        lora.load_adapter(again, Path(folder), dtype=dtype, places=places)
    first, second = lora.find_adapted_layers(model), lora.find_adapted_layers(again)
    assert first.keys() == second.keys()
    for path, layer in first.items():
        saved, loaded = layer.adapter("default"), second[path].adapter("default")
        assert (loaded.settings, loaded.spans, loaded.parts) == (saved.settings, saved.spans, saved.parts)
        assert bits(loaded.down) == bits(saved.down)
        assert bits(loaded.up) == bits(saved.up)
    assert bits(again.eval()(small.TOKENS)) == bits(model(small.TOKENS))


@pytest.mark.needs("peft", "transformers")
@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
def test_peft_computes_the_same_with_it(name: str, data: st.DataObject) -> None:
    from peft import PeftModel

    from gpuguide.benchmarks.inference.with_transformers import convert_model

    model, base = data.draw(adapted(name, special=False)), small_model(name)
    with tempfile.TemporaryDirectory() as folder:
        lora.save_adapter(model, Path(folder), places=peft_names.places(base))
        theirs = PeftModel.from_pretrained(convert_model(base, "cpu"), folder).eval()
    wanted = model(small.TOKENS).detach()
    torch.testing.assert_close(theirs(small.TOKENS).logits, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_the_as_of_one_matrix_that_were_trained_apart_stay_apart(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    model, again = small.model("llama"), small.model("llama")
    lora.add_adapters(model, ["gate_up"], lora.Settings(rank=3))
    small.something_to_add(model)
    lora.save_adapter(model, tmp_path, places=peft_names.places(small.model("llama")))
    weights = tmp_path / "adapter_model.safetensors"
    with safe_open(weights, framework="pt") as file:
        tensors, noted = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    changed = "base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"
    tensors[changed] = tensors[changed] + 1
    save_file(tensors, weights, metadata=noted)
    lora.load_adapter(again, tmp_path, places=peft_names.places(small.model("llama")))
    layers = lora.find_adapted_layers(again)
    assert layers["blocks.0.feed_forward.gate_up"].adapter("default").spans is None
    assert layers["blocks.1.feed_forward.gate_up"].adapter("default").spans == ((0, 48), (48, 96))
    assert torch.equal(layers["blocks.1.feed_forward.gate_up"].adapter("default").down[3:], tensors[changed])


def test_a_changed_alpha_counts_and_not_the_one_that_was_noted(tmp_path: Path) -> None:
    model, again = small.model(), small.model()
    lora.add_adapters(model, ["query_key_value:q,v"], lora.Settings(rank=3, alpha=5))
    lora.save_adapter(model, tmp_path)
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lora_alpha": 20.0}))
    lora.load_adapter(again, tmp_path)
    assert lora.find_adapted_layers(again)["blocks.0.attention.query_key_value"].adapter("default").settings.alpha == 10


def test_a_layer_whose_name_ends_with_anothers_keeps_its_own_settings(tmp_path: Path) -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = nn.ModuleDict({"out": nn.Linear(8, 8)}), nn.Linear(8, 8)

    model, again = Nested(), Nested()
    settings = {"inner.out": lora.Settings(2, 3), "out": lora.Settings(4, 5)}
    add_to_targets(model, {Target(name): each for name, each in settings.items()})
    lora.save_adapter(model, tmp_path)
    lora.load_adapter(again, tmp_path)
    assert {
        name: layer.adapter("default").settings for name, layer in lora.find_adapted_layers(again).items()
    } == settings

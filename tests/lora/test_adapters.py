"""Adapters against PEFT, and against full matrices in float64."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gpuguide import lora
from gpuguide.errors import GpuguideError
from gpuguide.lora.cost import adapter_parameters, full_operations, lora_operations
from gpuguide.quantization import quantize_int4, quantize_int8

needs = pytest.mark.needs
TARGETS = ["c_attn", "c_proj", "c_fc"]


def transformers_gpt2() -> nn.Module:
    """A small GPT-2 of transformers, whose matrices are not square but for one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=31, n_positions=16, n_embd=16, n_layer=2, n_head=2)).eval()


def stack(*, seed: int = 0) -> nn.Sequential:
    """Two layers that are not square."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 4))


def trained_up(model: nn.Module, seed: int = 1) -> None:
    """Give B something to add."""
    generator = torch.Generator().manual_seed(seed)
    for layer in lora.find_adapted_layers(model).values():
        for name in layer.adapters:
            up = layer.adapter(name).up
            up.data = torch.randn(up.shape, generator=generator).to(up.dtype) * 0.1


@pytest.mark.parametrize("dropping", [False, True])
def test_the_product_and_its_gradients_are_those_of_autograd(dropping: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 3, 5).double(), torch.randn(7, 5).double(), torch.randn(7).double()
    dropped = torch.randn(2, 3, 5).double() if dropping else None
    thin = torch.randn(2, 5).double(), torch.randn(7, 2).double()
    results = []
    for compute in (lora.product, lora.plain_product):
        asked = [each.clone().requires_grad_() for each in (x, *thin, *([dropped] if dropped is not None else []))]
        out = compute(asked[0], weight, bias, asked[1], asked[2], 0.7, asked[3] if dropping else None)
        results.append([out.detach(), *torch.autograd.grad(out.sin().sum(), asked)])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("quantize", [quantize_int8, quantize_int4])
def test_packed_weights_give_what_they_read_as(quantize) -> None:  # type: ignore[no-untyped-def]
    model = stack()
    unpacked = copy.deepcopy(model)
    for layer in (unpacked[0], unpacked[2]):
        layer.weight.data = quantize(layer.weight).dequantize(torch.float32)
    settings = lora.Settings(rank=2, alpha=4)
    lora.add_adapters(model, ["0", "2"], settings, packing=quantize)
    lora.add_adapters(unpacked, ["0", "2"], settings)
    unpacked.load_state_dict(model.state_dict(), strict=False)
    for each in (model, unpacked):
        trained_up(each)
    for one, other in zip(
        lora.find_adapted_layers(model).values(), lora.find_adapted_layers(unpacked).values(), strict=True
    ):
        other.adapter("default").down.data = one.adapter("default").down.data.clone()
    x = torch.randn(3, 6)
    torch.testing.assert_close(model(x), unpacked(x))
    assert lora.count_parameters(model) == lora.count_parameters(unpacked)
    with pytest.raises(GpuguideError, match="no room for a change"):
        lora.merge(model)


@needs("peft")
@needs("transformers")
def test_logits_gradients_and_twenty_steps_are_pefts(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    ours, base = transformers_gpt2(), transformers_gpt2()
    theirs = get_peft_model(
        base, LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS, fan_in_fan_out=True, task_type="CAUSAL_LM")
    )
    tokens = torch.randint(31, (3, 9), generator=torch.Generator().manual_seed(2))
    plain = ours(tokens).logits
    theirs.save_pretrained(tmp_path)
    lora.load_adapter(ours, tmp_path)
    assert torch.equal(ours(tokens).logits, plain)  # B is zero
    assert lora.count_parameters(ours).trained == theirs.get_nb_trainable_parameters()[0]
    curves = []
    for model in (ours.train(False), theirs.train(False)):
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)
    assert curves[0][-1] < curves[0][0] - 0.1


@needs("peft")
@needs("transformers")
def test_peft_reads_what_we_write(tmp_path: Path) -> None:
    from peft import PeftModel

    ours = transformers_gpt2()
    lora.add_adapters(ours, TARGETS, lora.Settings(rank=3, alpha=5, stabilised=True))
    trained_up(ours)
    lora.save_adapter(ours, tmp_path)
    theirs = PeftModel.from_pretrained(transformers_gpt2(), tmp_path).eval()
    tokens = torch.arange(8).unsqueeze(0)
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits)


@needs("transformers")
def test_a_merged_model_gives_the_same_and_comes_back_bit_for_bit() -> None:
    model = transformers_gpt2()
    before = {name: each.clone() for name, each in model.named_parameters()}
    lora.add_adapters(model, TARGETS, lora.Settings(rank=4))
    trained_up(model)
    tokens = torch.arange(8).unsqueeze(0)
    apart = model(tokens).logits.detach()
    kept = lora.merge(model, keep=True)
    merged = model(tokens).logits.detach()
    assert float((merged - apart).norm() / apart.norm()) < 1e-5
    with pytest.raises(GpuguideError, match="is merged; unmerge it"):
        lora.merge(model)
    lora.unmerge(model, kept)
    for name, layer in lora.find_adapted_layers(model).items():
        assert torch.equal(layer.base.weight, before[f"{name}.weight"])
    with pytest.raises(GpuguideError, match="nothing to take out"):
        lora.unmerge(model)


def test_several_adapters_share_a_base() -> None:
    model = stack()
    x = torch.randn(3, 6)
    plain = model(x)
    for name in ("one", "two"):
        lora.add_adapters(model, ["0"], lora.Settings(rank=2), name=name)
    trained_up(model)
    two = model(x)
    lora.use_adapter(model, "one")
    assert not torch.allclose(model(x), two)
    lora.use_adapter(model, None)
    assert torch.equal(model(x), plain)


@pytest.mark.parametrize(
    ("targets", "settings", "says"),
    [
        (["1.5"], {}, "No layer fits '1.5'"),
        ([], {}, "No targets"),
        (["2"], {"rank": 5}, "has a rank of 4 at most"),
    ],
)
def test_what_cannot_be_adapted_is_said_and_changes_nothing(targets: list[str], settings: dict, says: str) -> None:
    model = stack()
    with pytest.raises(GpuguideError, match=says):
        lora.add_adapters(model, targets, lora.Settings(**settings))
    assert not lora.find_adapted_layers(model)
    assert all(each.requires_grad for each in model.parameters())


def test_a_tied_layer_is_refused() -> None:
    model = nn.ModuleDict({"tokens": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["tokens"].weight
    with pytest.raises(GpuguideError, match=r"head is tied to tokens\.weight"):
        lora.add_adapters(model, ["head"], lora.Settings(rank=1))


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    model = stack()
    lora.add_adapters(model, ["0"], lora.Settings(rank=2))
    lora.save_adapter(model, tmp_path)
    other = nn.Sequential(nn.Linear(6, 11))
    with pytest.raises(GpuguideError, match="for another base"):
        lora.load_adapter(other, tmp_path)
    assert not lora.find_adapted_layers(other)


def test_cost_is_that_of_the_products() -> None:
    model = stack()
    lora.add_adapters(model, ["0"], lora.Settings(rank=2))
    assert lora.count_parameters(model).trained == adapter_parameters(6, 10, 2)
    # Of the plain product, since the counter knows no product that adds in place.
    x, down, up = (torch.randn(*shape, requires_grad=True) for shape in ((7, 6), (2, 6), (10, 2)))
    with FlopCounterMode(display=False) as counter:
        lora.plain_product(x, torch.randn(10, 6), None, down, up, 0.5).sum().backward()
    assert counter.get_total_flops() == 7 * lora_operations(6, 10, 2)
    assert full_operations(6, 10) == 360

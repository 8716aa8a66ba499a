"""Merging and unmerging in several formats, and what rounding loses, against float64."""

from __future__ import annotations

import copy

import pytest
import small_adapted as small
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide import lora
from gpuguide.errors import GpuguideError

TARGETS = ["query_key_value", "attention.out", "up", "down"]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_merged_in_fp32_is_unmerged_to_a_hundred_thousandth(name: str) -> None:
    model = small.model(name)
    lora.add_adapters(model, [*TARGETS[:2], "down"], lora.Settings(rank=3, alpha=4))
    small.something_to_add(model)
    apart = model(small.TOKENS)
    lora.merge(model)
    assert float((model(small.TOKENS) - apart).norm() / apart.norm()) < 1e-5


@given(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.floats(1e-3, 1e3))
def test_unmerging_without_a_copy_is_off_by_two_roundings_at_most(dtype: torch.dtype, size: float) -> None:
    torch.manual_seed(0)
    layer = lora.AdaptedLayer(torch.nn.Linear(7, 5).to(dtype))
    layer.add("default", lora.Settings(rank=2, alpha=2 * size))
    layer.adapter("default").up.data.normal_()
    before = layer.base.weight.detach().double()
    layer.merge()
    merged = layer.base.weight.detach().double()
    layer.unmerge()
    off = (layer.base.weight.detach().double() - before).abs()
    bound = torch.finfo(dtype).eps * torch.maximum(before.abs(), merged.abs())
    # The change itself is rounded to fp32 too, which counts where the weights are fp32.
    assert bool((off <= bound + 2e-7 * (merged - before).abs()).all())


def test_a_copy_brings_every_bit_back_also_in_bf16() -> None:
    model = small.model().bfloat16()
    before = copy.deepcopy(model)
    lora.add_adapters(model, TARGETS, lora.Settings(rank=2))
    small.something_to_add(model)
    kept = lora.merge(model, keep=True)
    assert kept.keys() == lora.find_adapted_layers(model).keys()
    lora.unmerge(model, kept)
    for name, layer in lora.find_adapted_layers(model).items():
        assert torch.equal(layer.base.weight, before.get_submodule(name).weight)


@pytest.mark.parametrize("spread", [1e-6, 1e-4, 1e-2])
def test_what_bf16_loses_is_what_float64_finds(spread: float) -> None:
    model = small.model().bfloat16()
    lora.add_adapters(model, ["up"], lora.Settings(rank=2, alpha=2))
    for layer in lora.find_adapted_layers(model).values():
        layer.adapter("default").up.data.normal_(std=spread)
    name, layer = next(iter(lora.find_adapted_layers(model).items()))
    before = layer.base.weight.detach().double()
    adapter = layer.adapter("default")
    change = adapter.up.detach().double() @ adapter.down.detach().double()
    found = lora.measure_merging_loss(model)[name]
    assert torch.equal(layer.base.weight.double(), before)
    lora.merge(model)
    moved = layer.base.weight.detach().double() - before
    assert found.change == pytest.approx(float(change.norm()), rel=1e-5)
    assert found.lost == pytest.approx(float((moved - change).norm() / change.norm()), rel=1e-3)
    assert found.unmoved == pytest.approx(float((moved == 0).double().mean()), abs=0.01)


def test_the_smaller_the_change_the_more_is_lost_and_fp32_loses_nearly_nothing() -> None:
    model = small.model()
    lora.add_adapters(model, ["up"], lora.Settings(rank=2))
    small.something_to_add(model)
    assert all(each.lost < 1e-5 and each.unmoved < 0.01 for each in lora.measure_merging_loss(model).values())
    narrow = lora.measure_merging_loss(model, torch.bfloat16)
    for layer in lora.find_adapted_layers(model).values():
        layer.adapter("default").up.data *= 1e-3
    smaller = lora.measure_merging_loss(model, torch.bfloat16)
    assert all(smaller[name].lost > 10 * each.lost for name, each in narrow.items())
    for layer in lora.find_adapted_layers(model).values():
        layer.adapter("default").up.data.zero_()
    assert all(each == type(each)(0.0, 0.0, 0.0) for each in lora.measure_merging_loss(model).values())


def test_merging_twice_or_nothing_or_into_packed_weights_is_refused() -> None:
    model = small.model()
    lora.add_adapters(model, ["up"], lora.Settings(rank=2))
    lora.merge(model)
    for act in (
        lambda: lora.merge(model),
        lambda: lora.use_adapter(model, None),
        lambda: lora.remove_adapter(model, "default"),
        lambda: lora.add_adapters(model, ["up"], lora.Settings(rank=2), name="second"),
        lambda: lora.measure_merging_loss(model),
    ):
        with pytest.raises(GpuguideError, match="'default' is merged"):
            act()
    with pytest.raises(GpuguideError, match="those of 1 layers"):
        lora.unmerge(model, {"other": torch.zeros(1)})
    before = model.blocks[0].feed_forward.up.base.weight.clone()
    model.train().eval()  # which merges in some libraries
    assert torch.equal(model.blocks[0].feed_forward.up.base.weight, before)
    lora.unmerge(model)
    with pytest.raises(GpuguideError, match="nothing to take out"):
        lora.unmerge(model)
    lora.use_adapter(model, None)
    with pytest.raises(GpuguideError, match="nothing to merge"):
        lora.merge(model)
    packed = small.model()
    lora.add_adapters(packed, ["up"], lora.Settings(rank=2), packing=lora.quantize_nf4)
    with pytest.raises(GpuguideError, match="is packed, which has no room"):
        lora.merge(packed)

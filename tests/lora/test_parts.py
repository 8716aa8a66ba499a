"""Adapters beside some rows of a fused matrix, against the same written out as whole matrices in float64."""

from __future__ import annotations

import pytest
import small_adapted as small
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide import lora
from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.lora.product import Spans, plain_product, product, whole_up


@given(st.integers(1, 3), st.sets(st.integers(0, 11), min_size=2, max_size=6), st.booleans())
def test_spans_do_what_one_matrix_with_zeros_does(rank: int, ends: set[int], dropping: bool) -> None:
    torch.manual_seed(0)
    bounds = sorted(ends)
    spans: Spans = tuple(zip(bounds[::2], bounds[1::2], strict=False))
    rows = sum(stop - start for start, stop in spans)
    x, weight, bias = torch.randn(2, 3, 5).double(), torch.randn(11, 5).double(), torch.randn(11).double()
    down, up = torch.randn(len(spans) * rank, 5).double(), torch.randn(rows, rank).double()
    dropped = torch.randn_like(x) if dropping else None
    inputs = [each.requires_grad_() for each in (x, down, up, *([dropped] if dropped is not None else []))]
    change = torch.zeros(11, 5).double()
    at = 0
    for place, (start, stop) in enumerate(spans):
        change[start:stop] = up[at : at + stop - start] @ down[place * rank : (place + 1) * rank]
        at += stop - start
    read = x if dropped is None else dropped
    wanted = x @ weight.t() + bias + 0.7 * read @ change.t()
    gradients = torch.autograd.grad(wanted.sin().sum(), inputs)
    for compute in (product, plain_product):
        found = compute(x, weight, bias, down, up, 0.7, dropped, spans)
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
        for one, other in zip(torch.autograd.grad(found.sin().sum(), inputs), gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(whole_up(up, spans, 11) @ down, change)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("parts", ["q,v", "key", "query,key,value"])
def test_only_the_named_parts_change(name: str, parts: str) -> None:
    model = small.model(name)
    layer = model.blocks[0].attention.query_key_value
    x = torch.randn(2, 3, 32)
    before = layer(x)
    lora.add_adapters(model, [f"query_key_value:{parts}"], lora.Settings(rank=2))
    small.something_to_add(model)
    moved = (model.blocks[0].attention.query_key_value(x) - before).abs().amax((0, 1)) > 0
    heads = 32 if name == "gpt2" else 16  # rows of keys, and of values
    ends = {"query": (0, 32), "key": (32, 32 + heads), "value": (32 + heads, 32 + 2 * heads)}
    wanted = torch.zeros_like(moved)
    for part in ends:
        if part in parts or part[0] in parts.split(","):
            wanted[slice(*ends[part])] = True
    assert torch.equal(moved, wanted)


@pytest.mark.needs("transformers")
def test_parts_of_a_fused_c_attn_are_its_columns() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_positions=16, n_embd=16, n_layer=1, n_head=2)).eval()
    weight = model.transformer.h[0].attn.c_attn.weight.detach().clone()
    lora.add_adapters(model, ["c_attn:query,value"], lora.Settings(rank=2))
    assert lora.count_parameters(model).trained == 2 * 2 * (16 + 16)
    small.something_to_add(model)
    lora.merge(model)
    changed = (model.transformer.h[0].attn.c_attn.base.weight != weight).any(0)
    assert changed.tolist() == [True] * 16 + [False] * 16 + [True] * 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("target", ["query_key_value", "query_key_value:q,v", "down"])
def test_before_the_first_step_nothing_has_changed(target: str, name: str, dtype: torch.dtype) -> None:
    model = small.model(name).to(dtype)
    plain = model(small.TOKENS)
    lora.add_adapters(model, [target], lora.Settings(rank=2, dropout=0.3))
    assert torch.equal(model(small.TOKENS), plain)
    assert torch.equal(model.train()(small.TOKENS), plain)
    model(small.TOKENS).float().logsumexp(-1).sum().backward()
    for layer in lora.find_adapted_layers(model).values():
        adapter = layer.adapter("default")
        assert not adapter.down.grad.any()
        assert adapter.up.grad.any()
        assert layer.base.weight.grad is None


def test_merging_parts_gives_the_same_and_comes_back() -> None:
    for name in ("gpt2", "llama"):
        model = small.model(name)
        before = model.blocks[0].attention.query_key_value.weight.detach().clone()
        lora.add_adapters(model, ["query_key_value:q,v"], lora.Settings(rank=2))
        small.something_to_add(model)
        apart = model(small.TOKENS)
        kept = lora.merge(model, keep=True)
        torch.testing.assert_close(model(small.TOKENS), apart, rtol=1e-5, atol=1e-6)
        lora.unmerge(model, kept)
        assert torch.equal(model.blocks[0].attention.query_key_value.base.weight, before)


@pytest.mark.parametrize(
    ("targets", "rank", "says"),
    [
        (["query_key_value:qury"], 2, "no part of blocks.0.attention.query_key_value named 'qury'. Did you mean query"),
        (["attention.out:q"], 2, "attention.out is one matrix"),
        (["query_key_value:k"], 17, "or a part of it, has a rank of 16 at most"),
        (["c_attn"], 2, "No layer fits 'c_attn'"),
        (["attention.ouy"], 2, "Did you mean out"),
        (["final_norm"], 2, "fits a RMSNorm; adapters stand beside nn.Linear"),
        ([], 2, "No targets are given"),
        (["head"], 2, r"tied to token_embedding\.weight"),
    ],
)
def test_what_cannot_be_targeted_is_said_and_changes_nothing(targets: list[str], rank: int, says: str) -> None:
    model = small.model("llama")
    with pytest.raises(GpuguideError, match=says):
        lora.add_adapters(model, targets, lora.Settings(rank=rank))
    assert not lora.find_adapted_layers(model)
    assert all(each.requires_grad for each in model.parameters())


def test_names_that_there_are_are_listed_without_their_numbers() -> None:
    with pytest.raises(UnknownName, match=r"attention\.query_key_value, attention\.out, feed_forward\.up") as error:
        lora.add_adapters(small.model(), ["q_proj"])
    assert "blocks" not in str(error.value)


def test_patterns_and_the_first_of_several_targets() -> None:
    model = small.model()
    assert lora.fitting_layers(model, ["blocks.1.*"]) == [
        f"blocks.1.{name}"
        for name in ("attention.query_key_value", "attention.out", "feed_forward.up", "feed_forward.down")
    ]
    lora.add_adapters(model, ["blocks.0.attention.query_key_value", "query_key_value:q"], lora.Settings(rank=2))
    found = {name: layer.adapter("default").parts for name, layer in lora.find_adapted_layers(model).items()}
    assert list(found.values()) == [(), ("query",)]


def test_adapters_can_be_removed_and_named() -> None:
    model = small.model()
    lora.add_adapters(model, ["up"], lora.Settings(rank=2), name="one")
    lora.add_adapters(model, ["up", "down"], lora.Settings(rank=3), name="two")
    plain = small.model()(small.TOKENS)
    small.something_to_add(model)
    lora.remove_adapter(model, "two")
    assert torch.equal(model(small.TOKENS), plain)  # none is active
    lora.use_adapter(model, "one")
    assert not torch.equal(model(small.TOKENS), plain)
    for wrong, says in (("two", "Known: one"), ("on", "Did you mean one")):
        with pytest.raises(UnknownName, match=says):
            lora.use_adapter(model, wrong)
    with pytest.raises(GpuguideError, match="no point"):
        lora.add_adapters(model, ["out"], name="a.b")

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
import transformers
from transformers_models import theirs_of

from gpuguide.errors import GpuguideError
from gpuguide.models.llama import Llama, LlamaAttention, LlamaConfig, RMSNorm, RopeScaling, Rotary, rotate

SMALL = LlamaConfig(vocab_size=96, context=64, layers=2, heads=4, kv_heads=2, hidden=32, inner=56)
SCALING = RopeScaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=16)
VARIANTS = {
    "grouped": SMALL,
    "one key and value head": dataclasses.replace(SMALL, kv_heads=1),
    "not grouped": dataclasses.replace(SMALL, kv_heads=4),
    "tied": dataclasses.replace(SMALL, tied=True),
    "scaled": dataclasses.replace(SMALL, rope_base=500000.0, rope_scaling=SCALING),
    "other epsilon": dataclasses.replace(SMALL, norm_epsilon=0.1),
}


def with_the_same_weights(config: LlamaConfig) -> tuple[Llama, transformers.LlamaForCausalLM]:
    """Return our model and theirs, with weights far enough from the initial ones that each of them matters."""
    torch.manual_seed(0)
    theirs = theirs_of(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    ours = Llama(config).eval()
    given = theirs.state_dict()
    state = {
        "token_embedding.weight": given["model.embed_tokens.weight"],
        "final_norm.weight": given["model.norm.weight"],
        "head.weight": given["lm_head.weight"],
    }
    for layer in range(config.layers):
        of = {
            name.removeprefix(f"model.layers.{layer}."): tensor
            for name, tensor in given.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        state |= {
            f"blocks.{layer}.attention_norm.weight": of["input_layernorm.weight"],
            f"blocks.{layer}.feed_forward_norm.weight": of["post_attention_layernorm.weight"],
            f"blocks.{layer}.attention.query_key_value.weight": torch.cat(
                [of[f"self_attn.{part}_proj.weight"] for part in "qkv"]
            ),
            f"blocks.{layer}.attention.out.weight": of["self_attn.o_proj.weight"],
            f"blocks.{layer}.feed_forward.gate_up.weight": torch.cat(
                [of[f"mlp.{part}_proj.weight"] for part in ("gate", "up")]
            ),
            f"blocks.{layer}.feed_forward.down.weight": of["mlp.down_proj.weight"],
        }
    ours.load_state_dict(state)
    return ours, theirs


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seq", [1, 7, 64])
def test_logits_are_those_of_transformers(variant: str, seq: int) -> None:
    ours, theirs = with_the_same_weights(VARIANTS[variant])
    tokens = torch.randint(96, (3, seq), generator=torch.Generator().manual_seed(seq))
    with torch.no_grad():
        expected = theirs(tokens).logits
        assert expected.std() > 1e-2
        torch.testing.assert_close(ours(tokens), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("base", "scaling", "head_dim"),
    [
        (10000.0, None, 128),
        (500000.0, None, 64),
        (500000.0, RopeScaling(32.0, 1.0, 4.0, 8192), 64),  # Llama 3.2
        (500000.0, RopeScaling(8.0, 1.0, 4.0, 8192), 128),  # Llama 3.1
    ],
)
def test_frequencies_are_to_the_bit_those_of_transformers(
    base: float, scaling: RopeScaling | None, head_dim: int
) -> None:
    config = dataclasses.replace(SMALL, heads=2, hidden=2 * head_dim, rope_base=base, rope_scaling=scaling)
    frequencies = Llama(config).frequencies()
    assert frequencies.shape == (head_dim // 2,)
    assert torch.equal(frequencies, theirs_of(config).model.rotary_emb.inv_freq)


def test_the_frequencies_stay_exact_when_the_model_is_cast() -> None:
    model = Llama(SMALL)
    before = model.frequencies().clone()
    for cast in (model.bfloat16(), copy.deepcopy(model), model.double()):
        assert cast.frequencies().dtype == torch.float32
        assert torch.equal(cast.frequencies(), before)
    with torch.device("meta"):
        empty = Llama(SMALL)
    assert torch.equal(empty.to_empty(device="cpu").frequencies(), before)
    assert "rotary.frequencies" not in model.state_dict()


def test_rotation_keeps_lengths_and_depends_on_distance_alone() -> None:
    rotary = Rotary(SMALL)
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 8, generator=generator)

    def turned(vector: torch.Tensor, position: int) -> torch.Tensor:
        return rotate(vector, *rotary(torch.tensor([position]), torch.float32))

    torch.testing.assert_close(turned(query, 41).norm(), query.norm())
    torch.testing.assert_close(turned(query, 0), query, rtol=0, atol=0)
    near = (turned(query, 9) * turned(key, 4)).sum()
    far = (turned(query, 40) * turned(key, 35)).sum()
    other = (turned(query, 40) * turned(key, 34)).sum()
    torch.testing.assert_close(near, far, rtol=0, atol=1e-5)
    assert (near - other).abs() > 1e-3


def test_pairs_are_a_number_of_the_first_half_and_one_of_the_second() -> None:
    cos, sin = Rotary(SMALL)(torch.tensor([1]), torch.float32)
    turned = rotate(torch.tensor([[1.0, 0, 0, 0, 0, 0, 0, 0]]), cos, sin)
    expected = torch.zeros(1, 8)
    expected[0, 0], expected[0, 4] = math.cos(1), math.sin(1)
    torch.testing.assert_close(turned, expected)


def test_a_norm_of_large_fp16_numbers_does_not_overflow() -> None:
    hidden = torch.full((1, 8), 60000.0, dtype=torch.float16)
    assert torch.equal(RMSNorm(8, 1e-5).half()(hidden), torch.ones_like(hidden))


def test_no_position_reads_what_follows() -> None:
    model = Llama(SMALL).eval()
    tokens = torch.randint(96, (1, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 6:] = (changed[0, 6:] + 1) % 96
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_queries_keys_and_values_are_split_by_head() -> None:
    attention = LlamaAttention(SMALL)
    projected = torch.arange(2 * 3 * 64.0).view(2, 3, 64)
    query, key, value = attention.split(projected)
    assert (query.shape, key.shape, value.shape) == ((2, 4, 3, 8), (2, 2, 3, 8), (2, 2, 3, 8))
    assert torch.equal(query[1, 3, 2], projected[1, 2, 24:32])
    assert torch.equal(key[1, 0, 2], projected[1, 2, 32:40])
    assert torch.equal(value[0, 1, 0], projected[0, 0, 56:64])


def test_hidden_states_lead_to_the_logits() -> None:
    model = Llama(SMALL).eval()
    tokens = torch.randint(96, (2, 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        stream = model.hidden_states(tokens)
        assert len(stream) == 3
        torch.testing.assert_close(model.head(model.final_norm(stream[-1])), model(tokens), rtol=0, atol=0)


def test_bf16_gives_bf16_logits_near_the_exact_ones() -> None:
    torch.manual_seed(0)
    model = Llama(SMALL).eval()
    tokens = torch.randint(96, (2, 64))
    with torch.no_grad():
        exact = model(tokens)
        rounded = model.bfloat16()(tokens)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() <= 0.02 * exact.norm()


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_counted_once(tied: bool) -> None:
    config = dataclasses.replace(SMALL, tied=tied)
    model = Llama(config)
    assert model.parameter_count() == theirs_of(config).num_parameters()
    assert (model.head.weight is model.token_embedding.weight) == tied


def test_gradients_reach_all_weights() -> None:
    model = Llama(SMALL)
    model(torch.randint(96, (2, 8), generator=torch.Generator().manual_seed(0))).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool((parameter.grad != 0).any()), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, r"layers is 0; it must be at least 1"),
        ({"kv_heads": 0}, r"kv_heads is 0; it must be at least 1"),
        ({"heads": 5, "kv_heads": 5}, r"5 heads do not divide a hidden size of 32"),
        ({"kv_heads": 3}, r"3 key and value heads do not divide 4 heads"),
        ({"heads": 32, "kv_heads": 1}, r"A head of length 1 cannot be rotated in pairs; it must be even"),
        ({"norm_epsilon": 0.0}, r"norm_epsilon is 0\.0; it must be a positive number"),
        ({"rope_base": math.nan}, r"rope_base is nan; it must be a positive number"),
    ],
)
def test_shapes_that_make_no_model(change: dict, message: str) -> None:
    with pytest.raises(GpuguideError, match=message):
        dataclasses.replace(SMALL, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factor": 0.5}, r"factor is 0\.5; it must be a number of at least 1"),
        ({"high_frequency_factor": 1.0}, r"are 1\.0 \(low\) and 1\.0 \(high\); both must be positive"),
        ({"low_frequency_factor": 0.0}, r"are 0\.0 \(low\)"),
        ({"original_context": 0}, r"original_context is 0; it must be at least 1"),
    ],
)
def test_scalings_that_make_no_sense(change: dict, message: str) -> None:
    with pytest.raises(GpuguideError, match=message):
        dataclasses.replace(SCALING, **change)


@pytest.mark.parametrize("shape", [(1, 0), (1, 65), (4,), (1, 2, 3)])
def test_tokens_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(GpuguideError, match=r"with 1 to 64 positions; given \("):
        Llama(SMALL)(torch.zeros(shape, dtype=torch.long))

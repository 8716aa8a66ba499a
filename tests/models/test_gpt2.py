"""Our model against transformers', whose weights it shares."""

from __future__ import annotations

import math

import pytest
import torch
import transformers

from gpuguide import models
from gpuguide.errors import GpuguideError
from gpuguide.models import gpt2_checkpoint
from gpuguide.models.gpt2 import GPT2, GPT2Config

SHAPES = [
    GPT2Config(vocab_size=50, context=8, layers=1, heads=1, hidden=8),
    GPT2Config(vocab_size=301, context=33, layers=3, heads=4, hidden=32),
    GPT2Config(vocab_size=128, context=64, layers=2, heads=3, hidden=96, norm_epsilon=1e-3),
]
TOLERANCE = 1e-4


def theirs_with(config: GPT2Config) -> transformers.GPT2LMHeadModel:
    """Return transformers' model with random weights, its norms and biases far from their first values."""
    torch.manual_seed(1)
    settings = {theirs: getattr(config, ours) for ours, theirs in gpt2_checkpoint.SIZES.items()}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**settings, layer_norm_epsilon=config.norm_epsilon)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def ours_like(theirs: transformers.GPT2LMHeadModel, config: GPT2Config) -> GPT2:
    model = GPT2(config).eval()
    given = theirs.state_dict()
    for name, place in gpt2_checkpoint.their_places(model).items():
        place.copy_(given[f"transformer.{name}"])
    return model


@pytest.mark.parametrize("config", SHAPES, ids=lambda config: f"{config.layers}x{config.hidden}")
def test_logits_equal_those_of_transformers_on_random_weights(config: GPT2Config) -> None:
    theirs = theirs_with(config)
    ours = ours_like(theirs, config)
    tokens = torch.randint(config.vocab_size, (3, config.context))
    with torch.no_grad():
        assert (ours(tokens) - theirs(tokens).logits).abs().max() <= TOLERANCE
        assert (ours(tokens[:, :1]) - theirs(tokens[:, :1]).logits).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", models.PACKAGED)
def test_logits_equal_those_of_transformers_on_trained_weights(name: str) -> None:
    loaded = models.load(name)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(models.checkpoint_folder(name), dtype=torch.float32).eval()
    tokens = torch.tensor([loaded.tokenizer.encode(models.corpus.load_held_out())[: loaded.config.context]])
    with torch.no_grad():
        ours, reference = loaded.model(tokens), theirs(tokens).logits
    assert (ours - reference).abs().max() <= TOLERANCE
    assert ours.dtype is torch.float32


def test_hidden_states_equal_those_of_transformers() -> None:
    config = SHAPES[1]
    theirs = theirs_with(config)
    ours = ours_like(theirs, config)
    tokens = torch.randint(config.vocab_size, (2, 9))
    with torch.no_grad():
        stream = ours.hidden_states(tokens)
        reference = theirs(tokens, output_hidden_states=True).hidden_states
        assert len(stream) == len(reference) == config.layers + 1
        for one, other in zip(stream[:-1], reference[:-1], strict=True):
            torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0)
        # The last one of theirs has been through the final norm.
        torch.testing.assert_close(ours.final_norm(stream[-1]), reference[-1], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(ours.head(ours.final_norm(stream[-1])), ours(tokens))


def test_gradients_equal_those_of_transformers() -> None:
    config = SHAPES[1]
    theirs = theirs_with(config)
    ours = ours_like(theirs, config)
    tokens = torch.randint(config.vocab_size, (2, 9))
    ours(tokens).logsumexp(-1).sum().backward()
    theirs(tokens).logits.logsumexp(-1).sum().backward()
    attention = theirs.transformer.h[1].attn.c_attn.weight.grad
    assert attention is not None
    torch.testing.assert_close(
        ours.token_embedding.weight.grad, theirs.transformer.wte.weight.grad, atol=1e-3, rtol=1e-3
    )
    torch.testing.assert_close(
        ours.blocks[1].attention.query_key_value.weight.grad.t(), attention, atol=1e-3, rtol=1e-3
    )


def test_a_position_does_not_see_what_comes_after_it(tiny_model: GPT2) -> None:
    tokens = torch.randint(300, (1, 10))
    changed = tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % 300
    with torch.no_grad():
        before, after = tiny_model(tokens), tiny_model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_number_of_parameters_is_that_of_gpt2() -> None:
    with torch.device("meta"):
        assert GPT2(GPT2Config()).parameter_count() == 124_439_808  # as published for the smallest GPT-2


@torch.no_grad()
def test_first_weights() -> None:
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=500, context=64, layers=4, heads=4, hidden=128))
    assert float(model.token_embedding.weight.std()) == pytest.approx(0.02, rel=0.05)
    for block in model.blocks:
        assert float(block.attention.out.weight.std()) == pytest.approx(0.02 / math.sqrt(8), rel=0.05)
        assert float(block.feed_forward.up.weight.std()) == pytest.approx(0.02, rel=0.05)
        assert not block.feed_forward.up.bias.any()
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model.eval()(torch.arange(64).view(1, 64))[0], torch.arange(64) + 1)
    assert float(loss) == pytest.approx(math.log(500), rel=0.03)  # it begins knowing nothing


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    model = GPT2(GPT2Config(vocab_size=300, context=16, layers=2, heads=2, hidden=16, dropout=0.5))
    tokens = torch.randint(300, (1, 16))
    assert not torch.equal(model.train()(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), model(tokens))


@pytest.mark.parametrize("shape", [(5,), (1, 0), (1, 17), (1, 2, 3)])
def test_shapes_that_do_not_fit(tiny_model: GPT2, shape: tuple[int, ...]) -> None:
    with pytest.raises(GpuguideError, match=r"\(batch, seq\) with 1 to 16 positions; given"):
        tiny_model(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"hidden": -4}, "hidden is -4"),
        ({"heads": 5}, "5 heads do not divide a hidden size of 768"),
    ],
)
def test_sizes_that_make_no_model(change: dict[str, int], message: str) -> None:
    with pytest.raises(GpuguideError, match=message):
        GPT2Config(**change)  # type: ignore[arg-type]

from __future__ import annotations

import pytest
import torch

from gpuguide.benchmarks.inference import exact, models
from gpuguide.inference import prepare
from gpuguide.models import shapes

TINY = ["tiny-gpt2", "tiny-llama", "tiny-llama-untied"]


def greedy(model: torch.nn.Module, prompts: torch.Tensor, count: int) -> torch.Tensor:
    """Return prompts with the most likely tokens after them, without a cache."""
    texts = prompts
    with torch.inference_mode():
        for _ in range(count):
            texts = torch.cat([texts, model(texts)[:, -1:].argmax(-1)], dim=1)
    return texts


@pytest.mark.parametrize("name", TINY)
def test_logits_are_those_of_the_model(name: str) -> None:
    model = shapes.random_model(name).double()
    tokens = torch.randint(512, (2, 30), generator=torch.Generator().manual_seed(0))
    found = exact.logits(prepare(model, dtype=torch.bfloat16), tokens, 7)
    with torch.inference_mode():
        wanted = shapes.random_model(name).bfloat16().double()(tokens)[:, -7:]
    assert found.dtype == torch.float32
    assert exact.relative_error(found.double(), wanted) < 1e-5


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_weights_count_with_the_values_that_they_are_read_as(weights: str) -> None:
    decoder = models.decoder("tiny-llama", weights, "cpu")
    dequantised = prepare(shapes.random_model("tiny-llama"), dtype=torch.float32)
    for plain, narrow in zip(dequantised.layers, decoder.layers, strict=True):
        for name in ("query_key_value", "out", "up", "down"):
            getattr(plain, name).weight = getattr(narrow, name).weight.dequantize()
    tokens = torch.randint(512, (1, 20))
    dequantised.token_embedding = decoder.token_embedding.float()
    dequantised.head.weight = decoder.token_embedding.float()
    torch.testing.assert_close(exact.logits(decoder, tokens, 20), exact.logits(dequantised, tokens, 20))


@pytest.mark.parametrize("name", TINY)
def test_the_most_likely_text_has_no_gap_and_another_has(name: str) -> None:
    model = shapes.random_model(name)
    decoder = prepare(model)
    texts = greedy(model, torch.tensor(models.prompts_for({"model": name}, 3, 16)), 12)
    assert float(exact.gaps(decoder, texts, 16).max()) < 1e-4
    exact.check_texts(decoder, texts, 16)
    for row in (0, 2):
        wrong = texts.clone()
        wrong[row, 20] = (wrong[row, 20] + 1) % 512
        with pytest.raises(AssertionError, match=r"standard deviations below the best, and 0\.1 is accepted"):
            exact.check_texts(decoder, wrong, 16)
        exact.check_texts(decoder, wrong, 16, accepted=20)


def test_a_token_that_came_from_another_rows_prompt_is_found() -> None:
    model = shapes.random_model("tiny-llama")
    texts = greedy(model, torch.tensor(models.prompts_for({"model": "tiny-llama"}, 2, 16)), 8)
    swapped = torch.cat([texts[:, :16], texts.flip(0)[:, 16:]], dim=1)
    with pytest.raises(AssertionError):
        exact.check_texts(prepare(model), swapped, 16)

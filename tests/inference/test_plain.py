"""Prefill and decode with a cache, against models that compute everything anew, and against ``transformers``."""

from __future__ import annotations

import pytest
import torch
import transformers
from random_models import random_gpt2, random_llama, random_prompts
from transformers_models import theirs_of

from gpuguide import models
from gpuguide.inference import PAGE, Cache, Decoder, Engine, plain, prepare, static_cache
from gpuguide.models import corpus, llama_checkpoint
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama

MODELS = {"gpt2": random_gpt2(), "llama": random_llama(), "llama, not grouped": random_llama(heads=2, kv_heads=2)}
LENGTHS = [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 1]
CAPACITY = 3 * PAGE
ACCEPTED = 1e-3
"""Largest error of a logit in fp32; the logits differ by some units"""
NEW = 24
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def main() -> models.Loaded:
    return models.load("main")


@pytest.fixture(scope="module")
def texts(main: models.Loaded) -> list[list[int]]:
    """Beginnings of different lengths, from a text that the model has not seen."""
    tokens = main.tokenizer.encode(corpus.load_held_out())
    return [tokens[300 * number : 300 * number + length] for number, length in enumerate((5, 64, 1, 90))]


def read_at_once(decoder: Decoder, cache: Cache, prompts: list[list[int]]) -> torch.Tensor:
    """Return the logits after prompts of different lengths."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([prompt + [3] * (longest - len(prompt)) for prompt in prompts])
    counts = torch.tensor([len(prompt) for prompt in prompts])
    with torch.inference_mode():
        return plain.prefill(decoder, cache, tokens, torch.arange(len(prompts)), 0, counts)


def uncached(model: GPT2 | Llama, tokens: list[int]) -> torch.Tensor:
    """Return the logits after each token of a text, computed anew in fp64."""
    with torch.inference_mode():
        result: torch.Tensor = model.double()(torch.tensor([tokens]))[0]
    model.float()
    return result


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=ACCEPTED)


@every_model
def test_prompts_of_different_lengths_are_read_together(name: str) -> None:
    model, prompts = MODELS[name], random_prompts(LENGTHS)
    decoder = prepare(model)
    found = read_at_once(decoder, static_cache(decoder, len(prompts), CAPACITY), prompts)
    for place, prompt in enumerate(prompts):
        close(found[place], uncached(model, prompt)[-1])


@every_model
@pytest.mark.parametrize("chunk", [1, 7, PAGE - 1, PAGE, 100])
def test_a_prompt_in_pieces_is_the_prompt_at_once(name: str, chunk: int) -> None:
    """Also what is left in the cache."""
    decoder = prepare(MODELS[name])
    (prompt,) = random_prompts([2 * PAGE + 1])
    at_once, in_pieces = static_cache(decoder, 1, CAPACITY), static_cache(decoder, 1, CAPACITY)
    expected = read_at_once(decoder, at_once, [prompt])
    row = torch.tensor([0])
    with torch.inference_mode():
        for start in range(0, len(prompt), chunk):
            piece = torch.tensor([prompt[start : start + chunk]])
            found = plain.prefill(decoder, in_pieces, piece, row, start)
    close(found, expected)
    for layer in range(decoder.shape.layers):
        for ours, theirs in zip(in_pieces.read(layer, row, len(prompt)), at_once.read(layer, row, len(prompt)),
                                strict=True):  # fmt: skip
            close(ours, theirs)


@every_model
def test_each_step_gives_the_logits_of_the_whole_text_computed_anew(name: str) -> None:
    """From prompts that end before, at and after the end of a page, over the next one."""
    model, prompts = MODELS[name], random_prompts(LENGTHS)
    decoder = prepare(model)
    cache = static_cache(decoder, len(prompts), CAPACITY)
    read_at_once(decoder, cache, prompts)
    following = random_prompts([NEW] * len(prompts), seed=1)
    rows, lengths = torch.arange(len(prompts)), torch.tensor([len(prompt) for prompt in prompts])
    found = []
    with torch.inference_mode():
        for step in range(NEW):
            tokens = torch.tensor([text[step : step + 1] for text in following])
            found.append(plain.decode(decoder, cache, tokens, rows, lengths + step))
    for place, prompt in enumerate(prompts):
        expected = uncached(model, prompt + following[place])[len(prompt) :]
        close(torch.cat(found, dim=1)[place], expected)


@every_model
@pytest.mark.parametrize("count", [2, 5, 66])
def test_several_tokens_at_once_are_one_after_the_other(name: str, count: int) -> None:
    """As speculation verifies them. The order of rows is of no importance."""
    decoder = prepare(MODELS[name])
    prompts = random_prompts(LENGTHS)
    following = torch.tensor(random_prompts([count] * len(prompts), seed=2))
    rows = torch.tensor([3, 0, 4, 1, 2])
    lengths = torch.tensor(LENGTHS)[rows]
    together, singly = static_cache(decoder, len(prompts), 4 * PAGE), static_cache(decoder, len(prompts), 4 * PAGE)
    for cache in (together, singly):
        read_at_once(decoder, cache, prompts)
    with torch.inference_mode():
        found = plain.decode(decoder, together, following, rows, lengths)
        for place in range(count):
            expected = plain.decode(decoder, singly, following[:, place : place + 1], rows, lengths + place)
            close(found[:, place], expected[:, 0])
    close(together.keys[:, 1:], singly.keys[:, 1:])
    close(together.values[:, 1:], singly.values[:, 1:])


def greedy(decoder: Decoder, prompts: list[list[int]], new: int) -> list[list[int]]:
    engine = Engine(decoder, len(prompts), max(map(len, prompts)) + new)
    engine.start(prompts)
    for _ in range(new - 1):
        engine.step()
    return [engine.texts[row, len(prompt) : len(prompt) + new].tolist() for row, prompt in enumerate(prompts)]


def varied(texts: list[list[int]]) -> bool:
    """Return whether texts differ enough to compare them: one that repeats a token would hide much."""
    return len(set().union(*texts)) > 9


def test_greedy_texts_of_main_are_those_of_the_uncached_model(main: models.Loaded, texts: list[list[int]]) -> None:
    assert greedy(prepare(main.model), texts, NEW) == [models.generate(main.model, text, NEW) for text in texts]


@every_model
def test_greedy_texts_of_random_models_are_those_of_the_uncached_model(name: str) -> None:
    prompts = random_prompts(LENGTHS)
    found = greedy(prepare(MODELS[name]), prompts, NEW)
    assert found == [models.generate(MODELS[name], prompt, NEW) for prompt in prompts]
    assert varied(found)


def test_texts_are_those_of_transformers_which_pads_at_the_left(texts: list[list[int]]) -> None:
    theirs = transformers.GPT2LMHeadModel.from_pretrained(models.checkpoint_folder("main"), dtype=torch.float32).eval()
    assert greedy(prepare(models.load("main").model), texts, NEW) == by_transformers(theirs, texts)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_texts_of_a_llama_are_those_of_transformers(kv_heads: int) -> None:
    ours = random_llama(kv_heads=kv_heads)
    theirs = theirs_of(ours.config)
    theirs.load_state_dict(llama_checkpoint.their_places(ours))
    prompts = random_prompts([9, 70, 1])
    found = greedy(prepare(ours), prompts, NEW)
    assert found == by_transformers(theirs, prompts)
    assert varied(found)


def by_transformers(model: transformers.PreTrainedModel, prompts: list[list[int]]) -> list[list[int]]:
    """Return greedy texts of a batch that is padded at the left, with masks."""
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        found = model.generate(
            padded, attention_mask=mask, do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW, pad_token_id=0
        )
    return found[:, longest:].tolist()

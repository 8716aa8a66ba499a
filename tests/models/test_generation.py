from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers

from gpuguide import logits, models
from gpuguide.errors import GpuguideError
from gpuguide.models import corpus, llama, shapes
from gpuguide.models.generation import generate
from gpuguide.models.gpt2 import GPT2

PROMPTS_A_LENGTH, LENGTHS = 8, (1, 4, 11, 24, 60)
NEW_TOKENS = 16


TINY_LLAMA = llama.LlamaConfig(vocab_size=300, context=32, layers=2, heads=4, kv_heads=2, hidden=32, inner=48)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The products here are too small to share; waiting for each other costs threads more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", models.PACKAGED)
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_greedy_completions_are_those_of_transformers_on_40_prompts(name: str) -> None:
    loaded = models.load(name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        models.checkpoint_folder(name), dtype=torch.float32
    ).eval()
    theirs.generation_config.eos_token_id = None  # go on after an end of text, as ours does
    tokens = loaded.tokenizer.encode(corpus.load_held_out())
    step = len(tokens) // (PROMPTS_A_LENGTH * len(LENGTHS))
    for index, length in enumerate(LENGTHS):
        starts = range(index * step, len(tokens) - length, step * len(LENGTHS))[:PROMPTS_A_LENGTH]
        prompts = torch.tensor([tokens[start : start + length] for start in starts])
        settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
        reference = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)[:, length:]
        assert reference.shape == (PROMPTS_A_LENGTH, NEW_TOKENS)
        for prompt, expected in zip(prompts.tolist(), reference.tolist(), strict=True):
            ours = generate(loaded.model, prompt, NEW_TOKENS)
            assert loaded.tokenizer.decode_bytes(ours) == loaded.tokenizer.decode_bytes(expected)


def test_choice_is_the_callers(tiny_model: GPT2) -> None:
    generator = torch.Generator().manual_seed(3)
    drawn = generate(tiny_model, [1, 2], 8, choose=lambda scores: logits.sample(scores, generator))
    again = generate(
        tiny_model, [1, 2], 8, choose=lambda scores: logits.sample(scores, torch.Generator().manual_seed(3))
    )
    assert len(drawn) == 8
    assert drawn[0] == again[0]
    assert drawn != generate(tiny_model, [1, 2], 8)


def test_no_tokens_asked_for(tiny_model: GPT2) -> None:
    assert generate(tiny_model, [1], 0) == []


def test_empty_prompt(tiny_model: GPT2) -> None:
    with pytest.raises(GpuguideError, match=r"The prompt has no tokens\. For an empty text"):
        generate(tiny_model, [], 3)
    assert isinstance(models.load("draft").complete("", 3), str)


def test_prompt_longer_than_the_context(tiny_model: GPT2) -> None:
    assert len(generate(tiny_model, [1] * 12, 4)) == 4
    with pytest.raises(
        GpuguideError, match=r"A prompt of 13 tokens and 4 more do not fit into a context of 16\. Give the last 12"
    ):
        generate(tiny_model, [1] * 13, 4)


def test_any_bytes_can_be_completed() -> None:
    assert isinstance(models.load("draft").complete(bytes(range(256)), 2), str)


def test_a_llama_writes_the_token_with_the_largest_logit_each_time() -> None:
    model = shapes.random_model(TINY_LLAMA, seed=5)
    written = generate(model, [1, 2, 3], 20)
    with torch.no_grad():
        scores = model(torch.tensor([[1, 2, 3, *written]]))[0, 2:-1]
    assert scores.argmax(-1).tolist() == written
    with pytest.raises(GpuguideError, match="do not fit into a context of 32"):
        generate(model, [1] * 30, 3)

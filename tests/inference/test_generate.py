"""The loop of :mod:`gpuguide.inference.generate`: the tokens of a model without a cache, and those of the engine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest
from packaged import decoder, held_out, uncached

from gpuguide.errors import GpuguideError
from gpuguide.inference import Engine, generate, plain
from gpuguide.inference.streaming import sampling_settings, stream

NEW = 12


def reference(length: int) -> list[int]:
    """The model's greedy continuation of the first tokens of the held-out text, without a cache."""
    return uncached(held_out()[:length], NEW)


@pytest.mark.parametrize("length", [1, 5, 64, 130])
@pytest.mark.parametrize("new_tokens", [0, 1, NEW])
@pytest.mark.parametrize("chunk", [generate.PREFILL_CHUNK, 50])
def test_greedy_tokens_are_those_without_a_cache(
    length: int, new_tokens: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "PREFILL_CHUNK", chunk)
    tokens = generate.generate(decoder(), held_out()[:length], new_tokens)
    assert list(tokens) == reference(length)[:new_tokens]


def test_drawn_tokens_are_those_of_the_engine() -> None:
    settings = sampling_settings(temperature=0.9, top_k=40, top_p=0.95)
    prompt = held_out()[:20]
    for seed in (0, 1, generate.HIGHEST_SEED):
        tokens = list(generate.generate(decoder(), prompt, NEW, settings, seed=seed))
        assert tokens == list(stream(Engine(decoder(), 1, 64, settings), prompt, NEW, seed=seed))


@pytest.mark.parametrize("index", [0, 1, NEW - 1])
def test_a_stop_token_ends_the_text_and_is_not_yielded(index: int) -> None:
    stop = reference(5)[index]
    tokens = list(generate.generate(decoder(), held_out()[:5], NEW, stop={stop}))
    assert tokens == reference(5)[: reference(5).index(stop)]


def test_prompt_and_new_tokens_can_fill_the_context() -> None:
    prompt = held_out()[: decoder().shape.context - 3]
    assert list(generate.generate(decoder(), prompt, 3)) == uncached(prompt, 3)


def test_nothing_is_computed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    decode = plain.decode
    monkeypatch.setattr(plain, "decode", lambda *given: steps.append(1) or decode(*given))
    tokens = generate.generate(decoder(), held_out()[:5], NEW)
    assert not steps
    assert list(islice(tokens, 3)) == reference(5)[:3]
    assert len(steps) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: generate.generate(decoder(), [], 5), "no tokens"),
        (lambda: generate.generate(decoder(), [2048], 5), "not below 2048"),
        (lambda: generate.generate(decoder(), [1] * 512, 5), "512 tokens .* last 511"),
        (lambda: generate.generate(decoder(), [1] * 500, 13), "500 tokens and 13 new .* 12 or fewer"),
        (lambda: generate.generate(decoder(), [1], -1), "-1 new tokens"),
        (lambda: generate.generate(decoder(), [1], 5, seed=generate.HIGHEST_SEED + 1), "seed is 8796093022208"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(GpuguideError, match=message):
        wrong()

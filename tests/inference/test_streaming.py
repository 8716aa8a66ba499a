"""A streamed text is what the model writes without a cache, and nothing more is written than somebody asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from packaged import decoder, held_out, loaded, uncached

from gpuguide import models
from gpuguide.errors import GpuguideError
from gpuguide.inference import Engine, empty_cache, prepare, streaming
from gpuguide.inference.serving import Request, Scheduler

NEW = 12


def reference(length: int) -> list[int]:
    """What the model writes after the first tokens of the held-out text, without a cache."""
    return uncached(held_out()[:length], NEW)


class CountingEngine(Engine):
    """Counts its steps."""

    steps = 0

    def step(self, rows: int | None = None) -> torch.Tensor:
        self.steps += 1
        return super().step(rows)


@pytest.mark.parametrize("length", [1, 5, 64, 130])
@pytest.mark.parametrize("new_tokens", [0, 1, 2, NEW])
def test_a_stream_is_the_text_without_a_cache(length: int, new_tokens: int) -> None:
    engine = streaming.engine_for(decoder(), length, new_tokens)
    assert list(streaming.stream(engine, held_out()[:length], new_tokens)) == reference(length)[:new_tokens]


def test_a_text_can_fill_the_context() -> None:
    context = decoder().shape.context
    prompt = held_out()[: context - 3]
    text = list(streaming.stream(streaming.engine_for(decoder(), len(prompt), 3), prompt, 3))
    assert text == models.generate(loaded().model, prompt, 3)


@pytest.mark.parametrize("place", [0, 1, NEW - 1])
def test_a_stop_token_ends_the_text_and_is_no_part_of_it(place: int) -> None:
    stop = reference(5)[place]
    engine = streaming.engine_for(decoder(), 5, NEW)
    found = list(streaming.stream(engine, held_out()[:5], NEW, {stop}))
    assert found == reference(5)[: reference(5).index(stop)]


def test_a_stop_token_in_the_prompt_stops_nothing() -> None:
    prompt = held_out()[:64]
    stop = set(prompt) - set(reference(64))
    assert stop
    engine = streaming.engine_for(decoder(), 64, NEW)
    assert list(streaming.stream(engine, prompt, NEW, stop)) == reference(64)


def test_nothing_is_written_that_nobody_asks_for() -> None:
    engine = CountingEngine(decoder(), 1, 64)
    text = streaming.stream(engine, held_out()[:5], NEW)
    assert engine.steps == 0
    assert list(islice(text, 3)) == reference(5)[:3]
    assert engine.steps == 2
    text.close()  # type: ignore[attr-defined]
    assert list(text) == []
    assert engine.steps == 2
    assert list(streaming.stream(engine, held_out()[:20], NEW)) == reference(20)  # the row is free for another text


class EarlyEngine:
    """An engine on a made-up GPU, which writes 0, 1, 2 and so on and says when."""

    decoder = SimpleNamespace(device=torch.device("cuda"))
    capacity = 100

    def __init__(self) -> None:
        self.events: list[str] = []
        self.token = 0

    def check_prompt(self, prompt: Sequence[int]) -> None:
        pass

    def start(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> torch.Tensor:
        self.events.append("write 0")
        return torch.tensor([0])

    def step(self, rows: int) -> torch.Tensor:
        self.token += 1
        self.events.append(f"write {self.token}")
        return torch.tensor([self.token])


@pytest.mark.parametrize(("stop", "last"), [((), 3), ((1,), 2)])
def test_a_gpu_writes_the_next_token_while_the_last_is_read(stop: Sequence[int], last: int) -> None:
    engine: Any = EarlyEngine()
    for token in streaming.stream(engine, [7], 4, stop):
        engine.events.append(f"read {token}")
    reads = ["write 0", "write 1", "read 0", "write 2", "read 1", "write 3", "read 2", "read 3"]
    assert engine.events == (reads if last == 3 else ["write 0", "write 1", "read 0", "write 2"])


def test_a_draw_is_that_of_a_server() -> None:
    drawing = streaming.sampling_settings(temperature=0.9, top_k=40, top_p=0.95)
    prompt = held_out()[:20]
    texts = []
    for seed in (0, 1, 2**40):
        found = list(streaming.stream(streaming.engine_for(decoder(), 20, NEW, drawing), prompt, NEW, seed=seed))
        assert Scheduler(Engine(decoder(), 2, 64, drawing)).run([Request(prompt, NEW, seed=seed)]) == [found]
        texts.append(found)
    assert texts[0] != texts[1] != texts[2]


@pytest.mark.gpu
def test_on_a_gpu_every_token_arrives() -> None:
    on_gpu = prepare(loaded().model, device="cuda")
    engine = streaming.engine_for(on_gpu, 20, NEW, streaming.sampling_settings(temperature=0.7))
    arrived = list(streaming.stream(engine, held_out()[:20], NEW, seed=3))
    assert arrived == engine.texts[0, 20 : 20 + NEW].tolist()


# --- text --------------------------------------------------------------------------------------------------


@given(st.one_of(st.text(), st.binary()))
def test_all_pieces_are_the_text(text: str | bytes) -> None:
    tokenizer = loaded().tokenizer
    tokens = tokenizer.encode(text)
    pieces = list(streaming.detokenize(tokenizer, tokens))
    assert all(pieces)
    assert "".join(pieces) == tokenizer.decode(tokens)


def test_a_character_waits_until_it_is_whole() -> None:
    tokenizer = loaded().tokenizer
    tokens = [*tokenizer.encode("a"), *tokenizer.encode("\N{GRINNING FACE}".encode()), *tokenizer.encode("b")]
    assert len(tokens) > 3
    assert list(streaming.detokenize(tokenizer, tokens)) == ["a", "\N{GRINNING FACE}", "b"]
    assert list(streaming.detokenize(tokenizer, tokens[:2])) == ["a", "\N{REPLACEMENT CHARACTER}"]


def test_a_piece_comes_before_the_next_token_is_asked_for() -> None:
    asked = []

    def tokens() -> Any:
        for token in loaded().tokenizer.encode("import os"):
            asked.append(token)
            yield token

    next(streaming.detokenize(loaded().tokenizer, tokens()))
    assert len(asked) == 1


# --- what cannot be done -----------------------------------------------------------------------------------


def engine() -> Engine:
    return Engine(decoder(), 1, 64)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: streaming.engine_for(decoder(), 600, 5), "600 tokens .* context of 512; .* last 511"),
        (lambda: streaming.engine_for(decoder(), 500, 13), "500 tokens and 13 new .* 12 or fewer"),
        (lambda: streaming.stream(engine(), [], 5), "no tokens"),
        (lambda: streaming.stream(engine(), [1] * 64, 5), "capacity of 64"),
        (lambda: streaming.stream(engine(), [1] * 60, 5), "60 tokens and 5 new .* 4 or fewer"),
        (lambda: streaming.stream(engine(), [2048], 5), "not below 2048"),
        (lambda: streaming.stream(engine(), [1], -1), "-1 new tokens"),
        (lambda: streaming.stream(engine(), [1], 5, seed=-1), "seed is -1"),
        (lambda: streaming.sampling_settings(temperature=-1), "temperature is -1"),
        (lambda: streaming.sampling_settings(top_p=0), "top-p is 0"),
        (lambda: list(streaming.detokenize(loaded().tokenizer, [2048])), "2048 is no token"),
        (lambda: prepare(loaded().model, device="cuda:99"), "cuda:99 is not there: PyTorch sees .* 'gpuguide doctor'"),
        (lambda: prepare(loaded().model, device="gpu"), "PyTorch knows no device 'gpu'; give cpu or cuda"),
        (lambda: Engine(decoder(), 1, 64, cache=empty_cache(prepare(loaded().model, device="meta"), 1, 64, 1)),
         "The cache is on meta and the model on cpu; put both on one"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_at_once_in_a_sentence(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(GpuguideError, match=message):
        wrong()

"""A text is what the model writes for its prompt alone, whoever is written beside it and whatever was there before."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import asdict

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from random_models import random_gpt2, random_llama, random_prompts

from gpuguide import models
from gpuguide.errors import GpuguideError
from gpuguide.inference import GREEDY, PAGE, Cache, Decoder, Engine, engine, prepare, static_cache
from gpuguide.sampling import sample_token
from gpuguide.sampling.reference import SamplingSettings

MODELS = {"gpt2": random_gpt2(), "llama": random_llama()}
SAMPLED = SamplingSettings(temperature=0.9, top_k=40, top_p=0.95)
CAPACITY = 2 * PAGE + 30
NEW = 12
every_model = pytest.mark.parametrize("name", MODELS)
greedy_and_sampled = pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


@functools.cache
def decoder(name: str) -> Decoder:
    return prepare(MODELS[name])


@functools.cache
def prompt(length: int, number: int = 0) -> tuple[int, ...]:
    return tuple(random_prompts([length], seed=1000 * number + length)[0])


@functools.cache
def alone(
    name: str, given: tuple[int, ...], settings: SamplingSettings = GREEDY, seed: int = 0, new: int = NEW
) -> list[int]:
    """The new tokens of a text, each drawn from logits that are computed anew, in fp64."""
    model, tokens = MODELS[name].double(), list(given)
    with torch.inference_mode():
        for _ in range(new):
            logits = model(torch.tensor([tokens]))[0, -1:].float()
            seeds = torch.tensor([seed * 2**20 + len(tokens)])
            tokens.append(int(sample_token(logits, seeds, **asdict(settings))))
    model.float()
    return tokens[len(given) :]


def text(writer: Engine, row: int, given: Sequence[int], new: int = NEW) -> list[int]:
    """The first new tokens of a row."""
    assert writer.texts[row, : len(given)].tolist() == list(given)
    return writer.texts[row, len(given) : len(given) + new].tolist()


# --- beside others -----------------------------------------------------------------------------------------


@hypothesis.given(
    name=st.sampled_from(sorted(MODELS)),
    lengths=st.lists(st.sampled_from([1, 2, 31, 63, 64, 65, 128, 129]), min_size=1, max_size=4),
    settings=st.sampled_from([GREEDY, SAMPLED]),
    chunk=st.sampled_from([5, 64, 512]),
    first_seed=st.integers(-3, 2**40),
    free=st.integers(0, 2),
)
def test_texts_do_not_depend_on_who_is_beside_them(
    name: str, lengths: list[int], settings: SamplingSettings, chunk: int, first_seed: int, free: int
) -> None:
    prompts = [prompt(length, number) for number, length in enumerate(lengths)]
    seeds = [first_seed + 7 * number for number in range(len(prompts))]
    writer = Engine(decoder(name), len(prompts) + free, CAPACITY, settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "PREFILL_CHUNK", chunk)
        first = writer.start(prompts, seeds)
    for _ in range(NEW - 1):
        last = writer.step()
    for row, given in enumerate(prompts):
        expected = alone(name, given, settings, seeds[row])
        assert text(writer, row, given) == expected
        assert (int(first[row]), int(last[row])) == (expected[0], expected[-1])
    assert writer.lengths.tolist() == [length + NEW - 1 for length in lengths] + [0] * free
    assert writer.writing.tolist() == [True] * len(prompts) + [False] * free


def test_greedy_texts_are_those_of_generate() -> None:
    for name, model in MODELS.items():
        assert alone(name, prompt(65)) == models.generate(model, prompt(65), NEW)


def test_seeds_make_texts_different_and_again_the_same() -> None:
    writer = Engine(decoder("gpt2"), 4, CAPACITY, SAMPLED)
    texts = []
    for seeds in ([5, 6, 5, 0], None):
        writer.start([prompt(9)] * 4, seeds)
        for _ in range(NEW - 1):
            writer.step()
        texts += [text(writer, row, prompt(9)) for row in range(4)]
    assert texts[0] == texts[2]
    assert texts[3] == texts[4]  # without seeds, the first row has seed 0
    assert len({tuple(each) for each in texts}) == 6


@every_model
def test_rows_may_be_stepped_in_part(name: str) -> None:
    """The others wait, and go on later as if nothing had been."""
    prompts = [prompt(length) for length in (3, 64, 65, 20)]
    writer = Engine(decoder(name), 4, CAPACITY)
    writer.start(prompts)
    for _ in range(5):
        writer.step(2)
    assert writer.lengths.tolist() == [8, 69, 65, 20]
    for _ in range(NEW - 6):
        writer.step()
    writer.step(1)
    for _ in range(5):
        writer.step(4)
    for row, given in enumerate(prompts):
        assert text(writer, row, given) == alone(name, given)


# --- one after the other -----------------------------------------------------------------------------------


@every_model
@greedy_and_sampled
def test_a_row_that_ended_takes_another_text(name: str, settings: SamplingSettings) -> None:
    """While its neighbours go on; what the first text left in the cache is not read."""
    writer = Engine(decoder(name), 3, CAPACITY, settings)
    kept = [prompt(70, 1), prompt(2, 2)]
    writer.start([kept[0], prompt(130), kept[1]], [11, 12, 13])
    for _ in range(4):
        writer.step()
    writer.end(1)
    for _ in range(3):
        writer.step()
    assert writer.lengths.tolist() == [77, 0, 9]
    row, new = torch.tensor([1]), prompt(63, 3)
    logits = writer.read([new], row, 0)
    first = writer.begin(row, [len(new)], logits, [14])
    for _ in range(NEW - 1):
        writer.step()
    expected = alone(name, new, settings, 14)
    assert text(writer, 1, new) == expected
    assert first.tolist() == expected[:1]
    assert text(writer, 0, kept[0]) == alone(name, kept[0], settings, 11)
    assert text(writer, 2, kept[1]) == alone(name, kept[1], settings, 13)


@every_model
def test_an_engine_starts_again_with_fewer_prompts(name: str) -> None:
    writer = Engine(decoder(name), 3, CAPACITY)
    for prompts in ([prompt(129), prompt(64), prompt(3)], [prompt(7), prompt(66)], [prompt(65)]):
        writer.start(prompts)
        for _ in range(NEW - 1):
            writer.step()
        for row, given in enumerate(prompts):
            assert text(writer, row, given) == alone(name, given)
        assert writer.writing.tolist() == [True] * len(prompts) + [False] * (3 - len(prompts))


@every_model
@pytest.mark.parametrize("capacity", [PAGE - 1, PAGE, PAGE + 1])
def test_a_full_text_goes_nowhere(name: str, capacity: int) -> None:
    """Not into its neighbour's pages either, with as many steps as fill those twice."""
    writer = Engine(decoder(name), 3, capacity)
    prompts = [prompt(capacity - 5), prompt(10), prompt(capacity - 1)]
    writer.start(prompts)
    for _ in range(NEW):
        writer.step()
    for row, given in enumerate(prompts):
        room = min(NEW, capacity - len(given))
        assert text(writer, row, given, room) == alone(name, given)[:room]
    assert writer.lengths.tolist() == [capacity - 1, 10 + NEW, capacity - 1]
    before = writer.texts[:, :capacity].clone()
    for _ in range(capacity):
        writer.step()
    assert torch.equal(writer.texts[[0, 2], :capacity], before[[0, 2]])
    assert text(writer, 1, prompts[1], capacity - 10) == alone(name, prompts[1], new=capacity - 10)
    assert writer.lengths.tolist() == [capacity - 1] * 3


@every_model
def test_a_text_may_fill_the_context(name: str) -> None:
    model = {"gpt2": random_gpt2(context=20), "llama": random_llama(context=20)}[name]
    writer = Engine(prepare(model), 1, 20)
    writer.start([prompt(14)])
    for _ in range(9):
        writer.step()
    assert text(writer, 0, prompt(14), 6) == models.generate(model, prompt(14), 6)


def test_logits_that_are_no_distribution_give_token_0() -> None:
    writer = Engine(decoder("gpt2"), 3, CAPACITY, SAMPLED)
    logits = torch.zeros(3, 97)
    logits[0], logits[1], logits[2, 5] = torch.nan, -torch.inf, 1e4
    assert writer.choose(logits, torch.arange(3)).tolist() == [0, 0, 5]


def test_a_cache_that_is_given_is_used() -> None:
    cache = static_cache(decoder("llama"), 3, CAPACITY)
    cache.table.copy_(cache.table.flip(0, 1))
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    writer = Engine(decoder("llama"), 2, CAPACITY - 1, cache=cache)
    writer.start([prompt(64), prompt(1)])
    for _ in range(NEW - 1):
        writer.step()
    assert writer.cache is cache
    assert [text(writer, 0, prompt(64)), text(writer, 1, prompt(1))] == [
        alone("llama", prompt(64)), alone("llama", prompt(1))]  # fmt: skip
    assert cache.keys[:, cache.table[2].long()].isnan().all()  # nobody wrote in the third row
    assert not cache.keys[:, cache.table[0, 0]].isnan().any()


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "0 prompts .* 1 to 2"),
        ([[1]] * 3, "3 prompts .* 1 to 2"),
        ([[1], []], "no tokens"),
        ([[1], [1] * 20], "20 tokens .* last 19"),
        ([[1, 97]], "97: 1 to 97"),
        ([[1], [-1, 5]], "97: -1 to 5"),
    ],
)
def test_prompts_that_cannot_be_written(prompts: list[list[int]], message: str) -> None:
    """The text that was there goes on."""
    writer = Engine(decoder("gpt2"), 2, 20)
    writer.start([[3, 4]])
    writer.step()
    with pytest.raises(GpuguideError, match=message):
        writer.start(prompts)
    for _ in range(8):
        writer.step()
    assert text(writer, 0, [3, 4], 10) == alone("gpt2", (3, 4))[:10]


def test_the_longest_prompt_gets_one_token() -> None:
    writer = Engine(decoder("gpt2"), 1, 20)
    assert writer.start([prompt(19)]).tolist() == alone("gpt2", prompt(19))[:1]


def test_a_capacity_beyond_the_context() -> None:
    Engine(decoder("gpt2"), 1, 256)
    with pytest.raises(
        GpuguideError, match=re.escape("A text of 257 tokens is longer than the model's context of 256")
    ):
        Engine(decoder("gpt2"), 1, 257)


@pytest.mark.parametrize(("rows", "capacity", "words"), [(0, 5, "rows = 0"), (1, 0, "capacity = 0")])
def test_an_engine_for_nothing(rows: int, capacity: int, words: str) -> None:
    with pytest.raises(GpuguideError, match=f"{words} holds nothing"):
        Engine(decoder("gpt2"), rows, capacity)


def test_a_cache_that_does_not_fit() -> None:
    given = decoder("gpt2")
    cache = static_cache(given, 2, PAGE)
    with pytest.raises(GpuguideError, match="2 rows of 64 tokens; 3 rows of 64 are asked for"):
        Engine(given, 3, PAGE, cache=cache)
    with pytest.raises(GpuguideError, match="2 rows of 64 tokens; 2 rows of 65 are asked for"):
        Engine(given, 2, PAGE + 1, cache=cache)
    with pytest.raises(
        GpuguideError, match=r"The cache holds torch\.bfloat16 and the model computes in torch\.float32"
    ):
        Engine(given, 2, PAGE, cache=static_cache(prepare(MODELS["gpt2"], dtype=torch.bfloat16), 2, PAGE))
    elsewhere = Cache(cache.keys.to("meta"), cache.values.to("meta"), cache.table.to("meta"))
    with pytest.raises(GpuguideError, match="The cache is on meta and the model on cpu; put both on one"):
        Engine(given, 2, PAGE, cache=elsewhere)

"""A prefill that is captured reads what the plain one reads, however its pieces are filled up."""

from __future__ import annotations

import pytest
import torch
from random_models import random_gpt2, random_llama, random_prompts

from gpuguide.inference import PAGE, Cache, Decoder, plain, prefill, prepare, static_cache
from gpuguide.inference.prefill import Prefill

MODELS = {"gpt2": random_gpt2(), "llama": random_llama()}
ROWS, CAPACITY = 4, 2 * PAGE + 30
PASSES = 4
"""Plain, captured, and twice replayed"""
every_model = pytest.mark.parametrize("name", MODELS)
on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def made(name: str, device: str, multiple: int = 1) -> tuple[Decoder, Cache, Prefill]:
    decoder = prepare(MODELS[name], device=device)
    cache = static_cache(decoder, ROWS, CAPACITY)
    reading = Prefill(decoder, cache)
    reading.multiple = multiple
    return decoder, cache, reading


def pieces(device: str, lengths: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pieces that are filled up to the longest, and how many tokens of each are real."""
    drawn = random_prompts(lengths, seed=seed)
    filled = [[*piece, *[0] * (max(lengths) - len(piece))] for piece in drawn]
    return torch.tensor(filled, device=device), torch.tensor(lengths, device=device)


def whole_prompts(device: str, lengths: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Return what to call a prefill with to read pieces from the beginning, into the first rows."""
    tokens, counts = pieces(device, lengths, seed)
    return tokens, torch.arange(len(lengths), device=device), 0, counts


@on_each_device
@every_model
@pytest.mark.parametrize("multiple", [1, 8, 64, 256])
def test_logits_and_cache_are_those_of_the_plain_prefill(name: str, device: str, multiple: int) -> None:
    """Also of second pieces, for other rows and other tokens than those that were captured, to the end of a cache."""
    decoder, cache, reading = made(name, device, multiple)
    expected_cache = static_cache(decoder, ROWS, CAPACITY)
    lengths = [[13, 7], [CAPACITY - 13, 2]]
    for number in range(PASSES):
        rows = torch.randperm(ROWS, generator=torch.Generator().manual_seed(number))[:2].to(device)
        for start, of_pieces in zip((0, 13), lengths, strict=True):
            tokens, counts = pieces(device, of_pieces, seed=number)
            found = reading(tokens, rows, start, counts)
            with torch.inference_mode():
                expected = plain.prefill(decoder, expected_cache, tokens, rows, start, counts)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            last = start + of_pieces[0]
            for kept, wanted in zip(cache.read(1, rows[:1], last), expected_cache.read(1, rows[:1], last), strict=True):
                torch.testing.assert_close(kept, wanted, rtol=1e-4, atol=1e-4)


@on_each_device
def test_a_result_outlasts_the_next(device: str) -> None:
    """Graphs share the memory in which they compute."""
    _, _, reading = made("gpt2", device)
    results = [reading(*whole_prompts(device, [9], seed)) for seed in range(PASSES)]
    again = [reading(*whole_prompts(device, [9], seed)) for seed in range(PASSES)]
    for first, second in zip(results, again, strict=True):
        torch.testing.assert_close(first, second)


def calls_of_the_plain(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each prefill that is no replay adds its number of tokens."""
    calls: list[int] = []
    whole = plain.prefill

    def counted(decoder: Decoder, cache: Cache, tokens: torch.Tensor, *others: object) -> torch.Tensor:
        calls.append(tokens.numel())
        return whole(decoder, cache, tokens, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(plain, "prefill", counted)
    return calls


@pytest.mark.gpu
def test_the_third_of_a_shape_is_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, reading = made("gpt2", "cuda", 8)
    calls = calls_of_the_plain(monkeypatch)
    for length in (9, 10):
        reading(*whole_prompts("cuda", [length], seed=0))
    done = len(calls)
    reading(*whole_prompts("cuda", [16], seed=1))
    assert len(calls) == done > 2


@pytest.mark.gpu
def test_a_graph_has_a_workspace_of_its_own() -> None:
    """Its products use one, and PyTorch gives those of streams back whenever ``torch.compile`` captures a graph."""
    _, _, reading = made("llama", "cuda", 64)
    call = whole_prompts("cuda", [60], seed=0)
    first, *_ = [reading(*call) for _ in range(PASSES)]
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.testing.assert_close(reading(*call), first)


@pytest.mark.parametrize(("limit", "value"), [("MOST_TOKENS", 8), ("MOST_GRAPHS", 0)])
def test_what_is_beyond_the_limits_is_read_plainly(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    _, _, reading = made("gpt2", "cpu")
    monkeypatch.setattr(prefill, limit, value)
    for number in range(3):
        reading(*whole_prompts("cpu", [9], seed=number))
    assert not reading._graphs


def test_another_cache_under_a_captured_prefill_is_refused() -> None:
    """Its graph would go on writing into the old one."""
    _, cache, reading = made("gpt2", "cpu")
    call = whole_prompts("cpu", [9], seed=0)
    for _ in range(2):
        reading(*call)
    cache.keys = cache.keys.clone()
    with pytest.raises(ValueError, match="captured step"):
        reading(*call)

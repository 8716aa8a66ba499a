from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpuguide import models
from gpuguide.benchmarks.inference import speculation
from gpuguide.hardware import device as devices
from gpuguide.inference.speculative.drafting import PromptLookup
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import Keys

SPECULATIVE = declarations.get("speculative-decode")
CPU = devices.cpu()
SMALL: Keys = {"drafted": 3, "temperature": 0.0, "source": "held-out", "prompt": 48, "new_tokens": 24}
DRAWN: Keys = {**SMALL, "temperature": 0.8}
MAKERS: dict[str, Callable[..., speculation.Write]] = {
    "gpuguide": lambda target, device, keys: speculation.speculative(
        speculation.decoder("draft", device), target, device, keys
    ),
    "gpuguide-lookup": lambda target, device, keys: speculation.speculative(PromptLookup(), target, device, keys),
    "plain": speculation.plain,
}


@pytest.fixture(autouse=True)
def two_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "TEXTS", 2)


def test_texts_fit_the_context_of_both_models_with_the_guesses_behind_them() -> None:
    context = min(models.load(name).config.context for name in ("main", "draft"))
    for keys in SPECULATIVE.cases(devices.fake("h100-sxm")):
        assert speculation.capacity(keys) + int(keys["drafted"]) <= context


def test_prompts_are_different_pieces_of_the_held_out_text_or_random() -> None:
    tokenizer = models.load("main").tokenizer
    prompts = speculation.prompts_of(SMALL)
    text = models.corpus.load_held_out()
    assert len({tuple(prompt) for prompt in prompts}) == speculation.TEXTS
    assert [len(prompt) for prompt in prompts] == [48] * speculation.TEXTS
    assert all(tokenizer.decode(prompt).strip("\ufffd") in text for prompt in prompts)
    noise = speculation.prompts_of({**SMALL, "source": "random"})
    assert [len(prompt) for prompt in noise] == [48] * speculation.TEXTS
    assert noise == speculation.prompts_of({**SMALL, "source": "random"})


@pytest.mark.parametrize("keys", [SMALL, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", MAKERS)
def test_every_contender_passes_and_says_what_its_guesses_were_worth(name: str, keys: Keys) -> None:
    work = speculation.work(MAKERS[name], CPU, keys)
    assert work.check is not None
    assert work.sample is not None
    work.check()
    assert work.rates["throughput"].per_call == 2 * 23
    assert work.sample() > 0
    found = work.further()
    if name == "plain":
        assert found == {}
        return
    assert all(0 <= share <= 1 for share in found["acceptance"].samples)
    assert all(1 <= tokens <= 4 for tokens in found["tokens_per_cycle"].samples)
    assert len(found["acceptance"].samples) == len(found["tokens_per_cycle"].samples) == 2


def test_greedy_texts_are_the_same_whoever_guesses() -> None:
    target = speculation.decoder("main", CPU)
    written = {name: make(target, CPU, SMALL)().texts for name, make in MAKERS.items()}
    assert written["gpuguide"] == written["gpuguide-lookup"] == written["plain"]


def test_greedy_texts_of_the_draft_are_found() -> None:
    target, draft = (speculation.decoder(name, CPU) for name in ("main", "draft"))
    longer = {**SMALL, "new_tokens": 80}
    texts = speculation.plain(draft, CPU, longer)().texts
    with pytest.raises(AssertionError, match="standard deviations"):
        speculation.check(target, texts, longer)


@pytest.mark.parametrize("temperature", [1.2, 2.0])
def test_texts_that_are_drawn_from_another_distribution_are_found(temperature: float) -> None:
    target = speculation.decoder("main", CPU)
    longer = {**DRAWN, "new_tokens": 80}
    texts = speculation.plain(target, CPU, {**longer, "temperature": temperature})().texts
    with pytest.raises(AssertionError, match="standard deviations"):
        speculation.check(target, texts, longer)


def test_the_surprise_of_tokens_drawn_as_they_should_be_is_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw from known logits: the mean of many deviations is near zero, and their spread near one."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(1, 400, 50, generator=generator)
    monkeypatch.setattr(speculation.exact, "logits", lambda *given: logits)
    found = []
    for temperature in (0.8, 1.0):
        weights = torch.softmax(logits[0] / temperature, dim=-1)
        for _ in range(100):
            drawn: Any = torch.multinomial(weights, 1, generator=generator).view(1, -1)
            found.append(speculation.surprise(None, torch.cat([drawn[:, :1], drawn], dim=1), 1, temperature))  # type: ignore[arg-type]
    deviations = torch.tensor(found)
    assert abs(float(deviations.mean())) < 0.3
    assert float(deviations.std()) == pytest.approx(1, abs=0.2)

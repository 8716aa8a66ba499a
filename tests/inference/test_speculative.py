"""Speculative decoding: the text is the target's own, whoever drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest
import torch
from chances import chance

from gpuguide import logits as distributions
from gpuguide import models
from gpuguide.errors import GpuguideError
from gpuguide.inference import prepare
from gpuguide.inference.cache import PAGE, Cache
from gpuguide.inference.decoder import Decoder
from gpuguide.inference.speculative import Speculator
from gpuguide.inference.speculative.drafting import LookupDrafter, PromptLookup
from gpuguide.models import corpus
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.sampling.reference import SamplingSettings

NEW = 24
VOCAB = 5
MANY = 8192
SETTINGS = [SamplingSettings(), SamplingSettings(temperature=0.7, top_k=4, top_p=0.95)]
LOOKUP = PromptLookup()


# --- models --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def main() -> GPT2:
    """The model of the site, in float64: there no rounding makes one of two near tokens the other."""
    return models.load("main").model.double()


@pytest.fixture(scope="module")
def target(main: GPT2) -> Decoder:
    return prepare(main)


@pytest.fixture(scope="module")
def draft() -> Decoder:
    return prepare(models.load("draft").model.double())


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Beginnings of different lengths, from a text that no model has seen."""
    tokens = models.load("main").tokenizer.encode(corpus.load_held_out())
    return [tokens[500 * number : 500 * number + length] for number, length in enumerate((33, 7, 1))]


@pytest.fixture(scope="module")
def plain_texts(main: GPT2, prompts: list[list[int]]) -> list[list[int]]:
    """What the target writes by itself."""
    return [models.generate(main, prompt, NEW) for prompt in prompts]


def small_model(seed: int, vocab: int = VOCAB) -> GPT2:
    """Return a model with random weights, large enough that its distributions are uneven."""
    torch.manual_seed(seed)
    model = GPT2(GPT2Config(vocab_size=vocab, context=16, layers=1, heads=1, hidden=8)).double().eval()
    with torch.no_grad():
        model.token_embedding.weight.mul_(20)
        model.position_embedding.weight.mul_(50)
    return model


def wrong(decoder: Decoder) -> Decoder:
    """Return a model whose most likely token is the least likely one of another."""
    norm = decoder.final_norm
    assert norm.bias is not None
    return replace(decoder, final_norm=replace(norm, weight=-norm.weight, bias=-norm.bias))


def write(target: Decoder, draft: Decoder | PromptLookup, prompts: Sequence[Sequence[int]], count: int = NEW,
          *, rows: int | None = None, **options: object) -> tuple[list[list[int]], Speculator]:  # fmt: skip
    """Return what is written, and who wrote it."""
    longest = max(map(len, prompts))
    writer = Speculator(target, draft, rows=rows or len(prompts), capacity=longest + count, **options)  # type: ignore[arg-type]
    return writer.write(prompts, count), writer


# --- greedy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 4, 7])
def test_greedy_text_is_the_targets_own(
    target: Decoder, draft: Decoder, prompts: list[list[int]], plain_texts: list[list[int]], k: int
) -> None:
    """Of prompts that differ in length, in one batch with a row to spare; and the draft is of use."""
    texts, writer = write(target, draft, prompts, k=k, rows=4)
    assert texts == plain_texts
    assert 0.3 < writer.acceptance() < 1
    assert not writer.outcomes[3, 1:].any()


def test_a_text_is_the_same_alone(
    target: Decoder, draft: Decoder, prompts: list[list[int]], plain_texts: list[list[int]]
) -> None:
    assert write(target, draft, prompts[:1], k=3)[0] == plain_texts[:1]


def test_lookup_writes_the_targets_text_too(
    target: Decoder, prompts: list[list[int]], plain_texts: list[list[int]]
) -> None:
    texts, writer = write(target, LOOKUP, prompts, k=5)
    assert texts == plain_texts
    assert writer.tokens_per_cycle() > 1.5


def test_a_draft_that_is_always_wrong_changes_nothing(
    target: Decoder, prompts: list[list[int]], plain_texts: list[list[int]]
) -> None:
    texts, writer = write(target, wrong(target), prompts[1:], 8, k=2)
    assert texts == [text[:8] for text in plain_texts[1:]]
    assert writer.acceptance() == 0
    assert writer.tokens_per_cycle() == 1


@pytest.mark.parametrize("settings", [SamplingSettings(temperature=0), SamplingSettings(temperature=0.8, top_k=50)])
def test_a_draft_like_the_target_is_always_right(
    draft: Decoder, prompts: list[list[int]], settings: SamplingSettings
) -> None:
    """It takes as few cycles as there can be: after the first token, ``k + 1`` in each."""
    _, writer = write(draft, draft, prompts, 1 + 3 * 5, k=4, settings=settings)
    assert writer.acceptance() == 1
    assert writer.outcomes[:, 5].tolist() == [3] * 3


@pytest.mark.parametrize("capacity", [5 + 16, 200])
def test_a_text_may_fill_its_capacity(draft: Decoder, prompts: list[list[int]], capacity: int) -> None:
    """The last cycle may guess beyond it, and rows that are complete stay as they are."""
    writer = Speculator(draft, LOOKUP, rows=2, capacity=capacity, k=6)
    texts = writer.write([prompts[0][:5], prompts[1][:3]], 16)
    for _ in range(4):
        writer.cycle()
    assert writer.read_new_tokens() == texts
    assert [len(text) for text in texts] == [16, 16]
    assert writer.outcomes[:, 0].min() >= 4


def test_a_row_is_used_again(draft: Decoder, prompts: list[list[int]]) -> None:
    """A text leaves nothing behind for the next one, and one without cycles is no trouble."""
    writer = Speculator(draft, LOOKUP, rows=2, capacity=100, k=3)
    first = writer.write(prompts[:2], 20)
    assert writer.write([prompts[2]], 1) == [first_token(draft, prompts[2])]
    assert writer.write(prompts[:2], 20) == first


def first_token(decoder: Decoder, prompt: list[int]) -> list[int]:
    writer = Speculator(decoder, LOOKUP, rows=1, capacity=100, k=1)
    writer.start([prompt], 5)
    return writer.read_new_tokens()[0]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_lies_beyond_a_text_is_not_read(
    target: Decoder, draft: Decoder, prompts: list[list[int]], temperature: float
) -> None:
    """NaN in both caches, in each row from its length on, and wherever no text is, before every cycle."""
    settings = SamplingSettings(temperature=temperature)
    expected, _ = write(target, draft, prompts[1:], 10, k=3, rows=3, settings=settings)
    writer = Speculator(target, draft, rows=3, capacity=17, k=3, settings=settings)
    writer.start(prompts[1:], 10)
    while bool((writer.lengths < writer.ends).any()):
        for cache, missing in ((writer.target.cache, 0), (writer.drafter.engine.cache, 1)):  # type: ignore[attr-defined]
            poison(cache, writer.lengths - missing)
        writer.cycle()
    assert writer.read_new_tokens() == expected


def poison(cache: Cache, lengths: torch.Tensor) -> None:
    """Put NaN wherever the first ``lengths`` tokens of each row are not."""
    beyond = torch.ones(cache.keys.shape[1], PAGE, dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        for place in range(length):
            beyond[cache.table[row, place // PAGE], place % PAGE] = False
    with torch.inference_mode():
        for kept in (cache.keys, cache.values):
            kept.masked_fill_(beyond[None, :, None, :, None], torch.nan)


# --- sampled -------------------------------------------------------------------------------------------------


def exact(model: GPT2, prompt: list[int], settings: SamplingSettings) -> torch.Tensor:
    """Return the probabilities of all texts of three tokens, ``(vocab, vocab, vocab)``, from whole forwards."""
    vocab = model.config.vocab_size
    pairs = torch.cartesian_prod(torch.arange(vocab), torch.arange(vocab))
    tokens = torch.cat([torch.tensor(prompt).expand(len(pairs), -1), pairs], dim=1)
    with torch.no_grad():
        adjusted = distributions.adjust(model(tokens)[:, len(prompt) - 1 :], **asdict(settings))
    p = torch.softmax(adjusted, dim=-1).view(vocab, vocab, 3, vocab)
    return p[0, 0, 0, :, None, None] * p[:, 0, 1, :, None] * p[:, :, 2]


@pytest.mark.parametrize(("settings", "k"), [(SETTINGS[0], 1), (SETTINGS[1], 2)])
@pytest.mark.parametrize("kind", ["model", "lookup"])
def test_sampled_texts_have_the_targets_distribution(kind: str, settings: SamplingSettings, k: int) -> None:
    """The second token, and all three together, of thousands of texts beside one another."""
    model, prompt = small_model(1), [3, 1, 3]
    drafting = LOOKUP if kind == "lookup" else prepare(small_model(2))
    texts, writer = write(prepare(model), drafting, [prompt] * MANY, 3, k=k, settings=settings)
    drawn = torch.tensor(texts)
    joint = exact(model, prompt, settings)
    assert 0.05 < writer.acceptance() < 0.95, "both ways are taken"
    seconds = torch.bincount(drawn[:, 1], minlength=VOCAB)
    assert chance(seconds, MANY * joint.sum(dim=(0, 2))) > 1e-3
    numbers = (drawn * torch.tensor([VOCAB**2, VOCAB, 1])).sum(dim=1)
    assert chance(torch.bincount(numbers, minlength=VOCAB**3), MANY * joint.flatten()) > 1e-3


@pytest.mark.parametrize("settings", SETTINGS)
def test_acceptance_is_what_the_distributions_share(settings: SamplingSettings) -> None:
    """The sum of the smaller probabilities (theorem 3.5), here over all first tokens."""
    model, other, prompt = small_model(1), small_model(2), [3, 1, 3]
    writer = Speculator(prepare(model), prepare(other), rows=MANY, capacity=8, k=1, settings=settings)
    writer.start([prompt] * MANY, 2)
    accepted = writer.cycle() == 2
    first = exact(model, prompt, settings).sum(dim=(1, 2))
    p, q = (conditional(which, prompt, settings) for which in (model, other))
    expected = float((first * torch.minimum(p, q).sum(dim=1)).sum())
    deviation = (expected * (1 - expected) / MANY) ** 0.5
    assert abs(float(accepted.double().mean()) - expected) < 4 * deviation
    assert writer.acceptance() == pytest.approx(float(accepted.double().mean()))


def conditional(model: GPT2, prompt: list[int], settings: SamplingSettings) -> torch.Tensor:
    """Return the probabilities of the second token for each first one, ``(vocab, vocab)``."""
    tokens = torch.cat([torch.tensor(prompt).expand(VOCAB, -1), torch.arange(VOCAB)[:, None]], dim=1)
    with torch.no_grad():
        return torch.softmax(distributions.adjust(model(tokens)[:, -1], **asdict(settings)), dim=-1)


def test_a_sampled_text_depends_on_its_seed_alone(target: Decoder, draft: Decoder, prompts: list[list[int]]) -> None:
    settings = SamplingSettings(temperature=1.0)
    together, _ = write(target, draft, prompts, 12, k=3, settings=settings)
    writer = Speculator(target, draft, rows=1, capacity=45, k=3, settings=settings)
    assert writer.write([prompts[1]], 12, seeds=[1])[0] == together[1]
    assert writer.write([prompts[1]], 12, seeds=[2])[0] != together[1]


# --- on a GPU ------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["model", "lookup"])
def test_a_gpu_writes_the_same_texts(
    kind: str, temperature: float, target: Decoder, draft: Decoder, prompts: list[list[int]]
) -> None:
    """In fp32, with kernels and a graph; and no cycle waits for the device."""
    settings = SamplingSettings(temperature=temperature)
    expected, _ = write(target, LOOKUP if kind == "lookup" else draft, prompts, k=3, settings=settings)
    fast, small = (prepare(models.load(name).model, device="cuda") for name in ("main", "draft"))
    texts, writer = write(fast, LOOKUP if kind == "lookup" else small, prompts, k=3, rows=4, settings=settings)
    assert texts == expected
    writer.start(prompts, NEW)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(NEW):
            writer.cycle()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert writer.read_new_tokens() == expected


# --- lookup --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], [4, 9, 1, 2]),  # what followed the same three tokens
        ([1, 2, 5, 2, 6, 1, 2], [5, 2, 6, 1]),  # a longer agreement counts more than a later one
        ([7, 2, 5, 8, 2, 6, 9, 2], [6, 9, 2, 6]),  # of equally long ones, the later; then once more from there
        ([4, 4, 4], [4, 4, 4, 4]),
        ([1, 2, 1, 2, 1], [2, 1, 2, 1]),
        ([1, 2, 3], [3, 3, 3, 3]),  # nothing agrees
        ([5, 6], [6, 6, 6, 6]),
    ],
)
def test_lookup_proposes_what_came_before(text: list[int], proposed: list[int]) -> None:
    """With something else behind the text, which is no part of it."""
    width = 16
    drafter = LookupDrafter(PromptLookup(3), width, 4, torch.device("cpu"))
    rows = torch.tensor([text + [text[-1]] * (width - len(text)), text + [text[0]] * (width - len(text))])
    places = torch.full((2, 1), len(text) - 1) + torch.arange(-1, 6)
    tokens, chances = drafter.propose(rows, places, torch.zeros(2, dtype=torch.int64))
    assert tokens.tolist() == [proposed, proposed]
    assert chances is None


def test_a_lookup_compares_as_many_tokens_as_asked() -> None:
    text = torch.tensor([[1, 2, 5, 9, 2, 6, 1, 2]])
    places = torch.tensor([[6, 7, 8, 9]])
    for longest, proposed in ((1, 6), (2, 5)):
        drafter = LookupDrafter(PromptLookup(longest), 8, 1, torch.device("cpu"))
        assert drafter.propose(text, places, torch.zeros(1, dtype=torch.int64))[0].tolist() == [[proposed]]
    with pytest.raises(GpuguideError, match="longest = 0 compares nothing"):
        PromptLookup(0)


# --- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k is 0; at least 1 token must be drafted"),
        ({"k": True}, "k is True"),
        ({"capacity": 1}, "A capacity of 1 has no room"),
        ({"capacity": 15, "k": 2}, "take 17 positions; the target knows 16; give a capacity of at most 14"),
        ({"rows": 0}, "rows = 0"),
    ],
)
def test_what_cannot_be_set_up_is_refused(options: dict[str, int], message: str) -> None:
    decoder = prepare(small_model(1))
    with pytest.raises(GpuguideError, match=message):
        Speculator(decoder, decoder, **{"rows": 1, "capacity": 8, "k": 2, **options})


def test_models_that_do_not_fit_are_refused() -> None:
    decoder = prepare(small_model(1))
    with pytest.raises(
        GpuguideError, match="The draft knows 7 tokens and the target 5; a draft must have the target's"
    ):
        Speculator(decoder, prepare(small_model(2, vocab=7)), rows=1, capacity=8)
    with pytest.raises(ValueError, match="The temperature is -1"):
        Speculator(decoder, LOOKUP, rows=1, capacity=8, settings=SamplingSettings(temperature=-1))


def test_prompts_that_do_not_fit_are_refused() -> None:
    writer = Speculator(prepare(small_model(1)), LOOKUP, rows=2, capacity=8, k=2)
    for prompts, count, message in (
        ([[1] * 6], 3, "A prompt of 6 tokens and 3 more do not fit into a capacity of 8; give the last 5"),
        ([[1]], 0, "0 new tokens are asked for"),
        ([[]], 2, "The prompt has no tokens"),
        ([[1]] * 3, 2, "3 prompts were given"),
        ([[VOCAB]], 2, "a token that is not below 5"),
    ):
        with pytest.raises(GpuguideError, match=message):
            writer.write(prompts, count)
    assert len(writer.write([[1] * 6], 2)[0]) == 2

"""Accepting drafted tokens: the paper's algorithm, its distribution, and the kernels that do the same on a GPU."""

from __future__ import annotations

from dataclasses import asdict

import interpreted
import numpy as np
import pytest
import torch
from chances import chance
from hypothesis import given
from hypothesis import strategies as st
from interpreted import needs_triton

from gpuguide import logits as distributions
from gpuguide.inference.speculative.acceptance import accept, accept_logits, agree, probabilities
from gpuguide.sampling import sample_token
from gpuguide.sampling.reference import SamplingSettings

SETTINGS = [
    SamplingSettings(),
    SamplingSettings(temperature=0.8, top_k=20),
    SamplingSettings(top_p=0.7),
    SamplingSettings(temperature=1e-30),
    SamplingSettings(temperature=1.5, top_k=30, top_p=0.9, min_p=0.05),
]

# --- the plain version ----------------------------------------------------------------------------------------


def accept_one_by_one(
    p: np.ndarray, q: np.ndarray, drafted: np.ndarray, uniforms: np.ndarray
) -> tuple[int, np.ndarray]:
    """Algorithm 1 of the paper, for one row: how many are accepted, and the distribution of the next token."""
    for place, token in enumerate(drafted):
        if uniforms[place] > p[place, token] / q[place, token]:
            missing = np.maximum(p[place] - q[place], 0)
            return place, missing / missing.sum()
    return len(drafted), p[-1]


@given(st.integers(1, 6), st.integers(2, 40), st.sampled_from([0.3, 1.0, 5.0]), st.integers(0, 2**31))
def test_accept_is_the_papers_algorithm(k: int, vocab: int, spread: float, seed: int) -> None:
    """Row by row in NumPy; the draw is where the running sum of the distribution passes the last random number."""
    random = torch.Generator().manual_seed(seed)
    rows = 16
    p = torch.softmax(spread * torch.randn(rows, k + 1, vocab, generator=random, dtype=torch.float64), dim=-1)
    q = torch.softmax(spread * torch.randn(rows, k, vocab, generator=random, dtype=torch.float64), dim=-1)
    drafted = torch.multinomial(q.flatten(0, 1), 1, generator=random).view(rows, k)
    uniforms = torch.rand(rows, k + 1, generator=random, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    counts, following = accept(p, q, drafted, uniforms)
    for row in range(rows):
        of_row = (part[row].numpy() for part in (p, q, drafted, uniforms))
        count, distribution = accept_one_by_one(*of_row)
        assert int(counts[row]) == count
        reached = distribution.cumsum()
        token = int(following[row])
        assert distribution[token] > 0
        assert reached[token] - distribution[token] - 1e-12 <= uniforms[row, k] <= reached[token] + 1e-12


def test_what_is_written_has_the_targets_distribution() -> None:
    """Of all places, whatever was drafted, with distributions that exclude tokens."""
    random = torch.Generator().manual_seed(3)
    p = torch.tensor([[0.5, 0.3, 0.0, 0.2], [0.1, 0.2, 0.7, 0.0], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    q = torch.tensor([[0.2, 0.0, 0.5, 0.3], [0.4, 0.4, 0.1, 0.1]], dtype=torch.float64)
    rows = 2**17
    drafted = torch.multinomial(q, rows, replacement=True, generator=random).T.contiguous()
    uniforms = (torch.randint(2**32, (rows, 3), generator=random).double() + 0.5) * 2.0**-32
    count, following = accept(p.expand(rows, 3, 4), q.expand(rows, 2, 4), drafted, uniforms)
    tokens = torch.cat([drafted, following[:, None]], dim=1).scatter(1, count[:, None], following[:, None])
    for place in range(3):
        seen = tokens[count >= place, place]
        assert chance(torch.bincount(seen, minlength=4), len(seen) * p[place]) > 1e-3
    shared = torch.minimum(p[:2], q).sum(dim=1)
    reached = torch.stack([1 - shared[0], shared[0] * (1 - shared[1]), shared[0] * shared[1]])
    assert chance(torch.bincount(count, minlength=3), rows * reached) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_distributions_accept_everything(dtype: torch.dtype) -> None:
    """Whatever the random numbers, the smallest and the largest that there are too."""
    p = torch.softmax(torch.randn(2, 4, 50, generator=torch.Generator().manual_seed(0), dtype=dtype), dim=-1)
    drafted = torch.tensor([[3, 0, 49], [7, 7, 7]])
    for uniform in (0.5 * 2.0**-32, 0.5, 1 - 0.5 * 2.0**-32):
        count, following = accept(p, p[:, :3], drafted, torch.full((2, 4), uniform, dtype=torch.float64))
        assert count.tolist() == [3, 3]
        assert ((following >= 0) & (following < 50)).all()


def test_a_rounding_error_rejects_into_no_void() -> None:
    """If a token is rejected though nothing is missing elsewhere, it comes all the same."""
    q = torch.tensor([[[0.5, 0.5]]], dtype=torch.float64)
    p = torch.stack([q[0, 0] * (1 - 2.0**-50), q[0, 0]])[None]
    count, following = accept(p, q, torch.tensor([[1]]), torch.tensor([[1 - 2.0**-53, 0.5]], dtype=torch.float64))
    assert (count.tolist(), following.tolist()) == ([0], [1])


def test_a_token_that_the_target_excludes_never_comes() -> None:
    p = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]], dtype=torch.float64)
    q = torch.tensor([[[1.0, 0.0, 0.0]]], dtype=torch.float64)
    for uniform in (2.0**-33, 1 - 2.0**-33):
        count, following = accept(p, q, torch.tensor([[0]]), torch.full((1, 2), uniform, dtype=torch.float64))
        assert (count.tolist(), following.tolist()) == ([0], [1])


def test_greedy_acceptance_is_that_of_certain_distributions() -> None:
    random = torch.Generator().manual_seed(1)
    chosen, drafted = torch.randint(2, (64, 5), generator=random), torch.randint(2, (64, 4), generator=random)
    p, q = (torch.nn.functional.one_hot(tokens, 2).double() for tokens in (chosen, drafted))
    uniforms = torch.rand(64, 5, generator=random, dtype=torch.float64)
    count, following = accept(p, q, drafted, uniforms)
    assert torch.equal(agree(chosen, drafted), count)
    assert torch.equal(chosen.gather(1, count[:, None])[:, 0], following)
    assert set(count.tolist()) == {0, 1, 2, 3, 4}


def test_accept_names_the_shape_that_does_not_fit() -> None:
    p, q = torch.ones(2, 4, 9), torch.ones(2, 3, 9)
    drafted, uniforms = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 4)
    for wrong_ones, name in (
        ((p[:, :3], q, drafted, uniforms), r"target_probabilities must have the shape \(2, 4, 9\)"),
        ((p, q[..., :8], drafted, uniforms), r"draft_probabilities must have the shape \(2, 3, 9\)"),
        (
            (p, q, drafted, uniforms[:, :3]),
            r"uniforms must have the shape \(2, 4\) for 3 drafted tokens; given \(2, 3\)",
        ),
    ):
        with pytest.raises(ValueError, match=name):
            accept(*wrong_ones)


@pytest.mark.parametrize("settings", SETTINGS)
def test_probabilities_are_those_of_the_adjusted_logits(settings: SamplingSettings) -> None:
    """The sampler draws nothing else, and a row without a distribution stops nobody."""
    logits = 3 * torch.randn(4, 3, 300, generator=torch.Generator().manual_seed(2))
    expected = torch.softmax(distributions.adjust(logits.double(), **asdict(settings)), dim=-1)
    found = probabilities(logits, settings)
    torch.testing.assert_close(found, expected)
    drawn = sample_token(logits, torch.arange(12).view(4, 3), **asdict(settings))
    assert (found.gather(2, drawn[..., None]) > 0).all()
    logits[1, 2] = torch.nan
    assert torch.equal(probabilities(logits, settings)[0], found[0])


# --- the kernels -----------------------------------------------------------------------------------------------


def kernels_accept_what_the_plain_version_accepts(device: str) -> None:
    """Drawn and certain drafts, vocabularies of one block and of several. The interpreter is slow with top-k."""
    few = SETTINGS if device == "cuda" else SETTINGS[:1]
    for vocab, k in [(5, 1), (300, 3), (9001, 2), (4096, 6)]:
        for certain in (False, True):
            for settings in few:
                compare(vocab, k, settings, certain=certain, device=device)
    for settings in SETTINGS[-2:]:
        compare(300, 1, settings, certain=False, device=device, rows=2)


def compare(vocab: int, k: int, settings: SamplingSettings, *, certain: bool, device: str, rows: int = 4) -> None:
    from gpuguide.inference.speculative import kernels

    random = torch.Generator().manual_seed(vocab + k)
    target = 3 * torch.randn(rows, k + 1, vocab, generator=random)
    draft = target[:, :k] + 0.5 * torch.randn(rows, k, vocab, generator=random)
    drafted = sample_token(draft, torch.arange(rows * k).view(rows, k), **asdict(settings))
    uniforms = torch.rand(rows, k + 1, generator=random, dtype=torch.float64).clamp(min=1e-9)
    counts, tokens = accept_logits(target, None if certain else draft, drafted, uniforms, settings)
    given = [part.to(device) for part in (target, draft, drafted, uniforms)]
    found = kernels.accept(given[0], None if certain else given[1], given[2], given[3], settings)
    case = (vocab, k, settings, certain)
    assert torch.equal(found[0].cpu(), counts), case
    written = torch.arange(k + 1) <= counts[:, None]
    assert torch.equal(found[1].cpu()[written], tokens[written]), case


def equal_logits_accept_everything(device: str) -> None:
    """And a row of NaN gives tokens that exist."""
    from gpuguide.inference.speculative import kernels

    p = torch.randn(3, 5, 70, generator=torch.Generator().manual_seed(0)).to(device)
    p[2] = torch.nan
    drafted = torch.tensor([[3, 0, 69, 1]] * 3, device=device)
    for uniform in (0.5 * 2.0**-32, 1 - 0.5 * 2.0**-32):
        uniforms = torch.full((3, 5), uniform, dtype=torch.float64, device=device)
        counts, tokens = kernels.accept(p, p[:, :4], drafted, uniforms, SamplingSettings(temperature=0.7))
        assert counts[:2].tolist() == [4, 4]
        assert ((tokens >= 0) & (tokens < 70)).all()


def the_kernel_advances_texts(device: str) -> None:
    """Greedy and counted; a complete text gains nothing, and keeps all its places."""
    from gpuguide.inference.speculative import kernels

    capacity, k, width = 9, 3, 13
    for counted in (False, True):
        tokens = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, 8], [5, 6, 7, 8]], device=device)
        drafted = torch.tensor([[5, 6, 7], [5, 0, 7], [0, 6, 7], [5, 6, 7]], device=device)
        lengths, ends = (torch.tensor(given, device=device) for given in ([2, 4, 7, 8], [8, 8, 8, 8]))
        texts = torch.ones(4, width, dtype=torch.int64, device=device)
        outcomes = torch.ones(4, k + 2, dtype=torch.int64, device=device)
        counts = torch.tensor([3, 1, 0, 3], device=device) if counted else None
        gained = kernels.advance(counts, tokens, drafted, lengths, ends, texts, outcomes, capacity)
        assert gained.tolist() == [4, 2, 1, 0]
        assert lengths.tolist() == [6, 6, 8, 8]
        assert texts[0].tolist() == [1, 1, 1, 5, 6, 7, 8, 1, 1, 1, 1, 1, 1]
        assert texts[1, 5:7].tolist() == [5, 6]
        assert texts[2, 8].item() == 5
        assert (texts[3, :capacity] == 1).all()
        assert (outcomes - 1).tolist() == [[0, 0, 0, 0, 1], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]


PARTS = {
    part.__name__: part
    for part in (
        kernels_accept_what_the_plain_version_accepts,
        equal_logits_accept_everything,
        the_kernel_advances_texts,
    )
}


@needs_triton
@pytest.mark.parametrize("part", PARTS)
def test_kernels_interpreted(part: str) -> None:
    interpreted.run(__file__, f"PARTS[{part!r}]('cpu')")


@pytest.mark.gpu
@pytest.mark.parametrize("part", PARTS)
def test_kernels_on_a_gpu(part: str) -> None:
    PARTS[part]("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("vocab", "rows"), [(50304, 32), (128256, 8)])
def test_large_vocabularies_on_a_gpu(vocab: int, rows: int) -> None:
    """The first has more programs than a GPU has multiprocessors."""
    for settings in SETTINGS:
        compare(vocab, 4, settings, certain=False, device="cuda", rows=rows)

"""The plain sampler: its random words against an independent Philox, its times, and its rows that are none."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide import logits as distributions
from gpuguide.sampling import NO_TOKEN, reference
from gpuguide.sampling.reference import SamplingSettings

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
"""Counter, key and words, from the file kat_vectors that is distributed with the paper's code"""
SEED_OF_LARGEST_WORD, SEED_OF_ZERO = 2189433366, 4320717320
"""With these the word of token 4 at step 0 is the largest there is, and zero; found by trying seeds in order"""
words_of_64_bits = st.integers(-(2**63), 2**63 - 1)


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox-4x32-10 in whole numbers of any size, as figure 4 of the paper draws it."""
    left0, right0, left1, right1 = counter
    for turn in range(10):
        key0, key1 = ((word + turn * weyl) % 2**32 for word, weyl in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True))
        (high0, low0), (high1, low1) = divmod(left0 * 0xD2511F53, 2**32), divmod(left1 * 0xCD9E8D57, 2**32)
        left0, right0, left1, right1 = high1 ^ right0 ^ key0, low1, high0 ^ right1 ^ key1, low0
    return left0, right0, left1, right1


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_the_independent_philox_gives_the_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], words: str
) -> None:
    assert " ".join(f"{word:08x}" for word in philox(counter, key)) == words


@given(words_of_64_bits, st.integers(0, 2**31 - 1), words_of_64_bits)
def test_words_are_those_of_philox(seed: int, token: int, step: int) -> None:
    """The counter is a quarter of the token and the step, low word first, and the key is the seed."""
    found = reference.random_words(*(torch.tensor([number]) for number in (seed, token, step)))
    expected = philox((token // 4, step % 2**32, step // 2**32 % 2**32, 0), (seed % 2**32, seed // 2**32 % 2**32))
    assert found.tolist() == [expected[token % 4]]


def test_words_broadcast() -> None:
    seeds, tokens = torch.arange(3).unsqueeze(-1), torch.arange(5)
    found = reference.random_words(seeds, tokens, torch.tensor(7))
    assert found.shape == (3, 5)
    assert found[2, 4] == reference.random_words(torch.tensor(2), torch.tensor(4), torch.tensor(7))
    assert len(set(found.flatten().tolist())) == 15


def test_waiting_times_at_both_ends() -> None:
    """No time is zero or infinite, and a short one has all its digits."""
    found = reference.exponential_variates(torch.tensor([0, 1, 2**31, 2**32 - 1])).tolist()
    assert found == pytest.approx(
        [2**-33 + 2**-67, 3 * 2**-33 + 9 * 2**-67, math.log(2) + 2**-32, 33 * math.log(2)], rel=1e-15
    )


def test_waiting_times_are_exponentially_distributed() -> None:
    """Kolmogorov's distance; a larger one than this has a chance of one in a thousand."""
    words = reference.random_words(torch.tensor(11), torch.arange(100_000), torch.tensor(0))
    times = reference.exponential_variates(words).sort().values
    expected = -torch.expm1(-times)
    place = torch.arange(len(times), dtype=torch.float64) / len(times)
    distance = float(torch.maximum((expected - place).abs().max(), (expected - place - 1 / len(times)).abs().max()))
    assert distance < 1.95 / math.sqrt(len(times))


def test_the_shortest_and_the_longest_time_lose_no_token() -> None:
    """The one wins against everything, the other still against a token that is excluded."""
    seeds = torch.tensor([SEED_OF_ZERO, SEED_OF_LARGEST_WORD])
    words = reference.random_words(seeds, torch.tensor(4), torch.tensor(0))
    assert words.tolist() == [0, 2**32 - 1]
    values = torch.full((2, 5), -torch.inf)
    values[0, 0], values[:, 4] = 15.0, 0.0
    assert reference.sample_token(values, seeds, torch.tensor(0), SamplingSettings()).tolist() == [4, 4]
    level = values.index_fill(-1, torch.tensor([0]), 0.0)[1:]
    assert reference.sample_token(level, seeds[1:], torch.tensor(0), SamplingSettings()).tolist() == [0]


def test_the_token_is_the_first_of_a_race() -> None:
    """Against the definition: times divided by probabilities, one token after the other."""
    values = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    seeds, settings = torch.arange(20) * 13, SamplingSettings(temperature=0.7, top_k=9, top_p=0.8)
    found = reference.sample_token(values, seeds, torch.tensor(3), settings)
    kept = distributions.adjust(values.double(), temperature=0.7, top_k=9, top_p=0.8)
    shares = torch.softmax(kept, dim=-1).tolist()
    for row, seed in enumerate(seeds.tolist()):
        arrival = {
            token: -math.log1p(-(philox((token // 4, 3, 0, 0), (seed, 0))[token % 4] + 0.5) / 2**32) / share
            for token, share in enumerate(shares[row])
            if share > 0
        }
        assert found[row] == min(arrival, key=arrival.__getitem__)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_which_rows_are_distributions(temperature: float) -> None:
    rows = torch.zeros(5, 4)
    rows[0, 1], rows[1, 2], rows[2] = math.nan, math.inf, -math.inf
    rows[3] = torch.tensor([-math.inf, 5.0, -math.inf, -math.inf])
    assert reference.is_distribution(rows).tolist() == [False, False, False, True, True]
    if temperature:
        found = reference.sample_token(rows, torch.arange(5), torch.tensor(0), SamplingSettings())
    else:
        found = reference.greedy_tokens(rows)
    assert found[:4].tolist() == [NO_TOKEN, NO_TOKEN, NO_TOKEN, 1]
    assert 0 <= found[4] < 4

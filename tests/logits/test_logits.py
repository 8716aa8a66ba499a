from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gpuguide import logits
from gpuguide.costs import roofline

LEADING = [(), (1,), (3,), (2, 5), (2, 1, 3)]
CHI_SQUARE_LIMIT = 4.0
"""Standard deviations above its mean at which a chi-square statistic is a failure; the seed is fixed"""

rows = arrays.arrays(
    np.float64,
    st.tuples(st.integers(1, 3), st.integers(1, 40)),
    elements=st.floats(-1e4, 1e4, allow_nan=False, width=32),
).map(torch.from_numpy)
"""Logits of a few rows, with ties, zeros and wide gaps"""


def scores(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)


def kept(values: torch.Tensor) -> list[int]:
    """Return the tokens of one row that are not excluded."""
    return (values > -torch.inf).nonzero().flatten().tolist()


# --- from scores to probabilities ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", LEADING)
def test_softmax_is_that_of_float64(shape: tuple[int, ...]) -> None:
    values = scores(*shape, 1003)
    expected = torch.softmax(values.double(), dim=-1)
    for function in (logits.softmax, logits.softmax_naive):
        torch.testing.assert_close(function(values).double(), expected, rtol=2e-6, atol=0)
    torch.testing.assert_close(logits.log_softmax(values).double(), expected.log(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits.log_sum_exp(values).double(), values.double().logsumexp(-1), rtol=1e-6, atol=0)
    entropy = -(expected * expected.log()).sum(-1)
    torch.testing.assert_close(logits.entropy(values).double(), entropy, rtol=1e-5, atol=1e-6)
    assert logits.entropy(values).shape == logits.log_sum_exp(values).shape == shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_format_stays(dtype: torch.dtype) -> None:
    values = scores(2, 50, dtype=dtype)
    for function in (logits.softmax, logits.log_softmax, logits.softmax_naive):
        assert function(values).dtype == dtype
        assert function(values).shape == values.shape
    for adjusted in (logits.with_temperature(values, 0.7), logits.with_temperature(values, 0), logits.adjust(values)):
        assert adjusted.dtype == dtype
    assert (
        logits.entropy(values).dtype
        == logits.log_sum_exp(values).dtype
        == (torch.float64 if dtype == torch.float64 else torch.float32)
    )


@pytest.mark.parametrize(
    ("dtype", "largest_safe", "overflows"), [(torch.float16, 11.0, 11.2), (torch.float32, 88.7, 88.8)]
)
def test_the_naive_softmax_fails_where_the_page_says(dtype: torch.dtype, largest_safe: float, overflows: float) -> None:
    safe, too_large = (torch.tensor([value, 0.0], dtype=dtype) for value in (largest_safe, overflows))
    assert torch.isfinite(logits.softmax_naive(safe)).all()
    assert torch.isnan(logits.softmax_naive(too_large)).any()
    assert torch.isnan(logits.softmax_naive(torch.tensor([-1000.0, -1000.0], dtype=dtype))).all()
    assert logits.softmax(too_large).tolist() == pytest.approx([1.0, 0.0], abs=2e-5)
    assert logits.softmax(torch.tensor([-1000.0, -1000.0], dtype=dtype)).tolist() == [0.5, 0.5]


def test_a_sum_of_many_tokens_exceeds_fp16_and_softmax_does_not_care() -> None:
    flat = torch.zeros(131072, dtype=torch.float16)
    assert torch.exp(flat).sum() == torch.inf
    assert logits.softmax_naive(flat).max() == 0
    assert logits.softmax(flat)[0] == 2**-17


def test_the_log_of_a_vanished_probability_survives() -> None:
    values = torch.tensor([0.0, -200.0])
    assert logits.softmax(values)[1].log() == -torch.inf
    assert logits.log_softmax(values)[1] == -200


@given(rows, st.floats(-1e3, 1e3, width=32))
def test_a_shift_changes_no_probability(values: torch.Tensor, shift: float) -> None:
    torch.testing.assert_close(logits.softmax(values + shift), logits.softmax(values), rtol=1e-9, atol=1e-12)


@given(rows)
def test_probabilities_add_up_to_one_and_follow_the_logits(values: torch.Tensor) -> None:
    found = logits.softmax(values)
    torch.testing.assert_close(found.sum(-1), torch.ones(values.shape[0], dtype=torch.float64))
    assert (found.gather(-1, values.argmax(-1, keepdim=True)) == found.amax(-1, keepdim=True)).all()
    entropy = logits.entropy(values)
    assert (entropy >= 0).all()
    assert (entropy <= math.log(values.shape[-1]) + 1e-9).all()


def test_entropy_at_its_ends() -> None:
    assert logits.entropy(torch.zeros(1000)) == pytest.approx(math.log(1000))
    assert logits.entropy(torch.tensor([0.0, -torch.inf, -torch.inf])) == 0


def test_a_row_that_is_no_distribution_is_nan_as_in_torch() -> None:
    for bad in ([math.nan, 0.0], [-math.inf, -math.inf], [math.inf, 0.0]):
        values = torch.tensor([bad, [1.0, 2.0]])
        assert torch.isnan(logits.softmax(values)[0]).any()
        assert torch.equal(logits.softmax(values)[1], torch.softmax(values, -1)[1])


# --- changing the distribution ---------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 3.0, 1e4])
def test_temperature_divides(temperature: float) -> None:
    values = scores(2, 3, 200)
    found = logits.softmax(logits.with_temperature(values, temperature).double())
    expected = torch.softmax(values.double() / temperature, dim=-1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_a_low_temperature_sharpens_and_a_high_one_flattens() -> None:
    values = scores(100)
    entropies = [float(logits.entropy(logits.with_temperature(values, t))) for t in (0, 0.1, 0.5, 1, 2, 10)]
    assert entropies[0] == 0
    assert entropies == sorted(entropies)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45, 2.3e-308])
def test_no_temperature_is_too_low(temperature: float) -> None:
    for offset in (0.0, 1e4, -1e4):
        values = torch.tensor([0.0, 3.0, 1.0]) + offset
        assert logits.softmax(logits.with_temperature(values, temperature)).tolist() == [0, 1, 0]


def test_temperature_zero_is_greedy_and_takes_the_first_of_equals() -> None:
    values = torch.tensor([[1.0, 5.0, 5.0], [-7.0, -8.0, -9.0]])
    assert logits.with_temperature(values, 0).tolist() == [[-math.inf, 0, -math.inf], [0, -math.inf, -math.inf]]
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        assert logits.sample(logits.adjust(values, temperature=0), generator).tolist() == [1, 0]
    assert logits.greedy(values).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [-1.0, -1e-9, math.nan, math.inf, -math.inf])
def test_temperatures_that_make_no_sense(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature is"):
        logits.with_temperature(scores(5), temperature)


def test_top_k_keeps_the_largest_and_their_equals() -> None:
    values = torch.tensor([3.0, 1.0, 2.0, 2.0, 0.0])
    assert [kept(logits.keep_top_k(values, k)) for k in (1, 2, 3, 4)] == [[0], [0, 2, 3], [0, 2, 3], [0, 1, 2, 3]]
    assert torch.equal(logits.keep_top_k(values, 2)[kept(logits.keep_top_k(values, 2))], values[[0, 2, 3]])


@pytest.mark.parametrize("k", [0, 5, 6, 10**9])
def test_top_k_of_nothing_or_of_everything_keeps_every_token(k: int) -> None:
    values = scores(3, 5)
    assert torch.equal(logits.keep_top_k(values, k), values)


@pytest.mark.parametrize("k", [-1, 2.0, True, None])
def test_a_top_k_that_is_no_count(k: int) -> None:
    with pytest.raises(ValueError, match="top-k is"):
        logits.keep_top_k(scores(5), k)


def test_top_p_keeps_the_token_that_reaches_p() -> None:
    values = torch.tensor([0.125, 0.5, 0.25, 0.125]).log()
    for p, expected in (
        (1e-300, [1]),
        (0.49, [1]),
        (0.51, [1, 2]),
        (0.74, [1, 2]),
        (0.76, [0, 1, 2, 3]),
        (1, [0, 1, 2, 3]),
    ):
        assert kept(logits.keep_top_p(values, p)) == expected, p


@pytest.mark.parametrize("p", [0.0, -0.1, 1.0000001, math.nan, math.inf])
def test_a_top_p_outside_its_range(p: float) -> None:
    with pytest.raises(ValueError, match="top-p is"):
        logits.keep_top_p(scores(5), p)


def test_min_p_is_a_ratio_to_the_most_likely() -> None:
    values = torch.tensor([0.1, 0.4, 0.3, 0.2]).log()
    for p, expected in ((0, [0, 1, 2, 3]), (0.2, [0, 1, 2, 3]), (0.3, [1, 2, 3]), (0.6, [1, 2]), (1, [1])):
        assert kept(logits.keep_min_p(values, p)) == expected, p
    assert kept(logits.keep_min_p(torch.tensor([1.0, 2.0, 2.0]), 1)) == [1, 2]
    assert kept(logits.keep_min_p(torch.tensor([1.0, -torch.inf]), 0)) == [0]


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_a_min_p_outside_its_range(p: float) -> None:
    with pytest.raises(ValueError, match="min-p is"):
        logits.keep_min_p(scores(5), p)


@given(rows, st.floats(1e-6, 1.0, exclude_min=True), st.integers(1, 50), st.floats(0, 1))
@example(torch.zeros(2, 7, dtype=torch.float64), 0.5, 3, 0.5)
def test_what_is_kept_is_the_smallest_set_that_does(values: torch.Tensor, p: float, k: int, min_p: float) -> None:
    """Against the definition, one row at a time in plain Python."""
    found_p, found_k, found_min = (
        logits.keep_top_p(values, p),
        logits.keep_top_k(values, k),
        logits.keep_min_p(values, min_p),
    )
    for row in range(values.shape[0]):
        line = values[row].tolist()
        assert all(new in (old, -math.inf) for new, old in zip(found_p[row].tolist(), line, strict=True))
        order = sorted(range(len(line)), key=lambda token: -line[token])
        powers = [math.exp(line[token] - max(line)) for token in order]
        shares = list(itertools.accumulate(power / math.fsum(powers) for power in powers))
        if p < 1 and all(abs(share - p) > 1e-12 for share in shares):  # on the edge rounding decides
            last = next(place for place, share in enumerate(shares) if share >= p)
            assert set(kept(found_p[row])) == {t for t in order if line[t] >= line[order[last]]}
        smallest = line[order[min(k, len(line)) - 1]]
        assert set(kept(found_k[row])) == {t for t in order if line[t] >= smallest}
        for token, value in enumerate(line):
            ratio = math.exp(value - max(line))
            if ratio > min_p * (1 + 1e-4):
                assert found_min[row, token] == value
            elif ratio < min_p * (1 - 1e-4):
                assert found_min[row, token] == -math.inf


@given(rows, st.floats(0.05, 5), st.integers(0, 50), st.floats(0.01, 1), st.floats(0, 1))
def test_every_row_keeps_its_most_likely_token(
    values: torch.Tensor, temperature: float, k: int, p: float, min_p: float
) -> None:
    found = logits.adjust(values, temperature=temperature, top_k=k, top_p=p, min_p=min_p)
    assert found.shape == values.shape
    assert not torch.isnan(found).any()
    assert (found.gather(-1, values.argmax(-1, keepdim=True)) > -torch.inf).all()


def test_top_p_counts_what_top_k_left() -> None:
    """Of 0.4, 0.3, 0.2, 0.1 the first two are 0.57 and 0.43 of what top-k of 2 leaves."""
    values = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert kept(logits.adjust(values, top_k=2, top_p=0.5)) == [0]
    assert kept(logits.keep_top_k(logits.keep_top_p(values, 0.5), 2)) == [0, 1]


def test_temperature_comes_first() -> None:
    values = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert kept(logits.adjust(values, temperature=5, top_p=0.6)) == [0, 1, 2]
    assert kept(logits.keep_top_p(values, 0.6)) == [0, 1]


def test_tokens_that_are_excluded_already_stay_so() -> None:
    values = torch.tensor([1.0, -torch.inf, 0.0, -torch.inf])
    for found in (
        logits.with_temperature(values, 0.5),
        logits.keep_top_k(values, 3),
        logits.keep_top_p(values, 0.999999),
        logits.keep_min_p(values, 0.01),
    ):
        assert kept(found) == [0, 2]
    only = torch.tensor([-torch.inf, 4.0])
    assert kept(logits.adjust(only, temperature=2, top_k=1, top_p=0.1, min_p=1)) == [1]


@pytest.mark.parametrize(
    ("settings", "warpers"),
    [
        ({"temperature": 0.7}, ["TemperatureLogitsWarper"]),
        ({"top_k": 50}, ["TopKLogitsWarper"]),
        ({"top_p": 0.9}, ["TopPLogitsWarper"]),
        ({"min_p": 0.05}, ["MinPLogitsWarper"]),
        (
            {"temperature": 1.5, "top_k": 100, "top_p": 0.8, "min_p": 0.02},
            ["TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper"],
        ),
    ],
)
def test_transformers_agrees(settings: dict[str, float], warpers: list[str]) -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    values = scores(16, 5003, seed=1, dtype=torch.float64)
    theirs = values
    for value, name in zip(settings.values(), warpers, strict=True):
        theirs = getattr(processors, name)(value)(torch.zeros(16, 1, dtype=torch.long), theirs)
    ours = logits.adjust(values, **settings)
    assert torch.equal(ours == -torch.inf, theirs == -torch.inf)
    torch.testing.assert_close(logits.softmax(ours), torch.softmax(theirs, -1), rtol=1e-6, atol=1e-9)


def test_transformers_cuts_among_equals_and_we_do_not() -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    flat = torch.zeros(1, 10)
    theirs = processors.TopPLogitsWarper(0.35)(torch.zeros(1, 1, dtype=torch.long), flat)
    assert len(kept(theirs[0])) == 4
    assert len(kept(logits.keep_top_p(flat, 0.35)[0])) == 10


# --- the repetition penalty ------------------------------------------------------------------------------


def test_the_repetition_penalty_divides_and_multiplies() -> None:
    values = torch.tensor([[2.0, -2.0, 0.0, 4.0, -torch.inf], [1.0, 1.0, 1.0, 1.0, 1.0]])
    seen = torch.tensor([[0, 1, 2, 4], [3, 3, 3, 3]])
    found = logits.with_repetition_penalty(values, seen, 2.0)
    assert found.tolist() == [[1, -4, 0, 4, -math.inf], [1, 1, 1, 0.5, 1]]
    assert values[0, 0] == 2, "the logits given were changed"
    assert logits.with_repetition_penalty(values, seen, 0.5)[0, :2].tolist() == [4, -1]
    assert torch.equal(logits.with_repetition_penalty(values, seen, 1), values)
    assert torch.equal(logits.with_repetition_penalty(values, seen[:, :0], 2.0), values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 4), (0,)])
def test_the_repetition_penalty_keeps_shape_and_format(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values = scores(*shape, 50, dtype=dtype)
    seen = torch.randint(50, (*shape, 7), generator=torch.Generator().manual_seed(0))
    found = logits.with_repetition_penalty(values, seen, 1.3)
    assert (found.shape, found.dtype) == (values.shape, dtype)
    punished = torch.zeros(values.shape, dtype=torch.bool).scatter(-1, seen, True)
    assert torch.equal(found[~punished], values[~punished])
    assert (found[punished] < values[punished]).all()


@pytest.mark.parametrize("penalty", [1.2, 0.7, 1.0, 5])
def test_transformers_agrees_on_the_repetition_penalty(penalty: float) -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    values, seen = scores(16, 503), torch.randint(503, (16, 40), generator=torch.Generator().manual_seed(1))
    theirs = processors.RepetitionPenaltyLogitsProcessor(float(penalty))(seen, values.clone())
    assert torch.equal(logits.with_repetition_penalty(values, seen, penalty), theirs)


@pytest.mark.parametrize("penalty", [0.0, -1.0, math.nan, math.inf])
def test_repetition_penalties_that_make_no_sense(penalty: float) -> None:
    message = f"The repetition penalty is {penalty}; it must be a finite number above 0 (1: no penalty)."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        logits.with_repetition_penalty(scores(2, 5), torch.zeros(2, 1, dtype=torch.int64), penalty)


@pytest.mark.parametrize(
    ("seen", "given"),
    [
        (torch.zeros(3, 1, dtype=torch.int64), "torch.int64 of shape (3, 1) on cpu"),
        (torch.zeros(2, dtype=torch.int64), "torch.int64 of shape (2,) on cpu"),
        (torch.zeros(2, 1, 1, dtype=torch.int64), "torch.int64 of shape (2, 1, 1) on cpu"),
        (torch.zeros(2, 1, dtype=torch.int32), "torch.int32 of shape (2, 1) on cpu"),
        (torch.zeros(2, 1), "torch.float32 of shape (2, 1) on cpu"),
        (torch.zeros(2, 1, dtype=torch.int64, device="meta"), "torch.int64 of shape (2, 1) on meta"),
    ],
)
def test_tokens_seen_that_do_not_fit_are_named(seen: torch.Tensor, given: str) -> None:
    expected = f"The tokens seen must be int64 of shape (2, count) on cpu, as many rows as the logits; given {given}."
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        logits.with_repetition_penalty(scores(2, 5), seen, 1.2)


@pytest.mark.parametrize("token", [-1, 5, 2**40])
def test_a_token_seen_outside_the_vocabulary(token: int) -> None:
    seen = torch.tensor([[0, 1], [2, token]])
    with pytest.raises(ValueError, match=r"^A token that was seen is outside the vocabulary of 5\.$"):
        logits.with_repetition_penalty(scores(2, 5), seen, 1.2)


# --- choosing a token ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [*LEADING, (0,), (2, 0)])
def test_one_token_a_row_for_any_leading_shape(shape: tuple[int, ...]) -> None:
    values = torch.zeros(*shape, 11)
    for found in (logits.sample(values), logits.greedy(values)):
        assert found.shape == shape
        assert found.dtype == torch.int64
    assert logits.with_temperature(values, 0.5).shape == logits.keep_top_p(values, 0.5).shape == values.shape


def test_multinomial_itself_refuses_a_third_dimension() -> None:
    with pytest.raises(RuntimeError, match="1 or 2 dim"):
        torch.multinomial(torch.softmax(scores(2, 5, 7), -1), num_samples=1)


def test_each_row_draws_from_its_own_distribution() -> None:
    certain = torch.full((3, 4, 6), -torch.inf)
    tokens = torch.arange(12).reshape(3, 4) % 6
    certain.scatter_(-1, tokens.unsqueeze(-1), 1.0)
    assert torch.equal(logits.sample(certain), tokens)


def test_a_seed_fixes_the_draws() -> None:
    values = scores(64, 100)
    first, second, third = (logits.sample(values, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.6}, {"top_k": 12}, {"temperature": 1.3, "top_p": 0.8}])
def test_draws_follow_the_distribution(settings: dict[str, float]) -> None:
    """Chi-square against the exact probabilities; a token that is excluded is never drawn."""
    draws = 200_000
    adjusted = logits.adjust(scores(50, seed=3, dtype=torch.float64) / 2, **settings)
    expected = draws * torch.softmax(adjusted, -1)
    generator = torch.Generator().manual_seed(7)
    counts = torch.bincount(logits.sample(adjusted.expand(draws, 50), generator), minlength=50).double()
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    freedom = int(possible.sum()) - 1
    assert statistic < freedom + CHI_SQUARE_LIMIT * math.sqrt(2 * freedom)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_formats_are_sampled_in_a_wider_one(dtype: torch.dtype) -> None:
    """A probability of 2**-20 has lost most of its digits in fp16."""
    found = logits.sample(torch.zeros(8, 2**20, dtype=dtype), torch.Generator().manual_seed(0))
    assert len(set(found.tolist())) == 8


# --- rows that are no distribution -----------------------------------------------------------------------

CONSUMERS = {
    "with_temperature": lambda values: logits.with_temperature(values, 0.5),
    "greedy temperature": lambda values: logits.with_temperature(values, 0),
    "keep_top_k": lambda values: logits.keep_top_k(values, 2),
    "keep_top_k off": lambda values: logits.keep_top_k(values, 0),
    "keep_top_p": lambda values: logits.keep_top_p(values, 0.5),
    "keep_top_p off": lambda values: logits.keep_top_p(values, 1),
    "keep_min_p": lambda values: logits.keep_min_p(values, 0.5),
    "keep_min_p off": lambda values: logits.keep_min_p(values, 0),
    "with_repetition_penalty": lambda values: logits.with_repetition_penalty(
        values, torch.zeros(*values.shape[:-1], 1, dtype=torch.int64), 1.2
    ),
    "adjust": logits.adjust,
    "greedy": logits.greedy,
    "sample": logits.sample,
}
every_consumer = pytest.mark.parametrize("consume", CONSUMERS.values(), ids=CONSUMERS)


@every_consumer
@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ([math.nan, 0.0, 1.0], "holds NaN"),
        ([math.nan, math.inf, 1.0], "holds NaN"),
        ([math.inf, 0.0, 1.0], r"holds \+inf"),
        ([-math.inf] * 3, "nothing but -inf"),
    ],
)
def test_a_row_that_is_no_distribution_is_refused_and_named(consume: object, bad: list[float], named: str) -> None:
    assert callable(consume)
    values = torch.zeros(2, 4, 3)
    values[1, 2] = torch.tensor(bad)
    with pytest.raises(ValueError, match=r"row \(1, 2\) of shape \(2, 4, 3\) .*" + named):
        consume(values)
    with pytest.raises(ValueError, match=r"the row of shape \(3,\) .*" + named):
        consume(torch.tensor(bad))


@every_consumer
@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (torch.tensor(1.0), "must have the shape"),
        (torch.zeros(3, 0), "must have the shape"),
        (torch.zeros(3, dtype=torch.int64), "floating-point numbers, not torch.int64"),
    ],
)
def test_a_tensor_that_holds_no_logits_is_refused(consume: object, bad: torch.Tensor, named: str) -> None:
    assert callable(consume)
    with pytest.raises(ValueError, match=named):
        consume(bad)


# --- looking inside a model ------------------------------------------------------------------------------


def test_the_lens_is_norm_and_head_at_every_layer() -> None:
    norm = torch.nn.LayerNorm(16)
    torch.nn.init.normal_(norm.weight)
    head = scores(40, 16)
    states = [scores(2, 5, 16, seed=seed) for seed in range(4)]
    found = logits.logit_lens(states, norm, head)
    assert found.shape == (4, 2, 5, 40)
    for layer, state in enumerate(states):
        expected = norm(state).double() @ head.double().T
        torch.testing.assert_close(found[layer].double(), expected, rtol=1e-4, atol=1e-4)


def test_the_lens_ends_at_the_logits_of_a_model() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=3, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    before_norm: list[torch.Tensor] = []
    for block in model.transformer.h:
        block.register_forward_hook(
            lambda _module, _inputs, out: before_norm.append(out[0] if isinstance(out, tuple) else out)
        )
    with torch.no_grad():
        expected = model(torch.arange(8).reshape(1, 8)).logits
        found = logits.logit_lens(before_norm, model.transformer.ln_f, model.lm_head.weight)
    torch.testing.assert_close(found[-1], expected)
    assert len(found) == 3
    assert not torch.allclose(found[0], expected)


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"given \(40, 16\) and \(2, 15\)"):
        logits.project(torch.zeros(2, 15), torch.zeros(40, 16))
    with pytest.raises(ValueError, match=r"given \(16,\) and \(2, 16\)"):
        logits.project(torch.zeros(2, 16), torch.zeros(16))
    with pytest.raises(ValueError, match="no hidden states"):
        logits.logit_lens([], torch.nn.Identity(), torch.zeros(40, 16))


# --- cost model ------------------------------------------------------------------------------------------


def test_the_head_costs_what_its_tensors_hold() -> None:
    hidden, head = torch.zeros(8, 16, dtype=torch.bfloat16), torch.zeros(40, 16, dtype=torch.bfloat16)
    out = logits.project(hidden, head)
    assert logits.head_bytes(8, 16, 40, 2) == hidden.nbytes + head.nbytes + out.nbytes
    assert logits.logits_bytes(8, 40, 2) == out.nbytes
    assert logits.softmax_bytes(8, 40, 2) == 2 * out.nbytes
    assert logits.head_flops(8, 16, 40) == 2 * 8 * 16 * 40


def test_one_token_does_one_operation_a_byte_in_bf16() -> None:
    assert logits.head_intensity(1, 4096, 128256, 2) == pytest.approx(1, rel=1e-3)
    assert logits.head_intensity(1, 4096, 128256, 4) == pytest.approx(0.5, rel=1e-3)


sizes = st.integers(64, 300_000)


@given(sizes, sizes, st.sampled_from([1, 2, 4]), st.floats(1, 2000))
def test_the_turning_point_lies_where_the_intensity_meets_the_ridge(
    hidden: int, vocab: int, element_size: int, ridge: float
) -> None:
    turn = logits.head_turning_point(hidden, vocab, element_size, ridge)
    if math.isinf(turn):
        assert logits.head_intensity(10**12, hidden, vocab, element_size) <= ridge * (1 + 1e-6)
    else:
        assert logits.head_intensity(math.ceil(turn), hidden, vocab, element_size) >= ridge * (1 - 1e-9)
        if turn > 1:
            assert logits.head_intensity(math.ceil(turn) - 1, hidden, vocab, element_size) <= ridge * (1 + 1e-9)


def test_the_turning_points_of_two_heads_on_an_h100_by_its_datasheet() -> None:
    """Worked by hand from 989.4 TFLOP/s and 3.35 TB/s: the ridge is 295 FLOP/B."""
    ridge = roofline.ridge(989.4e12, 3.35e12)
    assert logits.head_turning_point(768, 50304, 2, ridge) == pytest.approx(484, abs=2)
    assert logits.head_turning_point(4096, 128256, 2, ridge) == pytest.approx(319, abs=2)
    assert logits.head_turning_point(256, 32768, 2, ridge) == math.inf

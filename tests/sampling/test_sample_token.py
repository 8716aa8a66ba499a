"""What is promised of a draw wherever it is made: its distribution, what it depends on, and bad input.

On a GPU the same is asked of the kernels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
import torch

from gpuguide import logits as distributions
from gpuguide.sampling import NO_TOKEN, sample_bytes, sample_token

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
DRAWS, SEEDS = 2**20, 2**14
SETTINGS = [
    {},
    {"temperature": 0.8, "top_k": 10, "top_p": 0.9},
    {"top_p": 0.7},
    {"min_p": 0.05},
    {"top_p": 0.7, "min_p": 0.02},
]
VOCAB = 16
WANTED_SHAPE = "Logits must have the shape (..., vocab_size), with a token or more"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Many small operations: threads would wait for one another most of the time where other tests run beside them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def shares(settings: dict[str, float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits of one row, and the exact probabilities after the settings."""
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(5))
    return row, torch.softmax(distributions.adjust(row.double(), **settings), dim=-1)  # type: ignore[arg-type]


def p_value(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the p-value of Pearson's chi-square test."""
    statistic = ((counts - expected).square() / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2).double(), statistic / 2))


@on_each_device
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_million_draws_follow_the_exact_distribution(device: str, settings: dict[str, float]) -> None:
    """Many seeds, and several steps of each."""
    row, exact = shares(settings)
    rows, seeds = row.to(device).expand(SEEDS, VOCAB), torch.arange(SEEDS, device=device)
    counts = torch.zeros(VOCAB, dtype=torch.int64)
    for step in range(DRAWS // SEEDS):
        drawn = sample_token(rows, seeds, step=step, **settings)  # type: ignore[arg-type]
        counts += torch.bincount(drawn, minlength=VOCAB).cpu()
    assert not counts[exact == 0].any(), "a token was drawn that is not kept"
    assert p_value(counts[exact > 0].double(), DRAWS * exact[exact > 0]) > 1e-3
    assert float((counts / DRAWS - exact).abs().sum() / 2) < 3e-3


@on_each_device
def test_one_draw_says_nothing_about_the_next(device: str) -> None:
    """Pairs of draws with neighbouring steps, and with neighbouring seeds, against the product of their chances."""
    row, exact = shares({})
    rows, seeds = row.to(device).expand(2**16, VOCAB), torch.arange(2**16, device=device)
    first, second = (sample_token(rows, seeds, step=step).cpu() for step in (0, 1))
    likely = exact > 0.02  # every pair of them is expected 26 times or more
    for one, other in ((first, second), (first[:-1], first[1:])):
        pairs = torch.bincount(one * VOCAB + other, minlength=VOCAB**2).reshape(VOCAB, VOCAB).double()
        among = pairs[likely][:, likely].flatten()
        expected = (exact[likely].unsqueeze(1) * exact[likely]).flatten()
        assert len(among) >= 25
        assert p_value(among, expected * (among.sum() / expected.sum())) > 1e-3


@on_each_device
@pytest.mark.parametrize("settings", [*SETTINGS, {"temperature": 0.0}])
def test_a_token_depends_on_its_row_seed_and_step_alone(device: str, settings: dict[str, float]) -> None:
    rows = torch.randn(7, 999, generator=torch.Generator().manual_seed(0)).to(device)
    seeds = torch.tensor([5, 4, 3, 2, -1, 2**40, -(2**63)], device=device)
    together = sample_token(rows, seeds, step=9, **settings)  # type: ignore[arg-type]
    assert together.shape == (7,)
    assert together.dtype == torch.int64
    order = torch.tensor([3, 6, 0, 5, 1, 4, 2], device=device)
    assert torch.equal(sample_token(rows[order], seeds[order], step=9, **settings), together[order])  # type: ignore[arg-type]
    for row in range(7):
        alone = sample_token(rows[row], seeds[row], step=9, **settings)  # type: ignore[arg-type]
        assert alone.shape == ()
        assert alone == together[row]


@on_each_device
def test_leading_shapes(device: str) -> None:
    rows = torch.randn(4, 3, 5, 50, generator=torch.Generator().manual_seed(0)).to(device)
    seeds = torch.arange(60, device=device).reshape(4, 3, 5)
    flat = sample_token(rows.reshape(60, 50), seeds.reshape(60), top_k=9)
    assert torch.equal(sample_token(rows, seeds, top_k=9), flat.reshape(4, 3, 5))
    swapped = sample_token(rows.transpose(0, 2), seeds.transpose(0, 2), top_k=9)
    assert torch.equal(swapped, flat.reshape(4, 3, 5).transpose(0, 2))


@on_each_device
def test_other_seeds_and_other_steps_draw_other_tokens(device: str) -> None:
    rows, seeds = torch.zeros(64, 1000, device=device), torch.arange(64, device=device)
    first = sample_token(rows, seeds)
    assert torch.equal(sample_token(rows, seeds), first)
    assert len(set(first.tolist())) > 50
    for other in (sample_token(rows, seeds, step=1), sample_token(rows, seeds + 2**32), sample_token(rows, seeds + 64)):
        assert int((other == first).sum()) < 5
    assert not torch.equal(sample_token(rows, seeds, step=2**32), first)


@on_each_device
def test_the_step_as_number_and_as_tensor(device: str) -> None:
    rows, seeds = torch.zeros(16, 1000, device=device), torch.arange(16, device=device)
    for step in (0, 1, 2**33 + 5):
        expected = sample_token(rows, seeds, step=step)
        for given in (torch.tensor(step), torch.tensor(step, device=device), torch.tensor([step], device=device)):
            assert torch.equal(sample_token(rows, seeds, step=given), expected)


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_format_draws_from_its_own_numbers(device: str, dtype: torch.dtype) -> None:
    rows = torch.randn(20, 500, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    seeds = torch.arange(20, device=device)
    found = sample_token(rows, seeds, top_k=40, top_p=0.9)
    assert torch.equal(found, sample_token(rows.double(), seeds, top_k=40, top_p=0.9))


@on_each_device
@pytest.mark.parametrize("k", [0, 30, 31, 10**12])
def test_a_top_k_of_nothing_or_of_everything_keeps_every_token(device: str, k: int) -> None:
    rows, seeds = torch.zeros(2000, 30, device=device), torch.arange(2000, device=device)
    found = sample_token(rows, seeds, top_k=k)
    assert torch.equal(found, sample_token(rows, seeds))
    assert len(set(found.tolist())) == 30


@on_each_device
@pytest.mark.parametrize("settings", [{}, {"top_k": 5}, {"top_p": 0.9}, {"top_k": 5, "min_p": 0.1}])
@pytest.mark.parametrize("temperature", [1e-30, 1e-39, 1e-45, 1e-300, 5e-324])
def test_no_temperature_is_too_low(device: str, temperature: float, settings: dict[str, float]) -> None:
    rows = torch.randn(3, 300, generator=torch.Generator().manual_seed(2)).to(device)
    found = sample_token(rows, torch.arange(3, device=device), temperature=temperature, **settings)  # type: ignore[arg-type]
    assert torch.equal(found, rows.argmax(dim=-1))


@on_each_device
@pytest.mark.parametrize("settings", [*SETTINGS, {"temperature": 0.0}])
def test_rows_that_are_no_distribution_have_no_token(device: str, settings: dict[str, float]) -> None:
    rows = torch.zeros(2, 3, 200, device=device)
    rows[0, 0, 3], rows[0, 1, 150], rows[0, 2] = math.nan, math.inf, -math.inf
    rows[1, 0, :7], rows[1, 0, 8:] = -math.inf, -math.inf
    found = sample_token(rows, torch.zeros(2, 3, dtype=torch.int64, device=device), **settings)  # type: ignore[arg-type]
    assert found[0].tolist() == [NO_TOKEN] * 3
    assert found[1, 0] == 7
    assert 0 <= int(found[1, 1]) < 200


@on_each_device
@pytest.mark.parametrize("settings", [*SETTINGS, {"temperature": 0.0}])
def test_an_empty_batch_has_no_tokens(device: str, settings: dict[str, float]) -> None:
    for shape in ((0,), (3, 0)):
        seeds = torch.empty(shape, dtype=torch.int64, device=device)
        found = sample_token(torch.empty(*shape, 9, device=device), seeds, **settings)  # type: ignore[arg-type]
        assert found.shape == shape
        assert found.dtype == torch.int64


@on_each_device
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "The temperature is -1.0; it must be a finite number, zero (greedy) or above."),
        ({"temperature": math.nan}, "The temperature is nan; it must be a finite number, zero (greedy) or above."),
        ({"temperature": math.inf}, "The temperature is inf; it must be a finite number, zero (greedy) or above."),
        ({"top_k": -1}, "top-k is -1; it must be an integer, zero (keep every token) or above."),
        ({"top_k": 2.0}, "top-k is 2.0; it must be an integer, zero (keep every token) or above."),
        ({"top_k": True}, "top-k is True; it must be an integer, zero (keep every token) or above."),
        ({"top_p": 0.0}, "top-p is 0.0; it must lie above 0 and be at most 1 (keep every token)."),
        ({"top_p": 1.5}, "top-p is 1.5; it must lie above 0 and be at most 1 (keep every token)."),
        ({"top_p": math.nan}, "top-p is nan; it must lie above 0 and be at most 1 (keep every token)."),
        ({"min_p": -0.1}, "min-p is -0.1; it must lie between 0 (keep every token) and 1."),
        ({"min_p": 1.1}, "min-p is 1.1; it must lie between 0 (keep every token) and 1."),
    ],
)
def test_settings_out_of_range_are_named(device: str, settings: dict[str, float], message: str) -> None:
    """Even where a temperature of zero makes the others not matter."""
    rows, seeds = torch.zeros(2, 3, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    for given in (settings, {"temperature": 0.0} | settings):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            sample_token(rows, seeds, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seeds", "given"),
    [
        (torch.zeros(3, dtype=torch.int64), "torch.int64 of shape (3,) on cpu"),
        (torch.zeros(2, 1, dtype=torch.int64), "torch.int64 of shape (2, 1) on cpu"),
        (torch.tensor(0), "torch.int64 of shape () on cpu"),
        (torch.zeros(2, dtype=torch.int32), "torch.int32 of shape (2,) on cpu"),
        (torch.zeros(2), "torch.float32 of shape (2,) on cpu"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), "torch.int64 of shape (2,) on meta"),
    ],
)
def test_seeds_that_do_not_fit_are_named(seeds: torch.Tensor, given: str) -> None:
    expected = f"Seeds must be int64 of shape (2,) on cpu, one for each row of logits; given {given}."
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        sample_token(torch.zeros(2, 3), seeds)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.zeros(2, 0), f"{WANTED_SHAPE}; not torch.Size([2, 0])."),
        (torch.tensor(1.0), f"{WANTED_SHAPE}; not torch.Size([])."),
        (torch.zeros(2, 3, dtype=torch.int64), "Logits must be floating-point numbers, not torch.int64."),
    ],
)
def test_tensors_that_hold_no_logits_are_named(rows: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        sample_token(rows, torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("step", "given"),
    [
        (torch.arange(3), "torch.int64 of shape (3,)"),
        (torch.arange(2), "torch.int64 of shape (2,)"),
        (torch.tensor([], dtype=torch.int64), "torch.int64 of shape (0,)"),
        (torch.tensor(1.5), "torch.float32 of shape ()"),
        (1.5, "1.5"),
        (True, "True"),
    ],
)
def test_a_step_that_is_not_one_integer_is_named(step: torch.Tensor | float, given: str, temperature: float) -> None:
    """Several would be taken for one step a token, and a fraction would be dropped."""
    message = f"The step must be an integer, or an int64 tensor with one element; given {given}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        sample_token(torch.zeros(2, 3), torch.arange(2), step=step, temperature=temperature)  # type: ignore[arg-type]


def test_logits_that_want_a_gradient_can_be_drawn_from() -> None:
    rows, seeds = torch.randn(4, 9), torch.arange(4)
    assert torch.equal(sample_token(rows.clone().requires_grad_(), seeds, top_k=3), sample_token(rows, seeds, top_k=3))


def test_the_fewest_bytes() -> None:
    assert sample_bytes(8, 1000, 4) == torch.zeros(8, 1000).nbytes

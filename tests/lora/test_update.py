from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.errors import GpuguideError
from gpuguide.lora import update


def matrix(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_updates_are_those_of_matrices_that_changed() -> None:
    before = {"a": matrix(3, 4), "b": matrix(3, 4, 1), "bias": torch.zeros(4)}
    after = {"a": before["a"] + 1, "b": before["b"].clone(), "bias": torch.ones(4)}
    found = update.updates(before, after)
    assert list(found) == ["a"]
    assert torch.allclose(found["a"], torch.ones(3, 4, dtype=torch.float64))


@pytest.mark.parametrize("after", [{"a": torch.zeros(2, 2)}, {"b": torch.zeros(3, 3)}])
def test_weights_of_another_model_are_refused(after: dict[str, torch.Tensor]) -> None:
    with pytest.raises(GpuguideError, match="not those of one model"):
        update.updates({"a": torch.zeros(3, 3)}, after)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12), st.integers(0, 99))
def test_the_cut_matrix_has_the_rank_and_the_least_distance(rows: int, columns: int, rank: int, seed: int) -> None:
    whole = matrix(rows, columns, seed)
    found = update.cut(whole.float(), rank)
    values = np.linalg.svd(whole.float().double().numpy(), compute_uv=False)
    assert np.linalg.matrix_rank(found.numpy()) == min(rank, rows, columns)
    rest = float((whole.float().double() - found).norm())
    assert rest == pytest.approx(float(np.sqrt((values[rank:] ** 2).sum())), abs=1e-9)
    np.testing.assert_allclose(update.singular_values(whole.float()).numpy(), values, rtol=1e-9)


@given(st.integers(1, 9), st.integers(1, 9), st.floats(0.01, 1.0), st.integers(0, 99))
def test_the_rank_for_a_share_is_the_least_one(rows: int, columns: int, share: float, seed: int) -> None:
    squares = update.singular_values(matrix(rows, columns, seed)).square()
    rank = update.rank_for(squares.sqrt(), share)
    assert float(squares[:rank].sum() / squares.sum()) >= share - 1e-9
    assert rank == 1 or float(squares[: rank - 1].sum() / squares.sum()) < share


@pytest.mark.parametrize(("values", "share"), [([1.0], 0.0), ([1.0], 1.5), ([0.0, 0.0], 0.5)])
def test_no_share_of_nothing(values: list[float], share: float) -> None:
    with pytest.raises(GpuguideError, match="A share between 0 and 1"):
        update.rank_for(torch.tensor(values), share)
    with pytest.raises(GpuguideError, match="at least 1"):
        update.cut(matrix(2, 2), 0)

"""Softmax and log-sum-exp on each device: shapes, edge values, and bad input."""

from __future__ import annotations

import re

import pytest
import torch

from gpuguide.logits import fused_log_sum_exp, fused_softmax, log_sum_exp_bytes

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
each = pytest.mark.parametrize("function", [fused_softmax, fused_log_sum_exp], ids=["softmax", "log_sum_exp"])
WANTED_SHAPE = "Logits must have the shape (..., vocab_size), with a token or more"


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7,), (3, 1003), (2, 1, 50)])
def test_the_format_and_shape(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    wide = torch.promote_types(dtype, torch.float32)
    found, total = fused_softmax(rows), fused_log_sum_exp(rows)
    assert (found.dtype, found.shape) == (dtype, rows.shape)
    assert (total.dtype, total.shape) == (wide, rows.shape[:-1])
    torch.testing.assert_close(found, torch.softmax(rows.double(), dim=-1).to(dtype), rtol=2e-2, atol=1e-6)
    torch.testing.assert_close(total, torch.logsumexp(rows.double(), dim=-1).to(wide), rtol=1e-6, atol=1e-6)


@on_each_device
def test_rows_that_are_no_distribution(device: str) -> None:
    inf = torch.inf
    rows = torch.tensor([[torch.nan, 0.0], [inf, 0.0], [inf, inf], [-inf, -inf], [-inf, 2.0]], device=device)
    assert fused_softmax(rows)[:4].isnan().all()
    assert fused_softmax(rows)[4].tolist() == [0, 1]
    assert fused_log_sum_exp(rows).tolist() == pytest.approx([torch.nan, inf, inf, -inf, 2.0], nan_ok=True)


@on_each_device
@each
def test_an_empty_batch(device: str, function: object) -> None:
    assert callable(function)
    for shape in ((0, 5), (2, 0, 5)):
        rows = torch.empty(shape, device=device)
        assert function(rows).shape == (rows.shape if function is fused_softmax else rows.shape[:-1])


@each
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.zeros(2, 0), f"{WANTED_SHAPE}; not torch.Size([2, 0])."),
        (torch.tensor(1.0), f"{WANTED_SHAPE}; not torch.Size([])."),
        (torch.zeros(2, 3, dtype=torch.int64), "Logits must be floating-point numbers, not torch.int64."),
        (torch.zeros(2, 3, dtype=torch.bool), "Logits must be floating-point numbers, not torch.bool."),
    ],
)
def test_tensors_that_hold_no_logits_are_named(function: object, rows: torch.Tensor, message: str) -> None:
    assert callable(function)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        function(rows)


def test_the_fewest_bytes() -> None:
    rows = torch.zeros(8, 1000, dtype=torch.bfloat16)
    assert log_sum_exp_bytes(8, 1000, 2) == rows.nbytes + torch.zeros(8, dtype=torch.float32).nbytes

"""Drawings of mixed precision: they round as torch does, and show the formats that autocast gives."""

from __future__ import annotations

import pytest
import torch
from figure_rows import rows_of

from gpuguide.plotting.pictures import mixed_precision


@pytest.mark.parametrize("value", [1.003, 0.997, 1.0078, 0.5, 3.14159, -2.71828])
def test_rounding_is_that_of_torch(value: float) -> None:
    assert mixed_precision.round_to_format(value, "bf16") == float(torch.tensor(value).bfloat16())


def test_only_the_update_downwards_moves_the_weight() -> None:
    stored = {
        float(row["update"]): float(row["stored_bf16"]) for row in rows_of(mixed_precision.update_that_rounds_away())
    }
    weight = torch.tensor(mixed_precision.WEIGHT, dtype=torch.bfloat16)
    for update, kept in stored.items():
        assert kept == pytest.approx(float(weight + update), rel=1e-5)
    assert sorted(kept == mixed_precision.WEIGHT for kept in stored.values()) == [False, True]


def test_matmuls_have_16_bits_and_gradients_of_weights_32_under_autocast() -> None:
    formats = {row["part"]: row["format"] for row in rows_of(mixed_precision.formats_in_a_step())}
    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(torch.ones(2, 4))
    output.float().sum().backward()
    assert layer.weight.grad is not None
    assert (formats["weights"], layer.weight.dtype) == ("fp32", torch.float32)
    assert (formats["matmuls"], output.dtype) == ("16 bits", torch.bfloat16)
    assert (formats["gradients of weights"], layer.weight.grad.dtype) == ("fp32", torch.float32)

"""Drawings of where a loss's time goes: their bytes are those that the losses move, and no measurement beats them."""

from __future__ import annotations

import pytest
from figure_rows import rows_of

from gpuguide.measure import measured_ceilings
from gpuguide.plotting.pictures import loss_time
from gpuguide.plotting.pictures.losses import SHAPE


def test_each_loss_takes_at_least_its_three_matmuls() -> None:
    rows = rows_of(loss_time.passes_over_the_logits())
    tokens, hidden, vocab = SHAPE.values()
    matmul = 2 * tokens * hidden * vocab / measured_ceilings.load_reference().arithmetic["bf16"].value
    for name in loss_time.METHODS:
        mine = [row for row in rows if row["loss"] == name]
        predicted = sum(float(row["predicted_s"]) for row in mine)
        assert predicted >= 3 * matmul * (1 - 1e-4)
        assert predicted < float(mine[0]["measured_whole_s"])


def test_the_compiled_loss_moves_six_bytes_and_liger_four() -> None:
    moved = {name: sum(size for _, size in steps) for name, (_, steps) in loss_time.METHODS.items()}
    assert moved == pytest.approx({"gpuguide": 0, "liger": 4, "torch-compile": 6})

"""Drawings of losses: their numbers are those of the records and of arithmetic."""

from __future__ import annotations

import pytest
from figure_rows import rows_of

from gpuguide.measure import store
from gpuguide.plotting.pictures import losses


def test_each_halving_of_a_probability_costs_a_bit() -> None:
    shown = losses.surprise_of_a_token(["a", " b", "c"], [0.5, 0.25, 0.125], " b", "a")
    assert [float(row["bits"]) for row in rows_of(shown)] == [1, 2, 3]
    assert [row["token"] for row in rows_of(shown)] == ["a", "␣b", "c"]


def test_the_gradient_is_what_was_said_less_what_came() -> None:
    rows = rows_of(losses.gradient_of_the_loss(["a", "b"], [0.75, 0.25], "b"))
    assert [float(row["gradient"]) for row in rows] == [0.75, -0.75]


def test_each_target_is_the_next_input() -> None:
    rows = rows_of(losses.targets_shifted_by_one(["a", "b", "c"]))
    assert [(row["input"], row["target"]) for row in rows] == [("a", "b"), ("b", "c")]


def test_the_tensors_of_the_usual_way_make_up_the_measured_memory() -> None:
    held = [
        sum(high for _, first, last, high, _ in losses.TENSORS if first <= step < last) for step in range(losses.STEPS)
    ]
    assert max(held) == 12, "bytes a logit: three tensors in fp32"
    tokens, hidden, vocab = losses.SHAPE.values()
    later = 2 * (tokens + vocab) * hidden  # gradients of hidden states and head, which are left out and come later
    record = store.load_published("linear-cross-entropy")
    peak = record.case("torch-eager", **losses.SHAPE).metrics["peak_memory"].summary.median
    assert peak == pytest.approx(12 * tokens * vocab - later, rel=2e-3)
    rows = rows_of(losses.memory_of_a_loss())
    assert float(rows[0]["extra_memory_B"]) == pytest.approx(peak, rel=1e-5)

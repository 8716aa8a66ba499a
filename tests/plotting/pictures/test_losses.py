"""Drawings of losses: all renditions can be read, and their numbers are those of the records and of arithmetic."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest

from gpuguide import plotting
from gpuguide.measure import store
from gpuguide.plotting import text_boxes
from gpuguide.plotting.pictures import losses

PICTURES = (
    plotting.surprise_of_a_token,
    plotting.gradient_of_the_loss,
    plotting.targets_shifted_by_one,
    plotting.loss_in_chunks,
    plotting.memory_of_a_loss,
)


@pytest.fixture(autouse=True)
def site_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")
    monkeypatch.setenv("GPUGUIDE_RECORDS", "")


def table(shown: plotting.Figure) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(shown.csv)))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.__name__)
def test_a_drawing_has_all_renditions_and_a_name(picture: Callable[[], plotting.Figure]) -> None:
    shown = picture()
    assert shown.svg is not None
    assert set(shown.svg) == {"light", "dark", "light-narrow", "dark-narrow"}
    assert shown.name == picture.__name__.replace("_", "-")
    assert table(shown)
    assert text_boxes.too_small(shown.svg["light-narrow"]) == []
    assert max(map(len, shown.svg.values())) < 25_000


def test_each_halving_of_a_probability_costs_a_bit() -> None:
    shown = plotting.surprise_of_a_token(["a", " b", "c"], [0.5, 0.25, 0.125], " b", "a")
    assert [float(row["bits"]) for row in table(shown)] == [1, 2, 3]
    assert [row["token"] for row in table(shown)] == ["a", "␣b", "c"]


def test_the_gradient_is_what_was_said_less_what_came() -> None:
    rows = table(plotting.gradient_of_the_loss(["a", "b"], [0.75, 0.25], "b"))
    assert [float(row["gradient"]) for row in rows] == [0.75, -0.75]


def test_each_target_is_the_next_input() -> None:
    rows = table(plotting.targets_shifted_by_one(["a", "b", "c"]))
    assert [(row["input"], row["target"]) for row in rows] == [("a", "b"), ("b", "c")]


def test_the_tensors_of_the_usual_way_make_up_the_measured_memory() -> None:
    held = [
        sum(high for _, first, last, high, _ in losses.TENSORS if first <= step < last) for step in range(losses.STEPS)
    ]
    assert max(held) == 12, "bytes a logit: three tensors in fp32"
    tokens, hidden, vocab = losses.SHAPE.values()
    later = 2 * (tokens + vocab) * hidden  # gradients of hidden states and head, which are left out and come later
    record = store.published("linear-cross-entropy")
    peak = record.case("torch-eager", **losses.SHAPE).metrics["peak_memory"].summary.median
    assert peak == pytest.approx(12 * tokens * vocab - later, rel=2e-3)
    rows = table(plotting.memory_of_a_loss())
    assert float(rows[0]["extra_memory_B"]) == pytest.approx(peak, rel=1e-5)

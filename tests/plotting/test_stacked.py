"""Bars of time by part: to scale, with their totals, on both widths."""

from __future__ import annotations

import re

import pytest

from gpuguide import plotting
from gpuguide.errors import GpuguideError
from gpuguide.plotting import text_boxes

BARS = {"slow": {"matmuls": 0.03, "rest": 0.03}, "fast": {"matmuls": 0.03, "rest": 0.0}}


def shown(bars: dict[str, dict[str, float]], monkeypatch: pytest.MonkeyPatch) -> plotting.Figure:
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")
    return plotting.show(
        lambda figure, theme: plotting.stacked_times(figure, bars, bound="fast"),
        alt="Bars.", caption="Bars.", size=(7.2, 2.0), rows=plotting.rows_of_bars(bars),
    )  # fmt: skip


def test_bars_are_to_scale_and_bear_their_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = shown(BARS, monkeypatch)
    assert figure.svg is not None
    texts = {box.text: box for box in text_boxes.text_boxes(figure.svg["light"])}
    left = texts["slow"].left
    assert (texts["60.0 ms"].left - left) / (texts["30.0 ms"].left - left) == pytest.approx(2, abs=0.06)
    assert {"matmuls", "rest", "slow", "fast"} <= set(texts)
    assert len(re.findall("stroke-dasharray", figure.svg["light"])) == 1, "the bound, whose second part is nothing"
    assert text_boxes.too_small(figure.svg["light-narrow"]) == []


@pytest.mark.parametrize(
    ("bars", "named"),
    [
        ({"one": {"a": 1.0}, "other": {"b": 1.0}}, "same parts"),
        ({"one": {str(number): 1.0 for number in range(9)}}, "9"),
    ],
)
def test_bars_that_cannot_be_drawn_are_refused(
    bars: dict[str, dict[str, float]], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GpuguideError, match=named):
        shown(bars, monkeypatch)

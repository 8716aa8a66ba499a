"""The small drawings of the landing page: in both schemes, readable on a phone and in a third of the page."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuguide.plotting import palette, text_boxes, ways_in


@pytest.mark.parametrize("way", [ways_in.learn, ways_in.decide, ways_in.measure])
def test_a_way_in_is_drawn_in_both_schemes_and_can_be_read(way: Callable[[], ways_in.SmallDrawing]) -> None:
    drawing = way()
    assert set(drawing.svg) == {"light", "dark"}
    assert palette.LIGHT.series["blue"] in drawing.svg["light"]
    assert palette.DARK.series["blue"] in drawing.svg["dark"]
    assert drawing.alt.endswith(".")
    for svg in drawing.svg.values():
        assert text_boxes.cut_off(svg) == []
        assert text_boxes.too_small(svg, screen=270) == []
        assert len(svg) < 12_000

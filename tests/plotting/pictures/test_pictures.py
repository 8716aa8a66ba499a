"""What holds for every drawing: it is called without arguments, and all its renditions can be read."""

from __future__ import annotations

import pytest
from figure_rows import drawings, rows_of

from gpuguide.plotting import text_boxes


@pytest.mark.parametrize("name", drawings())
def test_a_drawing_has_all_renditions_a_name_and_a_table(name: str) -> None:
    shown = drawings()[name]()
    assert shown.svg is not None
    assert set(shown.svg) == {"light", "dark", "light-narrow", "dark-narrow"}
    assert shown.name == name.replace("_", "-")
    assert rows_of(shown)
    assert text_boxes.too_small(shown.svg["light-narrow"]) == []
    assert max(map(len, shown.svg.values())) < 25_000

"""The drawing of a block names what the library's forward pass by hand keeps."""

from __future__ import annotations

from figure_rows import rows_of

from gpuguide.gradients import by_hand
from gpuguide.plotting.pictures import gradients as pictures


def test_additions_keep_nothing_and_all_else_is_kept() -> None:
    rows = rows_of(pictures.forward_and_backward())
    assert [row["part"] for row in rows if not row["keeps"]] == ["+", "+"]
    named = [name for row in rows for name in row["keeps"].replace(" and ", ", ").split(", ") if name]
    assert len(named) == len(by_hand.Kept._fields)

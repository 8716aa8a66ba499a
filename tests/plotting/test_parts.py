"""Lying bars: they stand one after another or beside each other, and a reader's own rows come last."""

from __future__ import annotations

import math

import pytest
from figure_rows import rows_of
from matplotlib.figure import Figure as Canvas

from gpuguide import plotting
from gpuguide.measure import store
from gpuguide.measure.records import Record
from gpuguide.plotting import parts
from gpuguide.plotting.palette import Theme

ROWS = {"one": (1.0, 2.0), "two": (3.0, math.nan)}
PARTS = {"first": "blue", "second": "orange"}


@pytest.fixture(autouse=True)
def site_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")
    monkeypatch.setenv("GPUGUIDE_RECORDS", "")


def test_parts_of_a_stack_follow_each_other_and_their_data_are_sizes() -> None:
    ends = []

    def draw(figure: Canvas, theme: Theme) -> None:
        ax = figure.subplots()
        parts.stacked_bars(ax, {"one": (1.0, 2.0), "two": (3.0, 4.0)}, PARTS, unit="s", label="time")
        plotting.legend(ax)
        ends.extend([bar.get_x() + bar.get_width() for stack in ax.containers for bar in stack.patches])

    rows = rows_of(plotting.show(draw, alt="A.", caption="B."))
    assert ends[:4] == [1, 3, 3, 7]
    sizes = {(row["series"], row["y"]): float(row["x"]) for row in rows}
    assert sizes == {("first", "one"): 1, ("first", "two"): 3, ("second", "one"): 2, ("second", "two"): 4}


def test_what_was_not_measured_has_no_bar_and_no_number() -> None:
    def draw(figure: Canvas, theme: Theme) -> None:
        parts.grouped_bars(figure.subplots(), ROWS, PARTS, unit="1", label="share")

    shown = plotting.show(draw, alt="A.", caption="B.")
    assert shown.svg is not None
    assert "nan" not in shown.svg["light"]
    assert all(number in shown.svg["light"] for number in ("1.00", "2.00", "3.00"))


def test_bytes_have_ticks_at_powers_of_two() -> None:
    ax = Canvas().subplots()
    parts.stacked_bars(ax, {"one": [5 * 2.0**30]}, {"size": "blue"}, unit="B", label="memory")
    assert [each for each in ax.get_xticks() if 0 < each < 5 * 2**30] == [2.0**31, 2.0**32]


def test_rows_of_a_published_record_keep_their_names() -> None:
    published = store.load_published("ceilings")

    def rates(record: Record) -> dict[str, list[float]]:
        return {"copy": [record.device_name == published.device_name]}

    assert parts.collect_rows(published, rates) == {"copy": [True]}

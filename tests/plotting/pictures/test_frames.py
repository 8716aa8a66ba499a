"""Drawings of dataframes: their numbers are those of the records, and what they show is what a GPU would do."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable

import pytest

from gpuguide import plotting
from gpuguide.dataframes import transfer
from gpuguide.measure import store
from gpuguide.plotting import text_boxes
from gpuguide.plotting.pictures import frames

PICTURES = (
    plotting.frame_to_the_gpu,
    plotting.group_by_in_a_table,
    plotting.join_in_two_steps,
    plotting.radix_sort_passes,
    plotting.ring_of_buffers,
)


@pytest.fixture(autouse=True)
def site_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")
    monkeypatch.setenv("GPUGUIDE_RECORDS", "")


def table(shown: plotting.Figure) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(shown.csv)))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.__name__)
def test_a_drawing_has_all_renditions_a_name_and_a_table(picture: Callable[[], plotting.Figure]) -> None:
    shown = picture()
    assert shown.svg is not None
    assert set(shown.svg) == {"light", "dark", "light-narrow", "dark-narrow"}
    assert shown.name == picture.__name__.replace("_", "-")
    assert shown.csv
    assert text_boxes.too_small(shown.svg["light-narrow"]) == []


def test_the_parts_of_a_journey_are_the_measured_whole() -> None:
    record = store.published("dataframe")
    for row, operation in zip(table(plotting.frame_to_the_gpu()), frames.OPERATIONS, strict=True):
        keys = {"op": operation, "rows": frames.ROWS}
        whole = record.median("cudf", "time", transfer="in-out", **keys)
        assert sum(float(row[part]) for part in ("there_s", "work_s", "back_s")) == pytest.approx(whole, rel=1e-4)
        fastest = min(record.median(name, "time", transfer="none", **keys) for name in frames.HOSTS)
        assert float(row["host_s"]) == pytest.approx(fastest, rel=1e-5)


def test_a_group_by_adds_up_what_its_rows_hold() -> None:
    rows = table(plotting.group_by_in_a_table())
    assert sum(int(row["sum"]) for row in rows) == sum(frames.VALUES)
    assert all(frames.KEYS[int(row["row"])] == row["key"] for row in rows)
    assert all(int(row["slot"]) < 2 * len(frames.KEYS) for row in rows)


def test_a_join_leaves_each_row_room_for_its_partners() -> None:
    rows = table(plotting.join_in_two_steps())
    for row, after in itertools.pairwise(rows):
        assert frames.RIGHT.count(row["key"]) == int(row["partners"])
        assert int(row["first_pair"]) + int(row["partners"]) == int(after["first_pair"])


def test_the_last_pass_leaves_numbers_in_order() -> None:
    numbers = table(plotting.radix_sort_passes())[-1]["numbers"].split()
    assert numbers == sorted(frames.NUMBERS)


def test_the_pieces_of_the_ring_take_most_of_the_copy() -> None:
    fetch, pageable, all_fetches, whole = (float(row["time_s"]) for row in table(plotting.ring_of_buffers()))
    link = store.published("ceilings").median("h2d-pinned", "bandwidth")
    assert frames.PIECE == transfer.PIECE
    assert fetch == pytest.approx(transfer.PIECE / link, rel=1e-5)
    assert fetch < pageable < all_fetches < whole
    assert whole == pytest.approx(
        store.published("frame-transfer").median("gpuguide-staged", "time", rows=frames.ROWS), rel=1e-5
    )

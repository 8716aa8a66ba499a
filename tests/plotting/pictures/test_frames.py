"""Drawings of dataframes: their numbers are those of the records, and what they show is what a GPU would do."""

from __future__ import annotations

import itertools

import pytest
from figure_rows import rows_of

from gpuguide.dataframes import transfer
from gpuguide.measure import store
from gpuguide.plotting.pictures import frames


def test_the_parts_of_a_journey_are_the_measured_whole() -> None:
    record = store.load_published("dataframe")
    for row, operation in zip(rows_of(frames.frame_to_the_gpu()), frames.OPERATIONS, strict=True):
        keys = {"op": operation, "rows": frames.ROWS}
        whole = record.median("cudf", "time", transfer="in-out", **keys)
        assert sum(float(row[part]) for part in ("there_s", "work_s", "back_s")) == pytest.approx(whole, rel=1e-4)
        fastest = min(record.median(name, "time", transfer="none", **keys) for name in frames.HOSTS)
        assert float(row["host_s"]) == pytest.approx(fastest, rel=1e-5)


def test_a_group_by_adds_up_what_its_rows_hold() -> None:
    rows = rows_of(frames.group_by_in_a_table())
    assert sum(int(row["sum"]) for row in rows) == sum(frames.VALUES)
    assert all(frames.KEYS[int(row["row"])] == row["key"] for row in rows)
    assert all(int(row["slot"]) < 2 * len(frames.KEYS) for row in rows)


def test_a_join_leaves_each_row_room_for_its_partners() -> None:
    rows = rows_of(frames.join_in_two_steps())
    for row, after in itertools.pairwise(rows):
        assert frames.RIGHT.count(row["key"]) == int(row["partners"])
        assert int(row["first_pair"]) + int(row["partners"]) == int(after["first_pair"])


def test_the_last_pass_leaves_numbers_in_order() -> None:
    numbers = rows_of(frames.radix_sort_passes())[-1]["numbers"].split()
    assert numbers == sorted(frames.NUMBERS)


def test_the_pieces_of_the_ring_take_most_of_the_copy() -> None:
    fetch, pageable, all_fetches, whole = (float(row["time_s"]) for row in rows_of(frames.ring_of_buffers()))
    link = store.load_published("ceilings").median("h2d-pinned", "bandwidth")
    assert frames.PIECE == transfer.PIECE
    assert fetch == pytest.approx(transfer.PIECE / link, rel=1e-5)
    assert fetch < pageable < all_fetches < whole
    assert whole == pytest.approx(
        store.load_published("frame-transfer").median("gpuguide-staged", "time", rows=frames.ROWS), rel=1e-5
    )


def test_a_sort_of_integers_takes_half_the_passes() -> None:
    passes = {row["type"]: int(row["passes"]) for row in rows_of(frames.bytes_of_a_sort_key())}
    assert passes == {"float64": 128 // 8, "int64": 64 // 8}

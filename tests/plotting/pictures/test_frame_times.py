"""Drawings of where dataframes spend their time: their numbers are those of the records."""

from __future__ import annotations

import pytest
from figure_rows import rows_of

from gpuguide.measure import store
from gpuguide.plotting.pictures import frame_times as pictures


def test_a_fallback_takes_a_copy_each_way() -> None:
    back, there = (float(row["time_s"]) for row in rows_of(pictures.proxy_and_fallback()))
    record = store.load_published("dataframe")
    none, both = (record.median("cudf", "time", op="sort", rows=10**8, transfer=name) for name in ("none", "in-out"))
    assert there + back + none == pytest.approx(both, rel=1e-4)


def test_with_a_million_rows_the_proxy_wins() -> None:
    for row in rows_of(pictures.pandas_and_its_proxy()):
        if row["series"] in pictures.OPERATIONS.values():
            gained = float(row["y"])
            assert gained < 1.3 if float(row["x"]) == 10**4 else gained > 1 or float(row["x"]) == 10**5


def test_a_million_rows_on_the_host_are_next_to_what_limits_them() -> None:
    rows = rows_of(pictures.times_of_a_million_rows({name: {"link": 1e-3} for name in pictures.OPERATIONS}))
    host = {row["operation"]: float(row["time_s"]) for row in rows if row["where"] == "host, measured"}
    assert host["filter"] < 1e-3 < host["sort"]
    assert sum(row["where"] == "link" for row in rows) == len(pictures.OPERATIONS)


def test_the_parts_of_an_operation_are_the_measured_whole() -> None:
    for row in rows_of(pictures.copies_by_size()):
        parts = sum(float(row[f"{part}_s"]) for part in ("there", "work", "back"))
        operation = next(name for name, title in pictures.OPERATIONS.items() if title == row["operation"])
        assert parts == pytest.approx(pictures.seconds("cudf", operation, int(row["rows"]), "in-out"), rel=0.05)
    for operation in pictures.OPERATIONS:
        work = [each.work / each.whole for each in (pictures.shares_of(operation, 10**power) for power in (6, 7, 8))]
        assert work == sorted(work, reverse=True), "the larger the frame, the smaller the share of the work"


def test_the_import_takes_most_of_a_script() -> None:
    loading, rest, second, host = (float(row["time_s"]) for row in rows_of(pictures.start_of_a_script()))
    assert loading > 0.8 * (loading + rest)
    assert second < host < rest

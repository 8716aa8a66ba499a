"""Drawings of a machine at work: their numbers are those of the records."""

from __future__ import annotations

import pytest
from figure_rows import rows_of

from gpuguide.measure import store
from gpuguide.plotting.pictures import machine as pictures


def test_the_two_timers_read_what_was_measured() -> None:
    rows = {row["what"]: float(row["time_s"]) for row in rows_of(pictures.stream_and_queue())}
    submit, run, early, late = rows.values()
    record = store.load_published("timing-mistakes")
    assert run == pytest.approx(record.case("right", shape="square").metrics["time"].summary.median, rel=1e-5)
    assert early == pytest.approx(3 * submit, rel=1e-4)
    assert late == pytest.approx(submit + 3 * run, rel=1e-4)

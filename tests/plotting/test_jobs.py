"""Which job has which nodes: what is drawn is what was recorded."""

from __future__ import annotations

import pytest
from figure_rows import rows_of

from gpuguide.clusters import sessions
from gpuguide.plotting import jobs


def test_every_stay_on_nodes_is_drawn_and_short_waits_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")
    stays = sessions.read("backfill").stays({1: "running", 2: "large", 3: "long", 4: "short"})
    rows = rows_of(jobs.jobs_over_time(stays, "name", "An alternative text.", "A caption."))
    drawn = {(row["job"], row["nodes"], float(row["start_s"]), float(row["end_s"])) for row in rows}
    wanted = {(job, " ".join(nodes), start, end) for job, nodes, start, end in stays if nodes or end - start > 1.5}
    assert drawn == wanted
    assert {row["job"] for row in rows} == {"running", "large", "long", "short"}


def test_the_short_job_fills_the_gap() -> None:
    backfill = sessions.read("backfill")
    start = {job: backfill.seconds(job, "RUNNING") for job in (1, 2, 3, 4)}
    assert start[1] < start[4] < backfill.seconds(1, "COMPLETED") <= start[2] < start[3]

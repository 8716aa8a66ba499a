"""The choice of an engine for a query on a file, judged by the published times of queries that it has not seen."""

from __future__ import annotations

from gpuguide.benchmarks.larger_frames import queries
from gpuguide.cli import frame
from gpuguide.dataframes import cost
from gpuguide.measure import store


def test_unseen_queries_go_to_an_engine_within_a_tenth_of_the_fastest() -> None:
    machine, _ = frame.load_machine()
    (record,) = [each for each in store.load_all_published("frame-queries") if frame.ran_on(each, ("polars-gpu",))]
    verdicts = cost.unseen_queries(queries.query_times(record, machine))
    right = sum(each.right for each in verdicts.values())
    assert len(verdicts) >= 19
    assert right / len(verdicts) >= 0.9

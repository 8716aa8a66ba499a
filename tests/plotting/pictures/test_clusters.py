"""Drawings of jobs on a cluster: what they show is what launchers give."""

from __future__ import annotations

from figure_rows import rows_of

from gpuguide.clusters import storage
from gpuguide.plotting.pictures import clusters as pictures


def test_levels_name_all_ranks() -> None:
    alt = pictures.from_sbatch_to_ranks().alt
    assert f"{pictures.GPUS} to {2 * pictures.GPUS - 1}" in alt


def test_ranks_are_those_that_torchrun_gives() -> None:
    rows = rows_of(pictures.from_sbatch_to_ranks())
    assert [int(row["rank"]) for row in rows] == list(range(2 * pictures.GPUS))
    assert all(int(row["rank"]) == int(row["task"]) * pictures.GPUS + int(row["local rank"]) for row in rows)


def test_only_nodes_with_ranks_of_their_own_meet() -> None:
    ranks: dict[str, list[str]] = {}
    for row in rows_of(pictures.nodes_that_never_meet()):
        ranks.setdefault(row["backend"], []).append(row["node rank"])
    assert ranks == {"static": ["0", "0"], "c10d": ["0", "1"]}


def test_a_failure_undoes_what_came_after_the_last_complete_checkpoint() -> None:
    rows = rows_of(pictures.run_with_a_failure())
    for line, written in (("waits", "waits"), ("does not wait", "writes")):
        complete = [float(row["to"]) for row in rows if row["line"] == written and row["what"] == "save"]
        (lost,) = (row for row in rows if row["line"] == line and row["what"] == "lost")
        assert all(end <= pictures.FAILURE for end in complete)
        saved = max(complete) if line == written else max(complete) - pictures.WRITE
        assert (float(lost["from"]), float(lost["to"])) == (saved, pictures.FAILURE)
        (again,) = (row for row in rows if row["line"] == line and row["what"] == "again")
        repeated, undone = (float(row["to"]) - float(row["from"]) for row in (again, lost))
        assert abs(repeated - undone) < 1e-9


def test_stripes_lie_where_the_library_puts_them() -> None:
    rows = rows_of(pictures.stripes_of_a_file())
    parts = storage.stripes_of(0, pictures.STRIPES, stripe_size=1, stripe_count=pictures.TARGETS)
    assert [int(row["target"]) for row in rows] == [part.target for part in parts]

"""Drawings of jobs on a cluster: what they show is what launchers give."""

from __future__ import annotations

from figure_rows import rows_of

from gpuguide.clusters import script, storage
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


def test_training_waits_until_the_file_is_written_or_only_for_the_copy() -> None:
    lanes: dict[str, list[dict[str, str]]] = {}
    for row in rows_of(pictures.save_step_by_step()):
        lanes.setdefault(row["line"], []).append(row)
    assert [row["what"] for row in lanes["waits"]][1:4] == ["copy", "CRC-32", "write"]
    (wait,) = (row for row in lanes["goes on"] if row["what"] == "wait")
    assert float(wait["to"]) == max(float(row["to"]) for row in lanes["copies"])
    for copy, write in zip(lanes["copies"], lanes["threads"], strict=True):
        assert (copy["what"], copy["to"]) == (write["what"], write["from"])


def test_the_signal_takes_the_way_of_the_written_script() -> None:
    written = script.write(script.Job("train.py", nodes=2))
    said = {row["who"]: row["what"] for row in rows_of(pictures.from_signal_to_requeue())}
    assert list(said) == list(pictures.ACTORS)
    assert "scontrol requeue" in written
    assert said["job script"] == "scontrol requeue"
    assert 'touch "$STOP_FILE"' in written
    assert "USR1" in written

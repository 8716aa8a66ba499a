"""Drawings of jobs on a cluster: what they show is what launchers give."""

from __future__ import annotations

from figure_rows import rows_of

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

"""Drawings of collectives: what they show is what the functions do."""

from __future__ import annotations

import pytest
from figure_rows import rows_of

from gpuguide.collectives import reference, ring
from gpuguide.plotting.pictures import collectives as pictures


def value(part: pictures.Part) -> float:
    """Return a number for a piece of a rank, from whose sums the summands follow."""
    rank, piece = part
    ranks = range(pictures.RANKS) if rank == pictures.EVERYONE else [rank]
    return sum((piece + 1) * 100.0**each for each in ranks)


def test_tables_are_what_the_collectives_leave() -> None:
    drawn = pictures.six()
    assert drawn.keys() == reference.COLLECTIVES.keys()
    for name, (before, after) in drawn.items():
        given, found = ([[value(part) for part in row] for row in held] for held in (before, after))
        assert reference.COLLECTIVES[name](given) == found, name
    assert len(rows_of(pictures.six_collectives())) == 2 * 3 * 6


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_ring_has_the_states_that_its_steps_leave(ranks: int) -> None:
    todo = [ring.steps(rank, ranks) for rank in range(ranks)]
    held = [[1] * ranks for _ in range(ranks)]
    states = [[list(row) for row in held]]
    for number in range(2 * (ranks - 1)):
        sent = [held[rank][todo[rank][number].sends] for rank in range(ranks)]
        for rank in range(ranks):
            step = todo[rank][number]
            held[rank][step.receives] = sent[rank - 1] + (held[rank][step.receives] if step.adds else 0)
        states.append([list(row) for row in held])
    assert pictures.ring_states(ranks) == states
    assert len(rows_of(pictures.ring_in_two_phases(ranks))) == len(states) * ranks**2


def test_sums_in_buckets_start_when_gradients_are_there_and_leave_one_exposed() -> None:
    rows = rows_of(pictures.backward_with_buckets())
    for sums, exposed in (("after the backward pass", pictures.LAYERS), ("in buckets", 1)):
        computed = max(float(row["to"]) for row in rows if row["sums"] == sums and row["line"] == "GPU")
        carried = [row for row in rows if row["sums"] == sums and row["line"] == "link"]
        assert len(carried) == pictures.LAYERS
        assert max(float(row["to"]) for row in carried) == pytest.approx(computed + exposed * pictures.SUM)

"""Drawings of collectives: what they show is what the functions do."""

from __future__ import annotations

from itertools import pairwise

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


def exposed(rows: list[dict[str, str]], variant: str) -> float:
    """Return for how long the link carries gradients after the GPU has computed the last one."""
    ends = {
        line: max(float(row["to"]) for row in rows if row["variant"] == variant and row["line"] == line)
        for line in ("GPU", "link")
    }
    return ends["link"] - ends["GPU"]


def test_sums_in_buckets_start_when_gradients_are_there_and_leave_one_exposed() -> None:
    rows = rows_of(pictures.backward_with_buckets())
    after, buckets = dict.fromkeys(row["variant"] for row in rows)
    assert exposed(rows, after) == pytest.approx(pictures.LAYERS * pictures.SUM)
    assert exposed(rows, buckets) == pytest.approx(pictures.SUM)


def test_a_tied_embedding_in_two_parts_exposes_its_rows_but_not_its_matrix() -> None:
    rows = rows_of(pictures.tied_embedding())
    as_one, apart = dict.fromkeys(row["variant"] for row in rows)
    assert exposed(rows, as_one) == pytest.approx(pictures.SUM + pictures.MATRIX)
    assert exposed(rows, apart) == pytest.approx(pictures.SUM + pictures.ROWS)
    carried = [(float(row["from"]), float(row["to"])) for row in rows if row["variant"] == apart]
    link = carried[pictures.LAYERS + 1 :]
    assert all(end <= begin for (_, end), (begin, _) in pairwise(link))


def test_sequences_count_by_the_rank_or_by_their_tokens() -> None:
    rows = rows_of(pictures.unequal_tokens())
    of_means, of_all = dict.fromkeys(row["mean"] for row in rows)
    found = {mean: [float(row["weight"]) for row in rows if row["mean"] == mean] for mean in (of_means, of_all)}
    assert found == {of_means: pytest.approx([1 / 6] * 3 + [1 / 2], rel=1e-5), of_all: pytest.approx([1 / 4] * 4)}


def test_the_second_calls_of_the_ranks_do_not_match() -> None:
    rows = rows_of(pictures.mismatched_calls())
    called = [{row["collective"] for row in rows if row["call"] == str(place)} for place in (1, 2)]
    assert [len(names) for names in called] == [1, 2]

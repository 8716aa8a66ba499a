"""Drawings of a server: what they show is what the library computes."""

from __future__ import annotations

import pytest
from figure_rows import rows_of

from gpuguide.inference import PAGE, cost
from gpuguide.inference.cache import pages_for
from gpuguide.inference.pages import Pages
from gpuguide.plotting.pictures import serving as pictures


@pytest.mark.parametrize("kind", ["static", "continuous"])
def test_rows_are_given_as_the_library_gives_them(kind: str) -> None:
    wanted = (cost.static_slots if kind == "static" else cost.continuous_slots)(pictures.ANSWERS, pictures.ROWS)
    drawn = [row for row in rows_of(pictures.slots_over_time()) if row["batching"] == kind]
    assert len(drawn) == len(wanted)
    for row, slot in zip(drawn, wanted, strict=True):
        assert [int(row[name]) for name in ("row", "start", "finish", "freed")] == [
            slot.row + 1,
            slot.start,
            slot.finish,
            slot.freed,
        ]
    assert f"{cost.occupancy(wanted, pictures.ROWS):.0%}" in pictures.slots_over_time().alt
    assert wanted[pictures.FOLLOWED].start > 0, "the request that is followed waits"


def test_guesses_hold_up_to_the_first_that_differs() -> None:
    kept = [row["kept"] for row in rows_of(pictures.cycle_of_guesses())]
    assert pictures.count_accepted() == 3
    assert kept == ["yes"] * 4 + ["no"]
    assert pictures.GUESSED[:3] == pictures.WANTED[:3]


def test_pages_are_counted_as_the_library_counts_them() -> None:
    assert pictures.PAGE == PAGE
    common = list(range(pictures.COMMON))
    pages = Pages(pictures.DRAWN)
    taken = set()
    for number, (name, own) in enumerate(pictures.OWN.items()):
        prompt = [*common, *[1000 + number] * own]
        got = pages.reserve(prompt, len(prompt))
        assert got is not None
        pages.read(got, len(prompt))
        taken.update(got.pages)
        assert len(got.pages) == pages_for(len(prompt)) == len(pictures.pages_held()[name])
        assert got.shared == (pictures.COMMON if number else 0)
    assert f"take {len(taken)} pages" in pictures.shared_pages().alt

"""Drawings of attention: what they draw is what the library computes."""

from __future__ import annotations

import itertools

import pytest
import torch
from figure_rows import rows_of

from gpuguide.attention import cost
from gpuguide.plotting.pictures import attention


def test_the_last_state_of_the_online_softmax_is_the_softmax() -> None:
    last = rows_of(attention.online_softmax())[-1]
    scores, values = (torch.tensor(each).flatten() for each in (attention.SCORES, attention.VALUES))
    expected = float(torch.softmax(scores.double(), dim=0) @ values.double())
    assert float(last["output"]) / float(last["total"]) == pytest.approx(expected, rel=1e-4)
    assert float(last["maximum"]) == float(scores.max())


def test_the_tiles_are_as_large_as_their_numbers() -> None:
    sizes = {row["tile"]: int(row["size_B"]) for row in rows_of(attention.tile_traffic())}
    tile = attention.TILE * attention.HEAD_DIM * 2
    assert sizes == {"queries": tile, "keys and values": 2 * tile, "scores": attention.TILE**2 * 4, "output": tile}


def test_the_tiles_are_counted() -> None:
    rows = {row["tiles"]: int(row["count"]) for row in rows_of(attention.causal_tiles(4))}
    assert rows == {"computed": 6, "masked": 4, "skipped": 6}


def test_a_schedule_never_uses_a_unit_twice_at_a_time_and_needs_what_comes_before() -> None:
    rows = rows_of(attention.overlapped_schedule())
    for name in ("one program waits", "two groups in turn"):
        mine = [row for row in rows if row["schedule"] == name]
        spans = {
            unit: sorted((float(row["from_cycle"]), float(row["to_cycle"])) for row in mine if row["unit"] == unit)
            for unit in {row["unit"] for row in mine}
        }
        for times in spans.values():
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(times))
        made = sorted(float(row["to_cycle"]) for row in mine if row["what"] == "S")
        taken = sorted(float(row["from_cycle"]) for row in mine if row["what"] == "exp")
        assert made == taken, "exponentials begin when their scores are there"
        weighed = sorted(float(row["to_cycle"]) for row in mine if row["what"] == "exp")
        used = sorted(float(row["from_cycle"]) for row in mine if row["what"] == "PV")
        assert all(ready <= start for ready, start in zip(weighed, used, strict=False))


def test_the_drawing_knows_the_rate_of_exponentials() -> None:
    assert attention.EXPONENTIALS_PER_CLOCK == cost.EXPONENTIALS_PER_CLOCK

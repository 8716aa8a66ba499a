"""Drawings of queries beyond one GPU: what they show is what a group-by over GPUs and the executor do."""

from __future__ import annotations

from collections import Counter

import torch
from figure_rows import rows_of

from gpuguide.dataframes.kernels import plain_group_by
from gpuguide.plotting.pictures import several_gpus as pictures


def right_totals() -> tuple[pictures.Row, ...]:
    """The sum of each key over the rows of all GPUs, by the library."""
    keys, values = zip(*(row for rows in pictures.ROWS for row in rows), strict=True)
    totals = plain_group_by(torch.tensor(keys), torch.tensor(values, dtype=torch.float64), len(pictures.COLOURS))
    return tuple((key, int(value)) for key, value in enumerate(totals.sum.tolist()))


def test_both_ways_end_with_the_right_totals() -> None:
    right = right_totals()
    exchanged, grouped = pictures.shuffle()[-1].held, pictures.group_first()[-1].held
    assert sorted(total for held in exchanged for total in held) == list(right)
    assert grouped == (right,) * pictures.GPUS


def test_a_shuffle_loses_no_row_and_brings_each_to_the_owner_of_its_key() -> None:
    rows, by_owner, received, _ = (stage.held for stage in pictures.shuffle())
    for one, other in zip(rows, by_owner, strict=True):
        assert Counter(one) == Counter(other)
    assert Counter(row for held in rows for row in held) == Counter(row for held in received for row in held)
    assert all(key % pictures.GPUS == gpu for gpu, held in enumerate(received) for key, _ in held)


def test_as_many_rows_and_totals_cross_as_the_stages_say() -> None:
    _, by_owner, *_ = pictures.shuffle()
    leaving = [sum(key % pictures.GPUS != gpu for key, _ in held) for gpu, held in enumerate(by_owner.held)]
    assert leaving == [by_owner.crossing] * pictures.GPUS
    _, own, _ = pictures.group_first()
    assert own.crossing == len(pictures.COLOURS) < by_owner.crossing


def test_the_table_has_every_row_of_every_stage() -> None:
    stages = (*pictures.shuffle(), *pictures.group_first())
    expected = sum(len(held) for stage in stages for held in stage.held)
    assert len(rows_of(pictures.shuffle_or_group_first())) == expected

from __future__ import annotations

import collective_ranks as ranks
import pytest

from gpuguide.collectives import reference
from gpuguide.interconnect.processes import Team


@pytest.mark.parametrize("name", list(reference.COLLECTIVES))
def test_every_collective_does_what_pytorch_does(team: Team, name: str) -> None:
    parts = [[float(10 * rank + place) for place in range(2 * team.size)] for rank in range(team.size)]
    assert team.run(ranks.by_torch, name, parts) == reference.COLLECTIVES[name](parts)
    assert parts[0][:2] == [0.0, 1.0]


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    parts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert reference.all_gather(reference.reduce_scatter(parts)) == reference.all_reduce(parts)


@pytest.mark.parametrize("name", list(reference.COLLECTIVES))
def test_unequal_lists_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"\[2, 1\] by rank"):
        reference.COLLECTIVES[name]([[1, 2], [3]])


def test_lists_that_cannot_be_shared_are_named() -> None:
    for scatter in (reference.reduce_scatter, reference.all_to_all):
        with pytest.raises(ValueError, match="2 ranks can share equally, got 3"):
            scatter([[1, 2, 3], [4, 5, 6]])

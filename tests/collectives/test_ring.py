from __future__ import annotations

import collective_ranks as ranks
import pytest
import torch

from gpuguide.collectives import reference
from gpuguide.collectives.ring import steps
from gpuguide.errors import GpuguideError
from gpuguide.interconnect.processes import Team


@pytest.mark.parametrize("world_size", [2, 3, 4, 7, 8])
def test_steps_on_lists_leave_every_rank_the_sum(world_size: int) -> None:
    parts = [[float(10 * rank + part) for part in range(world_size)] for rank in range(world_size)]
    held = [list(part) for part in parts]
    todo = [steps(rank, world_size) for rank in range(world_size)]
    for number in range(2 * (world_size - 1)):
        sent = [held[rank][todo[rank][number].sends] for rank in range(world_size)]
        for rank in range(world_size):
            step = todo[rank][number]
            assert step.receives == todo[rank - 1][number].sends
            held[rank][step.receives] = sent[rank - 1] + (held[rank][step.receives] if step.adds else 0)
    assert held == reference.all_reduce(parts)
    assert steps(0, 1) == []


@pytest.mark.parametrize("numbers", [0, 1, 2, 5, 1000, 4099])
@pytest.mark.parametrize("rings", [1, 2, 3])
def test_the_ring_adds_up_exactly(team: Team, numbers: int, rings: int) -> None:
    assert all(team.run(ranks.ring_sum, numbers, rings, "bfloat16"))
    assert all(team.run(ranks.ring_sum, numbers, rings, "float32"))


def test_values_that_do_not_lie_together_are_refused(two: Team) -> None:
    with pytest.raises(GpuguideError, match=r"expected contiguous values"):
        two.run(ranks.scattered_ring)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_ring_adds_up_exactly_on_gpus() -> None:
    with Team(torch.cuda.device_count()) as team:
        for numbers in (1, 1000, 2**22 + 3):
            for rings in (1, 2, 4):
                assert all(team.run(ranks.ring_sum, numbers, rings, "bfloat16"))

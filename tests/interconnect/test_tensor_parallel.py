from __future__ import annotations

import pytest
import rank_functions as ranks
import torch

from gpuguide.errors import GpuguideError
from gpuguide.interconnect.processes import Team
from gpuguide.interconnect.tensor_parallel import TensorParallelMLP, part_of

CHUNKS = [1, 3, 4, 10, 99]
"""Of ten tokens: some divide them equally, and the last are more than there are tokens"""


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_layer_is_the_whole_one(world_size: int) -> None:
    with Team(world_size, device="cpu") as team:
        assert team.run(ranks.tensor_parallel, 24, CHUNKS) == [True] * world_size


def test_an_inner_width_that_does_not_divide_ends_the_team_with_the_reason() -> None:
    said = "ValueError: expected an inner width that 2 ranks can share equally, got 25; the next is 26"
    with Team(2, device="cpu") as team, pytest.raises(GpuguideError, match=said):
        team.run(ranks.tensor_parallel, 25, CHUNKS)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_parts_make_the_whole(world_size: int) -> None:
    parts = [part_of(24, rank, world_size) for rank in range(world_size)]
    assert [place for part in parts for place in range(24)[part]] == list(range(24))


def test_shapes_that_do_not_belong_together() -> None:
    with pytest.raises(ValueError, match=r"got \(4, 6\), \(4, 6\)"):
        TensorParallelMLP(torch.zeros(4, 6), torch.zeros(4, 6))
    layer = TensorParallelMLP(torch.zeros(4, 6), torch.zeros(6, 4))
    with pytest.raises(ValueError, match="one chunk or more, got 0"):
        layer.forward_overlapped(torch.zeros(2, 4), 0)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_layer_on_two_gpus() -> None:
    with Team(2) as team:
        assert team.run(ranks.tensor_parallel, 24, CHUNKS) == [True, True]

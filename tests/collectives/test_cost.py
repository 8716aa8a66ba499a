from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.collectives import cost
from gpuguide.costs import presets, transfers
from gpuguide.costs.transfers import time_to_move
from gpuguide.errors import GpuguideError
from gpuguide.interconnect import AlphaBeta


@pytest.mark.parametrize("gpus", [1, 2, 5, 8])
def test_a_ring_sends_what_the_calculator_counts(gpus: int) -> None:
    shape = presets.shape("llama-3.1-8b")
    found = cost.ring("all-reduce", 2 * shape.parameters(), gpus)
    right = transfers.gradient_all_reduce(shape, gpus)
    assert (found.moved, found.messages) == (pytest.approx(right.moved), right.messages)


@given(st.integers(2, 512), st.floats(1e9, 1e12), st.floats(1e-7, 1e-3))
def test_where_the_tree_wins_follows_from_both_times(gpus: int, bandwidth: float, latency: float) -> None:
    link = AlphaBeta(latency, 1 / bandwidth)
    size = cost.tree_wins_below(gpus, bandwidth, latency)
    around, up = (
        (lambda n: time_to_move(cost.ring("all-reduce", n, gpus), link)),
        (lambda n: time_to_move(cost.tree(n, gpus), link)),
    )
    if size:
        assert around(size) == pytest.approx(up(size))
        assert up(size / 2) < around(size / 2)
    else:
        assert all(up(n) >= around(n) * (1 - 1e-9) for n in (1, 10**6, 10**12))


def test_two_levels_send_over_the_slow_link_what_one_rank_of_a_group_has() -> None:
    slow, fast = AlphaBeta(0, 1 / 50e9), AlphaBeta(0, 0)
    assert cost.two_level_time(8e9, 8, 2, fast, slow) == pytest.approx(1e9 / 50e9)
    assert cost.two_level_time(8e9, 8, 1, slow, fast) == pytest.approx(2 * 7e9 / 50e9)


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert cost.bus_bandwidth("all-reduce", 8e9, 8, 1.0) == 14e9
    assert cost.bus_bandwidth("all-gather", 8e9, 8, 1.0) == 7e9
    assert cost.bus_bandwidth("broadcast", 8e9, 8, 1.0) == 8e9


@pytest.mark.parametrize("gpus", [0, -1, 2.0, True])
def test_numbers_that_make_no_sense_are_named(gpus: int) -> None:
    for count in (lambda: cost.ring("all-reduce", 1, gpus), lambda: cost.tree(1, gpus)):
        with pytest.raises(GpuguideError, match="number of GPUs"):
            count()
    with pytest.raises(GpuguideError, match="bytes"):
        cost.ring("all-reduce", math.nan, 2)
    with pytest.raises(GpuguideError, match="Did you mean all-reduce"):
        cost.ring("allreduce", 1, 2)

"""Drawings of the loops of tiled attention: together, the programs visit each tile that the mask leaves once."""

from __future__ import annotations

from figure_rows import rows_of

from gpuguide.attention import cost
from gpuguide.plotting.pictures import flash_loops


def test_a_program_visits_no_masked_tile() -> None:
    for loop in flash_loops.LOOPS:
        assert all(column <= row for row, column in flash_loops.visited(loop))


def test_the_matmuls_are_two_and_seven() -> None:
    forward, *backward = (int(row["matmuls"]) for row in rows_of(flash_loops.loops_over_tiles()))
    assert forward == 2
    assert sum(backward) == 7
    problem = cost.problem(batch=1, heads=1, seq_len=64, head_dim=64)
    assert cost.forward_flops(problem) == forward * 2 * 64**3

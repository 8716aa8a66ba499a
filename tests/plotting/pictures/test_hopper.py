"""Drawings of attention scheduled by hand: schedules keep the order, and memory is what the page counts."""

from __future__ import annotations

import itertools

from figure_rows import rows_of

from gpuguide.plotting.pictures import hopper


def test_no_copy_begins_before_its_stage_is_free_and_no_work_before_its_copy_ends() -> None:
    for stages in (1, 2):
        copies, work = hopper.schedule_stages(stages)
        assert all(copy[1] <= used[0] for copy, used in zip(copies, work, strict=True))
        assert all(work[tile][1] <= copies[tile + stages][0] for tile in range(hopper.TILES - stages))
        for spans in (copies, work):
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_with_two_stages_the_groups_never_wait_after_the_first_tile() -> None:
    _, work = hopper.schedule_stages(2)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(work))


def test_waiting_for_the_scores_alone_is_faster() -> None:
    rows = rows_of(hopper.overlap_in_a_group())
    ends: dict[str, float] = {}
    for row in rows:
        ends[row["schedule"]] = max(ends.get(row["schedule"], 0.0), float(row["to_cycle"]))
    both, scores = ends.values()
    assert scores < both


def test_registers_and_shared_memory_fit() -> None:
    for each in (hopper.LAUNCHED, hopper.ASKED):
        assert sum(each) * hopper.GROUP_THREADS <= hopper.REGISTERS
        assert sum(each) == sum(hopper.LAUNCHED), "setmaxnreg moves registers and adds none"
    rows = rows_of(hopper.memory_of_a_program())
    assert sum(int(row["size"]) for row in rows if "shared" in row["where"]) == 192 <= hopper.SHARED


def test_the_gluon_kernel_does_each_matmul_once() -> None:
    first, second, one = hopper.BACKWARD.values()
    assert len(first) + len(second) == 7
    assert set(one) == {*first, *second}
    assert set(hopper.NOT_ONCE) == set(first) & set(second)
